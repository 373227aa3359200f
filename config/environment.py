from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured


class NamingEnv(environ.Env):  # type: ignore[misc] # the package has no types
    """The environment, whose faults name the variable."""

    def get_value(self, var: str, *args: Any, **kwargs: Any) -> Any:
        """As `environ.Env`.

        Raises:
            ImproperlyConfigured: the value is not of the kind that the variable wants.
        """
        try:
            return super().get_value(var, *args, **kwargs)
        except ValueError as error:
            is_secret = any(word in var for word in ("KEY", "PASSWORD", "TOKEN", "URL"))
            why = "it is not of the kind that is wanted" if is_secret else str(error)
            raise ImproperlyConfigured(
                f"{var} cannot be read: {why}. Correct it in the environment, or leave it out."
            ) from error
