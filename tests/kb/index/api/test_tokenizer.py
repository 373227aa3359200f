import sys

import pytest

from kb.index.services.tokenizing import TOKENIZING
from kb.models import KnowledgeBase, Membership
from kb.search import wiring as conf
from retrieval.tokenize import engine_versions
from tests import factories

pytestmark = pytest.mark.django_db

DISTINCT = "\n".join(f"{number:050d}" for number in range(10_001))


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/tokenizer/"


@pytest.fixture
def tokens_of(client, kb):
    def post(text):
        return client.post(f"/api/v1/knowledge-bases/{kb.pk}/tokens/", {"text": text}, format="json")

    return post


@pytest.fixture
def missing(monkeypatch):
    """A package that cannot be imported, and a process that has not looked for it yet."""

    def remove(package):
        monkeypatch.setitem(sys.modules, package, None)
        forget()

    def forget():
        conf._load_tokenizer.cache_clear()
        engine_versions.cache_clear()

    yield remove
    forget()


def _stored(kb):
    return KnowledgeBase.objects.get(pk=kb.pk)


def test_a_new_knowledge_base_has_the_default_settings(client, kb, url):
    assert client.get(url).json() == {
        "id": kb.tokenizer_id,
        "engine": "jieba",
        "dictionary": "",
        "stop_words": "",
        "simplify": False,
        "target_id": None,
        "progress": None,
    }


def test_other_settings_become_the_target_and_the_present_tokenizer_stays(client, kb, document, url):
    response = client.put(url, {"dictionary": "带薪年假 100 n"}, format="json")

    state = response.json()
    assert response.status_code == 202
    assert (state["id"], state["dictionary"]) == (kb.tokenizer_id, "带薪年假 100 n")
    assert state["target_id"] not in (None, kb.tokenizer_id)
    assert state["progress"] == {"done": 0, "total": 2, "error": ""}
    assert client.get(url).json() == state


def test_when_the_chunks_are_tokenised_the_target_is_in_use(client, kb, document, url, tokens_of):
    target = client.put(url, {"dictionary": "带薪年假"}, format="json").json()["target_id"]

    TOKENIZING.advance(_stored(kb))

    state = client.get(url).json()
    assert (state["id"], state["target_id"], state["progress"]) == (target, None, None)
    assert "带薪年假" in [token["term"] for token in tokens_of("带薪年假").json()["tokens"]]


def test_what_is_left_out_is_replaced_by_its_default(client, kb, document, url):
    client.put(url, {"dictionary": "带薪年假", "stop_words": "员工", "simplify": True}, format="json")

    state = client.put(url, {"engine": "rjieba"}, format="json").json()

    assert (state["engine"], state["dictionary"], state["stop_words"], state["simplify"]) == ("rjieba", "", "", False)


def test_settings_in_use_are_200_and_start_nothing(client, url):
    response = client.put(url, {"engine": "jieba"}, format="json")

    assert response.status_code == 200
    assert response.json()["target_id"] is None


def test_an_editor_may_change_it(client_of, kb, document, url):
    editor = client_of(factories.make_member(kb, Membership.Role.EDITOR))

    assert editor.put(url, {"stop_words": "员工"}, format="json").status_code == 202


def test_a_change_under_way_can_be_given_up(client, kb, document, url):
    client.put(url, {"stop_words": "员工"}, format="json")

    response = client.delete(url)

    assert response.status_code == 204
    state = client.get(url).json()
    assert (state["id"], state["target_id"], state["stop_words"]) == (kb.tokenizer_id, None, "")


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"dictionary": "\n带薪年假 0"}, "dictionary", "Line 2: the frequency is not"),
        ({"dictionary": "。"}, "dictionary", "Line 1:"),
        ({"stop_words": "的\n" + "了" * 51}, "stop_words", "Line 2: the word is too long"),
        ({"stop_words": DISTINCT}, "stop_words", "The words have more than 500,000 characters in all: leave out"),
        ({"dictionary": "x" * 1_000_001}, "dictionary", "1000000"),
        ({"dictionary": 5}, "dictionary", ""),
        ({"dictionary": None}, "dictionary", ""),
        ({"dictionary": "a\0b"}, "dictionary", ""),
        ({"stop_words": ["的"]}, "stop_words", ""),
        ({"engine": "pkuseg"}, "engine", "pkuseg"),
        ({"simplify": "yes"}, "simplify", ""),
        ({"id": "mine"}, "id", "dictionary"),
    ],
)
def test_settings_that_are_not_valid_name_the_field(client, kb, url, body, field, message):
    response = client.put(url, body, format="json")

    assert response.status_code == 400
    assert message in response.json()["fields"][field][0]
    assert not _stored(kb).target_tokenizer_id


def test_an_engine_that_is_not_installed_is_503_and_says_what_to_install(client, kb, url, missing):
    missing("rjieba")

    response = client.put(url, {"engine": "rjieba"}, format="json")

    assert (response.status_code, response.json()["code"]) == (503, "bm25_dependencies_missing")
    assert "rjieba" in response.json()["detail"]
    assert int(response.headers["Retry-After"]) > 0
    assert not _stored(kb).target_tokenizer_id


def test_the_tokens_of_a_text_carry_where_they_come_from(kb, tokens_of):
    response = tokens_of("The TH-01 带薪年假")

    assert response.status_code == 200
    assert response.json()["tokenizer"] == kb.tokenizer_id
    assert response.json()["tokens"][:2] == [
        {"term": "the", "surface": "The", "kind": "stem", "is_dropped": True},
        {"term": "th-01", "surface": "TH-01", "kind": "code", "is_dropped": False},
    ]


def test_a_blank_text_has_no_tokens(tokens_of):
    assert tokens_of(" ").json()["tokens"] == []


@pytest.mark.parametrize("text", ["x" * 10_001, 5, None, "a\0b"])
def test_a_text_that_is_not_valid_is_400(tokens_of, text):
    response = tokens_of(text)

    assert response.status_code == 400
    assert "text" in response.json()["fields"]


def test_tokens_without_the_tokenizers_packages_are_503(tokens_of, missing):
    missing("jieba")

    response = tokens_of("带薪年假")

    assert (response.status_code, response.json()["code"]) == (503, "bm25_dependencies_missing")


def test_a_viewer_may_read_tokens(client_of, kb):
    viewer = client_of(factories.make_member(kb))

    assert viewer.post(f"/api/v1/knowledge-bases/{kb.pk}/tokens/", {"text": "x"}, format="json").status_code == 200


def test_a_key_with_the_scope_read_may_read_tokens(client_with, owner, kb):
    _, secret = factories.make_api_key(owner, kb, scope="read")
    url = f"/api/v1/knowledge-bases/{kb.pk}/tokens/"

    assert client_with(secret).post(url, {"text": "x"}, format="json").status_code == 200
