"""A move back to PostgreSQL ends with its own vector index, made and measured."""

import pytest
from django.urls import reverse
from psycopg import sql

from kb.base.db.transactions import Purpose, try_lock
from kb.base.errors import Rejected
from kb.base.messages import shown
from kb.index import vector_index
from kb.index.pgvector import efforts
from kb.index.services.stores.migration import STORE_MOVE, migration_start
from kb.index.vector_index import maintain_vector_indexes, vector_spaces
from kb.jobs.moves import AlreadyRunning
from kb.models import ChunkEmbedding, KnowledgeBase, StoreState
from tests.factories import make_kb
from tests.kb.index.vectors import add_chunks, add_vectors, clustered
from tests.kb.web.admin.pages import Page

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 200


@pytest.fixture
def kb(settings):
    settings.VECTOR_INDEX_MIN_ROWS = 100
    kb = make_kb(embedding_model="hashing")
    add_vectors(kb, add_chunks(kb, COUNT), clustered(COUNT))
    KnowledgeBase.objects.filter(pk=kb.pk).update(store="chroma")
    kb.refresh_from_db()
    migration_start(kb, "postgres")
    yield kb
    KnowledgeBase.objects.all().delete()
    ChunkEmbedding.objects.all().delete()
    maintain_vector_indexes()
    efforts.cache_clear()


def test_its_index_is_made_and_measured_and_told_on_the_page(kb, client):
    assert STORE_MOVE.advance(kb)

    assert kb.store == "postgres"
    assert [space.vectors for space in vector_spaces(kb.pk) if space.has_index] == [COUNT]
    checked = StoreState.objects.get(store="postgres").checked
    assert (checked["found"], checked["recall"] > 0.9) == (COUNT, True)
    client.force_login(kb.owner)
    url = reverse("admin:kb_knowledgebase_stores", args=[kb.pk])
    assert str(COUNT) in Page(client.get(url)).text("index")


def test_without_its_index_the_move_is_not_done_and_says_why(kb, monkeypatch):
    monkeypatch.setattr(vector_index, "CREATE", sql.SQL("SELECT 1 / 0"))

    with pytest.raises(Rejected) as raised:
        STORE_MOVE.advance(kb)

    assert raised.value.code == "index_not_made"
    assert (StoreState.objects.get().status, shown(StoreState.objects.get().error)) == ("failed", str(raised.value))
    assert KnowledgeBase.objects.get(pk=kb.pk).store == "chroma"
    monkeypatch.undo()
    migration_start(kb, "postgres")
    assert STORE_MOVE.advance(kb)


def test_while_another_process_makes_indexes_the_move_waits(kb):
    with try_lock(Purpose.VECTOR_INDEX), pytest.raises(AlreadyRunning):
        STORE_MOVE.advance(kb)

    assert KnowledgeBase.objects.get(pk=kb.pk).target_store == "postgres"
