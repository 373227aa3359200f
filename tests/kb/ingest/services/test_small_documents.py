"""Small documents made searchable together are what they would be one by one, whatever is among them."""

import hashlib
import uuid
from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.files.base import ContentFile
from django.utils import timezone

from kb.base.errors import Rejected
from kb.ingest.parser.sandbox import TooSlow
from kb.ingest.services import indexing
from kb.ingest.services.batches import batch_cancel, batch_create, batch_pause
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document, index_documents
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document
from kb.tasks import ingest_documents, sweep_lost_documents
from tests import factories
from tests.kb.ingest.parser.hostile import HOSTILE

pytestmark = pytest.mark.django_db

STORED = ("title", "indexed_title", "mime", "chunking", "remarks", "status", "progress", "stage", "attempts", "lease")
CUT = ("position", "text", "heading_path", "token_count", "content_hash", "questions", "keywords", "parent__text")


def make_kb(*, embedding_model="hashing", **settings):
    kb = factories.make_kb(embedding_model=embedding_model)
    for field, value in settings.items():
        setattr(kb, field, value)
    kb.save()
    return kb


@pytest.fixture
def kb():
    return make_kb(language="zh", keyword_vectors=True)


@pytest.fixture
def batch(kb):
    return batch_create(knowledge_base=kb, name="many", user=kb.owner)


def add(kb, content, name, batch=None):
    data = content if isinstance(content, bytes) else content.encode()
    return document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner, batch=batch).pk


def together(*ids):
    return index_documents(ids)


def statuses():
    return dict(Document.objects.values_list("source", "status"))


def of(document_id, rows, fields):
    return list(rows.objects.filter(document=document_id).order_by("position").values_list(*fields))


@pytest.mark.sandbox
@pytest.mark.parametrize("strategy", ["recursive", "parent_child", "headings"])
def test_they_are_as_if_each_had_been_indexed_by_itself(strategy):
    files = {f"{number}.md": f"# 第{number}条\n\n" + f"保修期是{number}年。" * 90 for number in range(4)}
    alone, other = (make_kb(keyword_vectors=True, chunk_strategy=strategy, chunk_size=200) for _ in range(2))
    singly = [add(alone, text, name) for name, text in files.items()]
    for document_id in singly:
        index_document(document_id)

    ids = [add(other, text, name) for name, text in files.items()]
    assert together(*ids) == []

    stored = Document.objects.order_by("pk").values_list(*STORED)
    assert list(stored.filter(pk__in=ids)) == list(stored.filter(pk__in=singly))
    for one, group in zip(singly, ids, strict=True):
        assert of(group, Chunk, CUT) == of(one, Chunk, CUT)
    for rows, fields in ((ChunkPostings, ("terms", "lexemes")), (ChunkEmbedding, ("kind", "vector"))):
        first, second = (
            [
                [bytes(value) if isinstance(value, memoryview) else value for value in row]
                for row in rows.objects.filter(knowledge_base=base).order_by("chunk_id", "pk").values_list(*fields)
            ]
            for base in (alone, other)
        )
        assert sorted(map(str, first)) == sorted(map(str, second))


def test_they_share_one_transaction_and_a_statement_for_each_table(kb, django_assert_max_num_queries):
    few = [add(kb, f"第{number}条", f"{number}.txt") for number in range(3)]
    many = [add(kb, f"条文{number}", f"t{number}.txt") for number in range(40)]
    together(*few)
    with django_assert_max_num_queries(30):
        together(*many)
    assert set(statuses().values()) == {"ready"}


@pytest.mark.sandbox
def test_hostile_ones_fail_by_themselves_with_their_sentences(kb):
    made = [(filename, make, codes) for filename, make, codes in HOSTILE.values() if "bomb" not in make.__qualname__]
    small = [(name, data, codes) for name, make, codes in made if len(data := make()) <= indexing.SMALL_BYTES]
    expected, first = {}, add(kb, "第一条", "first.txt")
    for name, data, codes in small:
        if (sha := hashlib.sha256(data).hexdigest()) not in set(Document.objects.values_list("sha256", flat=True)):
            with suppress(Rejected):  # some are refused at the door
                add(kb, data, name)
                expected[sha] = codes
    ids = list(Document.objects.order_by("pk").values_list("pk", flat=True))
    last = add(kb, "最后一条", "last.txt")

    assert len(expected) > 15
    together(*ids, last)

    assert set(Document.objects.filter(pk__in=[first, last]).values_list("status", flat=True)) == {"ready"}
    for document in Document.objects.exclude(pk__in=[first, last]).exclude(status="pending"):
        assert document.status == "failed", document.source
        assert document.error_code in expected[document.sha256], document.error
    assert Document.objects.filter(status="failed").count() > 12


def test_large_known_tried_archived_and_paused_ones_are_left_to_be_taken_one_by_one(kb, batch):
    small = add(kb, "小", "small.txt")
    large = add(kb, "大" * indexing.SMALL_BYTES, "large.txt")
    tried = add(kb, "试", "tried.txt")
    Document.objects.filter(pk=tried).update(attempts=1)
    known = add(kb, "旧", "known.txt")
    index_document(known)
    Document.objects.filter(pk=known).update(status="pending", attempts=0)
    paused = add(kb, "停", "paused.txt", batch)
    batch_pause(batch)

    assert together(small, large, tried, known, paused) == [large, tried, known]
    assert Document.objects.get(pk=small).status == "ready"
    assert Document.objects.get(pk=paused).status == "pending"


def test_those_whose_chunks_a_language_model_reads_are_taken_one_by_one():
    kb = make_kb(ask_questions=True)
    document = add(kb, "问", "a.txt")
    assert together(document) == [document]


def test_documents_of_several_knowledge_bases_each_go_to_their_own(kb):
    other = make_kb()
    first, second = add(kb, "甲", "a.txt"), add(other, "乙", "b.txt")
    assert together(first, second) == []
    assert Chunk.objects.get(document=first).knowledge_base_id == kb.pk
    assert Chunk.objects.get(document=second).knowledge_base_id == other.pk


def test_more_than_a_portion_is_written_in_several(kb, monkeypatch):
    monkeypatch.setattr(indexing, "BATCH_CHARACTERS", 10)
    monkeypatch.setattr(indexing, "BATCH_BYTES", 60)
    ids = [add(kb, f"第{number}条讲的是保修期。", f"{number}.txt") for number in range(5)]
    assert together(*ids) == []
    assert Chunk.objects.count() == 5


def test_one_that_cannot_be_cut_waits_for_a_task_of_its_own_and_holds_none_of_the_others(kb, monkeypatch):
    ids = [add(kb, f"第{number}条", f"{number}.txt") for number in range(3)]
    real = indexing.split

    def broken(parsed, how):
        if "第1条" in parsed.sections[0].text:
            raise ValueError("a fault of ours")
        return real(parsed, how)

    monkeypatch.setattr(indexing, "split", broken)
    assert together(*ids) == [ids[1]]
    assert statuses() == {"0.txt": "ready", "1.txt": "pending", "2.txt": "ready"}
    assert Document.objects.values_list("attempts", "lease").get(pk=ids[1]) == (1, None)


def test_one_whose_file_is_gone_waits_for_a_task_of_its_own_too(kb):
    ids = [add(kb, f"第{number}条", f"{number}.txt") for number in range(3)]
    gone = Document.objects.get(pk=ids[0])
    gone.file.storage.delete(gone.file.name)
    assert together(*ids) == [ids[0]]
    assert statuses() == {"0.txt": "pending", "1.txt": "ready", "2.txt": "ready"}


def test_a_slow_one_waits_for_a_task_of_its_own_that_gives_it_the_full_time(kb, monkeypatch):
    ids = [add(kb, f"第{number}条", f"{number}.txt") for number in range(3)]
    real = indexing._parse

    def slow(batch, document, parser=None):
        if parser is not None and document.pk == ids[1]:
            raise TooSlow("it takes long")
        return real(batch, document, parser)

    monkeypatch.setattr(indexing, "_parse", slow)
    assert together(*ids) == [ids[1]]
    index_document(ids[1])
    assert set(statuses().values()) == {"ready"}


def test_one_that_brings_all_down_is_found_by_taking_each_alone(kb, monkeypatch):
    ids = [add(kb, f"第{number}条", f"{number}.txt") for number in range(3)]

    def broken(*_arguments, **_keywords):
        raise ValueError("a fault of ours")

    monkeypatch.setattr(indexing, "prepare", broken)
    assert together(*ids) == ids
    assert set(Document.objects.values_list("status", "attempts", "lease")) == {("pending", 1, None)}


def test_a_model_that_is_out_of_reach_fails_all_with_its_sentence():
    kb = make_kb(embedding_model="openai:none")
    ids = [add(kb, f"第{number}条", f"{number}.txt") for number in range(2)]
    together(*ids)
    assert set(Document.objects.values_list("status", "error_code")) == {("failed", "model_unavailable")}


@pytest.mark.parametrize("moment", ["cancelled", "deleted", "taken over", "retitled"])
def test_what_is_no_longer_the_workers_is_not_written(kb, batch, monkeypatch, moment):
    lost = add(kb, "取消的", "lost.txt", batch)
    kept = add(kb, "留下的", "kept.txt")
    real = indexing.prepare
    change = {
        "cancelled": lambda: batch_cancel(batch),
        "deleted": lambda: Document.objects.filter(pk=lost).delete(),
        "taken over": lambda: Document.objects.filter(pk=lost).update(lease=uuid.uuid4()),
        "retitled": lambda: Document.objects.filter(pk=lost).update(status="pending", lease=None, title="新"),
    }[moment]

    def prepared(*arguments, **keywords):
        change()
        return real(*arguments, **keywords)

    monkeypatch.setattr(indexing, "prepare", prepared)
    together(kept, lost)

    assert Document.objects.get(pk=kept).status == "ready"
    assert list(Chunk.objects.values_list("document", flat=True)) == [kept]


def test_a_task_leaves_the_others_to_tasks_of_their_own_and_sends_for_graphs(monkeypatch):
    kb = make_kb(extract_graph=True)
    sent = []
    monkeypatch.setattr("kb.tasks.enqueue", lambda task, *ids: sent.append((task.name.rpartition(".")[2], *ids)))
    small = add(kb, "小", "small.txt")
    large = add(kb, "大" * indexing.SMALL_BYTES, "large.txt")
    ingest_documents(small, large)
    assert sent == [("extract_graph", small), ("ingest_document", large)]


def test_the_sweep_takes_up_lost_ones_together_and_each_that_was_begun_by_itself(kb, monkeypatch):
    sent = []
    monkeypatch.setattr("kb.tasks.enqueue", lambda task, *ids: sent.append((task.name.rpartition(".")[2], *ids)))
    waiting, begun = add(kb, "等", "a.txt"), add(kb, "始", "b.txt")
    past = timezone.now() - timedelta(hours=1)
    Document.objects.update(updated_at=past)
    Document.objects.filter(pk=begun).update(status="processing", attempts=1, lease=uuid.uuid4(), lease_until=past)

    sweep_lost_documents()
    assert sent == [("ingest_documents", waiting, begun)]
    ingest_documents(waiting, begun)

    assert sent[1:] == [("ingest_document", begun)]
    assert statuses() == {"a.txt": "ready", "b.txt": "pending"}
