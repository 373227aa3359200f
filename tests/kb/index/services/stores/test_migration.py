from contextlib import suppress

import pytest
from django.core.files.base import ContentFile
from django.test import override_settings
from django.utils import timezone

from kb import tasks
from kb.base.db.transactions import Purpose
from kb.base.errors import Rejected
from kb.base.models import installation_id
from kb.index.mirrors.registry import StoreError, mirror
from kb.index.services.stores import migration
from kb.index.services.stores.applying import MAX_FAILURES, RETIRED_FOR, changes_apply, note_failure, waiting
from kb.index.services.stores.migration import (
    STORE_MOVE,
    copy_check,
    migration_cancel,
    migration_start,
    store_rebuild,
    stores_state,
)
from kb.ingest.services.documents import document_add, document_requeue
from kb.ingest.services.indexing import index_document
from kb.jobs.moves import WORKER_LOST, AlreadyRunning
from kb.models import (
    Chunk,
    ChunkEmbedding,
    Document,
    Installation,
    KnowledgeBase,
    MoveAttempt,
    Reembedding,
    StoreChange,
    StoreState,
)
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, make_kb, principal
from tests.kb.index.copies import NOBODY, use

pytestmark = pytest.mark.django_db

TEXTS = ("温控器的保修期是两年", "安装前请先关闭电源", "滤网每三个月更换一次", "发票在下单后三天内寄出")


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, *TEXTS)
    return kb


def found(kb, query="保修期是多久", **asked):
    result = search(principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=(kb.pk,), **asked)).result
    return [hit.passage.text for hit in result.hits], [each.code.value for each in result.degraded]


def move(kb, store):
    migration_start(kb, store)
    assert STORE_MOVE.advance(kb)
    kb.refresh_from_db()


@pytest.mark.parametrize("store", ["milvus", "chroma"])
def test_a_base_moves_to_a_store_and_back_and_finds_the_same_all_the_time(kb, store, request):
    request.getfixturevalue(store)
    before = found(kb)

    migration_start(kb, store)
    assert (kb.store, kb.target_store) == ("postgres", store)
    assert found(kb) == before
    assert STORE_MOVE.advance(kb)
    assert (kb.store, kb.target_store) == (store, "")
    assert found(kb)[0][0] == before[0][0]
    assert mirror(store).counts(kb.pk) == copy_check(kb, store).expected

    move(kb, "postgres")
    assert found(kb) == before
    StoreChange.objects.update(created_at="2020-01-01T00:00Z")
    assert changes_apply(kb.pk, store)
    assert mirror(store).collections(kb.pk) == set()


def test_from_one_store_to_another(kb, milvus, chroma):
    move(kb, "milvus")
    move(kb, "chroma")

    assert kb.store == "chroma"
    assert found(kb)[0][0] == TEXTS[0]
    assert copy_check(kb, "chroma").is_good


def test_what_is_written_meanwhile_is_in_the_copy(kb, milvus):
    migration_start(kb, "milvus")
    make_document(kb, "新到的文本块")
    Chunk.objects.filter(text=TEXTS[1]).delete()
    assert STORE_MOVE.advance(kb)
    kb.refresh_from_db()

    assert kb.store == "milvus"
    assert copy_check(kb, "milvus").is_complete
    assert StoreChange.objects.filter(knowledge_base=kb).count() == 0


def test_an_interrupted_move_goes_on_where_it_stood(kb, milvus, monkeypatch):
    monkeypatch.setattr("kb.index.services.stores.applying.CHANGES_A_BATCH", 2)
    migration_start(kb, "milvus")

    assert not STORE_MOVE.advance(kb, batches=1)
    left = StoreChange.objects.filter(knowledge_base=kb).count()
    migration_start(kb, "milvus")

    assert StoreChange.objects.filter(knowledge_base=kb).count() == left < StoreState.objects.get().total
    assert STORE_MOVE.advance(kb)
    assert KnowledgeBase.objects.get(pk=kb.pk).store == "milvus"


def test_a_copy_that_lacks_something_is_not_swapped_to(kb, milvus):
    migration_start(kb, "milvus")
    changes_apply(kb.pk, "milvus")
    name = next(name for name in mirror("milvus").collections(kb.pk) if "_v_" in name)
    mirror("milvus").delete_chunks(name, [Chunk.objects.first().pk])

    with pytest.raises(Rejected):
        STORE_MOVE.advance(kb)
    kb.refresh_from_db()
    assert (kb.store, StoreState.objects.get().status) == ("postgres", "failed")

    migration_start(kb, "milvus")
    assert STORE_MOVE.advance(kb)


def test_a_copy_that_finds_too_little_is_not_swapped_to(kb, milvus, monkeypatch):
    monkeypatch.setattr(migration, "LEAST_RECALL", 1.01)

    migration_start(kb, "milvus")

    with pytest.raises(Rejected):
        STORE_MOVE.advance(kb)
    assert StoreState.objects.get().checked["recall"] == 1.0


def test_a_store_that_is_not_set_up_cannot_be_chosen(kb):
    with override_settings(MILVUS_URI=""), pytest.raises(Rejected, match="MILVUS_URI"):
        migration_start(kb, "milvus")
    with override_settings(CHROMA_URL=NOBODY), pytest.raises(StoreError):
        migration_start(kb, "chroma")


def test_a_second_target_waits_for_the_first_and_may_be_cancelled(kb, milvus, chroma):
    migration_start(kb, "milvus")
    with pytest.raises(Rejected):
        migration_start(kb, "chroma")

    migration_cancel(kb)
    assert (kb.store, kb.target_store) == ("postgres", "")
    assert not StoreState.objects.exists()

    move(kb, "chroma")
    with pytest.raises(Rejected):
        migration_start(kb, "chroma")


def test_a_move_that_was_cancelled_is_neither_cancelled_again_nor_ended_by_who_was_about_to_swap(kb, milvus):
    migration_start(kb, "milvus")
    migration_cancel(kb)
    left = list(StoreChange.objects.values_list("pk", "store", "chunk_id"))
    assert [(store, chunk_id) for _pk, store, chunk_id in left] == [("milvus", None)]

    migration_cancel(kb)
    assert STORE_MOVE.swap(kb, "milvus", {})

    assert (kb.store, kb.target_store) == ("postgres", "")
    assert KnowledgeBase.objects.get(pk=kb.pk).store == "postgres"
    assert list(StoreChange.objects.values_list("pk", "store", "chunk_id")) == left
    assert not StoreState.objects.exists()


def test_vectors_without_a_direction_say_nothing_of_a_copy(kb, chroma):
    move(kb, "chroma")
    assert copy_check(kb, "chroma").sampled == len(TEXTS)

    row = ChunkEmbedding.objects.first()
    ChunkEmbedding.objects.update(vector=[0.0] * len(row.vector))

    check = copy_check(kb, "chroma")
    assert (check.recall, check.sampled, check.is_good) == (None, 0, True)


@pytest.mark.parametrize("store", ["milvus", "chroma"])
def test_a_store_that_is_out_leaves_the_search_to_postgresql_and_says_so(kb, store, request, settings):
    request.getfixturevalue(store)
    use(kb, store)
    before = found(kb)[0]
    settings.MILVUS_URI = settings.CHROMA_URL = NOBODY
    settings.STORE_SECONDS = 1.0

    texts, codes = found(kb)

    assert texts[0] == before[0]
    assert "store_unavailable" in codes


def test_a_store_that_is_far_behind_leaves_the_search_to_postgresql_and_says_so(kb, milvus, monkeypatch):
    use(kb, "milvus")
    monkeypatch.setattr("kb.index.mirrors.registry.MOST_PENDING", 1)
    make_document(kb, "保修期从签收之日起算", "保修凭证请妥善保管")

    texts, codes = found(kb, "保修期从签收之日起算")

    assert texts[0] == "保修期从签收之日起算"
    assert "store_behind" in codes


def test_what_a_store_has_not_taken_in_is_found_without_a_word(kb, milvus):
    use(kb, "milvus")
    make_document(kb, "保修期从签收之日起算")

    texts, codes = found(kb, "保修期从签收之日起算")

    assert texts[0] == "保修期从签收之日起算"
    assert "store_behind" not in codes


def test_changes_wait_for_a_store_that_is_out_and_are_applied_when_it_is_back(kb, chroma, settings):
    move(kb, "chroma")
    address, settings.CHROMA_URL = settings.CHROMA_URL, NOBODY
    make_document(kb, "新到的文本块")

    with pytest.raises(StoreError):
        changes_apply(kb.pk, "chroma")
    state = stores_state(kb)
    assert NOBODY in state["active"].error_text
    assert state["active"].left > 0
    assert waiting() == []  # until the pause is over

    settings.CHROMA_URL = address
    StoreState.objects.update(retry_at=None)
    assert waiting() == [(kb.pk, "chroma")]
    assert changes_apply(kb.pk, "chroma")
    assert (stores_state(kb)["active"].left, stores_state(kb)["active"].error) == (0, "")
    assert StoreState.objects.get().applied_version == KnowledgeBase.objects.get(pk=kb.pk).version_row.version
    assert copy_check(kb, "chroma").is_complete


def test_a_move_to_a_store_that_stays_out_ends_and_a_copy_in_use_is_tried_for_ever(kb, chroma):
    move(kb, "chroma")
    other = make_kb(kb.owner, "other", language="en")
    make_document(other, "The lamp is made by Acme.")
    migration_start(other, "chroma")
    for _attempt in range(MAX_FAILURES):
        assert not StoreState.objects.filter(status="failed").exists()
        for moved in (kb, other):
            note_failure(moved.pk, "chroma", "nobody answers")
    states = StoreState.objects.filter(store="chroma").order_by("knowledge_base_id")
    assert [(state.status, str(state.error)) for state in states] == [
        ("in_use", "nobody answers"),
        ("failed", "nobody answers"),
    ]
    StoreState.objects.update(retry_at=None)
    make_document(kb, "滤网在左侧")
    assert waiting() == [(kb.pk, "chroma")]
    assert STORE_MOVE.sweep() == []
    move(other, "chroma")  # begun again, it goes on
    assert other.store == "chroma"


def test_a_move_that_ends_its_process_three_times_is_given_up(kb, chroma):
    migration_start(kb, "chroma")
    MoveAttempt.objects.create(knowledge_base=kb, purpose=Purpose.STORE_MOVE, count=3)
    tasks.migrate_store(kb.pk)
    state = StoreState.objects.get(knowledge_base=kb)
    assert (state.status, str(state.error)) == ("failed", WORKER_LOST)
    move(kb, "chroma")
    assert kb.store == "chroma"


def test_what_is_left_of_a_deleted_base_waits_for_a_store_that_is_out(kb, chroma, settings):
    move(kb, "chroma")
    kb_id, address, settings.CHROMA_URL = kb.pk, settings.CHROMA_URL, NOBODY
    kb.delete()
    StoreChange.objects.update(created_at=timezone.now() - RETIRED_FOR * 2)
    assert waiting() == [(kb_id, "chroma")]

    with pytest.raises(StoreError):
        changes_apply(kb_id, "chroma")
    assert waiting() == []  # until the pause is over

    settings.CHROMA_URL = address
    StoreChange.objects.update(created_at=timezone.now() - RETIRED_FOR * 2)
    assert changes_apply(kb_id, "chroma")
    assert (waiting(), mirror("chroma").collections(kb_id)) == ([], set())


def test_a_restored_installation_has_its_copies_filled_again(kb, chroma):
    from kb.operations.services.backups.restore import _resume_jobs

    move(kb, "chroma")
    make_document(make_kb(), "which is in PostgreSQL alone")

    Installation.objects.all().delete()
    Installation.objects.create()
    installation_id.cache_clear()
    _resume_jobs()

    assert waiting() == [(kb.pk, "chroma")]
    assert found(kb)[0][0] == TEXTS[0]
    assert changes_apply(kb.pk, "chroma")
    assert copy_check(kb, "chroma").is_complete


def test_one_base_that_moved_meanwhile_keeps_no_other_from_being_checked(kb, chroma, monkeypatch):
    from kb import tasks

    other = make_kb(name="other")
    make_document(other, *TEXTS)
    for each in (kb, other):
        move(each, "chroma")
        mirror("chroma").drop(each.pk)
    rebuilt = []

    def rebuild(moved):
        rebuilt.append(moved.pk)
        raise Rejected("nothing_to_rebuild", "It is in PostgreSQL.")

    monkeypatch.setattr(tasks, "store_rebuild", rebuild)
    tasks.check_stores()

    assert rebuilt == [kb.pk, other.pk]


def test_a_copy_that_a_server_has_lost_is_rebuilt(kb, milvus):
    from kb.tasks import check_stores

    move(kb, "milvus")
    mirror("milvus").drop(kb.pk)
    assert found(kb)[0][0] == TEXTS[0]

    check_stores()
    assert changes_apply(kb.pk, "milvus")

    assert copy_check(kb, "milvus").is_complete


def test_two_processes_at_one_copy_leave_what_both_touched_to_be_applied_again(kb, chroma):
    from kb.index.services.stores import applying

    move(kb, "chroma")
    Chunk.objects.filter(text=TEXTS[0]).update(enabled=False)
    changes = applying._oldest(kb.pk, "chroma")
    StoreChange.objects.filter(pk=changes[0][0]).delete()  # as another process would

    applying._settle(kb.pk, "chroma", changes)

    assert set(StoreChange.objects.values_list("chunk_id", flat=True)) == {
        Chunk.objects.values_list("pk", flat=True).get(text=TEXTS[0])
    }


def test_postgresql_has_nothing_to_rebuild(kb):
    with pytest.raises(Rejected):
        store_rebuild(kb)


def test_a_move_under_constant_writing_is_tried_again(kb, milvus, monkeypatch):
    migration_start(kb, "milvus")
    check = migration.CopyCheck({"a": 1}, {})
    monkeypatch.setattr(migration, "copy_count", lambda *_: (make_document(kb, "又一段"), check)[1])

    with pytest.raises(Rejected) as raised:
        STORE_MOVE.advance(kb)
    assert raised.value.code == "copy_not_settled"
    assert KnowledgeBase.objects.get(pk=kb.pk).store == "postgres"
    assert stores_state(kb)["target"].error_text == str(raised.value)
    assert STORE_MOVE.sweep() == []  # until the pause is over

    monkeypatch.undo()
    StoreState.objects.update(retry_at=None)
    assert STORE_MOVE.sweep() == [kb.pk]
    assert STORE_MOVE.advance(kb)


@pytest.fixture
def busy(kb, chroma, monkeypatch):
    """Between PostgreSQL's counts and the store's a document comes, and another worker applies it if it may."""
    from kb.index.mirrors.chroma import ChromaMirror

    counts, documents = ChromaMirror.counts, iter(("又一段", "再一段"))

    def counts_later(self, kb_id):
        if text := next(documents, ""):
            make_document(kb, text)
            with suppress(AlreadyRunning):
                changes_apply(kb_id, "chroma")
        return counts(self, kb_id)

    monkeypatch.setattr(ChromaMirror, "counts", counts_later)


@pytest.mark.usefixtures("busy")
def test_what_is_written_and_applied_while_a_copy_is_counted_does_not_fail_the_move(kb):
    move(kb, "chroma")

    assert kb.store == "chroma"


@pytest.mark.usefixtures("busy")
def test_what_is_written_and_applied_while_a_copy_is_counted_does_not_have_it_filled_again(kb):
    from kb.tasks import check_stores

    use(kb, "chroma")
    check_stores()

    assert not StoreChange.objects.filter(chunk_id=None).exists()


def test_another_language_has_the_texts_cut_again(kb, milvus):
    from kb.content.services import knowledge_base_update
    from kb.index.mirrors.registry import MirroredKeywordStore

    move(kb, "milvus")
    make_document(kb, "the thermostat has a warranty of two years")
    assert changes_apply(kb.pk, "milvus")

    knowledge_base_update(kb, by=principal(kb.owner), language="en")
    keywords = MirroredKeywordStore("milvus", "en")
    assert keywords.search(kb.pk, "warranty", 5) is None  # the base's own index answers until then
    assert changes_apply(kb.pk, "milvus")

    found, _scores = keywords.search(kb.pk, "warranty", 5)
    assert found.tolist() == [Chunk.objects.get(text__contains="warranty").pk]
    assert copy_check(kb, "milvus").is_complete


@pytest.mark.parametrize("store", ["milvus", "chroma"])
def test_a_reembedding_and_an_edit_reach_the_copy(kb, store, request, monkeypatch):
    from kb.index.services.reembedding import REEMBED, reembedding_drop, reembedding_start
    from kb.ingest.services.chunks import chunk_update
    from tests.kb.providers.letters_model import letters_models

    request.getfixturevalue(store)
    letters_models(monkeypatch, "test/letters")
    make_document(kb, "abab baba", "cdcd dcdc")
    move(kb, store)
    former = mirror(store).counts(kb.pk)

    reembedding_start(kb, "test/letters", swaps=True)
    assert REEMBED.advance(KnowledgeBase.objects.get(pk=kb.pk))
    kb.refresh_from_db()
    assert kb.embedding_model == "test/letters"
    assert found(kb, "cdcd")[0][0] == "cdcd dcdc"  # before the store has taken it in
    assert changes_apply(kb.pk, store)
    assert found(kb, "cdcd")[0][0] == "cdcd dcdc"
    check = copy_check(kb, store)
    assert check.is_good
    assert check.sampled > 0
    assert sum(check.found.values()) > sum(former.values())

    chunk = Chunk.objects.select_related("document", "knowledge_base").get(text="cdcd dcdc")
    chunk_update(chunk, text="efef fefe", enabled=True)
    Reembedding.objects.update(swapped_at="2020-01-01T00:00Z")
    reembedding_drop(KnowledgeBase.objects.get(pk=kb.pk))
    assert changes_apply(kb.pk, store)
    assert found(kb, "efef")[0][0] == "efef fefe"
    assert copy_check(kb, store).is_complete
    assert sum(mirror(store).counts(kb.pk).values()) == sum(former.values())


@pytest.mark.parametrize("store", ["milvus", "chroma"])
def test_a_document_that_is_cut_again_reaches_the_copy(kb, store, request):
    request.getfixturevalue(store)
    paragraphs = [f"第{number}条规定了事项{number * 37}的办法。" * 3 for number in range(4)]
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=400, chunk_overlap=0)
    document = document_add(
        knowledge_base=kb, file=ContentFile("\n\n".join(paragraphs).encode()), name="规定.txt", user=kb.owner
    )
    index_document(document.pk)
    move(kb, store)
    whole = document.chunks.get()

    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=55)
    document_requeue(Document.objects.get(pk=document.pk))
    index_document(document.pk)
    assert [chunk.text for chunk in document.chunks.order_by("position")] == paragraphs
    assert found(kb, "事项74")[0][0] == paragraphs[2]  # before the store has taken it in
    assert changes_apply(kb.pk, store)

    texts, degraded = found(kb, "事项74")
    assert (texts[0], whole.text in texts, degraded) == (paragraphs[2], False, ["hashing_embedder"])
    assert copy_check(kb, store).is_complete
