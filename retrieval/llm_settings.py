"""Whether the settings of a language model's server go together, before it is asked."""

import ipaddress
import re
from urllib.parse import urlsplit

from retrieval.messages import Message, gettext_noop


def settings_problem(base_url: str, api_key: str, model: str) -> Message | None:
    """What is missing or wrong in the settings, and what to do."""
    if not base_url or not model:
        return Message(
            gettext_noop(
                "no language model is set up: set LLM_BASE_URL (for example https://api.deepseek.com/v1) and LLM_MODEL"
            )
        )
    if not _is_web_address(base_url):
        return Message(
            gettext_noop("LLM_BASE_URL is not a web address: set it to one such as https://api.deepseek.com/v1")
        )
    if not api_key and not _is_loopback(urlsplit(base_url).hostname or ""):
        return Message(
            gettext_noop(
                "there is no key for the language model at {host}: set LLM_API_KEY (any word if it needs none)"
            ),
            host=host_of(base_url),
        )
    if not (api_key.isascii() and api_key.isprintable()):
        return Message(gettext_noop("LLM_API_KEY holds characters that no key has: copy it again"))
    return None


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        name = (parts.hostname or "").encode("idna")
        return parts.scheme in {"http", "https"} and bool(name) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Host and port, without the credentials that an address may hold."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
