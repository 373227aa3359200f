"""How the admin looks."""

from django.templatetags.static import static
from django.utils.translation import gettext_lazy as _

UNFOLD = {
    "SITE_TITLE": _("Zhiku"),
    "SITE_HEADER": _("Zhiku"),
    "SITE_SUBHEADER": _("Search that says why"),
    "SITE_SYMBOL": "menu_book",
    "SITE_URL": None,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("kb/favicon.svg")}],
    "SHOW_LANGUAGES": True,
    "SHOW_HISTORY": True,
    "DASHBOARD_CALLBACK": "kb.dashboard.workbench",
    "STYLES": [lambda _request: static("kb/admin.css"), lambda _request: static("kb/frame.css")],
    "SCRIPTS": [lambda _request: static("kb/frame.js")],
    "SIDEBAR": {
        "show_search": False,
        "show_all_applications": False,
        "navigation": "kb.web.admin.menu.menu",
    },
}
