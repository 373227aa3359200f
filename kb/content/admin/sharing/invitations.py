"""The invitations to the user: a page to accept or decline them, and a notice that leads there."""

from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST
from django.views.generic import TemplateView

from kb.access.models.invitations import Invitation
from kb.access.services.sharing import PAUSE_AFTER_DECLINE, invitation_accept, invitation_decline
from kb.base.errors import NotVisible, Rejected
from kb.web.admin.scoped import principal


class InvitationsView(TemplateView):
    template_name = "content/sharing/invitations.html"
    admin_site: AdminSite | None = None

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        rows = Invitation.objects.visible_to(principal(self.request)).select_related("knowledge_base", "invited_by")
        return super().get_context_data(
            **kwargs,
            **(self.admin_site.each_context(self.request) if self.admin_site else {}),
            title=_("Invitations"),
            invitations=rows,
            pause_days=PAUSE_AFTER_DECLINE.days,
        )


def accept_view(request: HttpRequest, invitation_id: int) -> HttpResponse:
    try:
        kb = invitation_accept(principal=principal(request), invitation_id=invitation_id)
    except NotVisible as error:
        raise Http404 from error
    except Rejected as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(reverse("admin:invitations"))
    messages.success(request, _("“%(name)s” is among your knowledge bases now.") % {"name": kb.name})
    return HttpResponseRedirect(reverse("admin:kb_knowledgebase_change", args=[kb.pk]))


def decline_view(request: HttpRequest, invitation_id: int) -> HttpResponse:
    try:
        invitation_decline(principal=principal(request), invitation_id=invitation_id)
    except NotVisible as error:
        raise Http404 from error
    messages.success(request, _("The invitation is declined."))
    return HttpResponseRedirect(reverse("admin:invitations"))


def invitations_urls(site: AdminSite) -> list[URLPattern]:
    """The page's routes among those of an admin site."""
    return [
        path("invitations/", site.admin_view(InvitationsView.as_view(admin_site=site)), name="invitations"),
        path(
            "invitations/<int:invitation_id>/accept/",
            site.admin_view(require_POST(accept_view)),
            name="invitation_accept",
        ),
        path(
            "invitations/<int:invitation_id>/decline/",
            site.admin_view(require_POST(decline_view)),
            name="invitation_decline",
        ),
    ]


def invitation_notice(request: HttpRequest) -> str:
    """What the first page and the list of knowledge bases say of open invitations; blank where there are none."""
    count = Invitation.objects.visible_to(principal(request)).count()
    words = ngettext("You have %(count)d invitation.", "You have %(count)d invitations.", count)
    return words % {"count": count} if count else ""
