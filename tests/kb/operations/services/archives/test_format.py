"""Nothing that curators make is forgotten when a model gains a field."""

import pytest

from kb.models import (
    Chunk,
    ConceptTerm,
    Document,
    EntityName,
    Folder,
    GraphFact,
    Judgment,
    KnowledgeBase,
    Picture,
    RetrievalProfile,
    Source,
    SourceItem,
)
from kb.operations.services.archives import rows
from kb.operations.services.archives.format import KNOWLEDGE_BASE_FIELDS, TABLES

# What is not written, and why: it is rebuilt, belongs to the installation, or is of the moment.
LEFT_OUT = {
    KnowledgeBase: frozenset(
        {
            "owner",
            "parser",  # the choice of an installation that has it
            "embedding_model",  # in the manifest, with its dimension
            "dimension",
            "target_embedding_model",
            "previous_embedding_model",
            "tokenizer_id",  # in the manifest, with its options
            "target_tokenizer_id",
            "tokenizing_at",
            "tokenizer_swapped_at",
            "lacks_postings",
            "store",  # the installation's: a copy is filled on the page Store
            "target_store",
            "profile",  # in the manifest, by name and version
            "created_at",
            "updated_at",
        }
    ),
    RetrievalProfile: {"knowledge_base", "copied_from", "created_by", "created_at"},
    Folder: {"created_at"},
    ConceptTerm: {"key"},
    EntityName: {"key"},
    GraphFact: {"subject_key", "object_key"},
    Document: frozenset(
        {
            "file",  # see FILE_LIST
            "picture_bytes",  # of the rows of its pictures
            "batch",
            "stage",
            "progress",
            "attempts",
            "waiting_since",
            "lease",
            "lease_until",
            "error_code",
            "error",
            "error_params",
            "created_by",
            "updated_at",
        }
    ),
    Chunk: {"content_hash", "updated_at"},
    Picture: {"asked_at", "attempts"},
    Judgment: {"quote_hash", "created_by"},
    Source: frozenset(
        {
            "settings",
            "secrets",
            "paused",
            "max_share",
            "failures",
            "run_count",
            "progress",
            "listing",
            "status",
            "attempts",
            "error_code",
            "error",
            "error_params",
            "counts",
            "started_at",
            "finished_at",
            "next_run_at",
            "lease",
            "lease_until",
            "accepted_at",
            "accepted_keys",
            "created_by",
            "created_at",
        }
    ),
    SourceItem: {
        "key",
        "key_hash",
        "name",
        "digest",
        "size",
        "seen_at",
        "text_key",
        "former_hash",
        "shown_key",
        "error_code",
        "error",
        "error_params",
    },
}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_field_is_written_or_left_out_knowingly(table):
    fields = {field.name for field in table.model._meta.concrete_fields} - {"id", "knowledge_base"}
    left_out = LEFT_OUT.get(table.model, set()) - {"knowledge_base"}
    assert fields == table.keys | left_out
    assert not table.keys & left_out


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_field_that_is_written_has_a_type_that_is_checked(table):
    kinds = {table.model._meta.get_field(name).get_internal_type() for name in table.fields}
    assert kinds <= set(rows._TYPES)


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
