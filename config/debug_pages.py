"""What Django's pages of errors show while DEBUG is on: no password, key or token, wherever it stands."""

import re
from html import escape
from typing import Any, Final

from django.conf import settings
from django.utils.safestring import SafeString
from django.views.debug import ExceptionReporter, SafeExceptionReporterFilter

SECRET_NAMES: Final = re.compile(
    "API|AUTH|TOKEN|KEY|SECRET|PASS|SIGNATURE|COOKIE|CREDENTIAL|URL$|URI$|DSN|LOCATION$|DATABASES$|CACHES$",
    re.IGNORECASE,
)
# Of an address, as in postgres://NAME:PASSWORD@HOST.
USER_INFO: Final = re.compile(r"(?<=://)[^\s/@'\"<>]+@")
SHORTEST_SECRET: Final = 6


class SecretsFilter(SafeExceptionReporterFilter):
    """Hides settings by name, and addresses by form, at any depth."""

    hidden_settings = SECRET_NAMES

    def cleanse_setting(self, key: Any, value: Any) -> Any:
        if _is_text(value) and not (isinstance(key, str) and self.hidden_settings.search(key)):
            return USER_INFO.sub(f"{self.cleansed_substitute}@", value)
        if isinstance(value, set | frozenset):
            return type(value)(self.cleanse_setting("", each) for each in value)
        return super().cleanse_setting(key, value)

    def without_secrets(self, text: str) -> str:
        """`text` with stars for each address's user and password, and for each secret of the settings."""
        text = USER_INFO.sub(f"{self.cleansed_substitute}@", text)
        for secret in _secrets():
            for written in (secret, escape(secret)):
                text = text.replace(written, self.cleansed_substitute)
        return text


class Reporter(ExceptionReporter):
    """Cleanses the whole page, since the values of local variables and what objects call themselves hold secrets too."""

    filter: SecretsFilter

    def get_traceback_html(self) -> SafeString:
        return SafeString(self.filter.without_secrets(super().get_traceback_html()))

    def get_traceback_text(self) -> SafeString:
        return SafeString(self.filter.without_secrets(super().get_traceback_text()))


def _is_text(value: Any) -> bool:
    """Not what is only evaluated to text, such as a URL that is reversed later."""
    return issubclass(type(value), str)


def _secrets() -> list[str]:
    """The secrets of this process's settings, and the passwords in its addresses, the longest first."""
    found: set[str] = set()
    _collect("", {name: getattr(settings, name) for name in dir(settings) if name.isupper()}, found)
    return sorted((each for each in found if len(each) >= SHORTEST_SECRET), key=len, reverse=True)


def _collect(name: str, value: Any, found: set[str]) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            _collect(str(key), each, found)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _collect(name, each, found)
    elif _is_text(value):
        found.update(address.partition(":")[2].removesuffix("@") for address in USER_INFO.findall(value))
        if re.search(r"(?:^|_)(?:KEY|TOKEN|PASSWORD|SECRET)$|^SECRET_KEY", name, re.IGNORECASE):
            found.add(value)
