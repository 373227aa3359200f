from typing import Any

from django.contrib.auth.backends import ModelBackend


class SignInBackend(ModelBackend):
    """Holds sessions that no password has begun: those of the provider, and of a sign-in link from the command line."""

    def authenticate(self, *_args: Any, **_credentials: Any) -> None:
        """Nobody, whatever they know: its users were signed in elsewhere."""


BACKEND = f"{SignInBackend.__module__}.{SignInBackend.__qualname__}"
