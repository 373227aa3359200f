"""The pages that save settings: as the next version of a profile, or as the first of a new one."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import NotAllowed, Rejected
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import create_version
from kb.quality.profiles.admin.form import SHARED, ProfileForm
from kb.quality.profiles.admin.page import PAGE, ProfilePage, VersionPage, visible_version
from kb.web.admin.ids import row_id


class EditView(VersionPage):
    """Settings that begin with those of a version and become the next one."""

    template_name = "quality/profiles/form.html"

    def get(self, *args: Any, **kwargs: Any) -> HttpResponse:
        self.require_edit()
        return super().get(*args, **kwargs)

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        self.require_edit()
        form = ProfileForm(request.POST, self.version)
        if form.is_valid():
            saved = create_version(
                self.caller,
                self.version.name,
                form.settings,
                description=form.cleaned_data["description"],
                knowledge_base=self.version.knowledge_base,
            )
            return _saved(request, saved)
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        newest = RetrievalProfile.objects.versions_of(self.version).order_by("-version").defer("settings")[0]
        title = _("Edit “%(name)s”, beginning with version %(version)d")
        kwargs.setdefault("form", ProfileForm(None, self.version))
        return super().get_context_data(
            **kwargs,
            title=title % {"name": self.version.name, "version": self.version.version},
            newest=newest if newest.pk != self.version.pk else None,
            next_version=newest.version + 1,
        )


class AddView(ProfilePage):
    """A new profile, which may begin with the settings of a version: ?from=ID, and for a knowledge base: ?kb=ID."""

    template_name = "quality/profiles/form.html"

    @cached_property
    def base(self) -> RetrievalProfile | None:
        pk = row_id(self.request.GET.get("from", ""))
        return None if pk is None else visible_version(self.caller, pk)

    @cached_property
    def places(self) -> list[KnowledgeBase]:
        return list(KnowledgeBase.objects.editable_by(self.caller).order_by("name", "pk"))

    @property
    def may_share(self) -> bool:
        return bool(self.caller.user.is_superuser)

    def get(self, *args: Any, **kwargs: Any) -> HttpResponse:
        self._require_place()
        return super().get(*args, **kwargs)

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        self._require_place()
        form = self._form(request.POST)
        if form.is_valid():
            try:
                return _saved(request, self._create(form))
            except (Rejected, NotAllowed) as error:
                form.add_error("name", str(error))
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def _create(self, form: ProfileForm) -> RetrievalProfile:
        name, place = form.cleaned_data["name"], form.place_chosen
        if RetrievalProfile.objects.filter(name=name, knowledge_base=place).exists():
            message = _("There is a profile named “%(name)s” already: choose another name, or edit that one.")
            raise Rejected("profile_name_taken", message % {"name": name})
        return create_version(
            self.caller,
            name,
            form.settings,
            description=form.cleaned_data["description"],
            knowledge_base=place,
        )

    def _require_place(self) -> None:
        if not (self.places or self.may_share):
            raise PermissionDenied

    def _form(self, data: Any = None) -> ProfileForm:
        asked = self.request.GET.get("kb", "")
        initial = {"place": asked or ("" if self.places else SHARED)}
        return ProfileForm(data, self.base, places=self.places, may_share=self.may_share, initial=initial)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        title = _("Copy “%(profile)s” to a new profile") % {"profile": self.base} if self.base else _("New profile")
        kwargs.setdefault("form", self._form())
        page_url = reverse(PAGE, args=[self.base.pk]) if self.base else ""
        return super().get_context_data(**kwargs, title=title, page_url=page_url, is_new=True)


def _saved(request: HttpRequest, saved: RetrievalProfile) -> HttpResponse:
    words = _("“%(profile)s” is saved, a draft: no search uses it before it is published, unless it names the version.")
    messages.success(request, words % {"profile": saved})
    return HttpResponseRedirect(reverse(PAGE, args=[saved.pk]))
