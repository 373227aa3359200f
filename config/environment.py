from types import NoneType
from typing import Any, Literal, get_args, get_origin

import environ
from django.core.exceptions import ImproperlyConfigured

from retrieval.config import Setting


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

    def setting(self, declared: Setting, kind: Any, default: Any) -> Any:
        """The installation's value of a retrieval setting; what may be None is None where its variable is empty.

        Args:
            declared: names the variable.
            kind: the type of its field.
            default: where the variable is not set.
        """
        name = next((each for each in (declared.env, declared.alias) if each in self.ENVIRON), declared.env)
        if get_origin(kind) is tuple:
            return tuple(self.list(name, default=list(default)))
        if get_origin(kind) is Literal:
            return self.str(name, default=default)
        kinds = get_args(kind) or (kind,)
        if NoneType in kinds and not self.str(name, default=""):
            return None if name in self.ENVIRON else default
        return {bool: self.bool, int: self.int, float: self.float}[kinds[0]](name, default=default)
