"""What the pages of retrieval profiles share: the version of the URL, who may change it, and where they are."""

from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.views.generic import TemplateView

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.profiles.admin.choices import profile_value
from kb.profiles.models import RetrievalProfile
from kb.web.admin.parts import add_part
from kb.web.admin.scoped import principal

LIST = "admin:kb_retrievalprofile_changelist"
PAGE = "admin:kb_retrievalprofile_change"
ADD = "admin:kb_retrievalprofile_add"
EDIT = "admin:kb_retrievalprofile_edit"
PUBLISH = "admin:kb_retrievalprofile_publish"
DELETE = "admin:kb_retrievalprofile_delete"
DIFF = "admin:kb_retrievalprofile_diff"
ENVIRONMENT = "environment"


class ProfilePage(TemplateView):
    """A page of profiles. Whoever may open the admin may open it; it shows what that user may see."""

    admin_site: AdminSite | None = None
    request: HttpRequest

    @cached_property
    def caller(self) -> Principal:
        return principal(self.request)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        site = self.admin_site.each_context(self.request) if self.admin_site else {}
        return super().get_context_data(**{**site, "list_url": reverse(LIST), **kwargs})


class VersionPage(ProfilePage):
    """A page of one version, which the URL names."""

    @cached_property
    def version(self) -> RetrievalProfile:
        """The version of the URL; Http404 where it does not exist for this user."""
        return visible_version(self.caller, self.kwargs["pk"])

    @cached_property
    def may_edit(self) -> bool:
        return RetrievalProfile.objects.editable_by(self.caller).filter(pk=self.version.pk).exists()

    def require_edit(self) -> None:
        """Raises Http404 where the version does not exist for this user, PermissionDenied where it is not to change."""
        if not self.may_edit:
            raise PermissionDenied

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        page_url = reverse(PAGE, args=[self.version.pk])
        return super().get_context_data(**{"version": self.version, "page_url": page_url, **kwargs})


def visible_version(caller: Principal, pk: int) -> RetrievalProfile:
    """The version with this id.

    Raises:
        Http404: it does not exist for this user.
    """
    visible = RetrievalProfile.objects.visible_to(caller)
    found = visible.filter(pk=pk).select_related("knowledge_base", "created_by").first()
    if found is None:
        raise Http404
    return found


def diff_url(before: RetrievalProfile | None, after: RetrievalProfile) -> str:
    """The page that compares two versions; None: the environment's defaults."""
    parts = {"before": before.pk if before else ENVIRONMENT, "after": after.pk}
    return f"{reverse(DIFF)}?{urlencode(parts)}"


def copy_url(version: RetrievalProfile, kb: KnowledgeBase | None = None) -> str:
    """The page that copies a version to a new profile, perhaps one of a knowledge base."""
    parts = {"from": version.pk} | ({"kb": kb.pk} if kb else {})
    return f"{reverse(ADD)}?{urlencode(parts)}"


def try_url(version: RetrievalProfile) -> str:
    """Search debug under this version."""
    parts: dict[str, Any] = {"profile": profile_value(version.name, None if version.published else version.version)}
    if version.knowledge_base_id:
        parts["kb"] = version.knowledge_base_id
    return f"{reverse('admin:search_debug')}?{urlencode(parts)}"


def _of_knowledge_base(_request: HttpRequest, kb: KnowledgeBase) -> dict[str, str]:
    return {
        "profile_url": reverse(PAGE, args=[kb.profile_id]),
        "tune_url": copy_url(kb.profile, kb) if kb.profile.knowledge_base_id is None else "",
    }


add_part(KnowledgeBase, context=_of_knowledge_base)
