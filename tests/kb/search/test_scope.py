import pytest

from kb.base.errors import NotVisible
from kb.models import KnowledgeBaseVersion
from kb.search.services.search import SearchRequest, scope_of
from tests.factories import make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


def bases(caller, *kb_ids):
    return scope_of(caller, SearchRequest(query="q", knowledge_base_ids=kb_ids)).knowledge_bases


def test_knowledge_bases_come_in_the_order_asked_for_and_each_once(django_assert_num_queries):
    first = make_kb()
    second = make_kb(owner=first.owner)
    with django_assert_num_queries(1):
        found = bases(principal(first.owner), second.pk, first.pk, second.pk)
    assert [kb.pk for kb in found] == [second.pk, first.pk]


def test_a_knowledge_base_is_what_the_database_holds_now(django_assert_num_queries):
    kb = make_kb()
    kb.name = "another"
    kb.save()
    (found,) = bases(principal(kb.owner), kb.pk)
    row = KnowledgeBaseVersion.objects.get(pk=kb.pk)
    with django_assert_num_queries(0):
        assert (found.version_row.version, found.version_row.content_version) == (row.version, row.content_version)
        assert (found.embedding_model, found.tokenizer_id, found.language) == (
            kb.embedding_model,
            kb.tokenizer_id,
            "zh",
        )
        assert (found.profile.name, found.profile.version) == (kb.profile.name, kb.profile.version)


@pytest.mark.parametrize("who", ["stranger", "inactive", "key of another base"])
def test_one_that_may_not_be_seen_hides_them_all(who):
    kb = make_kb()
    other = make_kb(owner=kb.owner)
    stranger = make_member(kb)
    inactive = make_user()
    inactive.is_active = False
    callers = {
        "stranger": principal(stranger),
        "inactive": principal(inactive),
        "key of another base": principal(kb.owner, kb_ids=frozenset({kb.pk})),
    }
    with pytest.raises(NotVisible):
        bases(callers[who], kb.pk, other.pk)
