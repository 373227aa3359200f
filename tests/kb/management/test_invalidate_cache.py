from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.models import BM25Index, KnowledgeBaseVersion
from tests.factories import make_document, make_kb, make_user
from tests.kb.index.searching import settle, tier, version

pytestmark = pytest.mark.django_db(transaction=True)


def invalidate(*arguments):
    output = StringIO()
    call_command("invalidate_cache", *arguments, stdout=output)
    return output.getvalue()


def indexed(name, owner=None):
    kb = make_kb(owner, name)
    make_document(kb, "温控器显示 ERR_404")
    assert tier(kb) == "build"
    settle()
    return kb


def test_the_next_search_builds_the_index_again():
    kb = indexed("faq")
    assert tier(kb) == "process"
    invalidate("--kb", "faq")
    assert tier(kb) == "build"


def test_takes_a_new_version_so_that_other_processes_build_again():
    kb = indexed("faq")
    before = version(kb)
    invalidate("--kb", "faq")
    assert version(kb) > before
    assert not BM25Index.objects.filter(knowledge_base=kb).exists()


def content_version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).content_version


@pytest.mark.parametrize("arguments", [[], ["--hot-queries"]], ids=["all", "hot queries"])
def test_no_earlier_response_is_served_again(arguments):
    kb, other = indexed("faq"), indexed("other")
    before, untouched = content_version(kb), content_version(other)
    invalidate("--kb", "faq", *arguments)
    assert content_version(kb) > before
    assert content_version(other) == untouched


def test_hot_queries_alone_leave_the_index():
    kb = indexed("faq")
    before = version(kb)
    assert "index" not in invalidate("--kb", "faq", "--hot-queries")
    assert version(kb) == before
    assert tier(kb) == "process"


def test_leaves_other_knowledge_bases_alone():
    indexed("faq")
    other = indexed("other")
    invalidate("--kb", "faq")
    assert tier(other) == "process"


def test_without_a_name_serves_all():
    both = [indexed("faq"), indexed("other")]
    invalidate()
    assert [tier(kb) for kb in both] == ["build", "build"]


def test_an_owner_without_a_name_means_all_of_that_owner():
    hers, his = indexed("faq", make_user("ann")), indexed("faq", make_user("bob"))
    invalidate("--owner", "ann")
    assert [tier(kb) for kb in (hers, his)] == ["build", "process"]


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    make_kb(name="faq")
    with pytest.raises(CommandError, match=r"'fqa'.*faq"):
        invalidate("--kb", "fqa")


def test_says_so_when_there_is_nothing_to_drop():
    assert "nothing to drop" in invalidate()
