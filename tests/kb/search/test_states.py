import pytest

from kb.models import KnowledgeBaseVersion
from kb.search.selectors import states
from tests.factories import make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


def test_states_come_in_the_order_asked_for_and_each_once():
    first = make_kb()
    second = make_kb(owner=first.owner)
    found = states(principal(first.owner), [second.pk, first.pk, second.pk])
    assert [state.kb_id for state in found] == [second.pk, first.pk]


def test_a_state_is_what_the_database_holds_now():
    kb = make_kb()
    kb.name = "another"
    kb.save()
    (state,) = states(principal(kb.owner), [kb.pk])
    row = KnowledgeBaseVersion.objects.get(pk=kb.pk)
    assert (state.version, state.content_version) == (row.version, row.content_version)
    assert (state.embedding_model, state.tokenizer_id, state.language) == (kb.embedding_model, kb.tokenizer_id, "zh")
    assert (state.profile.name, state.profile.version) == (kb.profile.name, kb.profile.version)


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
    assert states(callers[who], [kb.pk, other.pk]) is None
