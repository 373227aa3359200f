import pytest

from kb.models import SearchLog
from kb.quality.why_not.services.trials import MOST_TRIALS
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/why-not/"


@pytest.fixture
def ask(client):
    def post(*kb_ids, query="带薪年假", using=client, **fields):
        return using.post(URL, {"query": query, "knowledge_base_ids": list(kb_ids), **fields}, format="json")

    return post


def test_a_chunk_that_is_found(ask, kb, chunk):
    response = ask(kb.pk, chunk_id=chunk.pk)

    assert response.status_code == 200
    body = response.json()
    assert body.keys() == {
        "query", "chunk", "found", "rank", "verdict", "stages", "places", "terms", "remedies", "profile", "degraded",
    }  # fmt: skip
    assert (body["found"], body["rank"], body["verdict"]["stage"]) == (True, 1, "found")
    assert body["chunk"]["text"] == chunk.text
    assert body["profile"] == {"name": "keyword-led", "version": 1}
    assert not SearchLog.objects.exists()


def test_the_stage_that_lost_it_and_what_would_help(ask, kb, chunk):
    body = ask(kb.pk, chunk_id=chunk.pk, score_threshold=1.0).json()

    assert (body["verdict"]["stage"], body["verdict"]["reason"]) == ("gate", "below")
    assert "threshold 1 on" in body["verdict"]["sentence"]
    draft = body["remedies"][0]
    assert (draft["code"], list(draft["settings"])) == ("draft", ["score_threshold"])
    effect = draft["effect"]
    assert (effect["becomes_result"], effect["stage"], effect["rank_before"], effect["rank_after"]) == (
        True, "found", 1, 1,
    )  # fmt: skip
    assert "result 1 of 1" in effect["sentence"]


def test_the_filters_and_overrides_are_those_of_a_search(ask, kb, chunk):
    filtered = ask(kb.pk, chunk_id=chunk.pk, filters={"tags": ["other"]}).json()

    assert filtered["verdict"]["stage"] == "filters"
    assert filtered["remedies"][0]["request"] == {"knowledge_base_ids": [kb.pk], "filters": None}


def test_a_chunk_is_named_by_its_text(ask, kb, document):
    body = ask(kb.pk, query="home", text="work from HOME").json()

    assert body["chunk"]["chunk_id"] == document.chunks.get(position=1).pk


def test_a_text_that_several_chunks_hold_is_refused_with_their_ids(ask, kb, document):
    other = factories.make_document(kb, "You may work from home.").chunks.get()

    response = ask(kb.pk, text="work from home")

    assert (response.status_code, response.json()["code"]) == (400, "ambiguous_text")
    assert str(other.pk) in response.json()["detail"]


def test_a_text_that_no_chunk_holds_is_not_found(ask, kb, document):
    factories.Document.objects.create(knowledge_base=kb, sha256="x", title="Late", status="pending")

    response = ask(kb.pk, text="zzz qqq")

    assert response.status_code == 404
    assert "Late" in response.json()["detail"]


@pytest.mark.parametrize("fields", [{}, {"chunk_id": 1, "text": "a"}, {"chunk_id": None}, {"text": ""}])
def test_the_chunk_is_named_in_one_way(ask, kb, fields):
    response = ask(kb.pk, **fields)

    assert response.status_code == 400
    assert "chunk_id" in response.json()["fields"]


@pytest.mark.parametrize("fields", [{"chunk_id": "1"}, {"chunk_id": 0}, {"explain": True}, {"profile_version": 1}])
def test_what_cannot_be_used_is_refused(ask, kb, fields):
    assert ask(kb.pk, **{"chunk_id": 1, **fields}).status_code == 400


def test_a_strangers_chunk_does_not_exist(ask, kb, chunk):
    secret = factories.make_document(factories.make_kb(), "Secret text.").chunks.get()

    assert ask(kb.pk, chunk_id=secret.pk).status_code == 404
    assert ask(kb.pk, text="Secret text").status_code == 404
    assert ask(secret.knowledge_base_id, chunk_id=secret.pk).status_code == 404


def test_a_key_that_may_only_read_suffices(ask, client_with, owner, kb, chunk):
    _key, secret = factories.make_api_key(owner, kb)

    assert ask(kb.pk, chunk_id=chunk.pk, using=client_with(secret)).status_code == 200


def test_without_a_caller_there_is_no_answer(ask, anonymous, kb, chunk):
    assert ask(kb.pk, chunk_id=chunk.pk, using=anonymous).status_code == 401


def test_the_searches_that_try_what_would_help_count_too(ask, kb, chunk, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "general": f"{MOST_TRIALS + 4}/hour"}

    found = ask(kb.pk, chunk_id=chunk.pk)
    lost, refused = (ask(kb.pk, chunk_id=chunk.pk, score_threshold=1.0) for _ in range(2))

    assert [each.status_code for each in (found, lost, refused)] == [200, 200, 429]
    assert [each.headers["RateLimit-Remaining"] for each in (found, lost, refused)] == [str(MOST_TRIALS + 3), "2", "1"]
    assert "searches" in refused.json()["detail"]
