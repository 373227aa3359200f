from collections.abc import Sequence
from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_POST
from rest_framework_api_key.models import APIKey as LibraryApiKey
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from kb.access.models import GROUP_PREFIX, ApiKey, KnowledgeBase, User
from kb.access.services.api_keys import (
    api_key_create,
    api_key_revoke,
    api_keys_made_with,
    check_rate_limit,
    logins_unlock,
)
from kb.agents.admin import curl
from kb.base.errors import Rejected
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.deletion import deleted_with
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import Empty, RowActions, ScopedModelAdmin, column, signed_in

# Memberships say who may do what; groups and the library's own keys would be doors that lead nowhere.
admin.site.unregister(Group)
admin.site.unregister(LibraryApiKey)


@admin.register(User)
class UserAdmin(RowActions, DjangoUserAdmin, ModelAdmin):  # type: ignore[misc,type-arg]
    """Accounts, for superusers only."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "full_name", "email", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    readonly_fields = ("last_login", "date_joined", "provider_groups")
    filter_horizontal = ()
    actions = ("unlock_logins", "delete_selected")
    protected_remedy = gettext_lazy("Delete these first, or make the account inactive instead.")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        (gettext_lazy("Person"), {"fields": ("first_name", "last_name", "email")}),
        (
            gettext_lazy("Rights"),
            {
                "fields": ("is_active", "is_staff", "is_superuser", "provider_groups"),
                "description": gettext_lazy(
                    "Staff may use this site: they see what they own or what is shared with them. Superusers see and "
                    "change everything."
                ),
            },
        ),
        (gettext_lazy("Dates"), {"fields": ("last_login", "date_joined")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "usable_password", "password1", "password2", "is_staff")}),
    )

    def has_module_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return bool(request.user.is_active and request.user.is_superuser)

    has_view_permission = has_add_permission = has_change_permission = has_delete_permission = has_module_permission

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        """Who may see no account gets the same answer for one that is and one that is not there."""
        if not self.has_module_permission(request):
            raise PermissionDenied
        return cast(HttpResponse, super()._get_obj_does_not_exist_redirect(request, opts, object_id))

    def get_deleted_objects(
        self,
        objs: QuerySet[User] | Sequence[User],
        request: HttpRequest,  # noqa: ARG002 - Django's interface
    ) -> tuple[list[Any], dict[str, int], set[str], list[Any]]:
        """Counts; who owns a knowledge base cannot be deleted."""
        owned = KnowledgeBase.objects.filter(owner__in=[user.pk for user in objs])
        return [str(user) for user in objs], deleted_with(User, [user.pk for user in objs]), set(), list(owned)

    @admin.action(description=gettext_lazy("Unlock the login of selected users"), permissions=["change"])
    def unlock_logins(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        unlocked = logins_unlock(queryset)
        told = ngettext(
            "%(count)d user had failed logins, which are forgotten now.",
            "%(count)d users had failed logins, which are forgotten now.",
            unlocked,
        )
        self.message_user(request, told % {"count": unlocked}, messages.SUCCESS)

    @column(gettext_lazy("groups at the provider"))
    def provider_groups(self, user: User) -> str:
        """As of the last sign-in."""
        names = user.groups.filter(name__startswith=GROUP_PREFIX).order_by("name").values_list("name", flat=True)
        return ", ".join(name.removeprefix(GROUP_PREFIX) for name in names) or "-"

    @column(gettext_lazy("name"))
    def full_name(self, user: User) -> str:
        return user.get_full_name() or "-"


class ApiKeyForm(forms.ModelForm):  # type: ignore[type-arg]
    request: HttpRequest

    class Meta:
        model = ApiKey
        fields = ("name", "scope", "knowledge_bases", "expiry_date", "rate_limit")
        labels = {"name": gettext_lazy("Name")}
        widgets: ClassVar[Any] = {"knowledge_bases": UnfoldAdminCheckboxSelectMultipleWidget}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if expiry := self.fields.get("expiry_date"):
            zone = _("Time zone: %(zone)s.") % {"zone": timezone.get_current_timezone_name()}
            expiry.help_text = f"{expiry.help_text} {zone}"

    def clean_expiry_date(self) -> Any:
        expires = self.cleaned_data["expiry_date"]
        if expires is not None and expires <= timezone.now():
            raise forms.ValidationError(_("The key would be expired from the start: choose a time in the future."))
        return expires

    def clean_rate_limit(self) -> str:
        limit: str = self.cleaned_data["rate_limit"]
        try:
            check_rate_limit(limit, signed_in(self.request))
        except Rejected as error:
            raise forms.ValidationError(str(error)) from error
        return limit


def _field(name: str, label: Any, **options: Any) -> Any:
    """A column of a field, under a label that the library does not have in both languages."""
    return column(label, **options)(lambda _admin, key: getattr(key, name) or None)


@admin.register(ApiKey)
class ApiKeyAdmin(ScopedModelAdmin):
    """Keys are made and revoked; nobody changes one, and its secret is shown only by the answer that made it."""

    empty = Empty(
        gettext_lazy("Programs search and ask with a key: your own code, Dify, MCP clients."),
        gettext_lazy("For example a key for a help page that only reads one knowledge base."),
        "key",
        "integrations",
        gettext_lazy("Dify and MCP"),
    )
    form = ApiKeyForm
    list_display = ("called", "starts_with", "owner", "scope_name", "opens", "limit", "expires", "last_used", "state")
    search_fields = ("name", "prefix")
    search_help_text = gettext_lazy("Search by name or prefix")
    actions = ("revoke",)
    change_form_outer_before_template = "operations/api_key_panel.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        keys = ApiKey.objects.select_related("user").prefetch_related("knowledge_bases").order_by("-created")
        return keys if request.user.is_superuser else keys.filter(user=request.user.pk)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Keys are revoked, which leaves a trace; they go when a superuser deletes their user."""
        return bool(request.user.is_superuser)

    @staticmethod
    def granted(rows: QuerySet[Any], request: HttpRequest, grant: str) -> QuerySet[Any]:  # noqa: ARG004
        """A key belongs to a user, so no membership grants anything on it."""
        return rows if request.user.is_superuser else rows.none()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        if obj is None:
            return ("name", "scope", "knowledge_bases", "expiry_date", "rate_limit")
        return (
            "called", "starts_with", "owner", "scope_name", "opens", "limit", "made", "maker", "expires", "last_used",
            "state_text",
        )  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.get_fields(request, obj) if obj else ()

    def get_urls(self) -> list[URLPattern]:
        return [self.page("<path:object_id>/revoke/", require_POST(self.revoke_view), "revoke"), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        key = context["api_key"] = kwargs.get("obj")
        context["made_with_it"] = api_keys_made_with([key]) if key else []
        context |= {"show_save_and_continue": False, "show_save_and_add_another": False}
        return super().render_change_form(request, context, **kwargs)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: Any) -> None:  # noqa: ARG002
        values = dict(form.cleaned_data)
        key, secret = api_key_create(user=signed_in(request), expires=values.pop("expiry_date"), **values)
        obj.pk, obj.prefix = key.pk, key.prefix
        request.__dict__["new_api_key_secret"] = secret

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: Any) -> None:
        """The service has bound the key already."""

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        secret = request.__dict__.pop("new_api_key_secret")
        current = current_knowledge_base(request)
        kb_ids = list(obj.knowledge_bases.order_by("pk").values_list("pk", flat=True)) if obj.bound else []
        context = {
            **self.admin_site.each_context(request),
            "title": _("The key was made"),
            "opts": self.opts,
            "api_key": obj,
            "secret": secret,
            "example": curl(request, secret, kb_ids or [current.pk if current else 1]),
        }
        response = TemplateResponse(request, "operations/api_key_created.html", context)
        response.headers["Cache-Control"] = "no-store"
        return response

    def revoke_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        self._revoke(request, [self.get_object_or_404(request, object_id)])
        return HttpResponseRedirect(reverse("admin:kb_apikey_changelist"))

    @admin.action(description=gettext_lazy("Revoke"), permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        """Asks once more, with the names of the keys."""
        if request.POST.get("post") == "yes":
            self._revoke(request, queryset)
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": _("Revoke API keys"),
            "opts": self.opts,
            "keys": queryset,
            "made_with_them": api_keys_made_with(queryset),
            "action_name": "revoke",
        }
        return TemplateResponse(request, "operations/api_keys_revoke.html", context)

    def _revoke(self, request: HttpRequest, keys: Any) -> None:
        for key in keys:
            for revoked in (key, *api_key_revoke(key)):
                self.log_change(request, revoked, "Revoked.")
        self.message_user(request, _("Revoked: programs that use it are refused from now on."), messages.SUCCESS)

    # -- Columns -------------------------------------------------------------------------------------------------------
    called = _field("name", gettext_lazy("name"), ordering="name")
    made = _field("created", gettext_lazy("created"), ordering="created")
    limit = _field("rate_limit", gettext_lazy("rate limit"), empty_value=gettext_lazy("the server’s"))
    expires = _field("expiry_date", gettext_lazy("expires"), ordering="expiry_date", empty_value=gettext_lazy("never"))
    last_used = _field(
        "last_used_at", gettext_lazy("last used"), ordering="last_used_at", empty_value=gettext_lazy("never")
    )

    @column(gettext_lazy("prefix"), ordering="prefix")
    def starts_with(self, key: ApiKey) -> str:
        return format_html('<code class="kb-mono">{}</code>', key.prefix)

    @column(gettext_lazy("made with"), empty_value=gettext_lazy("the admin or the command line"))
    def maker(self, key: ApiKey) -> str | None:
        return str(key.made_with.prefix) if key.made_with else None

    @column(gettext_lazy("user"), ordering="user__username")
    def owner(self, key: ApiKey) -> str:
        return str(key.user)

    @column(gettext_lazy("scope"), ordering="scope")
    def scope_name(self, key: ApiKey) -> str:
        return key.get_scope_display()

    @column(gettext_lazy("knowledge bases"))
    def opens(self, key: ApiKey) -> str:
        if not key.bound:
            return _("all that the user may see")
        return ", ".join(kb.name for kb in key.knowledge_bases.all()) or _("none: they were deleted")

    @column(gettext_lazy("state"), label={"valid": "success", "revoked": "danger", "expired": "warning"})
    def state(self, key: ApiKey) -> tuple[str, str]:
        """A code, for its colour, and words."""
        if key.revoked:
            return "revoked", _("revoked")
        return ("expired", _("expired")) if key.has_expired else ("valid", _("valid"))

    @column(gettext_lazy("state"))
    def state_text(self, key: ApiKey) -> str:
        return self.state(key)[1]


add_tab(Section.PUBLISH, gettext_lazy("API keys"), "kb_apikey_changelist", order=20)
add_tab(Section.SYSTEM, gettext_lazy("Users"), "kb_user_changelist", order=20, covers=("auth_user_",))
