import pytest
from redis import Redis
from rest_framework.test import APIClient

from kb.access.services.api_keys import api_key_create, api_key_use
from kb.base import cache as query_caches
from kb.base.net.client_address import client_address
from kb.models import ApiKey
from tests import factories
from tests.own_redis import OwnRedis

pytestmark = pytest.mark.django_db

URL = "/api/v1/knowledge-bases/"


@pytest.fixture
def limit(settings):
    def change(**limits):
        settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, **limits}

    return change


@pytest.fixture
def call(client_with, owner):
    """Makes a key, and a function that calls with it."""

    def make(**fields):
        _, secret = factories.make_api_key(owner, **fields)
        return lambda: client_with(secret).get(URL)

    return make


@pytest.fixture
def redis(tmp_path, settings):
    server = OwnRedis(tmp_path)
    assert server.start()
    settings.CACHES = {**settings.CACHES, "bm25": {**settings.CACHES["bm25"], "LOCATION": server.url()}}
    query_caches.forget()
    yield server
    server.stop()


def test_every_answer_tells_what_is_left(call, limit):
    limit(general="3/hour")
    get = call()

    first, second = get(), get()

    assert first.headers["RateLimit-Policy"] == "3;w=3600"
    assert [first.headers["RateLimit-Remaining"], second.headers["RateLimit-Remaining"]] == ["2", "1"]
    assert 0 < int(first.headers["RateLimit-Reset"]) <= 3600


def test_one_request_too_many_is_429_and_says_when_to_come_back(call, limit):
    limit(general="1/hour")
    get = call()
    get()

    response = get()

    assert (response.status_code, response.json()["code"]) == (429, "throttled")
    assert int(response.headers["Retry-After"]) == int(response.headers["RateLimit-Reset"])
    assert response.headers["RateLimit-Remaining"] == "0"


def test_more_keys_are_no_larger_allowance(call, limit):
    limit(general="2/hour")
    one, other = call(), call()

    assert [one().status_code, other().status_code, one().status_code, other().status_code] == [200, 200, 429, 429]


def test_keys_and_sessions_of_a_user_share_the_server_s_limit(call, client_of, owner, limit):
    limit(general="1/hour")
    call()()

    assert client_of(owner).get(URL).status_code == 429
    assert client_of(factories.make_user()).get(URL).status_code == 200


def test_limits_that_keys_have_by_themselves_are_no_larger_allowance_either(call, limit):
    limit(general="3/hour")
    keys = [call(rate_limit="2/hour") for _ in range(2)]

    assert [get().status_code for get in keys for _ in range(3)] == [200, 200, 429, 200, 429, 429]


def test_a_key_is_told_the_limit_that_leaves_the_least(call, limit):
    limit(general="9/hour")
    get = call(rate_limit="2/minute")

    assert get().headers["RateLimit-Limit"] == "2"


def test_a_key_with_more_than_the_server_s_limit_is_counted_by_itself(call, limit):
    limit(general="1/hour")
    granted, other = call(rate_limit="9/hour", rate_limit_granted=True), call()

    assert [granted().headers["RateLimit-Limit"], granted().status_code, other().status_code] == ["9", 200, 200]


def test_what_a_user_gave_a_key_before_the_server_had_a_limit_is_no_grant(client_with, owner, limit):
    _, secret = api_key_create(user=owner, name="own", rate_limit="9000/hour")
    _, granted = api_key_create(user=owner, name="granted", rate_limit="9000/hour", by_operator=True)
    limit(general="1/hour")

    assert [client_with(secret).get(URL).status_code for _ in range(2)] == [200, 429]
    assert [client_with(granted).get(URL).status_code for _ in range(2)] == [200, 200]


def test_questions_of_all_keys_of_a_user_share_a_limit(client_with, owner, limit, kb):
    limit(ask="1/hour")
    question = {"query": "年假", "knowledge_base_ids": [kb.pk]}
    secrets = [factories.make_api_key(owner, rate_limit=own)[1] for own in ("", "90/hour")]

    answers = [client_with(secret).post("/api/v1/ask/", question, format="json") for secret in secrets]

    assert [each.status_code for each in answers] == [200, 429]


def test_a_key_s_own_limit_holds_where_the_server_has_none(call):
    get = call(rate_limit="1/hour")
    get()

    assert get().status_code == 429


def test_without_a_limit_nothing_is_counted_or_said(call):
    assert "RateLimit-Limit" not in call()().headers


def test_the_sessions_of_a_user_share_an_allowance(client_of, owner, limit):
    limit(general="2/hour")
    client_of(owner).get(URL)
    client_of(owner).get(URL)

    assert client_of(owner).get(URL).status_code == 429
    assert client_of(factories.make_user()).get(URL).status_code == 200


def test_questions_are_counted_beside_the_rest(client, limit, kb):
    limit(general="5/hour", ask="1/hour")
    question = {"query": "年假", "knowledge_base_ids": [kb.pk]}

    answers = [client.post("/api/v1/ask/", question, format="json") for _ in range(2)]

    assert [each.status_code for each in answers] == [200, 429]
    assert client.get(URL).headers["RateLimit-Remaining"] == "4"


def test_uploads_are_counted_beside_the_rest_and_lists_of_documents_are_not_uploads(client, limit, kb):
    limit(upload="1/hour")
    url = f"/api/v1/knowledge-bases/{kb.pk}/documents/"

    answers = [client.post(url, {"title": "a", "text": f"text {number}"}, format="json") for number in range(2)]

    assert [each.status_code for each in answers] == [201, 429]
    assert client.get(url).status_code == 200


def test_another_file_of_a_document_is_an_upload(client, limit, kb):
    limit(upload="1/hour")
    document = factories.make_document(kb)

    answers = [client.put(f"/api/v1/documents/{document.pk}/file/", {}, format="multipart") for _ in range(2)]

    assert [each.status_code for each in answers] == [400, 429]


def test_a_key_s_stricter_limit_holds_for_questions_too(client_with, owner, limit, kb):
    limit(ask="60/hour")
    _, secret = factories.make_api_key(owner, rate_limit="1/hour")
    question = {"query": "年假", "knowledge_base_ids": [kb.pk]}

    answers = [client_with(secret).post("/api/v1/ask/", question, format="json") for _ in range(2)]

    assert [each.status_code for each in answers] == [200, 429]


def test_bad_keys_are_limited_by_address_and_good_ones_from_there_are_not(client_with, call, limit):
    limit(failures="1/hour")
    bad = client_with("abcdefgh." + "x" * 40)

    assert [bad.get(URL).status_code for _ in range(3)] == [401, 429, 429]
    assert APIClient().get(URL).status_code == 429
    assert APIClient(REMOTE_ADDR="10.0.0.9").get(URL).status_code == 401
    assert call()().status_code == 200


def test_bad_keys_are_limited_by_network_of_ipv6(limit):
    limit(failures="2/hour")

    codes = [APIClient(REMOTE_ADDR=f"2001:db8:1:2::{number}").get(URL).status_code for number in range(1, 5)]

    assert codes == [401, 401, 429, 429]
    assert APIClient(REMOTE_ADDR="2001:db8:1:3::1").get(URL).status_code == 401


def test_probes_are_not_limited(anonymous, limit):
    limit(general="1/hour", failures="1/hour")

    assert [anonymous.get("/api/v1/health/").status_code for _ in range(3)] == [200] * 3


def test_a_window_is_shared_by_processes(redis, call, limit):
    limit(general="1/hour")
    get = call()
    get()
    query_caches.forget()  # as another process, whose memory knows nothing

    assert get().status_code == 429


def test_a_request_asks_redis_once(redis, call, limit):
    limit(general="9/hour")
    get = call()
    get()  # which loads the script
    with Redis.from_url(redis.url()) as watch:
        watch.config_resetstat()

        get()

        asked = watch.info("commandstats")
    in_script = {"cmdstat_incrby", "cmdstat_expire"}
    own = {"cmdstat_info", "cmdstat_config"}
    assert {name: each["calls"] for name, each in asked.items() if name not in in_script | own} == {
        "cmdstat_evalsha": 1
    }


def test_without_redis_a_limit_holds_within_the_process(redis, call, limit):
    limit(general="2/hour")
    get = call()
    redis.kill()

    assert [get().status_code for _ in range(3)] == [200, 200, 429]


def test_a_request_of_a_bound_key_takes_one_query_before_its_work(client_with, owner, kb, django_assert_num_queries):
    _, secret = factories.make_api_key(owner, kb)
    client_with(secret).get(URL)  # which notes the use

    with django_assert_num_queries(1):
        assert api_key_use(secret).principal().kb_ids == {kb.pk}


def test_revoking_acts_at_the_next_request(call):
    get = call()
    assert get().status_code == 200

    ApiKey.objects.update(revoked=True)

    assert get().status_code == 401


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "203.0.113.9", "10.0.0.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "spoofed, 203.0.113.9", "203.0.113.9"),
        (2, "spoofed, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        (2, "203.0.113.9", "10.0.0.1"),
        (1, "", "10.0.0.1"),
        (1, "no address", ""),
    ],
)
def test_an_address_is_taken_from_what_trusted_proxies_have_seen(rf, settings, proxies, forwarded, address):
    settings.TRUSTED_PROXIES = proxies
    request = rf.get("/", REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": forwarded})

    assert client_address(request) == address
