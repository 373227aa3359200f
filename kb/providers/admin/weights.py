"""The weights that can run on this server: those that are here, and recommended ones to fetch."""

from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kb.base.messages import shown
from kb.providers.downloads.models import ModelDownload
from kb.providers.downloads.services import free_bytes, mirrors
from kb.providers.recommended import MANY, MODELS, RecommendedModel, Role
from retrieval.errors import DependencyMissing
from retrieval.model_files import installed_path, libraries_available

LANGUAGES = {"zh": _("Chinese"), "en": _("English"), MANY: _("100 languages")}


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's files; `known` is None for one that nobody has recommended."""

    model: str
    known: RecommendedModel | None
    is_here: bool
    download: ModelDownload | None
    error: str = ""

    @property
    def languages(self) -> list[str | Promise]:
        return [LANGUAGES[each] for each in self.known.languages] if self.known else []


def weights_context() -> dict[str, Any]:
    downloads = {row.model: row for row in ModelDownload.objects.all()}
    known = [_weights(each.model_id, each, downloads.get(each.model_id)) for each in MODELS]
    others = [
        _weights(name, None, row) for name, row in downloads.items() if name not in {each.model_id for each in MODELS}
    ]
    try:
        free_gb: float | None = free_bytes() / 1e9
    except DependencyMissing:
        free_gb = None
    return {
        "kinds": [
            (_("Embedding"), "embedding", [each for each in known if each.known and each.known.role == Role.EMBEDDING]),
            (_("Reranking"), "rerank", [each for each in known if each.known and each.known.role == Role.RERANK]),
            (_("Others"), "", others),
        ],
        "mirrors": mirrors(),
        "free_gb": free_gb,
        "can_run": libraries_available(),
        "is_busy": any(row.is_unfinished for row in downloads.values()),
    }


def _weights(name: str, known: RecommendedModel | None, download: ModelDownload | None) -> Weights:
    return Weights(name, known, installed_path(name) is not None, download, shown(download.error) if download else "")
