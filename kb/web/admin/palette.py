"""What the palette finds: knowledge bases, pages, and the rows that features add, each in the order of their use."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy, override

from kb.access.models import KnowledgeBase, Principal
from kb.web.admin.current import current_knowledge_base, is_curator, recent_first
from kb.web.admin.navigation import other_page, titled_pages
from kb.web.admin.site import admin_page

QUERY_CHARACTERS: Final = 200
# Of knowledge bases to switch between, and of each kind where all is searched.
MOST_BASES: Final = 50
MOST_OF_A_KIND: Final = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A page that is found; `about` tells it from others of its title, such as the knowledge base of a document."""

    title: str
    url: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    icon: str
    items: tuple[Found, ...]


Finder = Callable[[HttpRequest, str], Group]

_FINDERS: list[Finder] = []
# Pages that no menu and no tab leads to.
_OTHER_PAGES: Final = (
    (gettext_lazy("New knowledge base"), "kb_knowledgebase_add", is_curator),
    (gettext_lazy("Upload"), "kb_document_upload", is_curator),
    (gettext_lazy("Invitations"), "invitations", None),
    (gettext_lazy("Change password"), "password_change", None),
)


def add_finder(of: Finder) -> Finder:
    """Registers what a feature finds by some signs; it is asked with one or more, without blanks around them."""
    _FINDERS.append(of)
    return of


@admin_page("search/", name="search")  # in place of the theme's
def found_view(request: HttpRequest) -> HttpResponse:
    """What matches `s`: all, or, with `of=bases`, knowledge bases, which open at a page of the kind of `at`."""
    query = request.GET.get("s", "")[:QUERY_CHARACTERS].replace("\0", "").strip()
    if request.GET.get("of") == "bases":
        groups = [_bases(request, query, MOST_BASES, at=request.GET.get("at", ""))]
    else:
        groups = [_bases(request, query, MOST_OF_A_KIND), _pages(request, query)]
        groups += [finder(request, query) for finder in _FINDERS if query]
    groups = [group for group in groups if group.items]
    count = sum(len(group.items) for group in groups)
    return render(request, "web/frame/found.html", {"groups": groups, "count": count, "query": query})


def _bases(request: HttpRequest, query: str, most: int, at: str = "") -> Group:
    rows = recent_first(request, KnowledgeBase.objects.visible_to(Principal(request.user)))
    named = rows.filter(name__icontains=query).values_list("pk", "name")[:most]
    items = (Found(name, other_page(at, kb_id)) for kb_id, name in named)
    return Group(_("Knowledge bases"), "library_books", tuple(items))


def _pages(request: HttpRequest, query: str) -> Group:
    """The pages whose titles hold every word, in the reader's language or in English; those that begin with it first."""
    words = query.casefold().split()
    matching: list[tuple[bool, Found]] = []
    for titles, url in _all_pages(request):
        *above, title = (str(each) for each in titles)
        with override("en"):
            in_english = " ".join(str(each) for each in titles)
        if all(word in f"{' '.join([*above, title])} {in_english}".casefold() for word in words):
            begins = bool(words) and title.casefold().startswith(words[0])
            matching.append((not begins, Found(title, url, " › ".join(above))))
    matching.sort(key=lambda each: each[0])
    return Group(_("Pages"), "web_asset", tuple(page for _begins, page in matching[:MOST_OF_A_KIND]))


def _all_pages(request: HttpRequest) -> Iterator[tuple[Iterable[str | Promise], str]]:
    yield from titled_pages(request, current_knowledge_base(request))
    for title, name, shown in _OTHER_PAGES:
        if shown is None or shown(request):
            yield (title,), reverse(f"admin:{name}")
