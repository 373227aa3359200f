"""Sharing of knowledge bases in the admin: members, leaving, and the invitations to a user."""

from collections.abc import Iterator, Sequence
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import VERTICAL
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Q, Value, When
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_POST
from django.views.generic import FormView, TemplateView
from unfold.widgets import UnfoldAdminRadioSelectWidget, UnfoldAdminSelect2Widget, UnfoldAdminTextInputWidget

from kb.access.models import Invitation, KnowledgeBase, Membership, User
from kb.access.services.groups import (
    LONGEST_NAME,
    group_add,
    group_change,
    group_remove,
    known_groups,
    member_group_of,
    member_groups_of,
)
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
from kb.base.errors import Rejected
from kb.content.models import Document
from kb.signin.provider import current_provider
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.palette import MOST_OF_A_KIND, Found, Group, add_finder
from kb.web.admin.parts import Task, add_tasks
from kb.web.admin.scoped import KnowledgeBasePage, principal, reporting, reporting_in, row_id
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
    with reporting(request, Rejected):
        kb = invitation_accept(principal=principal(request), invitation_id=invitation_id)
        messages.success(request, _("“%(name)s” is among your knowledge bases now.") % {"name": kb.name})
        return redirect("admin:kb_knowledgebase_documents", kb.pk)
    return redirect("admin:invitations")


@admin_page("invitations/<int:invitation_id>/decline/", name="invitation_decline")
@require_POST
def decline_view(request: HttpRequest, invitation_id: int) -> HttpResponse:
    invitation_decline(principal=principal(request), invitation_id=invitation_id)
    messages.success(request, _("The invitation is declined."))
    return redirect("admin:invitations")


def invitation_notice(request: HttpRequest) -> str:
    """What the first page and the list of knowledge bases say of open invitations; blank where there are none."""
    count = Invitation.objects.visible_to(principal(request)).count()
    message = ngettext("You have %(count)d invitation.", "You have %(count)d invitations.", count)
    return message % {"count": count} if count else ""


@admin_page("invitations/link/", name="invitations_link")
def invitations_link(request: HttpRequest) -> HttpResponse:
    """The entry of the user's menu that leads to the invitations; nothing where there are none."""
    return render(request, "content/sharing/link.html", {"notice": invitation_notice(request)})


@add_tasks
def invitations_to_answer(request: HttpRequest) -> Iterator[Task]:
    if notice := invitation_notice(request):
        yield Task(notice, reverse("admin:invitations"), _("Accept or decline"), order=5, is_urgent=True)


@add_finder
def documents_found(request: HttpRequest, query: str) -> Group:
    """The newest documents whose title or source holds the signs; those of the current knowledge base first."""
    kb = current_knowledge_base(request)
    rows = Document.objects.visible_to(principal(request)).filter(
        Q(title__icontains=query) | Q(source__icontains=query)
    )
    in_current = Case(When(knowledge_base=kb, then=0), default=1) if kb is not None else Value(0)
    found = rows.order_by(in_current, "-pk").values_list("pk", "title", "source", "knowledge_base__name")[
        :MOST_OF_A_KIND
    ]
    items = (
        Found(title or source, reverse("admin:kb_document_change", args=[pk]), name)
        for pk, title, source, name in found
    )
    return Group(_("Documents"), "description", tuple(items))


MOST_OFFERED = 1_000
ROLES = [
    (Membership.Role.VIEWER, gettext_lazy("Viewer: searches, asks, reads documents and their text")),
    (Membership.Role.EDITOR, gettext_lazy("Editor: also changes content and settings")),
    (Membership.Role.OWNER, gettext_lazy("Owner: also shares and deletes it, and sees who changed what")),
]


class NewMemberForm(forms.Form):
    """Who is invited: superusers choose among the `offered` users, others type a name, as they cannot look up who has an account."""

    username = forms.CharField(
        max_length=150,
        label=gettext_lazy("User name"),
        help_text=gettext_lazy("The exact one: nobody can look up here who has an account."),
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )
    role = forms.ChoiceField(
        choices=ROLES,
        initial=Membership.Role.VIEWER,
        label=gettext_lazy("Role"),
        widget=UnfoldAdminRadioSelectWidget(radio_style=VERTICAL),
    )

    def __init__(self, *args: Any, offered: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if offered:
            self.fields["username"] = forms.ChoiceField(
                choices=[("", _("Select value")), *((name, name) for name in offered)],
                label=_("User name"),
                widget=UnfoldAdminSelect2Widget(),
            )


class NewGroupForm(forms.Form):
    """Superusers give a role to a group; those that are known are offered beside the field."""

    prefix = "group"

    name = forms.CharField(
        max_length=LONGEST_NAME,
        label=gettext_lazy("Group"),
        help_text=gettext_lazy("As the provider has it; nobody need have signed in yet."),
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "list": "known-groups"}),
    )
    role = forms.ChoiceField(
        choices=ROLES,
        initial=Membership.Role.VIEWER,
        label=gettext_lazy("Role"),
        widget=UnfoldAdminRadioSelectWidget(radio_style=VERTICAL),
    )


class SharingView(KnowledgeBasePage, FormView):  # type: ignore[type-arg]
    """Invites, changes and removes members; what takes rights away is asked once more."""

    template_name = "content/sharing/page.html"
    form_class = NewMemberForm

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not self.model_admin.is_granted(request, self.kb, "owned_by"):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    title = gettext_lazy("Members")

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "offered": self._offered()}

    def _offered(self) -> Sequence[str]:
        """The names that a superuser chooses from; none where there are too many for a list."""
        if not self.request.user.is_superuser:
            return ()
        members = [each.user.pk for each in members_of(self.kb)]
        users = User.objects.filter(is_active=True).exclude(pk__in=members).order_by("username")
        names = list(users.values_list("username", flat=True)[: MOST_OFFERED + 1])
        return names if len(names) <= MOST_OFFERED else ()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        members, groups, given = members_of(self.kb), member_groups_of(self.kb), self.request.GET
        found = [each for each in members if each.user.pk == row_id(given.get("member", ""))]
        is_asked = found and given.get("action") in ("remove", "transfer")
        asked = {"action": given["action"], "member": found[0]} if is_asked else None
        asked_group = next((each for each in groups if each.group_id == row_id(given.get("group", ""))), None)
        context = {"members": members, "groups": groups, "roles": Membership.Role.choices, "asked": asked}
        if self.request.user.is_superuser and (groups or current_provider()):
            context |= {"known_groups": known_groups(MOST_OFFERED), "group_form": NewGroupForm()}
        return super().get_context_data(**{**context, "asked_group": asked_group, **kwargs})

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        action = request.POST.get("action", "add")
        if action == "add":
            return super().post(request, *args, **kwargs)
        if action == "add_group":
            return self._add_group(NewGroupForm(request.POST))
        with reporting(request):
            if action.endswith("_group"):
                message = self._change_group(action, row_id(request.POST.get("group", "")) or 0)
            else:
                message = self._change(action, row_id(request.POST.get("member", "")) or 0)
            messages.success(request, message)
        return self._back()

    def form_valid(self, form: NewMemberForm) -> HttpResponse:
        with reporting_in(form, "username"):
            member = member_add(kb=self.kb, by=principal(self.request), **form.cleaned_data)
            message = _("%(name)s is invited.") if member.is_pending else _("%(name)s may use it from now on.")
            messages.success(self.request, message % {"name": member.user.username})
            return self._back()
        return self.form_invalid(form)

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

    def _add_group(self, form: NewGroupForm) -> HttpResponse:
        if form.is_valid():
            with reporting_in(form, "name"):
                group = group_add(kb=self.kb, by=principal(self.request), **form.cleaned_data)
                message = _("Who is in the group %(name)s may use it from now on.") % {"name": group.name}
                messages.success(self.request, message)
                return self._back()
        return self.render_to_response(
            self.get_context_data(form=NewMemberForm(offered=self._offered()), group_form=form)
        )

    def _change_group(self, action: str, group_id: int) -> str:
        group, by = member_group_of(self.kb, group_id), principal(self.request)
        if action == "remove_group":
            group_remove(kb=self.kb, by=by, group_id=group_id)
            return _("Who is in the group %(name)s may not use it any more by that.") % {"name": group.name}
        role = self.request.POST.get("role", "")
        if role not in Membership.Role.values:
            raise PermissionDenied
        role_text = group_change(kb=self.kb, by=by, group_id=group_id, role=role).role_text
        return _("The group %(name)s has the role “%(role)s” from now on.") % {"name": group.name, "role": role_text}

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
        with reporting(request):
            member_leave(kb=self.kb, principal=principal(request))
            messages.success(request, _("You have left “%(name)s”.") % {"name": self.kb.name})
            return redirect("admin:kb_knowledgebase_changelist")
        return redirect("admin:kb_knowledgebase_documents", self.kb.pk)
