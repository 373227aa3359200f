import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.models import RetrievalProfile
from tests.factories import make_document, make_kb, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb(make_user("ann"), "faq")


@pytest.fixture
def chunk(kb):
    make_document(kb, "屏幕显示 ERR_404 时，请重启路由器。", title="错误代码")
    return make_document(kb, "整机保修 24 个月，从发票日期算起。", title="保修政策").chunks.get()


def why_not(*arguments):
    output = StringIO()
    call_command("why_not", *map(str, arguments), stdout=output)
    return output.getvalue()


def test_says_that_it_is_found(chunk):
    assert "The search finds this chunk: It is result 1." in why_not("保修", "--kb", "faq", "--chunk", chunk.pk)


def test_shows_the_stages_the_terms_and_what_would_help(kb, chunk):
    RetrievalProfile.objects.create(name="strict", settings={"score_threshold": 1.0})

    output = why_not("保修 期限", "--kb", "faq", "--chunk", chunk.pk, "--profile", "strict")

    assert output.startswith("Lost at the stage “Relevance threshold”. Its relevance")
    assert "LOST  Relevance threshold" in output
    assert "in chunks of 2" in output
    assert "change in the profile: score_threshold = " in output
    assert "It would be result 1 of 1." in output


def test_a_question_is_named_with_what_it_would_change(kb, chunk):
    settings = {"vector_top_k": 1, "bm25_top_k": 1, "score_threshold": 0.0}
    RetrievalProfile.objects.create(name="narrow", settings=settings)

    output = why_not("ERR_404 路由器", "--kb", "faq", "--chunk", chunk.pk, "--profile", "narrow")

    assert "add to the chunk's questions: ERR_404 路由器. It would be result" in output


def test_a_command_to_run_is_named(kb, chunk):
    chunk.postings.all().delete()
    chunk.embeddings.all().delete()

    assert "manage.py reindex --kb faq --bm25" in why_not("保修", "--kb", "faq", "--chunk", chunk.pk)


def test_a_chunk_is_named_by_its_text(chunk):
    told = json.loads(why_not("保修", "--kb", "faq", "--text", "从发票日期", "--json"))

    assert told["chunk"]["chunk_id"] == chunk.pk
    assert told["verdict"]["stage"] == "found"


def test_a_version_of_a_profile_may_be_named(chunk):
    for version in (1, 2):
        RetrievalProfile.objects.create(name="strict", version=version, settings={"score_threshold": version / 2})

    told = json.loads(
        why_not("保修", "--kb", "faq", "--chunk", chunk.pk, "--profile", "strict", "--profile-version", 2, "--json")
    )

    assert told["profile"] == {"name": "strict", "version": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kb", "faq", "--chunk", 10**9], "There is no chunk"),
        (["--kb", "faq", "--text", "zzz qqq"], "No chunk there holds this text"),
        (["--kb", "nowhere", "--chunk", 1], "nowhere"),
        (["--kb", "faq", "--chunk", 1, "--profile", "unheard"], "unheard|no chunk"),
        (["--kb", "faq", "--chunk", 1, "--profile-version", 1], "--profile NAME"),
        (["--kb", "faq"], "--chunk"),
    ],
)
def test_what_cannot_be_done_ends_with_a_sentence(chunk, arguments, words):
    with pytest.raises(CommandError, match=words):
        why_not("保修", *arguments)


def test_bases_of_several_owners_need_a_user(chunk):
    make_kb(make_user("bob"), "other")

    with pytest.raises(CommandError, match="--user"):
        why_not("保修", "--kb", "faq", "--kb", "other", "--chunk", chunk.pk)


def test_another_users_permissions_apply(chunk):
    make_user("stranger")

    with pytest.raises(CommandError, match="no chunk"):
        why_not("保修", "--kb", "faq", "--chunk", chunk.pk, "--user", "stranger")
