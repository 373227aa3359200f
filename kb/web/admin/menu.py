"""The menu with the numbers of what there is to do, beside the entries that the tasks of the workbench lead to.

They are kept for a minute per user. A page whose user's are not at hand fetches them once it is shown, so that no page
waits for them; the workbench, which lists the tasks, always counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve, reverse

from kb.access.models import User
from kb.base.cache import SignedBytes
from kb.web.admin.navigation import Section, entries, section_of, url_name_of
from kb.web.admin.parts import tasks
from kb.web.admin.site import admin_page

KEPT_SECONDS: Final = 60.0
MOST_SHOWN: Final = 99


@dataclass(frozen=True, slots=True)
class Badge:
    """How much there is to do behind an entry of the menu, and whether some of it does not wait."""

    count: int = 0
    is_urgent: bool = False

    @property
    def text(self) -> str:
        return f"{MOST_SHOWN}+" if self.count > MOST_SHOWN else str(self.count)


Badges = dict[str, Badge]


def menu(request: HttpRequest) -> list[dict[str, Any]]:
    """The entries that a user sees, as the theme's side menu takes them; `is_counted`: their badges are known."""
    if not isinstance(request.user, User):
        return [{"items": entries(request), "is_counted": True}]
    found = counted(request) if url_name_of(request) == Section.WORKBENCH.page else _kept(request.user)
    items = [{**entry, "badge": (found or {}).get(entry["name"])} for entry in entries(request)]
    return [{"items": items, "is_counted": found is not None}]


@admin_page("badges/", name="badges")
def badges_view(request: HttpRequest) -> HttpResponse:
    """The badges for a page that was shown without them, each to be put in its place."""
    found = counted(request)
    items = [{**entry, "badge": found.get(entry["name"])} for entry in entries(request)]
    return render(request, "web/frame/badges.html", {"items": items})


def counted(request: HttpRequest) -> Badges:
    """What there is to do, by the names of entries; what leads to a page of none of them is the workbench's."""
    found: Badges = {}
    for task in tasks(request):
        name = _entry_of(task.url).name
        before = found.get(name, Badge())
        found[name] = Badge(before.count + task.count, before.is_urgent or task.is_urgent)
    if isinstance(request.user, User):
        user = request.user
        _shared().put(_key(user.pk, is_superuser=user.is_superuser), msgspec.json.encode(found), KEPT_SECONDS)
    return found


def forget_badges(user_id: int) -> None:
    """What a user may see, or has to do, has changed."""
    _shared().delete(*(_key(user_id, is_superuser=each) for each in (True, False)))


def badges_follow_changes(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: whoever has changed something in the admin sees it in the menu of the next page."""

    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        is_change = request.method == "POST" and response.status_code < 400
        if is_change and request.path.startswith(reverse("admin:index")) and isinstance(request.user, User):
            forget_badges(request.user.pk)
        return response

    return respond


def _entry_of(url: str) -> Section:
    try:
        return section_of(resolve(url.partition("?")[0]).url_name or "") or Section.WORKBENCH
    except Resolver404:
        return Section.WORKBENCH


def _kept(user: User) -> Badges | None:
    kept = _shared().get(_key(user.pk, is_superuser=user.is_superuser))
    try:
        return None if kept is None else msgspec.json.decode(kept, type=Badges)
    except msgspec.DecodeError:  # of another version
        return None


_shared = partial(SignedBytes, "badges")


def _key(user_id: int, *, is_superuser: bool) -> bytes:
    return f"{user_id}:{is_superuser:d}".encode()
