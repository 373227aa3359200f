"""The pages of retrieval profiles: list, versions, differences, edit, publication and deletion."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from unfold.widgets import SELECT_CLASSES

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotAllowed, Rejected
from kb.content.services import knowledge_base_update
from kb.profiles.admin.choices import (
    as_field_choices,
    changes_text,
    profile_choices,
    profile_state,
    profile_url,
    profile_value,
    setting_label,
    value_text,
)
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import (
    configuration_of,
    create_version,
    delete_draft,
    differences,
    moving_with,
    other_start,
    publish,
    reason_to_keep,
    starting_profile,
)
from kb.quality.profiles.admin.form import SHARED, ProfileForm
from kb.quality.profiles.services import (
    ProfileOverview,
    VersionState,
    profile_names,
    profile_overview,
    profile_overviews,
    publish_for,
    state_of,
    waiting_drafts_of,
)
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.parts import Task, add_tasks
from kb.web.admin.place import Crumb
from kb.web.admin.scoped import principal, reporting, reporting_in, row_id
from kb.web.admin.site import AdminPage, add_part, admin_page

ENVIRONMENT = "environment"


def _at(version: RetrievalProfile) -> dict[str, Any]:
    """What leads the pages of a profile back to it."""
    url = profile_url(version)
    return {"page_url": url, "above": [Crumb(version.name, url)]}


class VersionPage(AdminPage):
    @cached_property
    def version(self) -> Any:
        return visible_version(principal(self.request), self.kwargs["pk"])

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**{"version": self.version, **_at(self.version), **kwargs})


class ChangePage(VersionPage):
    """A page that changes a version; 404 where it does not exist for this user, 403 where it is not to change."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not self.version.may_edit:
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)


def visible_version(caller: Principal, pk: int | None) -> Any:
    """The version with this id, with `may_edit`; Http404 where it does not exist for this user."""
    visible = RetrievalProfile.objects.visible_to(caller).select_related("knowledge_base", "created_by")
    editable = RetrievalProfile.objects.editable_by(caller).filter(pk=OuterRef("pk"))
    return get_object_or_404(visible.annotate(may_edit=Exists(editable)), pk=pk)


def diff_url(before: RetrievalProfile | None, after: RetrievalProfile) -> str:
    """The page that compares two versions; None: the environment's defaults."""
    parts = {"before": before.pk if before else ENVIRONMENT, "after": after.pk}
    return f"{reverse('admin:kb_retrievalprofile_diff')}?{urlencode(parts)}"


def copy_url(version: RetrievalProfile, kb: KnowledgeBase | None = None) -> str:
    parts = {"from": version.pk} | ({"kb": kb.pk} if kb else {})
    return f"{reverse('admin:kb_retrievalprofile_add')}?{urlencode(parts)}"


def try_url(version: RetrievalProfile) -> str:
    parts: dict[str, Any] = {"profile": profile_value(version.name, None if version.published else version.version)}
    if version.knowledge_base_id:
        parts["kb"] = version.knowledge_base_id
    return f"{reverse('admin:search_debug')}?{urlencode(parts)}"


def profile_of(kb: KnowledgeBase) -> dict[str, Any]:
    """What the page of a knowledge base says of its profile."""
    start = other_start(kb)
    return {
        "profile_url": profile_url(kb.profile),
        "tune_url": copy_url(kb.profile, kb) if kb.profile.knowledge_base_id is None else "",
        "starting_name": start,
        "starting_url": reverse("admin:kb_knowledgebase_starting_profile", args=[kb.pk]),
        "comparison_url": f"{reverse('admin:compare')}?{urlencode({'kb': kb.pk, 'b_profile': start})}",
        "fusion_variables": ", ".join(settings.FUSION_VARIABLES),
    }


def _start_as_new_ones(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    start = other_start(kb)
    if start and start == request.POST.get("profile"):
        knowledge_base_update(kb, by=principal(request), profile=starting_profile(kb.embedding_model))
        messages.success(request, _("It searches by “%(profile)s” now.") % {"profile": kb.profile})
    else:
        messages.error(request, _("The knowledge base has changed since the page was opened: its profile stays."))
    return HttpResponseRedirect(reverse("admin:kb_knowledgebase_quality", args=[kb.pk]))


add_part(
    KnowledgeBase,
    pages=lambda admin: [admin.row_page("starting-profile", _start_as_new_ones, "POST", name="starting_profile")],
)


def shown_differences(before: RetrievalProfile | None, after: RetrievalProfile) -> list[dict[str, Any]]:
    """What differs, and whether a version sets it itself; None: the environment's defaults."""
    first = before or RetrievalProfile(settings={})
    return [
        {
            "name": each.name,
            "label": setting_label(each.name),
            "before": value_text(each.name, each.before),
            "after": value_text(each.name, each.after),
            "before_set": each.name in first.settings,
            "after_set": each.name in after.settings,
        }
        for each in differences(first, after)
    ]


@admin_page("retrieval-profiles/diff/", name="kb_retrievalprofile_diff")
class DiffView(AdminPage):
    """?before=ID&after=ID; `environment` stands for its defaults."""

    template_name = "quality/profiles/diff.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        before, after = self._version("before"), self._version("after")
        if after is None:
            raise Http404
        found = shown_differences(before, after)
        return super().get_context_data(
            **kwargs,
            title=_("What differs between two versions"),
            before=before,
            after=after,
            before_state=profile_state(before) if before else "",
            after_state=profile_state(after),
            select_classes=" ".join(SELECT_CLASSES),
            differences=found,
            same_count=len(configuration_of(after.settings).as_dict()) - len(found),
            options=self._options(before, after),
            defaults=ENVIRONMENT,
            swap_url=diff_url(after, before) if before else "",
            may_publish=after.may_edit and not after.published,
        )

    def _version(self, side: str) -> Any:
        asked = self.request.GET.get(side, "")
        return None if asked == ENVIRONMENT else visible_version(principal(self.request), row_id(asked))

    def _options(self, *chosen: RetrievalProfile | None) -> Any:
        choices = profile_choices(principal(self.request))
        by_value = {choice.value: choice.profile.pk for choice in choices}
        grouped = [
            (label, inner) if isinstance(inner, list) else ("", [(label, inner)])
            for label, inner in as_field_choices(choices)
        ]
        options = [(group, [(by_value[value], text) for value, text in versions]) for group, versions in grouped]
        further = [each for each in chosen if each and each.pk not in by_value.values()]
        return [*options, ("", [(each.pk, str(each)) for each in further])]


@admin_page("retrieval-profiles/<int:pk>/edit/", name="kb_retrievalprofile_edit")
class EditView(ChangePage):
    template_name = "quality/profiles/form.html"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        form = ProfileForm(request.POST, self.version)
        if form.is_valid():
            return _saved(request, form, self.version.name, self.version.knowledge_base, self.version)
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        newest = RetrievalProfile.objects.versions_of(self.version).order_by("-version").defer("settings")[0]
        title = _("Edit “%(name)s”, beginning with version %(version)d")
        return super().get_context_data(
            **{"form": ProfileForm(None, self.version), **kwargs},
            title=title % {"name": self.version.name, "version": self.version.version},
            newest=newest if newest.pk != self.version.pk else None,
            next_version=newest.version + 1,
        )


@admin_page("retrieval-profiles/add/", name="kb_retrievalprofile_add")
class AddView(AdminPage):
    """A new profile, which may begin with the settings of a version: ?from=ID, and for a knowledge base: ?kb=ID."""

    template_name = "quality/profiles/form.html"

    @cached_property
    def base(self) -> RetrievalProfile | None:
        pk = row_id(self.request.GET.get("from", ""))
        return None if pk is None else visible_version(principal(self.request), pk)

    @cached_property
    def places(self) -> list[KnowledgeBase]:
        return list(KnowledgeBase.objects.editable_by(principal(self.request)).order_by("name", "pk"))

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not (self.places or principal(self.request).user.is_superuser):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        form = self._form(request.POST)
        if form.is_valid():
            with reporting_in(form, "name", (Rejected, NotAllowed)):
                return self._create(form)
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def _create(self, form: ProfileForm) -> HttpResponse:
        name, place = form.cleaned_data["name"], form.place_chosen
        if RetrievalProfile.objects.filter(name=name, knowledge_base=place).exists():
            message = _("There is a profile named “%(name)s” already: choose another name, or edit that one.")
            raise Rejected("profile_name_taken", message, name=name)
        return _saved(self.request, form, name, place, self.base)

    @property
    def _place(self) -> str:
        """That which the URL names, else the current knowledge base; blank: none is chosen."""
        current = current_knowledge_base(self.request)
        named = self.request.GET.get("kb") or (str(current.pk) if current in self.places else "")
        return named or ("" if self.places else SHARED)

    def _form(self, data: Any = None) -> ProfileForm:
        return ProfileForm(
            data,
            self.base,
            places=self.places,
            may_share=bool(principal(self.request).user.is_superuser),
            initial={"place": self._place},
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **{"form": self._form(), **kwargs},
            title=_("Copy “%(profile)s” to a new profile") % {"profile": self.base} if self.base else _("New profile"),
            **(_at(self.base) if self.base else {}),
            is_new=True,
        )


def _saved(
    request: HttpRequest, form: ProfileForm, name: str, place: KnowledgeBase | None, base: RetrievalProfile | None
) -> HttpResponse:
    description, settings = form.cleaned_data["description"], form.settings
    saved = create_version(
        principal(request), name, settings, description=description, knowledge_base=place, begun_with=base
    )
    message = _(
        "“%(profile)s” is saved, a draft: no search uses it before it is published, unless it names the version."
    )
    messages.success(request, message % {"profile": saved})
    return HttpResponseRedirect(profile_url(saved))


@admin_page("retrieval-profiles/<int:pk>/publish/", name="kb_retrievalprofile_publish")
class PublishView(ChangePage):
    """A shared profile is published for the current knowledge base alone, unless it is chosen to be for all."""

    template_name = "quality/profiles/publish.html"

    @cached_property
    def own(self) -> KnowledgeBase | None:
        """The current knowledge base, where publishing would move it together with others."""
        current = current_knowledge_base(self.request)
        if self.version.knowledge_base_id is not None or current is None or not current.may_edit:  # type: ignore[attr-defined]
            return None
        moving = moving_with(self.version)
        is_among = moving.filter(pk=current.pk).exists() and moving.exclude(pk=current.pk).exists()
        return current if is_among else None

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        if request.POST.get("scope") == "own" and self.own is not None:
            own = publish_for(principal(request), self.own, self.version)
            message = _("“%(profile)s” is published: only “%(kb)s” searches by it.")
            messages.success(request, message % {"profile": own, "kb": self.own})
            return HttpResponseRedirect(profile_url(own))
        moved = publish(principal(self.request), self.version, adopt="adopt" in request.POST)
        message = ngettext(
            "“%(profile)s” is published, and the next search goes by it: %(count)d knowledge base has moved.",
            "“%(profile)s” is published, and the next search goes by it: %(count)d knowledge bases have moved.",
            moved,
        )
        messages.success(request, message % {"profile": self.version, "count": moved})
        return HttpResponseRedirect(profile_url(self.version))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        published = RetrievalProfile.objects.versions_of(self.version).filter(published=True).first()
        is_back = published is not None and published.version > self.version.version
        title = _("Roll back to “%(profile)s”?") if is_back else _("Publish “%(profile)s”?")
        moving = moving_with(self.version)
        total = moving.count()
        seen = list(moving.visible_to(principal(self.request))[:20]) if total else []
        # The knowledge base whose own profile it is, where it searches by another one.
        kb = self.version.knowledge_base
        adopting = None if kb is None or kb.profile.is_version_of_same(self.version) else kb
        return super().get_context_data(
            **kwargs,
            title=title % {"profile": self.version},
            published=published,
            is_published=self.version.published,
            is_back=is_back,
            differences=shown_differences(published, self.version),
            moving=seen,
            moving_unseen=total - len(seen),
            adopting=adopting,
            own=self.own,
            is_shared=kb is None,
            others=total - 1 if self.own else total,
            adopting_changes=changes_text(differences(adopting.profile, self.version)) if adopting else [],
        )


@admin_page("retrieval-profiles/<int:pk>/delete/", name="kb_retrievalprofile_delete")
class DeleteView(ChangePage):
    template_name = "quality/profiles/delete.html"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        with reporting(request, Rejected):
            delete_draft(principal(self.request), self.version)
            messages.success(request, _("The draft “%(profile)s” was deleted.") % {"profile": self.version})
            left = RetrievalProfile.objects.versions_of(self.version).order_by("-version").first()
            return HttpResponseRedirect(profile_url(left) if left else reverse("admin:kb_retrievalprofile_changelist"))
        return HttpResponseRedirect(profile_url(self.version))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            title=_("Delete the draft “%(profile)s”?") % {"profile": self.version},
            reason=reason_to_keep(self.version),
        )


VERSIONS_A_PAGE = 20
BASES_SHOWN = 5
STATE_LABELS = {VersionState.PUBLISHED: "success", VersionState.DRAFT: "warning", VersionState.EARLIER: ""}


@admin_page("retrieval-profiles/", name="kb_retrievalprofile_changelist")
class ProfileListView(AdminPage):
    template_name = "quality/profiles/list.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        page = Paginator(profile_names(principal(self.request)), 50).get_page(self.request.GET.get("page"))
        return super().get_context_data(
            **kwargs,
            title=_("Retrieval profiles"),
            page=page,
            rows=profile_overviews(principal(self.request), list(page.object_list)),
            shown=BASES_SHOWN,
            may_add=may_add(principal(self.request)),
        )


@admin_page("retrieval-profiles/<int:pk>/", name="kb_retrievalprofile_change")
class ProfileView(VersionPage):
    template_name = "quality/profiles/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        overview = profile_overview(principal(self.request), self.version)
        versions = RetrievalProfile.objects.versions_of(self.version).select_related("created_by").order_by("-version")
        # The page that was asked for, else the one with the version of the URL.
        newer = sum(version.version > self.version.version for version in versions)
        asked = self.request.GET.get("page") or newer // VERSIONS_A_PAGE + 1
        page = Paginator(list(zip_longest(versions, list(versions)[1:])), VERSIONS_A_PAGE).get_page(asked)
        return super().get_context_data(
            **kwargs,
            title=self.version.name,
            overview=overview,
            description=described(overview.live),
            page=page,
            rows=[self._row(version, before, overview) for version, before in page],
            shown=BASES_SHOWN,
            may_edit=self.version.may_edit,
            copy_url=copy_url(overview.live) if self.version.may_edit or may_add(principal(self.request)) else "",
            compare_url=diff_url(self._parent(overview.newest), overview.newest),
        )

    def _parent(self, version: RetrievalProfile) -> RetrievalProfile | None:
        """What a version was copied from, as far as this user may see that."""
        if version.copied_from_id is None:
            return None
        return RetrievalProfile.objects.visible_to(principal(self.request)).filter(pk=version.copied_from_id).first()

    def _row(
        self, version: RetrievalProfile, before: RetrievalProfile | None, overview: ProfileOverview
    ) -> dict[str, Any]:
        state = state_of(version)
        parent = None if before else self._parent(version)
        return {
            "version": version,
            "parent": parent,
            "state": profile_state(version),
            "label": STATE_LABELS[state],
            "description": described(version),
            "changes": changes_text(differences(before or parent or RetrievalProfile(settings={}), version)),
            "is_first": before is None,
            "is_chosen": version.pk == self.version.pk and version not in (overview.newest, overview.live),
            "diff_url": diff_url(before or parent, version),
            "try_url": try_url(version),
            "is_draft": state is VersionState.DRAFT,
            "is_earlier": overview.published is not None and version.version < overview.published.version,
        }


def described(version: RetrievalProfile) -> str:
    """What a version says of itself; the sentences of the built-in ones are translated."""
    return _(version.description) if version.description else ""


def may_add(caller: Principal) -> bool:
    return bool(caller.user.is_superuser or KnowledgeBase.objects.editable_by(caller).exists())


add_tab(Section.QUALITY, gettext_lazy("Retrieval profiles"), "kb_retrievalprofile_changelist", order=50)


@add_tasks
def waiting_drafts(request: HttpRequest) -> Iterator[Task]:
    """Drafts over a published version that the user may publish."""
    drafts = waiting_drafts_of(principal(request))
    if drafts:
        text = ngettext(
            "%(count)d draft of retrieval settings is not published",
            "%(count)d drafts of retrieval settings are not published",
            len(drafts),
        )
        one = reverse("admin:kb_retrievalprofile_publish", args=[drafts[0].pk])
        url = one if len(drafts) == 1 else reverse("admin:kb_retrievalprofile_changelist")
        yield Task(text % {"count": len(drafts)}, url, _("View"), order=40, count=len(drafts))
