from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core import signing
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from kb.models import ApiKey
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/api-keys/"
IN_A_WEEK = timezone.now() + timedelta(days=7)


@pytest.fixture
def asking(client_with, owner):
    """A client with a key of its owner."""

    def make(*knowledge_bases, scope="write", **fields):
        key, secret = factories.make_api_key(owner, *knowledge_bases, scope=scope, **fields)
        client = client_with(secret)
        client.key = key
        return client

    return make


def create(client, **fields):
    return client.post(URL, {"name": "app", **fields}, format="json")


def test_a_new_key_works_and_its_secret_is_in_that_answer_only(client, client_with, kb):
    response = create(client, scope="write", knowledge_base_ids=[kb.pk], rate_limit="60/minute")

    body = response.json()
    secret = body.pop("key")
    assert response.status_code == 201
    assert response.headers["Cache-Control"] == "no-store"
    assert (body["scope"], body["knowledge_base_ids"], body["rate_limit"]) == ("write", [kb.pk], "60/minute")
    assert client_with(secret).get("/api/v1/knowledge-bases/").status_code == 200
    shown = client.get(URL).content + client.get(f"{URL}{body['prefix']}/").content
    assert secret.partition(".")[2].encode() not in shown
    assert ApiKey.objects.get().hashed_key.encode() not in shown


def test_a_cursor_holds_no_hash_of_a_secret(client, owner):
    first, second = (factories.make_api_key(owner)[0] for _ in range(2))
    page = client.get(URL, {"page_size": 1}).json()
    (cursor,) = parse_qs(urlsplit(page["next"]).query)["cursor"]

    place = signing.loads(cursor, salt="kb.web.api.lists:kb.apikey")

    assert page["results"][0]["prefix"] in place
    assert not any(key.hashed_key in str(place) for key in (first, second))
    following = client.get(page["next"]).json()["results"]
    assert {page["results"][0]["prefix"], following[0]["prefix"]} == {first.prefix, second.prefix}


def test_a_key_reads_all_that_its_user_sees_unless_told_otherwise(client):
    body = create(client).json()

    assert (body["scope"], body["knowledge_base_ids"], body["expires_at"]) == ("read", None, None)


def test_an_unbound_write_key_makes_keys(asking):
    assert create(asking(), scope="write").status_code == 201


def test_a_read_key_makes_none(asking):
    assert create(asking(scope="read")).status_code == 403


def test_a_bound_key_makes_none(asking, kb):
    response = create(asking(kb), knowledge_base_ids=[kb.pk])

    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")
    assert ApiKey.objects.count() == 1


def test_a_new_key_lives_as_long_as_the_one_it_is_made_with(asking):
    body = create(asking(expiry_date=IN_A_WEEK)).json()

    assert parse_datetime(body["expires_at"]) == IN_A_WEEK


def test_a_new_key_lives_no_longer_than_the_one_it_is_made_with(asking):
    response = create(asking(expiry_date=IN_A_WEEK), expires_at=(IN_A_WEEK + timedelta(seconds=1)).isoformat())

    assert (response.status_code, response.json()["code"]) == (400, "expires_too_late")
    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize("own", ["10/minute", "6000/minute"])
def test_a_key_with_a_limit_of_its_own_makes_none(asking, own):
    """Or it would have that limit as many times as it makes keys."""
    response = create(asking(rate_limit=own), rate_limit="1/minute")

    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")
    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize(
    ("limit", "status"),
    [("600/minute", 201), ("60/minute", 201), ("601/minute", 400), ("601/hour", 400), ("20/second", 400)],
)
def test_a_user_gives_no_key_more_than_the_server_allows(client, settings, limit, status):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "general": "600/minute"}

    assert create(client, rate_limit=limit).status_code == status


def test_a_superuser_may_give_a_key_more(client_of, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "general": "600/minute"}

    assert create(client_of(factories.make_user(superuser=True)), rate_limit="9000/minute").status_code == 201


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"scope": "admin"}, "scope"),
        ({"rate_limit": "often"}, "rate_limit"),
        ({"rate_limit": "0/minute"}, "rate_limit"),
        ({"rate_limit": "5/year"}, "rate_limit"),
        ({"rate_limit": "1/9999999999 hours"}, "rate_limit"),
        ({"rate_limit": "9999999999/minute"}, "rate_limit"),
        ({"rate_limit": "5/minute; 50/hour"}, "rate_limit"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"knowledge_base_ids": []}, "knowledge_base_ids"),
        ({"name": ""}, "name"),
        ({"user": 1}, "user"),
    ],
)
def test_what_is_no_key_is_refused_with_its_field(client, fields, at):
    response = create(client, **fields)

    assert response.status_code == 400
    assert list(response.json()["fields"]) == [at]


def test_a_knowledge_base_of_others_looks_like_one_that_is_not_there(client):
    foreign = factories.make_kb()

    response, missing = (create(client, knowledge_base_ids=[pk]) for pk in (foreign.pk, 987654321))

    assert (response.status_code, missing.status_code) == (404, 404)
    assert response.json()["detail"].replace(str(foreign.pk), "") == missing.json()["detail"].replace("987654321", "")


def test_users_list_and_revoke_their_own_keys_only(client, owner):
    mine, _ = factories.make_api_key(owner)
    theirs, _ = factories.make_api_key(factories.make_user())

    assert [row["prefix"] for row in client.get(URL).json()["results"]] == [mine.prefix]
    assert client.delete(f"{URL}{theirs.prefix}/").status_code == 404
    assert client.delete(f"{URL}{mine.prefix}/").status_code == 204
    assert list(ApiKey.objects.filter(revoked=True)) == [mine]
    assert client.get(f"{URL}{mine.prefix}/").json()["revoked"] is True


def test_a_bound_key_learns_of_no_other_key(asking, kb, owner):
    factories.make_api_key(owner)
    client = asking(kb)

    assert [row["prefix"] for row in client.get(URL).json()["results"]] == [client.key.prefix]


def test_a_prefix_with_nul_is_404(client, owner):
    key, _ = factories.make_api_key(owner)

    assert client.get(f"{URL}{key.prefix}/").status_code == 200
    assert client.get(f"{URL}{key.prefix}%00/").status_code == 404


def test_a_key_tells_which_one_it_was_made_with_and_is_revoked_with_it(client, asking):
    maker = asking()
    made = create(maker).json()

    assert made["made_with"] == maker.key.prefix
    assert client.delete(f"{URL}{maker.key.prefix}/").status_code == 204
    assert client.get(f"{URL}{made['prefix']}/").json()["revoked"]


def test_a_bound_key_does_not_learn_of_the_one_it_was_made_with(client_with, asking, kb):
    made = create(asking(), knowledge_base_ids=[kb.pk]).json()

    assert client_with(made["key"]).get(f"{URL}{made['prefix']}/").json()["made_with"] is None
