import pytest
from django.test import RequestFactory
from django.views.debug import technical_500_response

PASSWORD = "pass-of-nobody-4711"
ADDRESS = f"redis://:{PASSWORD}@cache.example:6379/1"


class Client:
    """Says what it was made with, as clients of Redis do."""

    def __repr__(self):
        return f"<Client(password={PASSWORD})>"


@pytest.fixture
def page(settings):
    """Of an error, which a function with secrets among its variables raised, in each form."""
    settings.DEBUG = True
    settings.EXAMPLE = {"nested": [{"address": ADDRESS, "location": ADDRESS}], "sets": {ADDRESS}}
    settings.SERVICE_DSN = settings.SERVICE_URI = ADDRESS

    def fail(address, client):
        options = {"password": PASSWORD, "hosts": [address]}
        raise ConnectionError(f"{address} is unreachable: {options}, {client}")

    def shown(accept):
        try:
            fail(ADDRESS, Client())
        except ConnectionError as error:
            request = RequestFactory().get("/", headers={"accept": accept})
            return technical_500_response(request, type(error), error, error.__traceback__).content.decode()

    return shown


@pytest.mark.parametrize("accept", ["text/html", "text/plain"])
def test_no_secret_is_shown_wherever_it_stands(page, accept):
    shown = page(accept)
    assert "ConnectionError" in shown
    assert "cache.example" in shown
    assert PASSWORD not in shown


@pytest.mark.parametrize("name", ["SERVICE_DSN", "SERVICE_URI", "CELERY_BROKER_URL", "CACHES", "DATABASES"])
def test_a_setting_that_may_be_an_address_is_hidden(page, name):
    shown = page("text/html")
    value = shown.split(f"<td>{name}</td>")[1].split("</pre>")[0]
    assert "********************" in value
    assert "://" not in value
