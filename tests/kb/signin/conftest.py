import re
from urllib.parse import urlsplit

import httpx
import pytest
from django.test import Client
from django.urls import reverse

from tests.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider


@pytest.fixture(autouse=True)
def _nothing_known_of_providers():
    from kb.signin.metadata import METADATA

    METADATA.forget()


@pytest.fixture(scope="session")
def running_provider():
    with OidcProvider("http://testserver/admin/oidc/callback/") as provider:
        yield provider


@pytest.fixture
def provider(running_provider, settings):
    """The provider, and settings that name it."""
    settings.OIDC_ISSUER = running_provider.issuer
    settings.OIDC_CLIENT_ID, settings.OIDC_CLIENT_SECRET = CLIENT_ID, CLIENT_SECRET
    settings.OIDC_NAME = "Example ID"
    return running_provider


def at_provider(url, name, browser=None):
    """Goes through the pages of the provider as a person of this name; where it leads back to, path and query."""
    with httpx.Client(follow_redirects=False) as own:
        browser = browser or own
        answer = browser.get(url)
        for _ in range(8):
            if answer.is_redirect:
                location = answer.headers["location"]
                if urlsplit(location).hostname == "testserver":
                    parts = urlsplit(location)
                    return f"{parts.path}?{parts.query}"
                answer = browser.get(answer.url.join(location))
            elif "csrfmiddlewaretoken" in answer.text:
                token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', answer.text)[1]
                form = {"csrfmiddlewaretoken": token, "username": name, "password": name}
                answer = browser.post(answer.url, data=form)
            else:
                break
        raise AssertionError(f"{answer.status_code} at {answer.url}: {answer.text[:500]}")


def begin(client, next_url=None):
    """The address at the provider that our button leads to."""
    answer = client.get(reverse("signin_begin"), {"next": next_url} if next_url is not None else {})
    assert answer.status_code == 302, answer.content.decode()
    return answer["Location"]


def sign_in(name, *, client=None, next_url=None):
    """Our answer to somebody who comes back from the provider, and the browser in which they do."""
    client = client or Client()
    answer = client.get(at_provider(begin(client, next_url), name))
    answer.browser = client
    return answer
