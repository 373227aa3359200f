"""Where a page stands: its title, what it stands below, the tabs beside it, and the knowledge base that it is about."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Model
from django.http import HttpRequest, QueryDict
from django.urls import NoReverseMatch, reverse
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.web.admin.current import current_knowledge_base, remember_knowledge_base
from kb.web.admin.navigation import HUB_PAGE, Section, hub_tabs, section_of, section_tabs, url_name_of

# Chinese, which has no blanks between its words, has one before Latin letters.
_BEFORE_LATIN: Final = re.compile("(?<=[\u4e00-\u9fff])(?=[A-Za-z])")

TITLE_CHARACTERS: Final = 120
CRUMB_CHARACTERS: Final = 40
# What views call the row that their page is about.
_ROWS: Final = ("original", "object", "chunk", "document")


@dataclass(frozen=True, slots=True)
class Crumb:
    """A page above another, or, without a link, the page itself."""

    title: str
    url: str = ""


def place(request: HttpRequest, context: Any) -> dict[str, Any]:
    """Where a page stands, by what its template is given: its entry of the menu, tabs, knowledge base, title and crumbs."""
    url_name = url_name_of(request)
    section = section_of(url_name)
    if section is not None and not section.shown(request):  # what the user may not open all the same, or only by a link
        section = None
    kb = page_knowledge_base(context) or _given_knowledge_base(request, context)
    if kb is not None and kb.pk is not None:
        remember_knowledge_base(request, kb)
    is_hub = kb is not None and kb.pk is not None and section == Section.KNOWLEDGE_BASES
    tabs = hub_tabs(request, kb.pk) if is_hub and kb is not None else section_tabs(request) if section else []
    active = [tab for tab in tabs if tab["is_active"]][:1]
    active += [tab for tab in (active[0].get("below", []) if active else []) if tab["is_active"]][:1]
    title = page_title(request, context, str(active[-1]["title"]) if active else "")
    above = [Crumb(kb.name, reverse(f"admin:{HUB_PAGE}", args=[kb.pk]))] if is_hub and kb is not None else []
    if not is_hub:
        entry = section or Section.WORKBENCH
        above = [Crumb(str(entry.title), tabs[0]["url"] if tabs else reverse(f"admin:{entry.page}"))]
    above += [Crumb(str(tab["title"]), tab["url"]) for tab in active]
    # A page that is named as its entry of the menu is its first tab.
    own = [] if active and title in {str(each.title) for each in Section} else [Crumb(title)]
    crumbs = list(_without_repeats([*above, *_rows_above(context), *own]))
    return {
        "section": section,
        "tabs": [] if is_hub or len(tabs) < 2 else tabs,
        "kb": kb if is_hub else None,
        "hub_tabs": tabs if is_hub else [],
        "current": current_knowledge_base(request),
        "title": title,
        "crumbs": crumbs,
        # The head of the knowledge base and its tabs say it already, or what the page itself begins with.
        "is_title_said": bool(context.get("is_title_said")) or (is_hub and title in {crumb.title for crumb in above}),
        "url_name": url_name,
    }


def page_knowledge_base(context: Any) -> KnowledgeBase | None:
    """The knowledge base that a page is about: itself, or that of a row."""
    for given in map(context.get, ("kb", *_ROWS)):
        if isinstance(given, KnowledgeBase):
            return given
        if getattr(given, "knowledge_base_id", None) is not None:
            kb = getattr(given, "knowledge_base", None)
            if isinstance(kb, KnowledgeBase):
                return kb
    return None


def _given_knowledge_base(request: HttpRequest, context: Any) -> KnowledgeBase | None:
    """The current knowledge base on a form for a new row of it: the list that it was opened from was that one's."""
    if context.get("adminform") is None or context.get("original") is not None:
        return None
    current = current_knowledge_base(request)
    given = QueryDict(request.GET.get("_changelist_filters", "")).get("knowledge_base__id__exact")
    return current if current is not None and given == str(current.pk) else None


def page_title(request: HttpRequest, context: Any, tab: str) -> str:
    """The title of a page: of a list its tab's, of a form its row's name, else as its view has set it."""
    original, options = context.get("original"), context.get("opts")
    if context.get("cl") is not None:
        is_of_tab = url_name_of(request).endswith("_changelist") or context.get("kb") is not None
        return tab if tab and is_of_tab else capfirst(str(options.verbose_name_plural))
    if context.get("adminform") is not None:
        if isinstance(original, KnowledgeBase) and tab:
            return tab
        if isinstance(original, Model):
            return _short(original, TITLE_CHARACTERS)
        return _BEFORE_LATIN.sub(" ", _("New %(name)s") % {"name": options.verbose_name})
    if context.get("deleted_objects") is not None and isinstance(context.get("object"), Model):
        return _("Delete “%(name)s”?") % {"name": _short(context["object"], TITLE_CHARACTERS)}
    return str(context.get("title") or "")


def _rows_above(context: Any) -> Iterator[Crumb]:
    """What a view gives as `above`; the document of a chunk, as far as it is loaded, and the row that a page other than its form is about."""
    yield from context.get("above") or ()
    row = next(filter(None, map(context.get, _ROWS)), None)
    if not isinstance(row, Model) or row.pk is None or isinstance(row, KnowledgeBase):
        return
    document = row._state.fields_cache.get("document")
    if document is not None:
        yield Crumb(_short(document, CRUMB_CHARACTERS), _form_url(document))
    if context.get("adminform") is None:
        yield Crumb(_short(row, CRUMB_CHARACTERS), _form_url(row))


def _form_url(row: Model) -> str:
    try:
        return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    except NoReverseMatch:
        return ""


def _without_repeats(crumbs: list[Crumb]) -> Iterator[Crumb]:
    """Each title once, the page itself without a link."""
    *above, page = crumbs
    said = {page.title}
    for crumb in above:
        if crumb.title not in said:
            said.add(crumb.title)
            yield crumb
    yield Crumb(page.title)


def _short(row: Model, characters: int) -> str:
    return Truncator(str(row)).chars(characters)
