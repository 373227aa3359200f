SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run stop test coverage bench upgrade docs check audit format messages constraints clean

VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
FROM ?= 15ec7be
RUN_EXTRAS := embedded,models
DEV_EXTRAS := embedded,models,ocr,vertex,milvus,chroma,s3,otel,test,check,docs
INSTALLED_RUN := $(VENV)/.installed-run
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALL := $(BIN)/python .ci/install.py
# Evaluation sets beside the checkout, unless told otherwise.
export ZHIKU_EVAL_DATA ?= $(abspath $(wildcard ../shared/data))

help:  ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: $(INSTALLED_RUN)  ## the web server and a worker; PORT=8000
	@if [ "$$(uname -s)" != Linux ] && [ -z "$${DATABASE_URL:-}" ] && ! command -v redis-server >/dev/null; then \
		echo "Not on Linux: install PostgreSQL with pgvector and Redis, then set DATABASE_URL and REDIS_URL" \
			"(or only install redis-server: PostgreSQL comes as a wheel for macOS)." >&2; exit 1; fi
	@exec $(BIN)/python manage.py serve --port $(PORT)

stop:  ## the embedded PostgreSQL and Redis
	@[ -x $(BIN)/python ] || { echo "Nothing to stop: there is no $(VENV) yet."; exit 0; }; $(BIN)/python manage.py stop

# Modules that are compiled once, not by each process that a test starts. On two cores the third worker has them busy while
# others wait for the processes that they test.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(INSTALLED_DEV)  ## all tests
	@command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null \
		|| echo "***** NO CHROMIUM: the tests in tests/browser do not run. Install chromium to run them. *****" >&2
	@$(PYTEST) $(COVERAGE) || { echo "make test failed: the failures are listed above; .venv/bin/pytest PATH runs one file." >&2; exit 1; }

coverage: COVERAGE := --cov --cov-report=term
coverage: test  ## all tests, and what of the code they reach; takes half as long again

bench: $(INSTALLED_DEV)  ## how fast searches are beside rank_bm25, bm25s and LangChain; takes half an hour
	@$(BIN)/python -m tests.benchmarks.keyword $(BENCH)
	@$(BIN)/python -m tests.benchmarks.store
	@$(BIN)/python -m tests.benchmarks.hot_queries
	@$(BIN)/python -m tests.benchmarks.hub
	@$(BIN)/python -m tests.benchmarks.hybrid
	@$(BIN)/python -m tests.benchmarks.ingest
	@$(BIN)/python -m tests.benchmarks.access
	@$(BIN)/python -m tests.benchmarks.throughput
	@$(BIN)/python -m tests.benchmarks.streams
	@$(BIN)/python -m tests.benchmarks.vectors
	@$(BIN)/python -m tests.benchmarks.index_build
	@$(BIN)/python -m tests.benchmarks.first_search

upgrade: $(INSTALLED_DEV)  ## tries an upgrade with data from an earlier version; FROM=commit or tag
	@$(BIN)/python -m tests.upgrade --from $(FROM)

docs: $(INSTALLED_DEV)  ## the documentation as a site in build/site, in both languages; warnings are errors
	@$(BIN)/python -m tests.docs.site

check: $(INSTALLED_DEV)  ## format, lint, types, import contracts, templates, dead links, reference, migrations, static files, deployment settings
	@with_own_servers() { \
		local status=0; export ZHIKU_DATA_DIR=$(CURDIR)/.data/check; "$$@" 2>&1 || status=$$?; \
		$(BIN)/python manage.py stop >/dev/null; unset ZHIKU_DATA_DIR; return $$status; }; \
	step() { echo "== $$1"; shift; "$$@" || { echo "make check failed at: $$* (make format fixes the layout)" >&2; exit 1; }; }; \
	step "format" $(BIN)/ruff format --check .; \
	step "lint" $(BIN)/ruff check .; \
	step "types" $(BIN)/mypy; \
	step "import contracts" $(BIN)/lint-imports; \
	step "templates" $(BIN)/djlint --lint --quiet templates; \
	step "dead links" $(BIN)/python -m tests.docs.links; \
	step "reference" with_own_servers $(BIN)/python -m tests.reference --check; \
	step "migrations" with_own_servers $(BIN)/python manage.py makemigrations --check --dry-run; \
	export DATABASE_URL=postgres://zhiku@db/zhiku REDIS_URL=redis://redis/0 ALLOWED_HOSTS=zhiku.example; \
	export SECRET_KEY=$$($(BIN)/python -c 'import secrets; print(secrets.token_urlsafe(64))'); \
	export STATIC_ROOT=$(CURDIR)/.data/check/static; \
	step "static files" $(BIN)/python manage.py collectstatic --no-input --verbosity 0; \
	step "deployment" $(BIN)/python manage.py check --deploy --fail-level WARNING

audit: $(INSTALLED_DEV)  ## known vulnerabilities of the pinned packages; 75: the advisories are out of reach
	@.ci/audit $(BIN)/python constraints.txt

format: $(INSTALLED_DEV)  ## fixes layout and what the linter can fix
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

messages: $(INSTALLED_DEV)  ## collects and compiles the translations
	@command -v msgfmt >/dev/null || { echo "gettext is missing: apt-get install gettext, or brew install gettext." >&2; exit 1; }
	@mkdir -p kb/locale
	@$(BIN)/python manage.py makemessages --locale zh_Hans --no-wrap --no-obsolete --add-location file \
		--ignore $(VENV) --ignore build --ignore tests
	@$(BIN)/python manage.py compilemessages --ignore $(VENV)

constraints: $(INSTALLED_DEV)  ## pins what is installed now
	@{ echo "# Made by: make constraints"; $(BIN)/python -m pip freeze --exclude-editable --exclude zhiku \
		| sed -E 's/^(torch==[^+]*)\+.*/\1/' | LC_ALL=C sort -f; } > constraints.new
	@mv constraints.new constraints.txt && touch $(INSTALLED_DEV) $(INSTALLED_RUN) && echo "Wrote constraints.txt."

clean:  ## removes the virtual environment and caches, not the data in .data
	@if [ -x $(BIN)/python ]; then $(BIN)/python manage.py stop || true; fi
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov staticfiles *.egg-info

$(BIN)/python:
	@for candidate in $${PYTHON:-python3 python3.12 python3.11}; do \
		if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	[ -n "$${found:-}" ] || { echo "Zhiku needs Python 3.11 or 3.12: install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }; \
	$$found -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$$found cannot make virtual environments: install its venv module (apt-get install python3-venv)." >&2; exit 1; }; \
	echo "Making $(VENV) with $$($$found --version)."; $$found -m venv $(VENV)

$(INSTALLED_RUN): pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) $(RUN_EXTRAS) \
		|| { echo "The installation failed: the reason is above. make clean starts over." >&2; exit 1; }
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) $(DEV_EXTRAS) \
		|| { echo "The installation failed: the reason is above. make clean starts over." >&2; exit 1; }
	@touch $@ $(INSTALLED_RUN)
