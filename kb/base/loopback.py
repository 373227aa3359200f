"""Who reaches a server, and how slowly clients may send. It needs no settings, since gunicorn asks before they are read."""

import ipaddress
import os
import socket
from typing import Final

# For a request's head; for each further piece of its body; and for a client to take a piece of the answer.
CLIENT_SECONDS: Final = float(os.environ.get("CLIENT_SECONDS", "20"))
# Bytes a second that have to come of a body, over each CLIENT_SECONDS.
CLIENT_MIN_RATE: Final = int(os.environ.get("CLIENT_MIN_RATE", "1000"))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`: an address, or a name with loopback addresses only."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None)  # noqa: S104 - an empty host means all addresses
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def names_loopback(host: str) -> bool:
    """Whether a Host header of this value, or of one that this entry of ALLOWED_HOSTS allows, means this machine."""
    name = host.lower().strip("[]").lstrip(".").removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: no resolver leads it elsewhere
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refusal_to_listen(host: str, *, local: bool, debug: bool) -> str:
    """Why a server that is `local`, or shows pages of errors, must not listen on `host`, with the remedy; else empty."""
    if not (local or debug) or is_loopback(host):
        return ""
    if debug:
        return (
            f"Cannot listen on {host}: DEBUG is on, and its pages show settings and source code to whoever reaches them. "
            "Leave DEBUG out, or listen on 127.0.0.1."
        )
    return (
        f"Cannot listen on {host}: this installation is local, which is for this machine only and without TLS. "
        "Listen on 127.0.0.1, or serve others: set DATABASE_URL, REDIS_URL, SECRET_KEY and ALLOWED_HOSTS, "
        "and put a TLS proxy in front (docs/deploying.md)."
    )
