"""Retrieval profiles: their list, and the page of one with all its versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin import AdminSite
from django.core.paginator import Paginator
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.profiles.admin.choices import profile_state
from kb.profiles.admin.setting_labels import changes_in_words
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import differences
from kb.quality.profiles.admin.diff import DiffView
from kb.quality.profiles.admin.edit import AddView, EditView
from kb.quality.profiles.admin.page import (
    ADD,
    DELETE,
    DIFF,
    EDIT,
    LIST,
    PAGE,
    PUBLISH,
    ProfilePage,
    VersionPage,
    copy_url,
    diff_url,
    try_url,
)
from kb.quality.profiles.admin.publish import DeleteView, PublishView
from kb.quality.profiles.services import (
    ProfileOverview,
    VersionState,
    profile_names,
    profile_overview,
    profile_overviews,
    state_of,
)

ROWS_A_PAGE = 50
VERSIONS_A_PAGE = 20
BASES_SHOWN = 5
STATE_LABELS = {VersionState.PUBLISHED: "success", VersionState.DRAFT: "warning", VersionState.EARLIER: ""}


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version on the page of its profile; a blank URL is that of what the caller may not do."""

    version: RetrievalProfile
    state: str
    label: str
    description: str
    changes: tuple[str, ...]
    is_first: bool
    is_chosen: bool
    diff_url: str
    try_url: str
    edit_url: str = ""
    publish_url: str = ""
    delete_url: str = ""
    is_earlier: bool = False


class ProfileListView(ProfilePage):
    template_name = "quality/profiles/list.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        page = Paginator(profile_names(self.caller), ROWS_A_PAGE).get_page(self.request.GET.get("page"))
        return super().get_context_data(
            **kwargs,
            title=_("Retrieval profiles"),
            page=page,
            rows=profile_overviews(self.caller, list(page.object_list)),
            shown=BASES_SHOWN,
            add_url=reverse(ADD) if may_add(self.caller) else "",
        )


class ProfileView(VersionPage):
    """All versions of the profile whose version the URL names."""

    template_name = "quality/profiles/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        overview = profile_overview(self.caller, self.version)
        rows = RetrievalProfile.objects.versions_of(self.version).select_related("created_by")
        versions = list(rows.order_by("-version"))
        page = Paginator(versions, VERSIONS_A_PAGE).get_page(self._page_number(versions))
        older = [*versions[1:], None]
        return super().get_context_data(
            **kwargs,
            title=self.version.name,
            overview=overview,
            description=described(overview.live),
            page=page,
            rows=[
                self._row(versions[place], older[place], overview)
                for place in range(page.start_index() - 1, page.end_index())
            ],
            shown=BASES_SHOWN,
            may_edit=self.may_edit,
            edit_url=reverse(EDIT, args=[overview.newest.pk]) if self.may_edit else "",
            copy_url=copy_url(overview.live) if self.may_edit or may_add(self.caller) else "",
            compare_url=diff_url(None, overview.newest),
        )

    def _page_number(self, versions: Sequence[RetrievalProfile]) -> Any:
        """The page that was asked for, else the one with the version of the URL."""
        newer = sum(version.version > self.version.version for version in versions)
        return self.request.GET.get("page") or newer // VERSIONS_A_PAGE + 1

    def _row(self, version: RetrievalProfile, before: RetrievalProfile | None, overview: ProfileOverview) -> VersionRow:
        state, args = state_of(version), [version.pk]
        found = differences(before or RetrievalProfile(settings={}), version)
        links: dict[str, Any] = {}
        if self.may_edit:
            links["edit_url"] = reverse(EDIT, args=args)
            if state is not VersionState.PUBLISHED:
                links["publish_url"] = reverse(PUBLISH, args=args)
            if state is VersionState.DRAFT:
                links["delete_url"] = reverse(DELETE, args=args)
        return VersionRow(
            version=version,
            state=profile_state(version),
            label=STATE_LABELS[state],
            description=described(version),
            changes=tuple(changes_in_words(found)),
            is_first=before is None,
            is_chosen=version.pk == self.version.pk and version not in (overview.newest, overview.live),
            diff_url=diff_url(before, version),
            try_url=try_url(version),
            is_earlier=overview.published is not None and version.version < overview.published.version,
            **links,
        )


def described(version: RetrievalProfile) -> str:
    """What a version says of itself; the sentences of the built-in ones are translated."""
    return _(version.description) if version.description else ""


def may_add(caller: Principal) -> bool:
    """Whether the caller may make any profile."""
    return bool(caller.user.is_superuser or KnowledgeBase.objects.editable_by(caller).exists())


def profile_urls(site: AdminSite) -> list[URLPattern]:
    """The pages' routes among those of an admin site; a version's address leads to its profile."""

    def page(route: str, view: type[ProfilePage], name: str) -> URLPattern:
        pattern: URLPattern = path(
            f"retrieval-profiles/{route}",
            site.admin_view(view.as_view(admin_site=site)),
            name=name.removeprefix("admin:"),
        )
        return pattern

    return [
        page("", ProfileListView, LIST),
        page("add/", AddView, ADD),
        page("diff/", DiffView, DIFF),
        page("<int:pk>/", ProfileView, PAGE),
        page("<int:pk>/edit/", EditView, EDIT),
        page("<int:pk>/publish/", PublishView, PUBLISH),
        page("<int:pk>/delete/", DeleteView, DELETE),
    ]
