"""What works, what is degraded, what is broken, and what to do about it. Nothing here changes anything."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

from celery import current_app
from django.conf import settings
from django.core.cache import caches
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone
from django_redis.exceptions import ConnectionInterrupted
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kb.conf import tokenizer
from kb.models import Chunk, ChunkPostings, Document, KnowledgeBase, TokenizerSettings
from kb.stores.fulltext import without_lexemes
from retrieval.bm25 import require_dependencies
from retrieval.dependencies import import_dependency
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.errors import DependencyMissing
from retrieval.model_files import libraries_available, local_path

PING_SECONDS = 1
BROKER_DOWN = (OperationalError, RedisError, OSError)
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


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        detail: what was found.
        remedy: what to do about it; empty where nothing is.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "state": self.state.value, "detail": self.detail, "remedy": self.remedy}


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
        return Finding(name, State.BROKEN, f"cannot be reached: {_one_line(error)}", remedy)


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
        remedy = "start Redis, or correct REDIS_URL; documents wait until then, and are taken up within a minute after"
        return Finding(name, State.BROKEN, f"cannot be reached: {_one_line(error)}", remedy)


def redis_cache() -> Finding:
    name = "Redis (cache)"
    try:
        caches["bm25"].get("doctor")
    except (ConnectionInterrupted, RedisError) as error:
        remedy = (
            "start Redis, or correct CACHE_URL; searches stay right meanwhile, but each process builds its own indexes"
        )
        return Finding(name, State.DEGRADED, f"cannot be reached: {_one_line(error)}", remedy)
    return Finding(name, State.OK, "answers")


def workers() -> list[str]:
    """The names of the Celery workers that answer within a second; none where the broker is out of reach."""
    try:
        with _broker() as broker:
            replies = current_app.control.ping(timeout=PING_SECONDS, connection=broker) or []
    except BROKER_DOWN:
        return []
    return sorted(name for reply in replies for name in reply)


def worker() -> Finding:
    name = "Celery worker"
    alive = workers()
    if not alive:
        remedy = "`manage.py serve` runs one; alone: `celery -A config worker -B`"
        return Finding(name, State.DEGRADED, "none answers, so uploaded documents wait", remedy)
    return Finding(name, State.OK, ", ".join(alive))


def model_libraries() -> Finding:
    name = "model libraries"
    if not libraries_available():
        detail = "sentence-transformers or torch is not installed, so no embedding model can run here"
        return Finding(name, State.DEGRADED, detail, "run `pip install 'zhiku[models]'`")
    return Finding(name, State.OK, "sentence-transformers and torch are installed")


def default_model() -> Finding:
    return model_finding("EMBEDDING_MODEL", settings.EMBEDDING_MODEL, missing=State.DEGRADED)


def models_in_use() -> Finding:
    """The worst of the models that knowledge bases use, and the remedies of all that are not in order."""
    users: dict[str, list[str]] = {}
    for model, kb in KnowledgeBase.objects.order_by("embedding_model", "name").values_list("embedding_model", "name"):
        users.setdefault(model, []).append(kb)
    found = [model_finding(_names(names), model, missing=State.BROKEN) for model, names in users.items()]
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
    path = local_path(model)
    if path is None:
        return Finding(name, missing, f"{model} is not on this machine", f"run `manage.py download_model {model}`")
    if not libraries_available():
        return Finding(name, missing, f"{model} is in {path}, but cannot run", "run `pip install 'zhiku[models]'`")
    return Finding(name, State.OK, f"{model} in {path}")


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
        detail = "; ".join(f"{module} is missing, needed by {_names(used[module])}" for module in missing)
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
    return Finding(name, State.OK, detail)


def postings() -> Finding:
    """Knowledge bases whose chunks another tokenizer cut, or none did."""
    name = "keyword postings"
    used = KnowledgeBase.objects.exclude(tokenizer_id="").values_list("tokenizer_id", flat=True).distinct()
    cutters = {tokenizer_id: tokenizer(tokenizer_id) for tokenizer_id in ("", *used)}
    if None in cutters.values():
        return Finding(name, State.DEGRADED, "not looked at: packages of keyword search are missing")
    current = {cutter.id for tokenizer_id, cutter in cutters.items() if cutter and cutter.id == tokenizer_id}
    cut = ChunkPostings.objects.filter(chunk=OuterRef("pk"), tokenizer_id=OuterRef("knowledge_base__tokenizer_id"))
    uncut = Chunk.objects.filter(~Exists(cut)).values("knowledge_base_id")
    outdated = KnowledgeBase.objects.filter(Q(pk__in=uncut) | ~Q(tokenizer_id__in=("", *current))).distinct()
    names = list(outdated.order_by("name").values_list("name", flat=True))
    if names:
        remedy = "run `manage.py reindex --kb NAME --bm25` for each"
        return Finding(name, State.DEGRADED, f"outdated or incomplete in {_names(names)}", remedy)
    return Finding(name, State.OK, f"all of {_names(sorted(current))}" if current else "none yet")


def lexemes() -> Finding:
    """Knowledge bases with chunks that were tokenised before full-text search had anything to read."""
    name = "full text"
    active = ChunkPostings.objects.filter(tokenizer_id=F("knowledge_base__tokenizer_id"))
    lacking = KnowledgeBase.objects.filter(pk__in=without_lexemes(active).values("knowledge_base_id"))
    names = list(lacking.order_by("name").values_list("name", flat=True))
    if names:
        detail = f"chunks of {_names(names)} cannot be found by it"
        return Finding(name, State.DEGRADED, detail, "run `manage.py reindex --kb NAME --bm25` for each")
    return Finding(name, State.OK, "stands in where the keyword index cannot answer")


def documents() -> Finding:
    name, now = "documents", timezone.now()
    failed = Document.objects.filter(status=Document.Status.FAILED).count()
    stuck = Document.objects.filter(
        Q(status=Document.Status.PENDING, created_at__lt=now - WAITED_LONG)
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
    if not settings.DEBUG:
        return Finding(name, State.DEGRADED, detail, "set SECRET_KEY, the same for every web and worker process")
    return Finding(name, State.OK, detail)


INDEPENDENT: tuple[Callable[[], Finding], ...] = (
    redis_broker,
    redis_cache,
    worker,
    model_libraries,
    default_model,
    keyword_packages,
    packages,
    data_directory,
    secret_key,
)
ON_TABLES: tuple[Callable[[], Finding], ...] = (models_in_use, tokenizer_packages, postings, lexemes, documents)


@contextmanager
def _broker() -> Iterator[Connection]:
    """A connection to the broker of its own; Celery's would be tried again and again."""
    with current_app.connection_for_write() as broker:
        broker.ensure_connection(max_retries=1, interval_start=0, timeout=PING_SECONDS)
        yield broker


def _names(names: Iterable[str], shown: int = 5) -> str:
    names = list(names)
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + rest


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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
