"""Where a command's server listens."""

import http.client
import socket
from dataclasses import dataclass

from django.conf import settings
from django.core.management.base import CommandError

from kb.base.loopback import refusal_to_listen


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def bind(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reachable(self) -> "Address":
        """Where a browser on this machine finds it."""
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), self.port)  # noqa: S104

    def require_allowed(self) -> None:
        """CommandError with the remedy where the installation is for this machine only, and the address is not."""
        if refusal := refusal_to_listen(self.host, local=settings.LOCAL, debug=settings.DEBUG):
            raise CommandError(refusal)

    def require_free(self, option: str = "--port") -> None:
        """CommandError with the option to change where no server could listen there."""
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            socket.create_server((self.host, self.port), family=family).close()
        except OSError as error:
            raise CommandError(
                f"Cannot listen on {self.bind} ({error.strerror}): choose another port, such as {option} {self.port + 1}."
            ) from error

    def answers(self, path: str) -> bool:
        """Whether the application behind the port, and not only the port, is there."""
        client = http.client.HTTPConnection(self.reachable.host, self.port, timeout=30)
        try:
            client.request("GET", path)
            client.getresponse()
        except OSError:
            return False
        finally:
            client.close()
        return True
