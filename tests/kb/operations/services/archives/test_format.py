"""Nothing that curators make is forgotten when a model gains a field."""

import pytest

from kb.models import Document, KnowledgeBase
from kb.operations.services.archives.format import KNOWLEDGE_BASE_FIELDS, LEFT_OUT, TABLES


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_field_is_written_or_left_out_knowingly(table):
    fields = {field.name for field in table.model._meta.concrete_fields} - {"id", "knowledge_base"}
    left_out = LEFT_OUT.get(table.model, frozenset()) - {"knowledge_base"}
    assert fields == table.keys | left_out
    assert not table.keys & left_out


def test_every_setting_of_a_knowledge_base_is_written_or_left_out_knowingly():
    fields = {field.name for field in KnowledgeBase._meta.concrete_fields} - {"id"}
    assert fields == set(KNOWLEDGE_BASE_FIELDS) | LEFT_OUT[KnowledgeBase]


def test_a_table_follows_those_that_it_refers_to():
    known = set()
    for table in TABLES:
        known.add(table.name)
        assert set(table.refers.values()) <= known


def test_the_only_lists_among_documents_are_the_concepts():
    assert [field.name for field in Document._meta.many_to_many] == ["concepts"]
