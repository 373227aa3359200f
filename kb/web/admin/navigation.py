"""Where the pages of the admin stand: seven entries of the menu with their tabs, and the tabs of a knowledge base.

Features register their pages here; the menu, the tabs and the breadcrumbs are made of what they have registered.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase
from kb.web.admin.current import is_curator
from kb.web.admin.site import add_part

Shown = Callable[[HttpRequest], bool]

HUB_PAGE: Final = "kb_knowledgebase_documents"
# Pages for all knowledge bases that a link opens for one, by `kb`.
_BY_KB: Final = {"ask", "search_debug", "why_not", "compare", "kb_document_upload"}


def to_superusers(request: HttpRequest) -> bool:
    return bool(getattr(request.user, "is_superuser", False))


def to_everybody(request: HttpRequest) -> bool:  # noqa: ARG001 - as the others
    return True


class Section(Enum):
    """The entries of the menu: title, icon, the page of one without tabs, and who sees it."""

    WORKBENCH = (_("Workbench"), "space_dashboard", "index", to_everybody)
    KNOWLEDGE_BASES = (_("Knowledge bases"), "library_books", "kb_knowledgebase_changelist", to_everybody)
    ASK = (_("Ask"), "forum", "ask", to_everybody)
    TEST = (_("Retrieval test"), "troubleshoot", "", is_curator)
    QUALITY = (_("Quality"), "monitoring", "", is_curator)
    PUBLISH = (_("Publish and integrate"), "ios_share", "", is_curator)
    SYSTEM = (_("System"), "settings", "", to_superusers)

    def __init__(self, title: Promise, icon: str, page: str, shown: Shown) -> None:
        self.title, self.icon, self.page, self.shown = title, icon, page, shown


@dataclass(frozen=True, slots=True)
class Tab:
    """`page` is the name of its first page's address, and `covers` are the beginnings of the names of all its pages.

    `under` is the name of the tab of a knowledge base that it stands below; blank: it stands beside them.
    """

    name: str
    title: str | Promise
    page: str
    covers: tuple[str, ...]
    order: int
    shown: Shown
    under: str = ""

    def has(self, url_name: str) -> bool:
        return url_name == self.page or url_name.startswith(self.covers)


_SECTION_TABS: dict[Section, list[Tab]] = {section: [] for section in Section}
_HUB_TABS: list[Tab] = []
_HUB_LISTS: dict[type[Model], str] = {}


def add_tab(
    section: Section,
    title: str | Promise,
    page: str,
    *,
    order: int,
    covers: Iterable[str] = (),
    shown: Shown = to_everybody,
) -> None:
    """Adds a page, by the name of its address, to an entry of the menu; a list of rows stands for all pages of its model."""
    beginnings = (page.removesuffix("changelist"), *covers) if page.endswith("_changelist") else tuple(covers)
    _put(_SECTION_TABS[section], Tab(page, title, page, beginnings, order, shown))


def add_hub_tab(
    name: str,
    title: str | Promise,
    *,
    order: int,
    under: str = "",
    model: type[Model] | None = None,
    covers: Iterable[str] = (),
    shown: Shown = to_everybody,
) -> None:
    """Adds a tab to the page of a knowledge base: the page `kb_knowledgebase_NAME`, which a feature adds by `add_part`.

    With a `model` that page is made here: the list of its rows in the knowledge base. One that others stand `under` needs
    no page of its own: it opens the first of them.
    """
    beginnings = tuple(covers)
    if model is not None:
        beginnings = (f"kb_{model._meta.model_name}_", *beginnings)
        _HUB_LISTS[model] = name
        view = hub_list(model)
        add_part(KnowledgeBase, pages=lambda of: [of.page(f"<int:object_id>/{name}/", view, name)])
    _put(_HUB_TABS, Tab(name, title, f"kb_knowledgebase_{name}", beginnings, order, shown, under))


def hub_list(model: type[Model]) -> Callable[[HttpRequest, int], HttpResponse]:
    """A view of the list of a model's rows that keeps to one knowledge base."""

    def rows_of(request: HttpRequest, object_id: int) -> HttpResponse:
        kb = admin.site.get_model_admin(KnowledgeBase).get_object_or_404(request, str(object_id))  # type: ignore[attr-defined]
        request.__dict__["hub"] = kb
        response: HttpResponse = admin.site.get_model_admin(model).changelist_view(request, {"kb": kb})
        return response

    return rows_of


def hub_of(request: HttpRequest) -> KnowledgeBase | None:
    """The knowledge base that a list keeps to; None for the list of all."""
    return request.__dict__.get("hub")


def hub_list_url(model: type[Model], kb_id: int) -> str:
    """The list of a model's rows in a knowledge base; blank where the model has none there."""
    name = _HUB_LISTS.get(model)
    return reverse(f"admin:kb_knowledgebase_{name}", args=[kb_id]) if name else ""


def entries(request: HttpRequest) -> list[dict[str, Any]]:
    """The entries of the menu that a user sees, as the theme takes them; `name` is the section's."""
    here = section_of(url_name_of(request))
    items = []
    for section in Section:
        tabs = _shown(_SECTION_TABS[section], request)
        page = section.page or (tabs[0].page if tabs else "")
        if page and section.shown(request):
            link = reverse(f"admin:{page}")
            about = {"name": section.name, "title": section.title, "icon": section.icon}
            items.append({**about, "link": link, "active": section == here})
    return items


def section_of(url_name: str) -> Section | None:
    """The entry of the menu that a page belongs to; None for those that stand beside it, such as the user's password."""
    if not url_name:
        return None
    for section in Section:
        is_own = bool(section.page) and f"{url_name}_".startswith(f"{section.page}_")  # it, or one below it
        if is_own or any(tab.has(url_name) for tab in _SECTION_TABS[section]):
            return section
    is_of_hub = url_name.startswith("kb_knowledgebase_") or any(tab.has(url_name) for tab in _HUB_TABS)
    return Section.KNOWLEDGE_BASES if is_of_hub else None


def section_tabs(request: HttpRequest) -> list[dict[str, Any]]:
    """The tabs of the page's entry of the menu."""
    url_name = url_name_of(request)
    section = section_of(url_name)
    tabs = [] if section is None else _shown(_SECTION_TABS[section], request)
    return [{"title": tab.title, "url": reverse(f"admin:{tab.page}"), "is_active": tab.has(url_name)} for tab in tabs]


def hub_tabs(request: HttpRequest, kb_id: int, under: str = "") -> list[dict[str, Any]]:
    """The tabs of a knowledge base's page, or those below one of them."""
    url_name, tabs = url_name_of(request), []
    for tab in _shown(_HUB_TABS, request):
        if tab.under != under:
            continue
        below = [each for each in _shown(_HUB_TABS, request) if each.under == tab.name]
        is_active = any(each.has(url_name) for each in (tab, *below))
        first = below[0] if below else tab
        tabs.append(
            {
                "name": tab.name,
                "title": tab.title,
                "url": reverse(f"admin:{first.page}", args=[kb_id]),
                "is_active": is_active,
                "below": hub_tabs(request, kb_id, tab.name) if below and is_active else [],
            }
        )
    return tabs


def other_page(url_name: str, kb_id: int) -> str:
    """The page of a knowledge base that is of the kind of another page: the same one of it, else its documents."""
    if url_name in _BY_KB:
        return f"{reverse(f'admin:{url_name}')}?kb={kb_id}"
    below = [tab for tab in _HUB_TABS if tab.has(url_name) and not _has_below(tab)]
    return reverse(f"admin:{below[0].page if below else HUB_PAGE}", args=[kb_id])


def titled_pages(request: HttpRequest, kb: KnowledgeBase | None) -> Iterator[tuple[tuple[str | Promise, ...], str]]:
    """Every page that the user reaches by the menu and its tabs, and the tabs of a knowledge base: titles from above, address."""
    for section in Section:
        if not section.shown(request):
            continue
        if section.page:
            yield (section.title,), reverse(f"admin:{section.page}")
        for tab in _shown(_SECTION_TABS[section], request):
            yield (section.title, tab.title), reverse(f"admin:{tab.page}")
    if kb is None:
        return
    above = {tab.name: tab.title for tab in _HUB_TABS}
    for tab in _shown(_HUB_TABS, request):
        if not _has_below(tab):
            titles = (kb.name, above[tab.under], tab.title) if tab.under else (kb.name, tab.title)
            yield titles, reverse(f"admin:{tab.page}", args=[kb.pk])


def _has_below(tab: Tab) -> bool:
    return any(each.under == tab.name for each in _HUB_TABS)


def _put(tabs: list[Tab], tab: Tab) -> None:
    tabs.append(tab)
    tabs.sort(key=lambda each: each.order)


def _shown(tabs: Sequence[Tab], request: HttpRequest) -> list[Tab]:
    return [tab for tab in tabs if tab.shown(request)]


def url_name_of(request: HttpRequest) -> str:
    """The name of a page's address, without the site's; blank where there is no such page."""
    match = request.resolver_match
    return (match.url_name or "") if match else ""
