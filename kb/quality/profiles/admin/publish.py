"""The pages that ask before a version is published, rolled back to, or deleted."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.base.errors import NotAllowed, Rejected
from kb.profiles.admin.setting_labels import changes_in_words
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import delete_draft, differences, moving_with, publish, reason_to_keep
from kb.quality.profiles.admin.diff import shown_differences
from kb.quality.profiles.admin.page import LIST, PAGE, VersionPage

BASES_LISTED = 20


class PublishView(VersionPage):
    """Says which knowledge bases will move and what will differ; publishes on POST."""

    template_name = "quality/profiles/publish.html"

    def get(self, *args: Any, **kwargs: Any) -> HttpResponse:
        self.require_edit()
        return super().get(*args, **kwargs)

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        self.require_edit()
        try:
            moved = publish(self.caller, self.version, adopt="adopt" in request.POST)
        except NotAllowed as error:
            raise PermissionDenied from error
        words = ngettext(
            "“%(profile)s” is published, and the next search goes by it: %(count)d knowledge base has moved.",
            "“%(profile)s” is published, and the next search goes by it: %(count)d knowledge bases have moved.",
            moved,
        )
        messages.success(request, words % {"profile": self.version, "count": moved})
        return HttpResponseRedirect(reverse(PAGE, args=[self.version.pk]))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        published = RetrievalProfile.objects.versions_of(self.version).filter(published=True).first()
        is_back = published is not None and published.version > self.version.version
        title = _("Roll back to “%(profile)s”?") if is_back else _("Publish “%(profile)s”?")
        moving = moving_with(self.version)
        total = moving.count()
        seen = list(moving.visible_to(self.caller)[:BASES_LISTED]) if total else []
        return super().get_context_data(
            **kwargs,
            title=title % {"profile": self.version},
            published=published,
            is_published=self.version.published,
            is_back=is_back,
            differences=shown_differences(published, self.version),
            moving=seen,
            moving_unseen=total - len(seen),
            adopting=self._adopting(),
        )

    def _adopting(self) -> dict[str, Any] | None:
        """The knowledge base whose own profile it is, where it searches by another one, and what will differ there."""
        kb = self.version.knowledge_base
        if kb is None or kb.profile.is_version_of_same(self.version):
            return None
        return {"kb": kb, "changes": changes_in_words(differences(kb.profile, self.version))}


class DeleteView(VersionPage):
    """Asks before a draft is deleted, or says why it is kept."""

    template_name = "quality/profiles/delete.html"

    def get(self, *args: Any, **kwargs: Any) -> HttpResponse:
        self.require_edit()
        return super().get(*args, **kwargs)

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        self.require_edit()
        name = str(self.version)
        try:
            delete_draft(self.caller, self.version)
        except Rejected as error:
            messages.error(request, str(error))
            return HttpResponseRedirect(reverse(PAGE, args=[self.version.pk]))
        except NotAllowed as error:
            raise PermissionDenied from error
        messages.success(request, _("The draft “%(profile)s” was deleted.") % {"profile": name})
        left = RetrievalProfile.objects.versions_of(self.version).order_by("-version").first()
        return HttpResponseRedirect(reverse(PAGE, args=[left.pk]) if left else reverse(LIST))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        title = _("Delete the draft “%(profile)s”?") % {"profile": self.version}
        return super().get_context_data(**kwargs, title=title, reason=reason_to_keep(self.version))
