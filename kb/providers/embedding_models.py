"""Which embedding models a curator or a caller of the API may name: those that the operator has allowed or installed."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from django.conf import settings
from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.embedders.registry import normalize_model_id
from retrieval.model_files import installed_path, libraries_available, local_path

RECOMMENDED: Final = {"zh": "BAAI/bge-large-zh-v1.5", "en": "BAAI/bge-large-en-v1.5"}
"""By a knowledge base's language, where the operator has named no other."""


def recommended_embedding_model(language: str) -> str:
    """What to download for a knowledge base that has no model yet: the operator's own choice, else one of its language."""
    configured: str = settings.EMBEDDING_MODEL
    by_language = RECOMMENDED.get(language, configured)
    is_own_choice = configured not in {HASHING_MODEL_ID, *RECOMMENDED.values()}
    return configured if is_own_choice or not _is_allowed(by_language) else by_language


def default_embedding_model() -> str:
    """The configured model where its weights are at hand, else the hashing embedder, chosen knowingly."""
    configured: str = settings.EMBEDDING_MODEL
    if configured == HASHING_MODEL_ID or configured.startswith(OPENAI_PREFIX) or local_path(configured) is not None:
        return configured
    return HASHING_MODEL_ID


def offered_embedding_models(used: Iterable[str] = ()) -> list[str]:
    """What a form suggests: the default, those that are `used` already, those that the operator names, and hashing."""
    named = [each for each in settings.EMBEDDING_MODELS_ALLOWED if "*" not in each]
    offered = dict.fromkeys([default_embedding_model(), *used, *named, HASHING_MODEL_ID])
    return [model for model in offered if _is_allowed(model)]


def require_embedding_model(model_id: str) -> str:
    """The one spelling of a model that a caller over the network may choose, and that can run here.

    EMBEDDING_MODEL and hashing always may be. Beyond them EMBEDDING_MODELS_ALLOWED says which; where it is empty, those
    that are installed under an id and those of EMBEDDING_BASE_URL. A path is taken from these settings only, and nothing
    is downloaded.

    Raises:
        Rejected: it may not be chosen, or cannot run here; the message says who can do what.
    """
    if model_id.strip() == settings.EMBEDDING_MODEL:
        name = model_id.strip()
    elif _is_path(model_id) and model_id.strip() not in settings.EMBEDDING_MODELS_ALLOWED:
        message = _(
            "Name an embedding model by its id: paths stand in EMBEDDING_MODEL and EMBEDDING_MODELS_ALLOWED only."
        )
        raise Rejected("unknown_model", message)
    else:
        name = _normalized(model_id)
    if not _is_allowed(name):
        message = _(
            "“%(model)s” is not among the models that may be used here: choose a suggested one, or let whoever runs the "
            "server add it to EMBEDDING_MODELS_ALLOWED."
        )
        raise Rejected("unknown_model", message % {"model": name})
    if problem := _problem(name):
        raise Rejected("unknown_model", problem % {"model": name})
    return name


def _is_allowed(name: str) -> bool:
    if name in {HASHING_MODEL_ID, settings.EMBEDDING_MODEL}:
        return True
    patterns: list[str] = settings.EMBEDDING_MODELS_ALLOWED
    return not patterns or any(fnmatchcase(name, each) or name == _normalized(each) for each in patterns)


def _problem(name: str) -> str:
    """Why an allowed model cannot run here, and the remedy; blank: it can."""
    if name == HASHING_MODEL_ID:
        return ""
    if name.startswith(OPENAI_PREFIX):
        if settings.EMBEDDING_BASE_URL:
            return ""
        return _("Models behind an OpenAI-compatible server need its address: set EMBEDDING_BASE_URL and restart.")
    if not libraries_available():
        return _(
            "Local models need packages that are not installed: run “pip install 'zhiku[models]'”, or use hashing."
        )
    named_by_operator = name == settings.EMBEDDING_MODEL or _is_path(name)
    if (local_path(name) if named_by_operator else installed_path(name)) is None:
        return _(
            "The weights of “%(model)s” are not on this server: run “manage.py download_model %(model)s” there and save "
            "again, or use one of the suggested models."
        )
    return ""


def _is_path(model_id: str) -> bool:
    return model_id.strip().startswith(("/", ".", "~")) or ".." in model_id


def _normalized(model_id: str) -> str:
    try:
        return normalize_model_id(model_id)
    except ValueError as error:
        raise Rejected("unknown_model", str(error)) from error
