"""Settings, all from the environment. Importing this module starts nothing and opens no connection."""

import contextlib
import os
import secrets
from datetime import timedelta
from pathlib import Path

from django.urls import reverse_lazy
from kombu import Queue

from config.admin_theme import UNFOLD  # noqa: F401 - the theme reads it here
from config.environment import NamingEnv, broker_url, cache_url, checked_colour, file_storage
from config.installation import BASE_DIR, IS_CHECKOUT, data_dir, is_debugged, is_embedded, is_local
from kb.base.probe import INTERVAL_SECONDS
from kb.base.telemetry.logs import chosen_form, logging_config
from retrieval import config as retrieval_config

env = NamingEnv()


def _optional_int(name: str, unit: int = 1) -> int | None:
    value: str = env.str(name, default="")
    return int(value) * unit if value else None


DATA_DIR = data_dir()
EMBEDDED = is_embedded()
LOCAL = is_local()
DEBUG = is_debugged()
DEFAULT_EXCEPTION_REPORTER = "config.debug_pages.Reporter"
DEFAULT_EXCEPTION_REPORTER_FILTER = "config.debug_pages.SecretsFilter"


def _secret_key() -> str:
    """The key of this installation: from the environment, else made once and kept in the data directory."""
    key: str = env.str("SECRET_KEY", default="")
    if key:
        return key
    path = DATA_DIR / "secret_key"
    if not path.exists():
        DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(64))
        with contextlib.suppress(FileExistsError):  # a link appears whole, or another process was first
            path.hardlink_to(draft)
        draft.unlink()
    return path.read_text()


SECRET_KEY = _secret_key()
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])  # former ones, which still open what they closed
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",  # the default one would put a site of its own in the place of ours
    "unfold.contrib.filters",
    "kb.apps.ZhikuAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "axes",
    "csp",
    "pgtrigger",
    "rest_framework",
    "rest_framework_api_key",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "kb.apps.KnowledgeBaseConfig",
]
MIDDLEWARE = [
    "kb.base.telemetry.requests.RequestLog",
    "django.middleware.security.SecurityMiddleware",
    "config.security.SecurityHeaders",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "kb.web.api.callers.BodyLimit",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "kb.web.admin.menu.badges_follow_changes",
    "kb.web.admin.site.ErrorPages",
    "kb.web.api.callers.AttributionMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates" if IS_CHECKOUT else BASE_DIR / "kb" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "libraries": {"hub": "kb.content.hub", "zhiku": "kb.web.admin.tags"},
        },
    }
]

# -- PostgreSQL ----------------------------------------------------------------------------------------------------
DATABASES = {"default": env.db_url("DATABASE_URL", default="postgres:///zhiku")}
DATABASES["default"] |= {
    "ENGINE": "config.database",
    "CONN_MAX_AGE": 0,
    "OPTIONS": {
        **DATABASES["default"].get("OPTIONS", {}),
        "pool": {
            "min_size": 0,
            "max_size": env.int("DB_POOL_MAX_SIZE", default=env.int("WEB_THREADS", default=8) + 20),
            "timeout": 10,
        },
        # An HNSW index is asked for this many vectors at least, and on for as many as a search wants. To go on takes it
        # as long as a search, so this must be above the 120 that one reads (twice VECTOR_TOP_K).
        "options": (
            f"-c statement_timeout={env.int('DB_STATEMENT_TIMEOUT_MS', default=0)}"
            f" -c lock_timeout={env.int('DB_LOCK_TIMEOUT_MS', default=0)}"
            " -c hnsw.ef_search=128 -c hnsw.iterative_scan=strict_order -c ivfflat.iterative_scan=relaxed_order"
        ),
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# -- Redis: the broker in database 0, the BM25 cache in database 1 ---------------------------------------------------
REDIS_URL = env.str("REDIS_URL", default="redis://127.0.0.1:6379/0")
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "bm25": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": env.str("CACHE_URL", default=cache_url(REDIS_URL)),
        "TIMEOUT": env.int("BM25_CACHE_TTL_SECONDS", default=86_400),
        "OPTIONS": {
            "CLIENT_CLASS": "kb.base.cache.RawBytesClient",
            # Searches wait for it; a keyword index of many megabytes needs more than a response.
            "SOCKET_CONNECT_TIMEOUT": 0.25,
            "SOCKET_TIMEOUT": 1,
        },
    },
}
CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default=broker_url(REDIS_URL))
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3_600, "socket_connect_timeout": 1, "socket_timeout": 30}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0.1}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_TIME_LIMIT = 3_000
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULER = "config.celery:BeatingScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = INTERVAL_SECONDS
# After which a worker that ends gives back the document that it is at, rather than finish it.
WORKER_GRACE_SECONDS = env.float("WORKER_GRACE_SECONDS", default=10.0)
# From SIGTERM on, until what a web process is at is broken off; see config/gunicorn.py.
WEB_END_SECONDS = env.float("DRAIN_SECONDS", default=0.0) + env.float("WEB_GRACE_SECONDS", default=30.0)
CELERY_TIMEZONE = "UTC"
# A worker without -Q takes the first two in turn, so that sweeps and previews do not wait behind uploads; work that takes
# minutes has a process of its own, with -Q long,moves: rows that wait in turn by owner, and changes that go on in slices.
CELERY_TASK_QUEUES = [Queue("celery"), Queue("documents")]
CELERY_TASK_ROUTES = {
    f"kb.tasks.{task}": {"queue": queue}
    for queue, tasks in {
        "documents": ("ingest_document", "ingest_documents"),
        "long": ("read_web_source", "run_evaluation", "fetch_model", "extract_graph"),
        "moves": (
            "tokenize_knowledge_base",
            "reembed_knowledge_base",
            "migrate_store",
            "sweep_vector_indexes",
            "describe_document_pictures",
            "fetch_demo_models",
        ),
    }.items()
    for task in tasks
}
_SWEEP = {"options": {"expires": 30}}  # one that waited until the next is due is not run
CELERY_BEAT_SCHEDULE = {
    "sweep-lost-documents": {"task": "kb.tasks.sweep_lost_documents", "schedule": 30.0, **_SWEEP},
    "sweep-keyword-indexes": {"task": "kb.tasks.sweep_keyword_indexes", "schedule": 30.0, **_SWEEP},
    "sweep-vector-indexes": {"task": "kb.tasks.sweep_vector_indexes", "schedule": 300.0, "options": {"expires": 300}},
    "sweep-lost-reembeddings": {"task": "kb.tasks.sweep_lost_reembeddings", "schedule": 30.0, **_SWEEP},
    "sweep-stores": {"task": "kb.tasks.sweep_stores", "schedule": 5.0, "options": {"expires": 5}},
    "check-stores": {"task": "kb.tasks.check_stores", "schedule": 3_600.0, "options": {"expires": 3_600}},
    "sweep-lost-runs": {"task": "kb.tasks.sweep_lost_runs", "schedule": 30.0, **_SWEEP},
    "sweep-graph-extractions": {"task": "kb.tasks.sweep_graph_extractions", "schedule": 30.0, **_SWEEP},
    "sweep-undescribed-pictures": {
        "task": "kb.tasks.sweep_undescribed_pictures",
        "schedule": 300.0,
        "options": {"expires": 300},
    },
    "sweep-sources": {"task": "kb.tasks.sweep_due_web_sources", "schedule": 30.0, **_SWEEP},
    "sweep-model-downloads": {"task": "kb.tasks.sweep_model_downloads", "schedule": 30.0, **_SWEEP},
    "purge-search-log": {"task": "kb.tasks.purge_search_log", "schedule": 3_600.0, "options": {"expires": 3_600}},
}

# -- Users, sessions, security ---------------------------------------------------------------------------------------
AUTH_USER_MODEL = "kb.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = reverse_lazy("admin:login")
LOGIN_REDIRECT_URL = reverse_lazy("admin:index")
PASSWORD_LOGIN = env.bool("PASSWORD_LOGIN", default=True)
# Without the backend of passwords nobody gets in by one, and sessions that one has begun end.
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    *(["django.contrib.auth.backends.ModelBackend"] if PASSWORD_LOGIN else []),
    "kb.signin.backends.SignInBackend",
]
# Failed logins are counted in the database, so that all processes see them: those of one name from one address.
# Attempts are limited before a password is looked at (API_RATE_LIMITS), which takes a processor a good part of a second.
LOGIN_ATTEMPTS = env.int("LOGIN_ATTEMPTS", default=5)
LOGIN_LOCK_MINUTES = env.int("LOGIN_LOCK_MINUTES", default=15)
AXES_ENABLED = LOGIN_ATTEMPTS > 0
AXES_FAILURE_LIMIT = LOGIN_ATTEMPTS
AXES_COOLOFF_TIME = timedelta(minutes=LOGIN_LOCK_MINUTES)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_CLIENT_IP_CALLABLE = "kb.base.net.client_address.client_network"
AXES_LOCKOUT_CALLABLE = "kb.web.admin.site.locked_out"
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # who keeps trying must not keep the owner out for ever
AXES_DISABLE_ACCESS_LOG = True  # of logins that succeeded, which would grow for ever
AXES_ENABLE_ADMIN = False  # a superuser unlocks an account where the accounts are
AXES_VERBOSE = False
# Signing in with OpenID Connect, see kb/signin. Of django-allauth the protocol and the accounts at the provider are used, none
# of its pages, which have no address here.
OIDC_ISSUER = env.str("OIDC_ISSUER", default="")  # empty: none
OIDC_CLIENT_ID = env.str("OIDC_CLIENT_ID", default="")
OIDC_CLIENT_SECRET = env.str("OIDC_CLIENT_SECRET", default="")
OIDC_NAME = env.str("OIDC_NAME", default="")  # on the button; empty: the issuer's host
OIDC_SCOPES = env.str("OIDC_SCOPES", default="openid profile email")
OIDC_GROUPS_CLAIM = env.str("OIDC_GROUPS_CLAIM", default="groups")  # or a path such as realm_access.roles
OIDC_ALLOWED_GROUPS = env.list(
    "OIDC_ALLOWED_GROUPS", default=[]
)  # who may sign in; empty: everybody whom the provider lets in
OIDC_STAFF_GROUPS = env.list("OIDC_STAFF_GROUPS", default=[])  # who may use the admin; empty: all who may sign in
OIDC_ADMIN_GROUPS = env.list(
    "OIDC_ADMIN_GROUPS", default=[]
)  # who is a superuser; empty: the provider makes nobody one
OIDC_LINK_EMAIL = env.bool(
    "OIDC_LINK_EMAIL", default=False
)  # whether a verified e-mail address opens the account that has it
OIDC_SESSION_HOURS = env.float("OIDC_SESSION_HOURS", default=12.0)  # after which the provider is asked again
ACCOUNT_ADAPTER = "kb.signin.adapters.AccountAdapter"
SOCIALACCOUNT_ADAPTER = "kb.signin.adapters.ProviderAdapter"
ACCOUNT_EMAIL_VERIFICATION = SOCIALACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_RATE_LIMITS = False  # ours hold before it
SECURE_SSL_REDIRECT = env.bool("SECURE_SSL_REDIRECT", default=not LOCAL)
# Load balancers and scrapers inside the network ask without TLS.
SECURE_REDIRECT_EXEMPT = [r"^api/v1/(health|ready)/$", r"^(api/v1/)?metrics/?$"]
SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=0 if LOCAL else 31_536_000)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = not LOCAL
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.bool("SECURE_COOKIES", default=not LOCAL)
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_AGE = env.int("SESSION_HOURS", default=168) * 3_600
if env.bool("BEHIND_TLS_PROXY", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# -- Languages: Chinese first, English equal; the browser's wish decides ----------------------------------------------
LANGUAGE_CODE = env.str("LANGUAGE_CODE", default="zh-hans")
LANGUAGES = [("zh-hans", "简体中文"), ("en", "English")]
LOCALE_PATHS = [BASE_DIR / "kb" / "locale"]
TIME_ZONE = env.str("TIME_ZONE", default="Asia/Shanghai")
FORMAT_MODULE_PATH = "kb.formats"

# -- How chats look ---------------------------------------------------------------------------------------------------
SITE_NAME = env.str("SITE_NAME", default="")  # blank: Zhiku, in the reader's language
SITE_COLOR = checked_colour(env.str("SITE_COLOR", default="#7c3aed"))
SITE_LOGO = env.str("SITE_LOGO", default="")  # the path of a picture: SVG, PNG or WebP

# -- Files -------------------------------------------------------------------------------------------------------------
STATIC_URL = "static/"
# A local installation serves them from where they are, so that its first start collects nothing.
STATIC_ROOT = (
    None
    if LOCAL
    else Path(env.str("STATIC_ROOT", default=str((BASE_DIR if IS_CHECKOUT else DATA_DIR) / "staticfiles")))
)
WHITENOISE_USE_FINDERS = LOCAL
WHITENOISE_AUTOREFRESH = False
WHITENOISE_MAX_AGE = 0 if LOCAL else 60  # the names of a local one hold no hash
MEDIA_ROOT = DATA_DIR / "media"
STORAGES = {
    "default": file_storage(env),
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if LOCAL
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
MAX_UPLOAD_BYTES = env.int("MAX_UPLOAD_MB", default=50) * 1024 * 1024
MAX_ARCHIVE_BYTES = env.int("MAX_ARCHIVE_MB", default=2_048) * 1024 * 1024  # of a whole knowledge base
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1024 * 1024
ANONYMOUS_BODY_BYTES = 64 * 1024  # of a request without a session or an API key
FILE_UPLOAD_TEMP_DIR = DATA_DIR / "tmp"  # made by kb.apps
# Nothing is taken in where less is free, or less than a tenth of a small disk: PostgreSQL, sessions and logs go on.
DISK_RESERVE_BYTES = env.int("DISK_RESERVE_MB", default=100) * 1024 * 1024
FILE_UPLOAD_HANDLERS = [
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "kb.base.files.UnnamedFileUploadHandler",
]
PREVIEWS_MAX_BYTES = env.int("PREVIEWS_MAX_MB", default=2_048) * 1024 * 1024  # of drawn pages that are kept
PARSE_MEMORY_BYTES = env.int("PARSE_MEMORY_MB", default=1_024) * 1024 * 1024
PARSE_SECONDS = env.int("PARSE_SECONDS", default=120)
DOCLING_SERVE_URL = env.str("DOCLING_SERVE_URL", default="")  # empty: none
DOCLING_SERVE_API_KEY = env.str("DOCLING_SERVE_API_KEY", default="")
DOCLING_SERVE_SECONDS = env.float("DOCLING_SERVE_SECONDS", default=600.0)  # for one document
MAX_ZIP_BYTES = env.int("MAX_ZIP_MB", default=500) * 1024 * 1024  # of a ZIP of documents
# After which a document whose worker is gone is retried by another worker; one that lives renews it three times within.
INGEST_LEASE_SECONDS = env.int("INGEST_LEASE_SECONDS", default=60)

# -- Pages of the web: see kb/base/net ---------------------------------------------------------------------------------
# Names with or without a port, addresses and networks that may be read although they are not public.
WEB_ALLOWED_HOSTS = env.list("WEB_ALLOWED_HOSTS", default=[])
WEB_USER_AGENT = env.str("WEB_USER_AGENT", default="Zhiku/0.1 (knowledge base reader)")
WEB_DELAY_SECONDS = env.float("WEB_DELAY_SECONDS", default=1.0)  # between two requests to one host
WEB_SECONDS = env.float("WEB_SECONDS", default=30.0)  # for one request with its answer
WEB_MAX_BYTES = env.int("WEB_MAX_MB", default=10) * 1024 * 1024
# After which a page that is gone loses its document.
WEB_DELETE_AFTER_HOURS = env.float("WEB_DELETE_AFTER_HOURS", default=24.0)
# What one run of a Git source may bring to the disk of DATA_DIR for its time, and how long git may take for a fetch.
GIT_MAX_BYTES = env.int("GIT_MAX_MB", default=1_024) * 1024 * 1024
GIT_SECONDS = env.float("GIT_SECONDS", default=600.0)

# Every so many runs, all files of a source are compared by their content, whatever versions the place gives; 0: never.
SOURCE_FULL_CHECK_RUNS = env.int("SOURCE_FULL_CHECK_RUNS", default=50)

# -- Files of this server that sources may read: none unless their folder is below one of these ---------------------------
SOURCE_FOLDERS = env.list("SOURCE_FOLDERS", default=[])

# -- Search services elsewhere: queries leave this server, so none may be asked unless its kind is named here ------------
EXTERNAL_PROVIDERS = env.list("EXTERNAL_PROVIDERS", default=[])  # such as vertex_ai_search
VERTEX_ENDPOINTS = env.list("VERTEX_ENDPOINTS", default=[])  # that curators may name besides Google's own
VERTEX_PROJECTS = env.list("VERTEX_PROJECTS", default=[])  # they may name: PROJECT, PROJECT/STORE, PROJECT/STORE@OWNER

# -- Models ------------------------------------------------------------------------------------------------------------
EMBEDDING_MODEL = env.str("EMBEDDING_MODEL", default="BAAI/bge-large-zh-v1.5")
# Which others curators and the API may name, such as BAAI/* or openai:text-embedding-3-small; empty: the installed ones.
EMBEDDING_MODELS_ALLOWED = env.list("EMBEDDING_MODELS_ALLOWED", default=[])
EMBEDDING_BASE_URL = env.str("EMBEDDING_BASE_URL", default="")
EMBEDDING_API_KEY = env.str("EMBEDDING_API_KEY", default="")
HF_ENDPOINT = env.str("HF_ENDPOINT", default="")
FIRST_MODELS = env.bool("ZHIKU_FIRST_MODELS", default=True)  # whether the first start fetches small ones for the demos
RERANKER_MODEL = env.str("RERANKER_MODEL", default="BAAI/bge-reranker-base")  # empty: no cross-encoder
MODELS_CHOSEN = tuple(name for name in ("EMBEDDING_MODEL", "RERANKER_MODEL") if env.str(name, default=""))
RERANK_BASE_URL = env.str("RERANK_BASE_URL", default="")  # of a server with /rerank; empty: none
RERANK_API_KEY = env.str("RERANK_API_KEY", default="")
RERANK_MODEL = env.str("RERANK_MODEL", default="")
RERANK_FORM = env.str("RERANK_FORM", default="jina")
LLM_BASE_URL_IS_SET = bool(env.str("LLM_BASE_URL", default=""))  # a server of one's own may need no key
LLM_BASE_URL = env.str("LLM_BASE_URL", default="") or "https://api.deepseek.com"
LLM_MODEL = env.str("LLM_MODEL", default="") or "deepseek-chat"
LLM_API_KEY = env.str("LLM_API_KEY", default="")
VISION_MODEL = env.str("VISION_MODEL", default="")  # of the same server, which describes pictures; empty: none
LLM_SECONDS = env.float("LLM_SECONDS", default=60.0)
LLM_REWRITE_SECONDS = env.float("LLM_REWRITE_SECONDS", default=5.0)
GRAPH_LLM_CONCURRENCY = env.int("GRAPH_LLM_CONCURRENCY", default=4)  # passages that are read for the graph at a time
GRAPH_LLM_MAX_CHUNKS = env.int("GRAPH_LLM_MAX_CHUNKS", default=500)  # of one document; those beyond are reported

# -- Retrieval: the defaults that a knowledge base's profile overrides ---------------------------------------------------
RETRIEVAL = {name: env.setting(declared) for name, declared in retrieval_config.SETTINGS.items() if declared.env}
# Those of their variables that decide on the fusion, where the environment sets them: new knowledge bases start with the
# profile that inherits them.
FUSION_VARIABLES = tuple(
    declared.env
    for declared in retrieval_config.SETTINGS.values()
    if declared.env.startswith(("HYBRID_", "RRF_")) and declared.env in env.ENVIRON
)
LATENCY_BUDGET_MS = env.int("LATENCY_BUDGET_MS", default=10_000)
BM25_MEMORY_BYTES = env.int("BM25_MEMORY_MB", default=512) * 1024 * 1024
BM25_REDIS_MAX_BYTES = env.int("BM25_REDIS_MAX_MB", default=64) * 1024 * 1024
CACHE_ENABLED = env.bool("CACHE_ENABLED", default=True)  # of whole responses ("hot queries")
CACHE_TTL_SECONDS = env.int("CACHE_TTL_SECONDS", default=3_600)
HOT_QUERY_MEMORY_BYTES = env.int("HOT_QUERY_MEMORY_MB", default=64) * 1024 * 1024
QUERY_VECTOR_MEMORY_BYTES = env.int("QUERY_VECTOR_MEMORY_MB", default=32) * 1024 * 1024
QUERY_VECTOR_TTL_SECONDS = env.int("QUERY_VECTOR_TTL_SECONDS", default=86_400)
VECTOR_INDEX_METHOD = env.str("VECTOR_INDEX_METHOD", default="hnsw")  # or ivfflat
VECTOR_RECALL_TARGET = env.float("VECTOR_RECALL_TARGET", default=0.98)  # of the nearest 25, which an index is to find
MILVUS_URI = env.str("MILVUS_URI", default="")  # empty: none
MILVUS_TOKEN = env.str("MILVUS_TOKEN", default="")
CHROMA_URL = env.str("CHROMA_URL", default="")  # empty: none
CHROMA_TOKEN = env.str("CHROMA_TOKEN", default="")
STORE_SECONDS = env.float("STORE_SECONDS", default=5.0)  # for one call of either
# gRPC, by which Milvus and Vertex AI are asked, has fork handlers that crash one program in a few hundred that a process starts
# (grpc/grpc#43055). No client of ours outlives a fork, so nothing needs them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
VECTOR_INDEX_MIN_ROWS = env.int("VECTOR_INDEX_MIN_ROWS", default=20_000)  # fewer vectors are compared one by one
# What building one index may take; empty: half of the memory that is free here where PostgreSQL is embedded, else 1,024 MB.
INDEX_BUILD_MEMORY_BYTES = _optional_int("INDEX_BUILD_MEMORY_MB", 1024**2)
# Beside the process that builds; empty: as the server is set.
INDEX_BUILD_WORKERS = _optional_int("INDEX_BUILD_WORKERS")
# Read into memory after a start; 0: nothing; empty: half of the memory that is free here where PostgreSQL is embedded,
# else half of its effective_cache_size.
WARM_UP_BYTES = _optional_int("WARM_UP_MB", 1024**2)
EVAL_DATA = Path(env.str("ZHIKU_EVAL_DATA", default=str(BASE_DIR / "tests" / "data" / "demo_eval")))

SEARCH_LOG_QUERIES = env.bool("SEARCH_LOG_QUERIES", default=True)  # False: no words of queries in the search log
AUDIT_RETENTION_DAYS = env.int("AUDIT_RETENTION_DAYS", default=730)  # 0: changes are kept for ever
SEARCH_LOG_RETENTION_DAYS = env.int("SEARCH_LOG_RETENTION_DAYS", default=90)  # 0: searches are kept for ever
MODEL_USE_RETENTION_DAYS = env.int("MODEL_USE_RETENTION_DAYS", default=400)  # 0: the use of models is kept for ever
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")  # empty: /metrics is for this machine only

# -- API -----------------------------------------------------------------------------------------------------------------
API_RATE_LIMITS = {  # requests of a user, with any key; empty: no limit
    "general": env.str("API_RATE_LIMIT", default=""),
    "ask": env.str("API_ASK_RATE_LIMIT", default=""),  # what asks a chat model
    "upload": env.str("API_UPLOAD_RATE_LIMIT", default=""),
    "failures": env.str("API_FAILURE_RATE_LIMIT", default="300/minute"),  # of one address, without a valid key
    "login": env.str("LOGIN_RATE_LIMIT", default="30/minute"),  # attempts from one address, with any names
    # Attempts with one name from browsers in which nobody has logged in with it yet, from all addresses together.
    "login_name": env.str("LOGIN_NAME_RATE_LIMIT", default="10/minute"),
    # Requests to chats from one address, of visitors who are not signed in, and their questions.
    "visitor": env.str("VISITOR_RATE_LIMIT", default=env.str("API_RATE_LIMIT", default="") or "120/minute"),
    "visitor_ask": env.str("VISITOR_ASK_RATE_LIMIT", default=env.str("API_ASK_RATE_LIMIT", default="") or "20/minute"),
}
CHAT_ADDRESS_STREAMS = env.int(
    "CHAT_ADDRESS_STREAMS", default=20
)  # answers sent at once to such visitors of one address
# Proxies in front of the web server, of which each adds an address to X-Forwarded-For; 0: that header is not believed.
TRUSTED_PROXIES = env.int("TRUSTED_PROXIES", default=int(env.bool("BEHIND_TLS_PROXY", default=False)))
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "kb.web.api.callers.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["kb.web.api.callers.PrincipalPermission"],
    "DEFAULT_THROTTLE_CLASSES": ["kb.web.api.callers.CallerThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "kb.web.api.errors.exception_handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Zhiku API",
    "DESCRIPTION": "Knowledge bases, documents, chunks and explained hybrid search.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "DISABLE_DOCSTRING_DESCRIPTIONS": True,  # docstrings are for readers of the code
    "COMPONENT_SPLIT_REQUEST": True,
    "ENFORCE_NON_BLANK_FIELDS": True,
    # Two fields are named role; which one would keep the plain name depends on the language.
    "ENUM_NAME_OVERRIDES": {
        "MemberRoleEnum": "kb.access.models.Membership.Role",
        "SpeakerEnum": "kb.search.models.Speaker",
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "PREPROCESSING_HOOKS": ["kb.web.api.schema.of_this_api"],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "kb.web.api.schema.any_value_may_be_null",
        "kb.web.api.schema.add_examples",
    ],
}

LOG_FORMAT = chosen_form(local=LOCAL)
LOGGING = logging_config(form=LOG_FORMAT, level=env.str("LOG_LEVEL", default="INFO"))
