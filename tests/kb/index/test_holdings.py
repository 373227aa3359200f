"""What a knowledge base holds, as searches are wired by it."""

import pytest

from kb.models import Concept, GraphFact, Principal, SearchProvider, Source
from kb.search.selectors import Holdings, holdings, searchable
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


def read(kb):
    return searchable(Principal(user=kb.owner), [kb.pk])[kb.pk]


def test_a_base_without_sources_elsewhere_asks_once_for_each_of_its_versions(kb, django_assert_num_queries):
    found = read(kb)
    with django_assert_num_queries(1):
        assert holdings(found) == Holdings(keyword_vectors=False, questions=False, concepts=False, facts=False)
    with django_assert_num_queries(0):
        holdings(found)


def test_what_there_is_is_told_apart(kb):
    Concept(knowledge_base=kb, name="设备").save()
    assert (holdings(read(kb)).concepts, holdings(read(kb)).facts) == (True, False)
    GraphFact.objects.create(knowledge_base=kb, subject="a", predicate="is", object="b")
    assert holdings(read(kb)).facts


def test_sources_that_are_switched_off_or_of_others_are_not_asked(kb):
    for base in (kb, make_kb(name="other")):
        for name, enabled in (("on", True), ("off", False)):
            url = f"https://example.org/{base.pk}"
            Source.objects.create(knowledge_base=base, name=name, url=url, live=True, enabled=enabled)
            SearchProvider.objects.create(knowledge_base=base, name=name, enabled=enabled)
    found = holdings(read(kb))
    assert [(each.name, each.knowledge_base_id) for each in (*found.live, *found.external)] == [("on", kb.pk)] * 2
