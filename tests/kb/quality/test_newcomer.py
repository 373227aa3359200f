"""The first questions of somebody new, on the knowledge bases of a first start and ten uploaded files, at the defaults."""

import pytest

from kb.access.models import Principal
from kb.search.services.search import SearchRequest, search
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.types import Relevance
from tests.factories import make_user
from tests.newcomer import make_knowledge_bases, questions

pytestmark = [pytest.mark.quality, pytest.mark.django_db(transaction=True)]


def test_most_first_questions_are_answered_and_none_without_an_answer_looks_certain():
    owner = make_user(superuser=True)
    bases = make_knowledge_bases(owner, HASHING_MODEL_ID)
    answered, certain, certain_of_right, false = [], [], [], []
    for question in questions():
        request = SearchRequest(query=question.query, knowledge_base_ids=[bases[question.kb].pk])
        result = search(Principal(owner), request).result
        high = [hit for hit in (*result.hits, *result.near_misses) if hit.relevance is Relevance.HIGH]
        if question.document is None:
            false += [question.id] if high else []
            continue
        right = [hit for hit in result.hits if question.is_answered_by(hit.passage.source, hit.passage.text)]
        answered += [question.id] if right else []
        certain += [question.id] if high else []
        certain_of_right += [question.id] if any(hit.relevance is Relevance.HIGH for hit in right) else []

    assert len(answered) >= 19
    assert len(certain) >= 12
    assert len(certain_of_right) >= 11
    assert false == []
