import pytest

from kb.ingest.services import duplicates
from kb.ingest.services.chunks import chunk_update
from kb.ingest.services.duplicates import (
    duplicate_scan_request,
    duplicate_scan_run,
    duplicates_of,
    look_for_duplicates,
    near_duplicates,
)
from kb.models import Chunk, DuplicateScan, KnowledgeBase
from tests.factories import make_document, make_kb
from tests.kb.ingest.services.chunk_work.rows import chunks_of

pytestmark = pytest.mark.django_db

LAW = "违反本办法规定，擅自印制或者伪造、冒用勘查许可证的，由县级以上人民政府负责地质矿产管理工作的部门没收违法所得，并处罚款。"
ALIKE = LAW.replace("罚款", "罚金")
OTHER = "居住权自登记时设立，居住权不得转让、继承，设立居住权的住宅不得出租。"


@pytest.fixture
def alike(kb):
    return make_document(kb, LAW, OTHER, ALIKE)


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(duplicates, "AT_ONCE", 1)


def test_chunks_that_say_almost_the_same_are_a_group(kb, alike):
    first, _, second = chunks_of(alike)

    [group] = look_for_duplicates(kb)

    assert group.chunk_ids == (first.pk, second.pk)
    assert 0.8 <= group.similarity < 1


def test_the_very_text_is_a_group_whatever_its_title(kb):
    made = [make_document(kb, "短。", title=title) for title in ("很长的一个标题甲乙丙丁", "完全不同的题目")]

    [group] = look_for_duplicates(kb)

    assert group.chunk_ids == tuple(chunks_of(document)[0].pk for document in made)
    assert group.similarity == 1


def test_disabled_chunks_and_other_knowledge_bases_do_not_count(kb, alike):
    make_document(make_kb(), LAW)
    last = chunks_of(alike)[2]
    chunk_update(last, text=last.text, enabled=False)

    assert look_for_duplicates(kb) == []


def test_an_empty_knowledge_base_has_none(kb):
    assert look_for_duplicates(kb) == []


def test_a_chunk_knows_its_near_duplicates(kb, alike):
    first, _, second = chunks_of(alike)
    same = chunks_of(make_document(kb, LAW, title="别的题目，很长很长的题目"))[0]

    found = duplicates_of(first)

    assert [chunk for chunk, _ in found] == [same, second]
    assert found[0][1] == 1 > found[1][1]


def test_those_of_a_small_knowledge_base_are_always_current(kb, alike):
    found = near_duplicates(kb)

    assert (found.group_count, found.is_current, found.was_looked) == (1, True, True)
    assert not DuplicateScan.objects.exists()


@pytest.mark.usefixtures("large")
def test_those_of_a_large_one_are_what_a_worker_has_found(kb, alike):
    before = near_duplicates(kb)
    duplicate_scan_request(kb)
    waiting = near_duplicates(kb)
    duplicate_scan_run(kb.pk)
    after = near_duplicates(kb)
    Chunk.objects.filter(document=alike, position=1).update(enabled=False)
    later = near_duplicates(kb)

    assert (before.was_looked, before.is_awaited) == (False, False)
    assert (waiting.was_looked, waiting.is_awaited) == (False, True)
    assert (after.is_current, after.is_awaited, len(after.groups)) == (True, False, 1)
    assert (later.is_current, later.groups) == (False, after.groups)


@pytest.mark.usefixtures("large")
def test_a_worker_is_asked_once(kb, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks() as asked:
        duplicate_scan_request(kb)
        duplicate_scan_request(kb)

    assert len(asked) == 1


def test_a_look_at_a_base_that_is_gone_ends_quietly(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).delete()

    duplicate_scan_run(kb.pk)

    assert not DuplicateScan.objects.exists()
