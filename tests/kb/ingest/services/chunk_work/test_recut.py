"""What a curator did to chunks is there after their document was cut again."""

import pytest
from django.core.files.base import ContentFile

from kb.ingest.services.chunk_preview import preview_document
from kb.ingest.services.chunks import chunk_split, chunk_update, chunks_merge
from kb.ingest.services.documents import document_add, document_requeue
from kb.ingest.services.indexing import index_document
from kb.models import Document, EvalSet, KnowledgeBase
from kb.quality.eval_sets.services.sets import judge, judgments_in
from tests.factories import principal
from tests.kb.ingest.services.chunk_work.rows import chunks_of, is_indexed, texts_of

pytestmark = pytest.mark.django_db

SENTENCES = [f"第{number}条规定了事项{number * 37}的办法。" for number in range(12)]
PARAGRAPHS = ["".join(SENTENCES[start : start + 3]) for start in range(0, 12, 3)]
TEXT = "\n\n".join(PARAGRAPHS)


@pytest.fixture
def document(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=55, chunk_overlap=0)
    added = document_add(knowledge_base=kb, file=ContentFile(TEXT.encode()), name="规定.txt", user=kb.owner)
    index_document(added.pk)
    assert texts_of(added) == PARAGRAPHS
    return added


def again(document, text=None, **settings):
    document = Document.objects.get(pk=document.pk)
    KnowledgeBase.objects.filter(pk=document.knowledge_base_id).update(**settings)
    if text is not None:
        with document.file.storage.open(document.file.name, "wb") as file:
            file.write(text.encode())
    document_requeue(document)
    index_document(document.pk)
    document.refresh_from_db()
    assert document.status == "ready", document.error
    assert all(map(is_indexed, chunks_of(document)))
    return chunks_of(document)


def merge(document, *numbers):
    chunks = chunks_of(document)
    return chunks_merge(document=chunks[0].document, chunk_ids=[chunks[number].pk for number in numbers])


def edit(document, number, text):
    chunk_update(chunks_of(document)[number], text=text, enabled=True)


def test_a_merged_chunk_stays_merged(document):
    merged = merge(document, 1, 2)

    after = again(document)

    assert [chunk.text for chunk in after] == [PARAGRAPHS[0], f"{PARAGRAPHS[1]}\n{PARAGRAPHS[2]}", PARAGRAPHS[3]]
    assert after[1].pk == merged.pk


def test_parts_stay_parts(document):
    parts = chunk_split(chunk=chunks_of(document)[1], at=[len(SENTENCES[3])])

    after = again(document)

    assert [chunk.text for chunk in after] == [
        PARAGRAPHS[0],
        SENTENCES[3],
        "".join(SENTENCES[4:6]),
        *PARAGRAPHS[2:],
    ]
    assert [chunk.pk for chunk in after[1:3]] == [part.pk for part in parts]


@pytest.mark.parametrize("size", [20, 70, 120, 400])
def test_merged_and_split_chunks_stay_where_others_are_cut_otherwise(document, size):
    chunk_split(chunk=chunks_of(document)[3], at=[len(SENTENCES[9])])
    merge(document, 1, 2)

    after = [chunk.text for chunk in again(document, chunk_size=size)]

    assert f"{PARAGRAPHS[1]}\n{PARAGRAPHS[2]}" in after
    assert SENTENCES[9] in after
    assert "".join("".join(after).split()) == "".join(TEXT.split())


def test_a_merged_edit_stays(document):
    edit(document, 1, "改过的第二段。")
    merge(document, 0, 1)

    after = again(document, f"前言在此。\n\n{TEXT}\n\n附则在此。", chunk_size=30)

    assert f"{PARAGRAPHS[0]}\n改过的第二段。" in [chunk.text for chunk in after]
    assert not any(SENTENCES[4] in chunk.text for chunk in after)


def test_an_added_part_stays(document):
    edit(document, 1, f"{PARAGRAPHS[1]}\n补充的一段。")
    chunk_split(chunk=chunks_of(document)[1], at=[len(PARAGRAPHS[1])])

    assert [chunk.text for chunk in again(document)] == [*PARAGRAPHS[:2], "补充的一段。", *PARAGRAPHS[2:]]


def test_what_was_merged_goes_where_its_text_is_gone(document):
    merge(document, 1, 2)

    assert [chunk.text for chunk in again(document, "\n\n".join(PARAGRAPHS[::3]))] == PARAGRAPHS[::3]


@pytest.mark.parametrize("overlap", [0, 20])
def test_an_edit_whose_text_two_new_chunks_would_divide_takes_its_part_of_them(document, overlap):
    edit(document, 1, "编辑过的第二段，很短。")

    after = [chunk.text for chunk in again(document, chunk_size=70, chunk_overlap=overlap)]

    assert "编辑过的第二段，很短。" in after
    assert not any(sentence in text for text in after for sentence in SENTENCES[3:6])
    assert all(any(sentence in text for text in after) for sentence in (*SENTENCES[:3], *SENTENCES[6:]))


def test_a_divided_chunk_that_is_switched_off_stays_off(document):
    chunk_update(chunks_of(document)[1], text=PARAGRAPHS[1], enabled=False)

    after = again(document, chunk_size=70)

    assert [chunk.text for chunk in after if not chunk.enabled] == [PARAGRAPHS[1]]
    assert not any(SENTENCES[4] in chunk.text for chunk in after if chunk.enabled)


def test_cutting_again_twice_changes_nothing_more(document):
    edit(document, 1, "编辑过的第二段，很短。")
    merge(document, 2, 3)
    first = [(chunk.pk, chunk.text) for chunk in again(document, chunk_size=70)]

    assert [(chunk.pk, chunk.text) for chunk in again(document)] == first


def test_judgments_find_merged_passages_again(document):
    owner = principal(document.knowledge_base.owner)
    eval_set = EvalSet.objects.create(name="集", knowledge_base=document.knowledge_base)
    judge(owner, eval_set, "事项怎么办", chunks_of(document)[1], 2)
    merged = merge(document, 1, 2)

    again(document, chunk_size=70)

    assert judgments_in(owner, [eval_set], "事项怎么办", chunks_of(document)) == {merged.pk: 2}


def test_the_preview_shows_the_merged_chunk_as_one(document):
    merge(document, 1, 2)
    kb = KnowledgeBase.objects.get(pk=document.knowledge_base_id)

    preview = preview_document(kb, Document.objects.get(pk=document.pk), {})

    assert [chunk.survives for chunk in preview.chunks] == [True, True, True]
    assert preview.total == 3


def test_a_merged_chunk_across_longer_passages_is_returned_itself(document):
    merge(document, 1, 2)

    after = again(document, chunk_strategy="parent_child", parent_size=120)

    [merged] = [chunk for chunk in after if chunk.own_cut]
    assert merged.parent is None
