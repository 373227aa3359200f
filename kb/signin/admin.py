"""Signing in, on the pages of login, logout and System; the library's own lists of accounts and applications have no page."""

from typing import Any

from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _, gettext_lazy
from django.views.generic import FormView
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from kb.base.encryption import SecretsUnreadable, decrypted
from kb.base.messages import shown
from kb.base.net.addresses import MESSAGES, FetchError, parse_url
from kb.signin.errors import SignInRefused
from kb.signin.models import ONLY, SignInProvider
from kb.signin.provider import CLIENT_SECRET, callback_url, current_provider, provider_of
from kb.signin.services import provider_delete, provider_save
from kb.signin.views import login_context, logout_context
from kb.web.admin.navigation import Section, add_tab, to_superusers
from kb.web.admin.site import AdminPage, add_login, admin_page
from retrieval.errors import Message

for unused in (EmailAddress, SocialAccount, SocialApp, SocialToken):
    admin.site.unregister(unused)

add_login(login_context, logout_context)


class ProviderForm(forms.ModelForm):  # type: ignore[type-arg]
    """Asks the provider what it says of itself before it is in force."""

    client_secret = forms.CharField(
        label=gettext_lazy("Client secret"),
        required=False,
        max_length=400,
        help_text=gettext_lazy("Never shown again. Leave blank to keep it; another issuer asks for it again."),
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "off"}),
    )

    class Meta:
        model = SignInProvider
        fields = (
            "issuer", "client_id", "client_secret", "name", "scopes", "groups_claim", "allowed_groups", "staff_groups",
            "admin_groups", "links_email", "hours", "allows_private",
        )  # fmt: skip
        text = (
            "issuer", "client_id", "name", "scopes", "groups_claim", "allowed_groups", "staff_groups", "admin_groups", "hours",
        )  # fmt: skip
        widgets = {name: UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}) for name in text} | {
            name: UnfoldBooleanSwitchWidget() for name in ("links_email", "allows_private")
        }
        help_texts = {
            "issuer": gettext_lazy("Such as https://id.example.org/realms/company."),
            "name": gettext_lazy("Blank: the host of the issuer."),
            "groups_claim": gettext_lazy("Or a path such as realm_access.roles."),
            "allowed_groups": gettext_lazy("Separated by commas. Blank: all whom the provider lets in."),
            "staff_groups": gettext_lazy("Blank: all who may sign in."),
            "admin_groups": gettext_lazy("Blank: the provider makes nobody one."),
            "links_email": gettext_lazy(
                "Only where nobody can enter the address of somebody else at the provider: it opens the account here that has it."
            ),
            "hours": gettext_lazy("After these the provider is asked again."),
            "allows_private": gettext_lazy("Only for a provider in your own network."),
        }

    def __init__(self, *args: Any, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = request
        self._issuer_before = self.instance.issuer

    def clean_issuer(self) -> str:
        issuer: str = self.cleaned_data["issuer"]
        try:
            parse_url(issuer)
        except FetchError as error:
            raise forms.ValidationError(shown(Message(MESSAGES[error.code], **error.params))) from error
        return issuer

    def clean_scopes(self) -> str:
        scopes: str = self.cleaned_data["scopes"]
        if "openid" not in scopes.split():
            raise forms.ValidationError(_("Without the scope openid a provider names nobody."))
        return scopes

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or {}
        if self.errors:
            return values
        has_secret = bool(values["client_secret"]) or (values["issuer"] == self._issuer_before and self._has_secret())
        if not has_secret:
            self.add_error("client_secret", _("Enter the secret that the provider has given this application."))
        return values

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        if self.errors:
            return
        from kb.signin.metadata import METADATA  # noqa: PLC0415 - and with it a client of HTTP
        from kb.signin.protocol import Flow  # noqa: PLC0415

        METADATA.forget()
        try:
            self.discovered = Flow(self._request, provider_of(self.instance)).openid_config
        except SignInRefused as error:
            self.add_error("issuer", f"{error.text} {error.detail}".strip())

    def _has_secret(self) -> bool:
        try:
            return bool(decrypted(self.instance.secrets).get(CLIENT_SECRET))
        except SecretsUnreadable:
            return False


@admin_page("sign-in/", name="sign_in")
class SignInView(AdminPage, FormView):  # type: ignore[type-arg]
    """For superusers only, whom the menu shows it."""

    template_name = "signin/page.html"
    form_class = ProviderForm

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not to_superusers(request):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    def get_form_kwargs(self) -> dict[str, Any]:
        row = SignInProvider.objects.filter(pk=ONLY).first() or SignInProvider()
        return {**super().get_form_kwargs(), "instance": row, "request": self.request}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = {
            "title": _("Sign-in"),
            "redirect_address": callback_url(self.request),
            "provider": current_provider(),
            "is_of_environment": bool(settings.OIDC_ISSUER),
            "asks_to_remove": "remove" in self.request.GET,
        }
        return super().get_context_data(**kwargs, **context)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if settings.OIDC_ISSUER:
            raise PermissionDenied
        if request.POST.get("action") == "remove":
            provider_delete()
            messages.success(request, _("Nobody signs in with a provider any more."))
            return redirect("admin:sign_in")
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: ProviderForm) -> HttpResponse:
        provider_save(form.instance, form.cleaned_data["client_secret"])
        messages.success(self.request, _("The login page has the button now."))
        return redirect("admin:sign_in")


add_tab(Section.SYSTEM, gettext_lazy("Sign-in"), "sign_in", order=25, shown=to_superusers)
