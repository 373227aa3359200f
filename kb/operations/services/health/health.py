"""What works, what is degraded, what is broken, and what to do about it. Nothing here changes anything.

Whether the models that the environment and the knowledge bases name are at hand; none is asked anything.

Whether the stores beside PostgreSQL can be reached, and hold what they should.
"""

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx
from django.conf import settings
from django.core.cache import caches
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, Min, Q
from django.utils import timezone
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from kb.access.models import KnowledgeBase
from kb.base.findings import Finding, State, listed, one_line
from kb.content.models import Document
from kb.index.mirrors.protocol import StoreError
from kb.index.mirrors.registry import configured_stores, mirror
from kb.index.models import StoreChange, StoreState
from kb.ingest.parser.confinement import SECCOMP_LIBRARY, readable_folders
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import confinement
from kb.jobs.leases import BROKER_DOWN, _broker, workers
from kb.operations.services.health import indexes as health_indexes
from kb.providers import embedding_models as providers
from kb.providers.models import TokenizerSettings
from kb.sources.external.services import external_sources
from retrieval.bm25 import require_dependencies
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.errors import DependencyMissing, import_dependency
from retrieval.model_files import libraries_available, local_path

REACH_SECONDS = 1


def libraries() -> Finding:
    name = "model libraries"
    if not libraries_available():
        detail = "sentence-transformers or torch is not installed, so no model can run here"
        return Finding(name, State.DEGRADED, detail, "run `pip install 'zhiku[models]'`")
    return Finding(name, State.OK, "sentence-transformers and torch are installed")


def default_embedder() -> Finding:
    return model_finding("EMBEDDING_MODEL", settings.EMBEDDING_MODEL, missing=State.DEGRADED)


def embedders_in_use() -> Finding:
    """The worst of the models that knowledge bases use, and the remedies of all that are not in order."""
    users: dict[str, list[str]] = {}
    for model, kb in KnowledgeBase.objects.order_by("embedding_model", "name").values_list("embedding_model", "name"):
        users.setdefault(model, []).append(kb)
    found = [model_finding(listed(names), model, missing=State.BROKEN) for model, names in users.items()]
    wrong = [finding for finding in found if finding.state is not State.OK]
    state = max((finding.state for finding in wrong), key=list(State).index, default=State.OK)
    detail = "; ".join(f"{finding.name}: {finding.detail}" for finding in wrong or found) or "no knowledge base yet"
    return Finding("models in use", state, detail, "; ".join(dict.fromkeys(finding.remedy for finding in wrong)))


def model_finding(name: str, model: str, *, missing: State) -> Finding:
    """Whether an embedding model is at hand; `missing` is the state where it is not."""
    if model == HASHING_MODEL_ID:
        detail = "hashing, which compares words and not meaning"
        remedy = "`manage.py download_model`, then `manage.py reindex --kb NAME --embeddings --model MODEL_ID`"
        return Finding(name, State.DEGRADED, detail, remedy)
    if model.startswith(OPENAI_PREFIX):
        if settings.EMBEDDING_BASE_URL:
            return Finding(name, State.OK, f"{model} at {settings.EMBEDDING_BASE_URL}")
        return Finding(
            name, missing, f"{model} has no server", "set EMBEDDING_BASE_URL to one with an OpenAI-compatible API"
        )
    return _local_model(name, model, missing=missing)


def cross_encoder() -> Finding:
    """The reranker that is to run here."""
    name, model = "RERANKER_MODEL", settings.RERANKER_MODEL
    if not model:
        return Finding(name, State.OK, "none: results are ordered by the next reranker of the chain")
    return _local_model(name, model, missing=State.DEGRADED, otherwise=", or set RERANKER_MODEL= to go without")


def rerank_server() -> Finding:
    name, address = "rerank server", settings.RERANK_BASE_URL
    if not address:
        return Finding(name, State.OK, "none: results are ordered by the next reranker of the chain")
    try:
        httpx.get(address, timeout=REACH_SECONDS)  # whatever it answers, it is there
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        remedy = "start it or correct RERANK_BASE_URL, or leave that out to go without"
        return Finding(name, State.DEGRADED, f"{address} does not answer: {one_line(error)}", remedy)
    return Finding(name, State.OK, f"{address} answers")


def language_model() -> Finding:
    name = "language model"
    if providers.generator() is None:
        detail = "none, so answers are the passages themselves and questions are not rewritten"
        remedy = "set LLM_API_KEY, or LLM_BASE_URL where a server of your own needs no key"
        return Finding(name, State.DEGRADED, detail, remedy)
    return Finding(name, State.OK, f"{settings.LLM_MODEL} at {settings.LLM_BASE_URL}, which was not asked")


def _local_model(name: str, model: str, *, missing: State, otherwise: str = "") -> Finding:
    path = local_path(model)
    if path is None:
        remedy = f"run `manage.py download_model {model}`{otherwise}"
        return Finding(name, missing, f"{model} is not on this machine", remedy)
    if not libraries_available():
        remedy = f"run `pip install 'zhiku[models]'`{otherwise}"
        return Finding(name, missing, f"{model} is in {path}, but cannot run", remedy)
    return Finding(name, State.OK, f"{model} in {path}")


NAME = "other stores"
BEHIND = timedelta(minutes=5)
Store = KnowledgeBase.Store


def other_stores() -> Finding:
    """The servers of the stores that are set up or in use, and what copies have yet to take in."""
    used = set(KnowledgeBase.objects.exclude(store=Store.POSTGRES).values_list("store", flat=True).distinct())
    wanted = sorted(used.union(configured_stores()) - {Store.POSTGRES})
    if not wanted:
        return Finding(NAME, State.OK, "none is set up; PostgreSQL searches everything")
    answers, faults = [], []
    for store in wanted:
        try:
            answers.append(mirror(store).ping())
        except StoreError as error:
            faults.append(one_line(error))
    if faults:
        remedy = "start the servers or correct MILVUS_URI and CHROMA_URL; PostgreSQL answers meanwhile, and says so"
        return Finding(NAME, State.DEGRADED, "; ".join(faults), remedy)
    return _copies(", ".join(answers))


def _copies(answers: str) -> Finding:
    failed = StoreState.objects.filter(status=StoreState.Status.FAILED).select_related("knowledge_base")
    if names := [f"{state.knowledge_base} ({one_line(state.error)})" for state in failed]:
        remedy = "`manage.py migrate_store --kb NAME --to STORE` fills the copy anew"
        return Finding(NAME, State.DEGRADED, f"{answers}; not moved: {listed(names)}", remedy)
    lag = StoreChange.objects.aggregate(left=Count("pk"), oldest=Min("created_at"))
    detail = f"{answers}; {KnowledgeBase.objects.exclude(store=Store.POSTGRES).count()} knowledge bases use them"
    if lag["oldest"] and lag["oldest"] < timezone.now() - BEHIND:
        detail = f"{detail}; {lag['left']:,} changes wait, the oldest since {lag['oldest']:%Y-%m-%d %H:%M %Z}"
        remedy = "start a worker: `manage.py serve`; its log says why changes could not be applied"
        return Finding(NAME, State.DEGRADED, detail, remedy)
    return Finding(NAME, State.OK, f"{detail}; {lag['left']:,} changes wait")


WAITED_LONG = timedelta(minutes=10)
LOW_DISK_BYTES = 1024**3
PACKAGES = (
    "django",
    "psycopg",
    "pgvector",
    "redis",
    "celery",
    "numpy",
    "rank-bm25",
    "jieba",
    "sentence-transformers",
    "torch",
)
OPTIONAL_TOKENIZER_PACKAGES: dict[str, Callable[[TokenizerSettings], bool]] = {
    "rjieba": lambda settings: settings.engine == TokenizerSettings.Engine.RJIEBA,
    "opencc": lambda settings: settings.simplify,
}
EXTRA_OF = {"rjieba": "rjieba", "opencc": "traditional"}


def findings() -> list[Finding]:
    """Everything that can be looked at: no tables without migrations, and neither without the database."""
    found = [postgresql(), *(check() for check in INDEPENDENT)]
    if found[0].state is State.BROKEN:
        return found
    found += [pgvector(), migrations()]
    if found[-1].state is State.BROKEN:
        return found
    return [*found, *(check() for check in ON_TABLES)]


def postgresql() -> Finding:
    name = "PostgreSQL"
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('server_version')")
            return Finding(name, State.OK, f"version {cursor.fetchone()[0]}")
    except DatabaseError as error:
        remedy = "start the server, or correct DATABASE_URL; with neither DATABASE_URL nor REDIS_URL set, one is started for you"
        return Finding(name, State.BROKEN, f"cannot be reached: {one_line(error)}", remedy)


def pgvector() -> Finding:
    name = "pgvector"
    with connection.cursor() as cursor:
        cursor.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        row = cursor.fetchone()
    if row is None:
        return Finding(
            name,
            State.BROKEN,
            "the extension is not in this database",
            "install pgvector on the server, then run `manage.py migrate`",
        )
    return Finding(name, State.OK, f"version {row[0]}")


def migrations() -> Finding:
    name = "migrations"
    executor = MigrationExecutor(connection)
    pending = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    if pending:
        return Finding(name, State.BROKEN, f"{pending} have not been applied", "run `manage.py migrate`")
    return Finding(name, State.OK, "all applied")


def redis_broker() -> Finding:
    name = "Redis (broker)"
    try:
        with _broker():
            return Finding(name, State.OK, "answers")
    except BROKER_DOWN as error:
        remedy = (
            "start Redis, or correct REDIS_URL; documents wait until then, and are taken up within three minutes after"
        )
        return Finding(name, State.BROKEN, f"cannot be reached: {one_line(error)}", remedy)


def redis_cache() -> Finding:
    name = "Redis (cache)"
    try:
        caches["bm25"].get("doctor")
    except (ConnectionInterrupted, RedisError) as error:
        remedy = (
            "start Redis, or correct CACHE_URL; searches stay right meanwhile, but each process builds its own indexes"
        )
        return Finding(name, State.DEGRADED, f"cannot be reached: {one_line(error)}", remedy)
    return Finding(name, State.OK, "answers")


def worker() -> Finding:
    name = "Celery worker"
    alive = workers()
    if not alive:
        remedy = "`manage.py serve` runs one; alone: `celery -A config worker -B`"
        return Finding(name, State.DEGRADED, "none answers, so uploaded documents wait", remedy)
    return Finding(name, State.OK, ", ".join(alive))


def keyword_packages() -> Finding:
    name = "keyword search"
    try:
        require_dependencies()
    except DependencyMissing as error:
        return Finding(
            name,
            State.DEGRADED,
            f"off, searches use vectors only: {error}",
            "run `pip install rank-bm25 jieba pystemmer`",
        )
    return Finding(name, State.OK, "rank-bm25, jieba and PyStemmer are installed")


def tokenizer_packages() -> Finding:
    """The packages that only some tokenizer settings need, where a knowledge base has such settings."""
    name = "tokenizer packages"
    used: dict[str, list[str]] = {}
    rows = TokenizerSettings.objects.defer("dictionary", "stop_words")
    settings_of = {(row.knowledge_base_id, row.tokenizer_id): row for row in rows}
    for kb in KnowledgeBase.objects.order_by("name"):
        ids = [(kb.pk, kb.tokenizer_id), (kb.pk, kb.target_tokenizer_id)]
        chosen = [settings_of[each] for each in ids if each in settings_of]
        for module, is_needed in OPTIONAL_TOKENIZER_PACKAGES.items():
            if any(map(is_needed, chosen)):
                used.setdefault(module, []).append(kb.name)
    missing = [module for module in used if not _can_import(module)]
    if missing:
        detail = "; ".join(f"{module} is missing, needed by {listed(used[module])}" for module in missing)
        remedy = "run " + ", ".join(f"`pip install 'zhiku[{EXTRA_OF[module]}]'`" for module in missing)
        return Finding(name, State.DEGRADED, detail, f"{remedy}; until then these are searched by vectors only")
    return Finding(name, State.OK, f"{', '.join(used)} installed" if used else "no knowledge base needs more")


def packages() -> Finding:
    return Finding("packages", State.OK, ", ".join(f"{name} {_version(name)}" for name in PACKAGES))


def data_directory() -> Finding:
    name, directory = "data directory", settings.DATA_DIR
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        remedy = "let this user write there, or set ZHIKU_DATA_DIR to a directory where it may"
        return Finding(name, State.BROKEN, f"{directory} cannot be written to", remedy)
    free = shutil.disk_usage(directory).free
    detail = f"{directory}, {free / 1024**3:,.1f} GB free"
    if free < LOW_DISK_BYTES:
        return Finding(name, State.DEGRADED, detail, "make room before the next upload")
    media = Path(settings.MEDIA_ROOT)
    if media.exists() and media.stat().st_mode & 0o007 and all(each.stat().st_mode & 0o001 for each in media.parents):
        remedy = f"run `chmod o= {media}`"
        return Finding(name, State.DEGRADED, f"other users of this machine can read the uploads in {media}", remedy)
    return Finding(name, State.OK, detail)


def parser_sandbox() -> Finding:
    """What a file could reach that takes its parser over."""
    name = "parser sandbox"
    try:
        held = confinement()
    except ParseError as error:
        remedy = "read the log: no file can be parsed; libraries outside the folders of Python and the system cannot be loaded"
        return Finding(name, State.BROKEN, f"the parser's process does not start: {error}", remedy)
    details, remedies = [], []
    if not held.calls:
        details.append("a parser may open connections and send signals: seccomp is unavailable")
        remedies.append(f"install libseccomp (`apt install libseccomp2`, which has {SECCOMP_LIBRARY}) on Linux")
    if not held.files:
        details.append("a parser may read this user's files: Landlock is unavailable")
        remedies.append(
            "use Linux 5.13 or later with `landlock` in its `lsm=` list, and a container runtime that allows it"
        )
    if held.files and any(settings.DATA_DIR.is_relative_to(folder.resolve()) for folder in readable_folders()):
        details.append(f"a parser may read {settings.DATA_DIR}, which lies among installed packages")
        remedies.append("set ZHIKU_DATA_DIR to a folder of its own")
    if details:
        return Finding(name, State.DEGRADED, "; ".join(details), "; ".join(remedies))
    return Finding(name, State.OK, "seccomp and Landlock: no connections, and no files but libraries")


def documents() -> Finding:
    name, now = "documents", timezone.now()
    failed = Document.objects.filter(status=Document.Status.FAILED).count()
    stuck = Document.objects.filter(
        Q(status=Document.Status.PENDING, waiting_since__lt=now - WAITED_LONG) & ~Q(batch__paused=True)
        | Q(status=Document.Status.PROCESSING, lease_until__lt=now - WAITED_LONG)
    ).count()
    detail = f"{Document.objects.count():,} in all, {failed:,} failed, {stuck:,} stuck"
    remedies = []
    if failed:
        remedies.append("the admin's list of documents, filtered by status, says why each one failed")
    if stuck:
        remedies.append("start a worker: `manage.py serve`")
    return Finding(name, State.DEGRADED if remedies else State.OK, detail, "; ".join(remedies))


def secret_key() -> Finding:
    name = "secret key"
    if os.environ.get("SECRET_KEY"):
        return Finding(name, State.OK, "from the environment")
    detail = f"from {settings.DATA_DIR / 'secret_key'}"
    if not settings.LOCAL:
        return Finding(name, State.DEGRADED, detail, "set SECRET_KEY, the same for every web and worker process")
    return Finding(name, State.OK, detail)


INDEPENDENT: tuple[Callable[[], Finding], ...] = (
    redis_broker,
    redis_cache,
    worker,
    libraries,
    default_embedder,
    cross_encoder,
    rerank_server,
    language_model,
    external_sources,
    keyword_packages,
    packages,
    data_directory,
    parser_sandbox,
    secret_key,
)
ON_TABLES: tuple[Callable[[], Finding], ...] = (
    embedders_in_use,
    tokenizer_packages,
    health_indexes.postings,
    health_indexes.keyword_memory,
    health_indexes.lexemes,
    health_indexes.vector_indexes,
    health_indexes.vector_recall,
    health_indexes.page_cache,
    other_stores,
    documents,
)


def _can_import(module: str) -> bool:
    try:
        import_dependency(module)
    except DependencyMissing:
        return False
    return True


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
