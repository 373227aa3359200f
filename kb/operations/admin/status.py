"""The state of the system: what searches do without and what ends that, what is out of order, queues and versions."""

import platform
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from kb.access.models import KnowledgeBase
from kb.base.findings import Finding, State
from kb.base.messages import shown
from kb.content.models import Document
from kb.operations.services.health.health import PACKAGES, findings, installed_version
from kb.operations.services.monitoring import UNREADABLE, queue_length
from kb.profiles.services import environment_config
from kb.providers import embedding_models
from kb.search.services.baseline import has_reranker
from kb.web.admin.navigation import Section, add_tab, to_superusers
from kb.web.admin.site import AdminPage, admin_page
from retrieval.embedders.hashing import HASHING_MODEL_ID

BASES_SHOWN = 5
# What the first part of the page says already; the check's own words would repeat it.
OF_BASELINE = frozenset({"EMBEDDING_MODEL", "models in use", "RERANKER_MODEL", "chat model"})
NAMES = {
    "Celery worker": gettext_lazy("Background worker"),
    "Celery worker for long work": gettext_lazy("Background worker for long work"),
    "EMBEDDING_MODEL": gettext_lazy("Default embedding model"),
    "LibreOffice": "LibreOffice",
    "RERANKER_MODEL": gettext_lazy("Reranker on this machine"),
    "Redis (broker)": gettext_lazy("Redis: task queue"),
    "Redis (cache)": gettext_lazy("Redis: cache"),
    "clock": gettext_lazy("Clock"),
    "data directory": gettext_lazy("Data folder"),
    "disk space": gettext_lazy("Disk space"),
    "documents": gettext_lazy("Documents"),
    "external sources": gettext_lazy("External sources"),
    "full text": gettext_lazy("Full-text search"),
    "keyword index memory": gettext_lazy("Memory for keyword indexes"),
    "keyword postings": gettext_lazy("Keyword index"),
    "keyword search": gettext_lazy("Packages of keyword search"),
    "chat model": gettext_lazy("Chat model"),
    "migrations": gettext_lazy("Database migrations"),
    "model libraries": gettext_lazy("Libraries for local models"),
    "models in use": gettext_lazy("Embedding models in use"),
    "other stores": gettext_lazy("Other vector stores"),
    "packages": gettext_lazy("Packages"),
    "page cache": gettext_lazy("Vectors in memory"),
    "parser sandbox": gettext_lazy("Sandbox of the parser"),
    "parsers elsewhere": gettext_lazy("Parsers elsewhere"),
    "rerank server": gettext_lazy("Rerank server"),
    "retrieval profiles": gettext_lazy("Retrieval profiles"),
    "secret key": gettext_lazy("Secret key"),
    "tokenizer packages": gettext_lazy("Packages of tokenizers"),
    "vector indexes": gettext_lazy("Vector indexes"),
    "vector recall": gettext_lazy("Recall of vector indexes"),
}
LABELS = {State.OK: "success", State.DEGRADED: "warning", State.BROKEN: "danger"}
# Where that is dealt with which a check has found.
PAGES = {
    "documents": (
        "kb_document_changelist",
        f"?status__exact={Document.Status.FAILED}",
        gettext_lazy("Failed documents"),
    ),
    "keyword postings": ("keyword_cache", "", gettext_lazy("Caches and stores")),
    "other stores": ("keyword_cache", "", gettext_lazy("Caches and stores")),
    "external sources": ("kb_searchprovider_changelist", "", gettext_lazy("External sources")),
    "retrieval profiles": ("kb_retrievalprofile_changelist", "", gettext_lazy("Retrieval profiles")),
}


class SystemPage(AdminPage):
    """For superusers only, whom the menu shows it."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not to_superusers(request):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)


@admin_page("system/status/", name="system_status")
class StatusView(SystemPage):
    template_name = "operations/status/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, title=_("Status"), lines=list(_baseline_lines()))


@admin_page("system/status/checks/", name="system_status_checks")
class ChecksView(SystemPage):
    """What the page fetches after it is shown, since checks wait for servers: up to some seconds each."""

    template_name = "operations/status/checks.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        found = findings()
        wrong = [
            each
            for each in found
            if each.state is State.BROKEN or (each.state is State.DEGRADED and each.name not in OF_BASELINE)
        ]
        fine = [each for each in found if each.state is State.OK and each.name != "packages"]
        has_database = not any(each.name == "PostgreSQL" for each in wrong)
        return {
            **kwargs,
            "wrong": [_row(each) for each in sorted(wrong, key=lambda each: each.state is State.DEGRADED)],
            "fine": [_row(each) for each in fine],
            "queues": list(_queues()) if has_database else [],
            "versions": [("Zhiku", installed_version("zhiku")), ("Python", platform.python_version())]
            + [(name, installed_version(name)) for name in PACKAGES],
        }


def _baseline_lines() -> Iterator[dict[str, Any]]:
    """What searches do without by how the server and its knowledge bases are set up, with what ends it."""
    by_words = list(KnowledgeBase.objects.filter(embedding_model=HASHING_MODEL_ID).order_by("name").only("pk", "name"))
    if by_words:
        heading = ngettext(
            "%(count)d knowledge base is searched by words only",
            "%(count)d knowledge bases are searched by words only",
            len(by_words),
        )
        yield {
            "code": "hashing_embedder",
            "heading": heading % {"count": len(by_words)},
            "text": _(
                "They have no embedding model: a question that is worded differently from the text is not found. Open one to "
                "choose its model."
            ),
            "bases": by_words[:BASES_SHOWN],
            "more": max(0, len(by_words) - BASES_SHOWN),
            "action": _("Add an embedding model"),
            "remedy": _("Run `manage.py download_model` on the server."),
        }
    if not has_reranker(environment_config()):
        yield {
            "code": "reranker_unavailable",
            "heading": _("No reranker"),
            "text": _(
                "Results are in the order of shared words and vectors; a reranker reads question and passage together."
            ),
            "action": _("Add a reranker"),
            "remedy": _("Run `manage.py download_model BAAI/bge-reranker-base` on the server."),
        }
    if embedding_models.generator() is None:
        yield {
            "code": "llm_not_configured",
            "heading": _("No chat model"),
            "text": _("Ask shows the passages as they are, and no question is rewritten."),
            "action": _("Add a chat model"),
            "remedy": _("Add one under System, Models."),
        }


def _row(finding: Finding) -> dict[str, Any]:
    page = PAGES.get(finding.name)
    return {
        "code": finding.name,
        "name": NAMES.get(finding.name, finding.name),
        "label": LABELS[finding.state],
        "state": {State.OK: _("in order"), State.DEGRADED: _("degraded"), State.BROKEN: _("broken")}[finding.state],
        "detail": shown(finding.detail),
        "remedy": shown(finding.remedy),
        "url": f"{reverse(f'admin:{page[0]}')}{page[1]}" if page and finding.state is not State.OK else "",
        "action": page[2] if page else "",
    }


def _queues() -> Iterator[tuple[str, str]]:
    try:
        yield _("Tasks in the queue"), f"{queue_length():,}"
    except UNREADABLE:
        yield _("Tasks in the queue"), _("unknown: Redis does not answer")
    counts = Document.objects.filter(status__in=Document.UNFINISHED)
    yield _("Documents waiting"), f"{counts.filter(status=Document.Status.PENDING).count():,}"
    yield _("Documents being processed"), f"{counts.filter(status=Document.Status.PROCESSING).count():,}"


add_tab(Section.SYSTEM, gettext_lazy("Status"), "system_status", order=1)
