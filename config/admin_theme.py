"""How the admin looks, and where its side menu leads."""

from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _

UNFOLD = {
    "SITE_TITLE": _("Zhiku"),
    "SITE_HEADER": _("Zhiku"),
    "SITE_SUBHEADER": _("Search that says why"),
    "SITE_SYMBOL": "menu_book",
    "SITE_URL": None,
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("kb/favicon.svg")},
    ],
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
                    {"title": _("Ask"), "icon": "forum", "link": reverse_lazy("admin:ask")},
                    {
                        "title": _("Search debug"),
                        "icon": "troubleshoot",
                        "link": reverse_lazy("admin:search_debug"),
                    },
                    {
                        "title": _("Why not found?"),
                        "icon": "search_off",
                        "link": reverse_lazy("admin:why_not"),
                    },
                    {
                        "title": _("Search log"),
                        "icon": "history",
                        "link": reverse_lazy("admin:kb_searchlog_changelist"),
                    },
                    {
                        "title": _("Keyword index cache"),
                        "icon": "memory",
                        "link": reverse_lazy("admin:keyword_cache"),
                    },
                ],
            },
            {
                "title": _("Quality"),
                "separator": True,
                "items": [
                    {
                        "title": _("Failed queries"),
                        "icon": "inbox",
                        "link": reverse_lazy("admin:kb_failedquery_changelist"),
                    },
                    {
                        "title": _("Evaluation sets"),
                        "icon": "checklist",
                        "link": reverse_lazy("admin:kb_evalset_changelist"),
                    },
                    {
                        "title": _("Evaluation runs"),
                        "icon": "monitoring",
                        "link": reverse_lazy("admin:kb_evalrun_changelist"),
                    },
                    {"title": _("Compare"), "icon": "compare_arrows", "link": reverse_lazy("admin:compare")},
                    {
                        "title": _("Retrieval profiles"),
                        "icon": "tune",
                        "link": reverse_lazy("admin:kb_retrievalprofile_changelist"),
                    },
                ],
            },
            {
                "title": _("Content"),
                "separator": True,
                "items": [
                    {
                        "title": _("Knowledge bases"),
                        "icon": "library_books",
                        "link": reverse_lazy("admin:kb_knowledgebase_changelist"),
                    },
                    {
                        "title": _("Documents"),
                        "icon": "description",
                        "link": reverse_lazy("admin:kb_document_changelist"),
                    },
                    {
                        "title": _("Uploads"),
                        "icon": "upload",
                        "link": reverse_lazy("admin:kb_ingestbatch_changelist"),
                    },
                    {
                        "title": _("Web sources"),
                        "icon": "travel_explore",
                        "link": reverse_lazy("admin:kb_websource_changelist"),
                    },
                    {
                        "title": _("External sources"),
                        "icon": "cloud_sync",
                        "link": reverse_lazy("admin:kb_searchprovider_changelist"),
                    },
                    {"title": _("Chunks"), "icon": "segment", "link": reverse_lazy("admin:kb_chunk_changelist")},
                    {
                        "title": _("Concepts"),
                        "icon": "account_tree",
                        "link": reverse_lazy("admin:kb_concept_changelist"),
                    },
                    {"title": _("Entities"), "icon": "hub", "link": reverse_lazy("admin:kb_entity_changelist")},
                    {"title": _("Graph facts"), "icon": "share", "link": reverse_lazy("admin:kb_graphfact_changelist")},
                ],
            },
            {
                "title": _("Access"),
                "separator": True,
                "items": [
                    {"title": _("Invitations"), "icon": "mail", "link": reverse_lazy("admin:invitations")},
                    {"title": _("API keys"), "icon": "key", "link": reverse_lazy("admin:kb_apikey_changelist")},
                    {
                        "title": _("Audit log"),
                        "icon": "manage_history",
                        "link": reverse_lazy("admin:kb_auditentry_changelist"),
                    },
                    {
                        "title": _("Users"),
                        "icon": "group",
                        "link": reverse_lazy("admin:kb_user_changelist"),
                        "permission": lambda request: request.user.is_superuser,
                    },
                ],
            },
        ],
    },
}
