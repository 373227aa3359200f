# syntax=docker/dockerfile:1

# One image for every process of Zhiku: web, MCP, workers, beat, and the job that migrates.
#   docker build --build-arg EXTRAS=models,ocr,s3 --tag zhiku .
ARG PYTHON_VERSION=3.12
ARG DEBIAN=trixie

FROM python:${PYTHON_VERSION}-slim-${DEBIAN} AS build
# Of pyproject.toml. Without `models` no local model runs: an embedding server or the hashing embedder serves then.
ARG EXTRAS=models,rjieba,traditional,s3,otel
# PyTorch for CPUs; for a GPU https://download.pytorch.org/whl/cu128, or empty for that of PyPI.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gettext \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/zhiku
ENV PATH=/opt/zhiku/bin:$PATH
WORKDIR /app
# The dependencies in a layer of their own, which a change of the code leaves as it is: the packages come from /app.
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
# What no process uses goes: tests, the headers and test programs of PyTorch, pip. The rest is compiled now, since the
# root is read-only later; a file for another version of Python, which some package has, is none of ours.
RUN pip install --no-compile --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[${EXTRAS}]" \
    && rm -rf build ./*.egg-info \
    && cd /opt/zhiku/lib/python*/site-packages \
    && rm -rf torch/test torch/include torch/bin/*[Tt]est* torch/bin/protoc* \
    && find . -depth -type d -name tests -exec rm -rf {} + \
    && pip uninstall --yes --quiet pip \
    && { python -m compileall -qq -j 0 . || true; }
COPY manage.py ./
COPY config config
COPY retrieval retrieval
COPY kb kb
COPY templates templates
# The values are for these two commands only, which reach no server and sign nothing.
RUN export SECRET_KEY=of-no-use-after-the-build DATABASE_URL=postgres://nobody@nowhere/none \
        REDIS_URL=redis://nowhere/0 ZHIKU_DATA_DIR=/tmp/build \
    && python manage.py compilemessages --ignore build \
    && python manage.py collectstatic --no-input --verbosity 0 \
    && python -m compileall -q config kb retrieval

FROM python:${PYTHON_VERSION}-slim-${DEBIAN}
# 1: with LibreOffice, which reads DOC, XLS, PPT, ODT, ODS, ODP and RTF.
ARG LIBREOFFICE=0
LABEL org.opencontainers.image.title="Zhiku" org.opencontainers.image.licenses="Apache-2.0"
# pg_dump, pg_restore and psql, for `manage.py backup` and `restore`; at least as new as the server's. Git and ssh read
# sources of the kind Git. The official image has its standard library uncompiled, and would compile it for every process
# and every health check.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git openssh-client postgresql-client \
        $([ "$LIBREOFFICE" = 1 ] && echo libreoffice-writer-nogui libreoffice-calc-nogui libreoffice-impress-nogui) \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 zhiku \
    && useradd --system --uid 10001 --gid zhiku --no-create-home --home-dir /data --shell /usr/sbin/nologin zhiku \
    && install --directory --owner zhiku --group zhiku --mode 750 /data /models /metrics \
    && python -m compileall -q -j 0 -x '/(test|tests|idle_test|site-packages|dist-packages)/' \
        "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/zhiku /opt/zhiku
COPY --from=build /app /app
ENV PATH=/opt/zhiku/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    ZHIKU_LOCAL=false ZHIKU_DATA_DIR=/data HF_HOME=/models HEARTBEAT_DIR=/tmp/heartbeats
WORKDIR /app
USER zhiku
VOLUME ["/data", "/models"]
EXPOSE 8000 8001
STOPSIGNAL SIGTERM
# Of the web process; compose.yaml names that of the others.
HEALTHCHECK --interval=15s --timeout=10s --start-period=180s --retries=3 CMD ["python", "-m", "kb.base.probe", "web"]
CMD ["gunicorn", "--config", "python:config.gunicorn", "--bind", "0.0.0.0:8000"]
