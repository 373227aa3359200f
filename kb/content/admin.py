"""Sharing of knowledge bases in the admin: members, leaving, and the invitations to a user."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_POST
from django.views.generic import FormView, TemplateView
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from kb.access.models import Invitation, KnowledgeBase, Membership
from kb.access.services.sharing import (
    PAUSE_AFTER_DECLINE,
    invitation_accept,
    invitation_decline,
    member_add,
    member_change,
    member_leave,
    member_of,
    member_remove,
    members_of,
    offer_withdraw,
    ownership_transfer,
)
from kb.base.errors import NotVisible, Rejected, ServiceError
from kb.web.admin.scoped import KnowledgeBasePage, principal, row_id
from kb.web.admin.site import AdminPage, admin_page


@admin_page("invitations/", name="invitations")
class InvitationsView(AdminPage):
    template_name = "content/sharing/invitations.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        rows = Invitation.objects.visible_to(principal(self.request)).select_related("knowledge_base", "invited_by")
        context = {"title": _("Invitations"), "invitations": rows, "pause_days": PAUSE_AFTER_DECLINE.days}
        return super().get_context_data(**kwargs, **context)


@admin_page("invitations/<int:invitation_id>/accept/", name="invitation_accept")
@require_POST
def accept_view(request: HttpRequest, invitation_id: int) -> HttpResponse:
    try:
        kb = invitation_accept(principal=principal(request), invitation_id=invitation_id)
    except NotVisible as error:
        raise Http404 from error
    except Rejected as error:
        messages.error(request, str(error))
        return redirect("admin:invitations")
    messages.success(request, _("“%(name)s” is among your knowledge bases now.") % {"name": kb.name})
    return redirect("admin:kb_knowledgebase_change", kb.pk)


@admin_page("invitations/<int:invitation_id>/decline/", name="invitation_decline")
@require_POST
def decline_view(request: HttpRequest, invitation_id: int) -> HttpResponse:
    try:
        invitation_decline(principal=principal(request), invitation_id=invitation_id)
    except NotVisible as error:
        raise Http404 from error
    messages.success(request, _("The invitation is declined."))
    return redirect("admin:invitations")


def invitation_notice(request: HttpRequest) -> str:
    """What the first page and the list of knowledge bases say of open invitations; blank where there are none."""
    count = Invitation.objects.visible_to(principal(request)).count()
    message = ngettext("You have %(count)d invitation.", "You have %(count)d invitations.", count)
    return message % {"count": count} if count else ""


class NewMemberForm(forms.Form):
    username = forms.CharField(
        max_length=150,
        label=gettext_lazy("User name"),
        help_text=gettext_lazy("The exact one: nobody can look up here who has an account."),
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )
    role = forms.ChoiceField(
        choices=Membership.Role.choices, label=gettext_lazy("Role"), widget=UnfoldAdminSelectWidget()
    )


class SharingView(KnowledgeBasePage, FormView):  # type: ignore[type-arg]
    """Invites, changes and removes members; what takes rights away is asked once more."""

    template_name = "content/sharing/page.html"
    form_class = NewMemberForm

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not self.model_admin.is_granted(request, self.kb, "owned_by"):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    @property
    def title(self) -> str:
        return _("Sharing of “%(name)s”") % {"name": self.kb.name}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        members, given = members_of(self.kb), self.request.GET
        found = [each for each in members if each.user.pk == row_id(given.get("member", ""))]
        is_asked = found and given.get("action") in ("remove", "transfer")
        asked = {"action": given["action"], "member": found[0]} if is_asked else None
        return super().get_context_data(**kwargs, members=members, roles=Membership.Role.choices, asked=asked)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        action = request.POST.get("action", "add")
        if action == "add":
            return super().post(request, *args, **kwargs)
        try:
            message = self._change(action, row_id(request.POST.get("member", "")) or 0)
        except ServiceError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, message)
        return self._back()

    def form_valid(self, form: NewMemberForm) -> HttpResponse:
        try:
            member = member_add(kb=self.kb, by=principal(self.request), **form.cleaned_data)
        except ServiceError as error:
            form.add_error("username", str(error))
            return self.form_invalid(form)
        message = _("%(name)s is invited.") if member.is_pending else _("%(name)s may use it from now on.")
        messages.success(self.request, message % {"name": member.user.username})
        return self._back()

    def _change(self, action: str, user_id: int) -> str:
        member, by = member_of(self.kb, user_id), principal(self.request)
        names = {"name": member.user.username}
        if action == "remove":
            member_remove(kb=self.kb, by=by, user_id=user_id)
            message = _("The invitation is withdrawn.") if member.is_pending else _("%(name)s may not use it any more.")
            return message % names
        if action == "transfer":
            if ownership_transfer(kb=self.kb, by=by, username=member.user.username).is_offered:
                return _("It belongs to %(name)s once they accept.") % names
            return _("The knowledge base belongs to %(name)s from now on.") % names
        if action == "withdraw":
            offer_withdraw(kb=self.kb, by=by)
            return _("The offer is withdrawn.")
        role = self.request.POST.get("role", "")
        if role not in Membership.Role.values:
            raise PermissionDenied
        names["role"] = member_change(kb=self.kb, by=by, user_id=user_id, role=role).role_text
        return _("%(name)s has the role “%(role)s” from now on.") % names

    def _back(self) -> HttpResponse:
        if KnowledgeBase.objects.owned_by(principal(self.request)).filter(pk=self.kb.pk).exists():
            return redirect("admin:kb_knowledgebase_sharing", self.kb.pk)
        return redirect("admin:kb_knowledgebase_changelist")  # who has just left cannot stay here


class LeaveView(KnowledgeBasePage, TemplateView):
    template_name = "content/sharing/leave.html"

    @property
    def title(self) -> str:
        return _("Leave “%(name)s”?") % {"name": self.kb.name}

    def post(self, request: HttpRequest, *_args: Any, **_kwargs: Any) -> HttpResponse:
        try:
            member_leave(kb=self.kb, principal=principal(request))
        except ServiceError as error:
            messages.error(request, str(error))
            return redirect("admin:kb_knowledgebase_change", self.kb.pk)
        messages.success(request, _("You have left “%(name)s”.") % {"name": self.kb.name})
        return redirect("admin:kb_knowledgebase_changelist")
