"""What works, what is degraded or broken, with remedies, and whether this process is ready; no model is asked."""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from tempfile import gettempdir

import httpx
from django.conf import settings
from django.core.cache import caches
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Count, F, Min, Q
from django.utils import timezone
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from kb.access.models import KnowledgeBase
from kb.base import draining
from kb.base.db.transactions import fetch_all
from kb.base.disk import reserve
from kb.base.findings import Finding, State, broken, check, degraded, listed, ok, one_line
from kb.base.messages import joined
from kb.content.models import Document
from kb.index.mirrors.registry import StoreError, configured_stores, mirror
from kb.index.models import StoreChange, StoreState
from kb.index.vector_index import is_reading
from kb.ingest.parser import office
from kb.ingest.parser.confinement import SECCOMP_LIBRARY, readable_folders
from kb.ingest.parser.parsed import OFFICE_COMMAND, OFFICE_FORMATS, ParseError
from kb.ingest.parser.sandbox import confinement
from kb.ingest.remote_parsers.protocol import RemoteFailure
from kb.ingest.remote_parsers.registry import offered_parsers, remote_parser
from kb.jobs.leases import BROKER_DOWN, DOCUMENTS_QUEUE, LONG_QUEUE, _broker, workers
from kb.operations.services.health import indexes as health_indexes
from kb.operations.services.retention import doubted_clock
from kb.profiles.services import BALANCED, DEFAULT, KEYWORD_LED, other_start
from kb.providers import embedding_models
from kb.providers.clients import http_client
from kb.providers.endpoints import chat_endpoint, chosen_local, defaults, embedding_endpoint, rows
from kb.providers.models import TokenizerSettings
from kb.providers.recommended import Role
from kb.sources.external.services import external_sources
from kb.sources.models import Source
from retrieval.bm25 import require_dependencies
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.embedders.registry import MODEL_PREFIX
from retrieval.errors import DependencyMissing, Message as _, import_dependency, message_of
from retrieval.generation import shown_address
from retrieval.model_files import libraries_available, local_path

REACH_SECONDS = 1
BEHIND = timedelta(minutes=5)
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
GIT_PROGRAMS = {"git": "git", "ssh": "openssh-client"}  # and their packages
EXTRA_OF = {"rjieba": "rjieba", "opencc": "traditional"}
Store = KnowledgeBase.Store


def findings() -> list[Finding]:
    """Everything that can be looked at: no tables without migrations, and neither without the database."""
    found = [postgresql(), *(look() for look in INDEPENDENT)]
    if found[0].state is State.BROKEN:
        return found
    found += [pgvector(), migrations()]
    return found if found[-1].state is State.BROKEN else [*found, *(look() for look in ON_TABLES)]


@check("model libraries")
def libraries() -> Finding:
    """What models that run on this server need; an installation that has none of them lacks nothing."""
    if libraries_available():
        return ok(_("sentence-transformers and torch are installed"))
    if not (names := _local_models()):
        return ok(_("not installed, and not needed: no model runs on this server"))
    detail = _("sentence-transformers or torch is not installed, so {names} cannot run", names=listed(names))
    return degraded(detail, _("run `pip install 'zhiku[models]'`"))


def _local_models() -> list[str]:
    """Models that somebody has set up to run on this server, fetched the weights of, or has a knowledge base use."""
    found = [each for each in rows().endpoints if each.is_enabled and not each.is_served]
    serving = [each for role in (Role.EMBEDDING, Role.RERANK) for each in defaults(role) if not each.is_served]
    found += [each for each in serving if each in chosen_local() or local_path(each.model) is not None]
    spaces = KnowledgeBase.objects.order_by().values_list("embedding_model", "target_embedding_model").distinct()
    for model_id in {each for pair in spaces for each in pair} - {"", HASHING_MODEL_ID}:
        used = embedding_endpoint(model_id)
        found += [used] if used is not None and not used.is_served else []
    return sorted({each.model for each in found})


@check("EMBEDDING_MODEL")
def default_embedder() -> Finding:
    default = next((each.id for each in defaults(Role.EMBEDDING)), HASHING_MODEL_ID)
    return _embedding_model(default, missing=State.DEGRADED)


@check("models in use")
def embedders_in_use() -> Finding:
    """The worst of the models that knowledge bases use, and the remedies of all that are not in order."""
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    rows = KnowledgeBase.objects.order_by("embedding_model", "name")
    for model, target, kb in rows.values_list("embedding_model", "target_embedding_model", "name"):
        users[model, target].append(kb)
    found = [(listed(names), _model_in_use(*models)) for models, names in users.items()]
    wrong = [(names, each) for names, each in found if each.state is not State.OK]
    state = max((each.state for _names, each in wrong), key=list(State).index, default=State.OK)
    detail = [_("{names}: {detail}", names=names, detail=each.detail) for names, each in wrong or found]
    remedies = dict.fromkeys(each.remedy for _names, each in wrong)
    return Finding("", state, joined(detail or [_("no knowledge base yet")]), joined(remedies) if remedies else "")


def _model_in_use(model: str, target: str) -> Finding:
    found = _embedding_model(model, missing=State.BROKEN)
    if not target:
        return found
    remedy = _("a worker makes the vectors of {model}; the knowledge base's page says how far it is", model=target)
    detail = _("{detail}; on its way to {model}", detail=found.detail, model=target)
    return replace(found, detail=detail, remedy=found.remedy and remedy)


def _embedding_model(model: str, *, missing: State) -> Finding:
    if model == HASHING_MODEL_ID:
        return degraded(
            _("hashing, which compares words and not meaning"),
            _(
                "`manage.py download_model`, then `manage.py reindex --kb NAME --embeddings --model MODEL_ID`; "
                "`manage.py download_model --list` names smaller models"
            ),
        )
    row = rows().by_id.get(model)
    if row is not None or model.startswith(MODEL_PREFIX):
        problem = embedding_models.GONE if row is None else embedding_models.problem_of(row)
        if problem is not None:
            return Finding("", missing, problem, _("choose another model, or correct it under System, Models"))
        if row is not None and row.is_served:
            return ok(_("{model} at {address}", model=row.name, address=row.base_url))
    if not model.startswith(OPENAI_PREFIX):
        return _local_model(model, missing=missing)
    if settings.EMBEDDING_BASE_URL:
        return ok(_("{model} at {address}", model=model, address=settings.EMBEDDING_BASE_URL))
    remedy = _("set EMBEDDING_BASE_URL to one with an OpenAI-compatible API")
    return Finding("", missing, _("{model} has no server", model=model), remedy)


@check("retrieval profiles")
def starting_profiles() -> Finding:
    """What new knowledge bases start with, and those that have started with something else; neither is a fault."""
    if variables := ", ".join(settings.FUSION_VARIABLES):
        detail = _(
            "new knowledge bases start with {profile}, since the environment sets {variables}",
            profile=DEFAULT,
            variables=variables,
        )
    else:
        detail = _(
            "new knowledge bases start with {profile}, on the hashing embedder with {without_model}",
            profile=BALANCED,
            without_model=KEYWORD_LED,
        )
    rows = KnowledgeBase.objects.select_related("profile").order_by("name")
    others = [kb.name for kb in rows if other_start(kb)]
    if not others:
        return ok(detail)
    remedy = _("the page Compare shows the difference; the knowledge base's page switches")
    return ok(_("{detail}; these keep what they have: {names}", detail=detail, names=listed(others)), remedy)


@check("RERANKER_MODEL")
def cross_encoder() -> Finding:
    local = next((each for each in defaults(Role.RERANK) if not each.is_served), None)
    if local is None:
        return ok(_("none: results are ordered by the next reranker of the chain"))
    otherwise = _("set RERANKER_MODEL= to go without") if local.variable else _("choose another under System, Models")
    return _local_model(local.model, missing=State.DEGRADED, otherwise=otherwise)


@check("rerank server")
def rerank_server() -> Finding:
    server = next((each for each in defaults(Role.RERANK) if each.is_served), None)
    if server is None:
        return ok(_("none: results are ordered by the next reranker of the chain"))
    if (problem := embedding_models.problem_of(server)) is not None:
        return degraded(problem, _("correct it under System, Models"))
    address = shown_address(server.base_url)
    try:
        with http_client(server) as client:
            client.get(server.base_url, timeout=REACH_SECONDS)  # whatever it answers, it is there
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: an address such as http://[half
        remedy = _("start it or correct RERANK_BASE_URL, or leave that out to go without")
        if not server.variable:
            remedy = _("start it, or correct it under System, Models")
        return degraded(_("{address} does not answer: {reason}", address=address, reason=one_line(error)), remedy)
    return ok(_("{names} answers", names=address))


@check("chat model")
def language_model() -> Finding:
    if (chat := chat_endpoint()) is not None:
        if (problem := embedding_models.problem_of(chat)) is not None:
            return degraded(problem, _("correct it under System, Models"))
        return ok(_("{model} at {address}, which was not asked", model=chat.name, address=shown_address(chat.base_url)))
    return degraded(
        _("none, so answers are the passages themselves and questions are not rewritten"),
        _("add a chat model under System, Models, or set LLM_API_KEY"),
    )


def _local_model(model: str, *, missing: State, otherwise: str = "") -> Finding:
    if (path := local_path(model)) is None:
        detail, remedy = (
            _("{model} is not on this machine", model=model),
            _("run `{command}`", command=f"manage.py download_model {model}"),
        )
    elif not libraries_available():
        detail = _("{model} is in {folder}, but cannot run", model=model, folder=str(path))
        remedy = _("run `pip install 'zhiku[models]'`")
    else:
        return ok(_("{model} in {folder}", model=model, folder=str(path)))
    return Finding(
        "", missing, detail, _("{first}, or {second}", first=remedy, second=otherwise) if otherwise else remedy
    )


@check("parsers elsewhere")
def remote_parsers() -> Finding:
    chosen = set(KnowledgeBase.objects.exclude(parser="").values_list("parser", flat=True).distinct())
    wanted = sorted({*chosen, *offered_parsers()} - {KnowledgeBase.Parser.BUILT_IN})
    if not wanted:
        return ok(_("none is set up; the built-in reader reads all documents"))
    answers, faults = [], []
    for name in wanted:
        try:
            answers.append(remote_parser(name).ping())
        except RemoteFailure as failure:
            faults.append(f"{KnowledgeBase.Parser(name).label}: {failure.reason}")
    if faults:
        remedy = _("start the server or correct DOCLING_SERVE_URL; the built-in reader reads meanwhile, and says so")
        return degraded("; ".join(faults), remedy)
    return ok(_("{names} answers", names=", ".join(answers)))


@check("other stores")
def other_stores() -> Finding:
    """The servers of the stores that are set up or in use, and what copies have yet to take in."""
    copied = KnowledgeBase.objects.exclude(store=Store.POSTGRES)
    wanted = sorted({*copied.values_list("store", flat=True).distinct(), *configured_stores()} - {Store.POSTGRES})
    if not wanted:
        return ok(_("none is set up; PostgreSQL searches everything"))
    answers, faults = [], []
    for store in wanted:
        try:
            answers.append(mirror(store).ping())
        except StoreError as error:
            faults.append(one_line(error))
    if faults:
        remedy = _("start the servers or correct MILVUS_URI and CHROMA_URL; PostgreSQL answers meanwhile, and says so")
        return degraded("; ".join(faults), remedy)
    detail = ", ".join(answers)
    failed = StoreState.objects.filter(status=StoreState.Status.FAILED).select_related("knowledge_base")
    if names := [f"{state.knowledge_base} ({one_line(state.error)})" for state in failed]:
        remedy = _("the page Store of the knowledge base fills the copy again")
        return degraded(_("{detail}; not moved: {names}", detail=detail, names=listed(names)), remedy)
    lag = StoreChange.objects.aggregate(left=Count("pk"), oldest=Min("created_at"))
    detail = _(
        "{detail}; {bases} knowledge bases use them; {changes:,} changes wait",
        detail=detail,
        bases=copied.count(),
        changes=lag["left"],
    )
    if not lag["oldest"] or lag["oldest"] >= timezone.now() - BEHIND:
        return ok(detail)
    return degraded(
        _("{detail}, the oldest since {since}", detail=detail, since=f"{lag['oldest']:%Y-%m-%d %H:%M %Z}"),
        _("start a worker: `manage.py serve`; its log says why changes could not be applied"),
    )


@check("PostgreSQL")
def postgresql() -> Finding:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('server_version')")
            return ok(_("version {version}", version=cursor.fetchone()[0]))
    except DatabaseError as error:
        remedy = _(
            "start the server, or correct DATABASE_URL; with neither DATABASE_URL nor REDIS_URL set, one is started for you"
        )
        return broken(_("cannot be reached: {reason}", reason=one_line(error)), remedy)


@check("pgvector")
def pgvector() -> Finding:
    if rows := fetch_all("SELECT extversion FROM pg_extension WHERE extname = 'vector'"):
        return ok(_("version {version}", version=rows[0][0]))
    remedy = _("install pgvector on the server, then run `manage.py migrate`")
    return broken(_("the extension is not in this database"), remedy)


@check("migrations")
def migrations() -> Finding:
    pending = _pending_migrations()
    if pending:
        return broken(_("{count} have not been applied", count=pending), _("run `manage.py migrate`"))
    return ok(_("all applied"))


@check("Redis (broker)")
def redis_broker() -> Finding:
    try:
        with _broker():
            return ok(_("answers"))
    except BROKER_DOWN as error:
        remedy = _(
            "start Redis, or correct REDIS_URL; documents wait until then, and are processed within three minutes after"
        )
        return broken(_("cannot be reached: {reason}", reason=one_line(error)), remedy)


@check("Redis (cache)")
def redis_cache() -> Finding:
    try:
        caches["bm25"].get("doctor")
    except (ConnectionInterrupted, RedisError) as error:
        remedy = _(
            "start Redis, or correct CACHE_URL; searches stay right meanwhile, but each process builds its own indexes"
        )
        return degraded(_("cannot be reached: {reason}", reason=one_line(error)), remedy)
    return ok(_("answers"))


@check("Celery worker")
def worker() -> Finding:
    remedy = _("`manage.py serve` runs one; alone: `celery -A config worker -B`")
    return _workers(DOCUMENTS_QUEUE, degraded(_("none answers, so uploaded documents wait"), remedy))


@check("Celery worker for long work")
def long_worker() -> Finding:
    remedy = _("`manage.py serve` runs one; alone: `celery -A config worker -Q long,moves`")
    detail = _(
        "none answers, so sources, evaluation runs, downloads, indexes, new embeddings and readings for the graph wait"
    )
    return _workers(LONG_QUEUE, degraded(detail, remedy))


def _workers(queue: str, otherwise: Finding) -> Finding:
    alive = workers(queue)
    return ok(", ".join(alive)) if alive else otherwise


@check("keyword search")
def keyword_packages() -> Finding:
    try:
        require_dependencies()
    except DependencyMissing as error:
        detail = _("off, searches use vectors only: {reason}", reason=message_of(error))
        return degraded(detail, _("run `pip install rank-bm25 jieba pystemmer`"))
    return ok(_("rank-bm25, jieba and PyStemmer are installed"))


@check("tokenizer packages")
def tokenizer_packages() -> Finding:
    """The packages that only some tokenizer settings need, where a knowledge base has such settings."""
    used: dict[str, dict[int, str]] = defaultdict(dict)
    in_use = [F("knowledge_base__tokenizer_id"), F("knowledge_base__target_tokenizer_id")]
    rows = TokenizerSettings.objects.filter(tokenizer_id__in=in_use).select_related("knowledge_base")
    for row in rows.defer("dictionary", "stop_words"):
        for module, is_needed in OPTIONAL_TOKENIZER_PACKAGES.items():
            if is_needed(row):
                used[module][row.knowledge_base_id] = row.knowledge_base.name
    missing = [module for module in sorted(used) if not _can_import(module)]
    if not missing:
        return ok(_("{names} installed", names=", ".join(sorted(used))) if used else _("no knowledge base needs more"))
    return degraded(
        _(
            "{names} is missing, needed by {bases}",
            names=", ".join(missing),
            bases=listed(sorted({name for module in missing for name in used[module].values()})),
        ),
        _(
            "run {commands}; until then these are searched by vectors only",
            commands=", ".join(f"`pip install 'zhiku[{EXTRA_OF[module]}]'`" for module in missing),
        ),
    )


@check("packages")
def packages() -> Finding:
    return ok(", ".join(f"{name} {installed_version(name)}" for name in PACKAGES))


@check("data directory")
def data_directory() -> Finding:
    directory = settings.DATA_DIR
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        remedy = _("let this user write there, or set ZHIKU_DATA_DIR to a directory where it may")
        return broken(_("{folder} cannot be written to", folder=str(directory)), remedy)
    free = shutil.disk_usage(directory).free
    detail = _("{folder}, {gigabytes:,.1f} GB free", folder=str(directory), gigabytes=free / 1024**3)
    if free < LOW_DISK_BYTES:
        return degraded(detail, _("make room before the next upload"))
    media = Path(settings.MEDIA_ROOT)
    if media.exists() and media.stat().st_mode & 0o007 and all(each.stat().st_mode & 0o001 for each in media.parents):
        detail = _("other users of this machine can read the uploads in {folder}", folder=str(media))
        return degraded(detail, _("run `chmod o= {folder}`", folder=str(media)))
    return ok(detail)


@check("disk space")
def disk_space() -> Finding:
    """The disks of data, of temporary files and of the embedded PostgreSQL, each once."""
    data = settings.DATA_DIR
    folders = [data / "postgres", Path(gettempdir()), settings.FILE_UPLOAD_TEMP_DIR, data]
    disks = {folder.stat().st_dev: str(folder) for folder in folders if folder.exists()}
    usages = {folder: shutil.disk_usage(folder) for folder in disks.values()}
    detail = listed([f"{folder}: {usage.free / 1024**2:,.0f} MB" for folder, usage in usages.items()])
    full = [folder for folder, usage in usages.items() if usage.free <= reserve(usage.total)]
    if not full:
        return ok(_("free: {folders}", folders=detail))
    return broken(
        _("full, so uploads are refused and documents and sources wait; free: {folders}", folders=detail),
        _(
            "make room in {folders}: more than {megabytes:,} MB (DISK_RESERVE_MB), or a tenth of a small disk",
            folders=listed(full),
            megabytes=settings.DISK_RESERVE_BYTES // 1024**2,
        ),
    )


@check("parser sandbox")
def parser_sandbox() -> Finding:
    """What a file could reach that takes its parser over."""
    try:
        holds_calls, holds_files = confinement()
    except ParseError as error:
        remedy = _(
            "read the log: no file can be parsed; libraries outside the folders of Python and the system cannot be loaded"
        )
        return broken(_("the parser's process does not start: {reason}", reason=str(error)), remedy)
    lacks: dict[str, str] = {}
    if not holds_calls:
        lacks[_("a parser may open connections and send signals: seccomp is unavailable")] = _(
            "install libseccomp (`apt install libseccomp2`, which has {library}) on Linux", library=SECCOMP_LIBRARY
        )
    if not holds_files:
        lacks[_("a parser may read this user's files: Landlock is unavailable")] = _(
            "use Linux 5.13 or later with `landlock` in its `lsm=` list, and a container runtime that allows it"
        )
    elif any(settings.DATA_DIR.is_relative_to(folder.resolve()) for folder in readable_folders()):
        detail = _("a parser may read {folder}, which lies among installed packages", folder=str(settings.DATA_DIR))
        lacks[detail] = _("set ZHIKU_DATA_DIR to a folder of its own")
    if lacks:
        return degraded(joined(lacks), joined(lacks.values()))
    return ok(_("seccomp and Landlock: no connections, and no files but libraries"))


@check("git")
def git_programs() -> Finding:
    """What sources of the kind Git are read with."""
    missing = [program for program in GIT_PROGRAMS if shutil.which(program) is None]
    if not missing:
        return ok(_("{names} installed", names=", ".join(GIT_PROGRAMS)))
    names = [each.name for each in Source.objects.filter(kind=Source.Kind.GIT).order_by("name").only("name")]
    if not names:
        return ok(_("{names} is missing, and no source needs it", names=", ".join(missing)))
    return degraded(
        _("{names} is missing, needed by {bases}", names=", ".join(missing), bases=listed(names)),
        _(
            "run `apt install {packages}` where the worker runs",
            packages=" ".join(GIT_PROGRAMS[program] for program in missing),
        ),
    )


@check("LibreOffice")
def libre_office() -> Finding:
    """What reads old Office files, OpenDocument and RTF."""
    missing = office.missing_parts()
    unread = ", ".join(kind for kind, each in OFFICE_FORMATS.items() if each.part in missing)
    if office.program() is None:
        # It is an addition that most installations do without
        remedy = _("`{command}` where web and worker processes run", command=OFFICE_COMMAND)
        return ok(_("not installed, so {kinds} are refused", kinds=unread), remedy)
    try:
        version = office.version()
    except ParseError as error:
        remedy = _("`{command}`, and `apt-get install libseccomp2`", command=OFFICE_COMMAND)
        return degraded(_("it does not run: {reason}", reason=str(error)), remedy)
    if missing:
        detail = _(
            "{version}, without {parts}, so {kinds} are refused",
            version=version,
            parts=", ".join(missing),
            kinds=unread,
        )
        return degraded(detail, f"`{OFFICE_COMMAND}`")
    return ok(version)


@check("documents")
def documents() -> Finding:
    overdue = timezone.now() - WAITED_LONG
    failed = Document.objects.filter(status=Document.Status.FAILED).count()
    stuck = Document.objects.filter(
        Q(status=Document.Status.PENDING, waiting_since__lt=overdue) & ~Q(batch__paused=True)
        | Q(status=Document.Status.PROCESSING, lease_until__lt=overdue)
    ).count()
    detail = _(
        "{count:,} in all, {failed:,} failed, {stuck:,} stuck",
        count=Document.objects.count(),
        failed=failed,
        stuck=stuck,
    )
    remedies = [_("the admin's list of documents, filtered by status, says why each one failed")] * bool(failed)
    remedies += [_("start a worker: `manage.py serve`")] * bool(stuck)
    return degraded(detail, joined(remedies)) if remedies else ok(detail)


@check("clock")
def clock() -> Finding:
    last = doubted_clock(timezone.now())
    if last is None:
        return ok(f"{timezone.now():%Y-%m-%d %H:%M %Z}")
    return degraded(
        _("it may be wrong: before today, the installation was last used on {day}", day=f"{last:%Y-%m-%d}"),
        _("correct it; nothing past its time is deleted until a day after the next search or change"),
    )


@check("secret key")
def secret_key() -> Finding:
    if os.environ.get("SECRET_KEY"):
        return ok(_("from the environment"))
    detail = _("from {file}", file=str(settings.DATA_DIR / "secret_key"))
    if settings.LOCAL:
        return ok(detail)
    return degraded(detail, _("set SECRET_KEY, the same for every web and worker process"))


INDEPENDENT: tuple[Callable[[], Finding], ...] = (
    redis_broker,
    redis_cache,
    worker,
    long_worker,
    default_embedder,
    cross_encoder,
    rerank_server,
    language_model,
    external_sources,
    keyword_packages,
    packages,
    data_directory,
    disk_space,
    parser_sandbox,
    libre_office,
    secret_key,
)
ON_TABLES: tuple[Callable[[], Finding], ...] = (
    libraries,
    embedders_in_use,
    starting_profiles,
    tokenizer_packages,
    health_indexes.postings,
    health_indexes.keyword_memory,
    health_indexes.lexemes,
    health_indexes.vector_indexes,
    health_indexes.vector_recall,
    health_indexes.page_cache,
    other_stores,
    git_programs,
    remote_parsers,
    documents,
    clock,
)


def _can_import(module: str) -> bool:
    try:
        import_dependency(module)
    except DependencyMissing:
        return False
    return True


def installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def components() -> list[Finding]:
    """The process itself, its models, its servers: what requests need. While one is broken, none is answered.

    Details hold no address and no reason, since anybody may ask. Without the database its tables cannot be looked at.
    """
    found = [
        _component("process", is_ready=draining.since() is None, detail="draining"),
        _models(),
        _component("broker", is_ready=redis_broker().state is State.OK),
        _component("cache", is_ready=redis_cache().state is State.OK, otherwise=State.DEGRADED),
        _component("disk", is_ready=disk_space().state is State.OK, detail="full", otherwise=State.DEGRADED),
    ]
    try:
        pending = _pending_migrations()
    except DatabaseError:
        return [*found, _component("database", is_ready=False)]
    return [
        *found,
        _component("database", is_ready=True),
        _component("migrations", is_ready=not pending, detail=f"{pending} not applied"),
        _component("page_cache", is_ready=not is_reading(), detail="being read in", otherwise=State.DEGRADED),
    ]


def _component(name: str, *, is_ready: bool, detail: str = "", otherwise: State = State.BROKEN) -> Finding:
    return Finding(name, State.OK, "") if is_ready else Finding(name, otherwise, detail)


def _models() -> Finding:
    warmth = embedding_models.warmth
    if warmth.is_loading:
        return _component("models", is_ready=False, detail="loading")
    # A model may be named by its path, which is nobody's business.
    names = ", ".join(PurePath(name).name if name.startswith(("/", ".")) else name for name in warmth.failed)
    return _component("models", is_ready=not names, detail=f"not loaded: {names}", otherwise=State.DEGRADED)


def _pending_migrations() -> int:
    return len(_known_migrations() - set(MigrationRecorder(connection).applied_migrations()))


@lru_cache(maxsize=1)
def _known_migrations() -> frozenset[tuple[str, str]]:
    """Of this version of the code; those that a newer one has applied do not keep it from serving."""
    return frozenset(key for key, each in MigrationLoader(None).disk_migrations.items() if not each.replaces)
