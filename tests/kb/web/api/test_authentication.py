from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from kb.models import ApiKey
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/knowledge-bases/"


def test_a_key_opens_what_its_user_may_see(client_with, kb, owner):
    _, secret = factories.make_api_key(owner)

    response = client_with(secret).get(URL)

    assert [row["id"] for row in response.json()["results"]] == [kb.pk]


def test_the_scheme_is_case_insensitive(owner):
    _, secret = factories.make_api_key(owner)

    assert APIClient(headers={"Authorization": f"bearer {secret}"}).get(URL).status_code == 200


def _expired(user):
    return factories.make_api_key(user, expiry_date=timezone.now() - timedelta(seconds=1))[1]


def _revoked(user):
    return factories.make_api_key(user, revoked=True)[1]


def _of_an_inactive_user(user):
    user.is_active = False
    user.save()
    return factories.make_api_key(user)[1]


def _with_another_secret(user):
    key, _ = factories.make_api_key(user)
    return f"{key.prefix}.{'x' * 40}"


def _with_nul(user):
    key, _ = factories.make_api_key(user)
    return f"{key.prefix[:-1]}\0.{'x' * 40}"


@pytest.mark.parametrize(
    "make_secret",
    [
        _expired,
        _revoked,
        _of_an_inactive_user,
        _with_another_secret,
        _with_nul,
        lambda user: "abcdefgh." + "x" * 40,
        lambda user: "nonsense",
        lambda user: "",
    ],
)
def test_a_key_that_is_not_valid_is_401(client_with, owner, make_secret):
    response = client_with(make_secret(owner)).get(URL)

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["code"] == "authentication_failed"


def test_a_bad_key_is_401_even_with_a_valid_session(client):
    assert client.get(URL, headers={"Authorization": "Bearer nonsense"}).status_code == 401


def test_a_caller_without_credentials_is_401(anonymous):
    response = anonymous.get(URL)

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["code"] == "not_authenticated"


def test_another_scheme_counts_as_no_credentials():
    response = APIClient(headers={"Authorization": "Basic b3duZXI6cHc="}).get(URL)

    assert response.json()["code"] == "not_authenticated"


def test_a_session_without_a_csrf_token_cannot_write(owner):
    browser = APIClient(enforce_csrf_checks=True)
    browser.force_login(owner)

    assert browser.post(URL, {"name": "new"}, format="json").status_code == 403


def test_the_first_use_of_a_key_is_noted(client_with, owner):
    key, secret = factories.make_api_key(owner)
    before = timezone.now()

    client_with(secret).get(URL)

    assert ApiKey.objects.get(pk=key.pk).last_used_at >= before


def test_a_use_within_a_minute_of_the_last_noted_one_is_not_written(client_with, owner):
    key, secret = factories.make_api_key(owner)
    recent = timezone.now() - timedelta(seconds=50)
    ApiKey.objects.filter(pk=key.pk).update(last_used_at=recent)

    client_with(secret).get(URL)

    assert ApiKey.objects.get(pk=key.pk).last_used_at == recent


def test_a_use_after_a_minute_is_written(client_with, owner):
    key, secret = factories.make_api_key(owner)
    long_ago = timezone.now() - timedelta(seconds=70)
    ApiKey.objects.filter(pk=key.pk).update(last_used_at=long_ago)

    client_with(secret).get(URL)

    assert ApiKey.objects.get(pk=key.pk).last_used_at > long_ago
