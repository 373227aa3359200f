"""What django-allauth asks of the site: little, since of its flows only that of a provider has an address here."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.contrib.auth import login
from django.http import HttpRequest

from kb.access.models import User
from kb.signin.backends import BACKEND


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc] # the package has no types
    def login(self, request: HttpRequest, user: User) -> None:
        login(request, user, backend=BACKEND)

    def is_open_for_signup(self, request: HttpRequest) -> bool:  # noqa: ARG002 - the library's interface
        """Accounts are made by `kb.signin.services` alone."""
        return False

    def add_message(self, *_args: Any, **_options: Any) -> None:
        """Nothing: its messages say what the next page shows."""


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    def list_apps(self, *_args: Any, **_options: Any) -> list[Any]:
        """None of the library's own tables and settings: see `kb.signin.provider`."""
        return []

    def get_requests_session(self) -> Any:
        from kb.signin.http import guarded_session  # noqa: PLC0415 - it would load a client of HTTP into every process
        from kb.signin.provider import current_provider  # noqa: PLC0415

        provider = current_provider()
        if provider is None:
            raise RuntimeError("nobody signs in with a provider here")
        return guarded_session(provider.guard)

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,  # noqa: ARG002 - the library's interface
        exception: Exception | None = None,
        extra_context: Any = None,  # noqa: ARG002
    ) -> None:
        from kb.signin.protocol import refusal  # noqa: PLC0415

        raise refusal(request, provider.ours, exception) from exception
