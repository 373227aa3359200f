"""How the admin looks, and where its side menu leads."""

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _


def _item(title: Any, icon: str, page: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{page}"), **more}


UNFOLD = {
    "SITE_TITLE": _("Zhiku"),
    "SITE_HEADER": _("Zhiku"),
    "SITE_SUBHEADER": _("Search that says why"),
    "SITE_SYMBOL": "menu_book",
    "SITE_URL": None,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("kb/favicon.svg")}],
    "SHOW_LANGUAGES": True,
    "SHOW_HISTORY": True,
    "DASHBOARD_CALLBACK": "kb.dashboard.dashboard",
    "STYLES": [lambda _request: static("kb/admin.css")],
    "SIDEBAR": {
        "show_search": False,
        "show_all_applications": False,
        "navigation": [
            {
                "title": _("Search"),
                "items": [
                    _item(_("Ask"), "forum", "ask"),
                    _item(_("Search debug"), "troubleshoot", "search_debug"),
                    _item(_("Why not found?"), "search_off", "why_not"),
                    _item(_("Search log"), "history", "kb_searchlog_changelist"),
                    _item(_("Keyword index cache"), "memory", "keyword_cache"),
                ],
            },
            {
                "title": _("Quality"),
                "separator": True,
                "items": [
                    _item(_("Failed queries"), "inbox", "kb_failedquery_changelist"),
                    _item(_("Evaluation sets"), "checklist", "kb_evalset_changelist"),
                    _item(_("Evaluation runs"), "monitoring", "kb_evalrun_changelist"),
                    _item(_("Compare"), "compare_arrows", "compare"),
                    _item(_("Retrieval profiles"), "tune", "kb_retrievalprofile_changelist"),
                ],
            },
            {
                "title": _("Content"),
                "separator": True,
                "items": [
                    _item(_("Knowledge bases"), "library_books", "kb_knowledgebase_changelist"),
                    _item(_("Documents"), "description", "kb_document_changelist"),
                    _item(_("Uploads"), "upload", "kb_ingestbatch_changelist"),
                    _item(_("Sources"), "travel_explore", "kb_source_changelist"),
                    _item(_("External sources"), "cloud_sync", "kb_searchprovider_changelist"),
                    _item(_("Chunks"), "segment", "kb_chunk_changelist"),
                    _item(_("Concepts"), "account_tree", "kb_concept_changelist"),
                    _item(_("Entities"), "hub", "kb_entity_changelist"),
                    _item(_("Graph facts"), "share", "kb_graphfact_changelist"),
                ],
            },
            {
                "title": _("Access"),
                "separator": True,
                "items": [
                    _item(_("Invitations"), "mail", "invitations"),
                    _item(_("API keys"), "key", "kb_apikey_changelist"),
                    _item(_("Audit log"), "manage_history", "kb_auditentry_changelist"),
                    _item(
                        _("Users"), "group", "kb_user_changelist", permission=lambda request: request.user.is_superuser
                    ),
                ],
            },
        ],
    },
}
