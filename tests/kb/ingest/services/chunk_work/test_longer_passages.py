"""What a longer passage shows after a curator has worked on its chunks."""

import pytest
from django.core.files.base import ContentFile

from kb.ingest.formats.outline import markdown_table
from kb.ingest.services.chunks import chunk_split, chunk_update, chunks_delete, chunks_merge, chunks_set_enabled
from kb.ingest.services.documents import document_add, document_requeue
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, ChunkParent, KnowledgeBase
from kb.search.selectors import PassageReader
from tests.factories import principal

pytestmark = pytest.mark.django_db

ROWS = [f"TH-{number:02d}" for number in range(1, 31)]
TABLE = markdown_table([("型号", "保修"), *((row, "24 个月") for row in ROWS)])


@pytest.fixture
def document(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(
        chunk_strategy="parent_child", chunk_size=120, chunk_overlap=0, parent_size=2_000
    )
    added = document_add(knowledge_base=kb, file=ContentFile(TABLE.encode()), name="a.md", user=kb.owner)
    index_document(added.pk)
    added.refresh_from_db()
    return added


def chunks_of(document):
    return list(Chunk.objects.filter(document=document).select_related("document", "knowledge_base", "parent"))


def shown(document):
    """The longer passage, or the text of its chunks where there is none."""
    reader = PassageReader(principal(document.knowledge_base.owner))
    passages = reader.fetch([chunk.pk for chunk in chunks_of(document)])
    larger = reader.parents(list(passages.values()))
    [text] = {each.text for each in larger.values()} or {"\n".join(each.text for each in passages.values())}
    return text


def rows_in(text):
    return [row for row in ROWS if row in text]


def again(document):
    document_requeue(document)
    index_document(document.pk)
    document.refresh_from_db()
    return chunks_of(document)


def split_second(document):
    second = chunks_of(document)[1]
    parts = chunk_split(chunk=second, at=[second.text.index(rows_in(second.text)[2]) - 2])
    document.refresh_from_db()
    return parts


def test_the_rows_of_a_part_that_was_split_off_go_alone(document):
    _kept, part = split_second(document)
    assert shown(document) == TABLE
    chunks_set_enabled(chunk_ids=[part.pk], enabled=False)
    assert rows_in(shown(document)) == [row for row in ROWS if row not in part.text]
    assert shown(document).startswith("| 型号 | 保修 |")


def test_parts_of_a_part_have_their_rows_too(document):
    kept, _part = split_second(document)
    first_row, second_row = rows_in(kept.text)
    kept = next(chunk for chunk in chunks_of(document) if chunk.pk == kept.pk)
    _first, second = chunk_split(chunk=kept, at=[kept.text.index(second_row) - 2])
    chunks_set_enabled(chunk_ids=[second.pk], enabled=False)
    assert rows_in(shown(document)) == [row for row in ROWS if row != second_row]
    assert first_row in shown(document)


def test_the_rows_of_merged_chunks_go_together_and_come_back(document):
    _first, second, third, *_ = chunks_of(document)
    merged = chunks_merge(document=document, chunk_ids=[second.pk, third.pk])
    assert shown(document) == TABLE
    chunks_set_enabled(chunk_ids=[merged.pk], enabled=False)
    assert rows_in(shown(document)) == [row for row in ROWS if row not in second.text + third.text]
    chunks_set_enabled(chunk_ids=[merged.pk], enabled=True)
    assert shown(document) == TABLE


def test_nothing_of_a_part_of_merged_chunks_is_shown_once_it_is_off(document):
    _first, second, third, *_ = chunks_of(document)
    merged = chunks_merge(document=document, chunk_ids=[second.pk, third.pk])
    document.refresh_from_db()
    whole = next(chunk for chunk in chunks_of(document) if chunk.pk == merged.pk)
    _kept, part = chunk_split(chunk=whole, at=[whole.text.index(rows_in(third.text)[0]) - 2])
    chunks_set_enabled(chunk_ids=[part.pk], enabled=False)
    assert rows_in(shown(document)) == [row for row in ROWS if row not in third.text]


def test_a_merge_over_a_deleted_chunk_does_not_bring_it_back(document):
    _first, second, third, fourth, *_ = chunks_of(document)
    chunks_delete(chunk_ids=[third.pk])
    assert rows_in(shown(document)) == [row for row in ROWS if row not in third.text]
    chunks_merge(document=document, chunk_ids=[second.pk, fourth.pk])
    assert rows_in(shown(document)) == [row for row in ROWS if row not in third.text]


def test_an_edit_stands_in_its_place_and_is_taken_back(document):
    second = chunks_of(document)[1]
    cut = second.text
    chunk_update(second, text=cut.replace("24 个月", "36 个月"), enabled=True)
    rows = cut.split("\n", 2)[2]  # without the header that it repeats
    assert shown(document) == TABLE.replace(rows, rows.replace("24 个月", "36 个月"))
    second = chunks_of(document)[1]
    chunk_update(second, text=cut, enabled=True)
    assert shown(document) == TABLE


@pytest.mark.parametrize("work", ["merge", "split", "edit", "disable"])
def test_processing_a_document_again_keeps_what_is_shown(document, work):
    _first, second, third, *_ = chunks_of(document)
    if work == "merge":
        chunks_merge(document=document, chunk_ids=[second.pk, third.pk])
    elif work == "split":
        split_second(document)
    elif work == "edit":
        chunk_update(second, text=second.text.replace("24 个月", "36 个月"), enabled=True)
    else:
        chunks_set_enabled(chunk_ids=[second.pk], enabled=False)
    before, places = shown(document), [chunk.parent_spans for chunk in chunks_of(document)]
    after = again(document)
    assert shown(document) == before
    assert all(places)
    assert [chunk.parent_spans for chunk in after] == places


def test_processing_again_gives_places_to_chunks_of_an_earlier_release(document):
    places = [chunk.parent_spans for chunk in chunks_of(document)]
    Chunk.objects.filter(document=document).update(parent_spans=None)
    chunks_set_enabled(chunk_ids=[chunks_of(document)[1].pk], enabled=False)
    assert shown(document).count("型号") > 1  # the texts of the chunks that are on, each with its header
    assert [chunk.parent_spans for chunk in again(document)] == places
    assert shown(document).count("型号") == 1


def test_a_chunk_of_an_earlier_release_that_is_deleted_takes_the_longer_passage_along(document):
    Chunk.objects.filter(document=document).update(parent_spans=None)
    second = chunks_of(document)[1]
    chunks_delete(chunk_ids=[second.pk])
    assert not ChunkParent.objects.filter(document=document).exists()
    assert rows_in(shown(document)) == [row for row in ROWS if row not in second.text]
