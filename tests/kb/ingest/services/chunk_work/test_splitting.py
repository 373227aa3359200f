import itertools

import pytest

from kb.base.errors import Rejected
from kb.ingest.services.chunks import chunk_split, chunk_update, sentence_starts
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, EvalSet
from kb.quality.eval_sets.services.sets import judge, judgments_in
from tests.factories import make_document, principal
from tests.kb.ingest.services.chunk_work.rows import chunks_of, is_indexed, texts_of

pytestmark = pytest.mark.django_db

LONG = "苹果是红的，也有绿的，秋天成熟。 香蕉是黄的，长在很热的地方。"
MIDDLE = LONG.index("香")


@pytest.fixture
def long(kb):
    return make_document(kb, "前。", LONG, "后。", title="水果")


def test_a_chunk_is_split_at_an_offset_and_the_following_ones_move_on(long):
    whole = chunks_of(long)[1]

    parts = chunk_split(chunk=whole, at=[MIDDLE])

    assert parts[0].pk == whole.pk
    assert texts_of(long) == ["前。", LONG[:MIDDLE].strip(), LONG[MIDDLE:], "后。"]
    assert [chunk.position for chunk in chunks_of(long)] == [0, 1, 2, 3]
    assert all(map(is_indexed, chunks_of(long)))
    assert (ChunkPostings.objects.count(), ChunkEmbedding.objects.count()) == (4, 4)


def test_a_chunk_is_split_into_given_texts_whatever_their_white_space(long):
    chunk_split(
        chunk=chunks_of(long)[1], texts=["苹果是红的，", "\n也有绿的，秋天成熟。", "香蕉是黄的，长在很热的地方。"]
    )

    assert texts_of(long)[1:-1] == ["苹果是红的，", "也有绿的，秋天成熟。", "香蕉是黄的，长在很热的地方。"]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"at": [0]}, "empty_part"),
        ({"at": [len(LONG)]}, "empty_part"),
        ({"at": [10_000]}, "empty_part"),
        ({"at": [MIDDLE - 1, MIDDLE]}, "empty_part"),
        ({"at": [-1]}, "empty_part"),
        ({}, "empty_part"),
        ({"texts": [LONG]}, "empty_part"),
        ({"texts": [LONG, " "]}, "empty_part"),
        ({"texts": ["苹果是红的，", "香蕉。"]}, "other_text"),
    ],
)
def test_what_is_no_split_is_refused(long, how, code):
    with pytest.raises(Rejected) as error:
        chunk_split(chunk=chunks_of(long)[1], **how)

    assert error.value.code == code
    assert texts_of(long) == ["前。", LONG, "后。"]


def test_questions_go_to_the_part_that_they_suit_and_keywords_to_those_that_hold_them(long):
    whole = chunks_of(long)[1]
    chunk_update(whole, text=LONG, enabled=True, questions=["香蕉长在哪里?", "苹果有绿的吗?"], keywords=["香蕉"])
    whole = chunks_of(long)[1]

    chunk_split(chunk=whole, at=[MIDDLE])

    _, first, second, _ = chunks_of(long)
    assert (first.questions, second.questions) == (["苹果有绿的吗?"], ["香蕉长在哪里?"])
    assert (first.own_keywords, second.keywords, second.own_keywords) == (False, ["香蕉"], True)


def test_parts_of_one_that_is_switched_off_are_off(long):
    whole = chunks_of(long)[1]
    chunk_update(whole, text=LONG, enabled=False)

    chunk_split(chunk=chunks_of(long)[1], at=[MIDDLE])

    assert [chunk.enabled for chunk in chunks_of(long)] == [True, False, False, True]
    assert ChunkEmbedding.objects.filter(enabled=False).count() == 2


def test_each_part_of_an_edited_chunk_knows_what_it_was(long):
    edited = LONG.replace("红", "紫")
    chunk_update(chunks_of(long)[1], text=edited, enabled=True)

    chunk_split(chunk=chunks_of(long)[1], at=[MIDDLE])

    _, first, second, _ = chunks_of(long)
    assert first.cut_text == LONG[:MIDDLE].strip()
    assert (second.text, second.cut_text) == (LONG[MIDDLE:], "")


def test_a_part_that_a_curator_has_added_has_a_place_in_the_document_too(long):
    chunk_update(chunks_of(long)[1], text=f"{LONG}\n补充的一段。", enabled=True)

    chunk_split(chunk=chunks_of(long)[1], at=[len(LONG)])

    _, first, second, _ = chunks_of(long)
    assert (first.text, second.text) == (LONG, "补充的一段。")
    assert (first.cut_text, second.cut_text) == (LONG[:-1], "。")


def test_a_judgment_of_the_whole_is_of_its_parts(long):
    owner = principal(long.knowledge_base.owner)
    eval_set = EvalSet.objects.create(name="集", knowledge_base=long.knowledge_base)
    judge(owner, eval_set, "水果的颜色", chunks_of(long)[1], 2)

    parts = chunk_split(chunk=chunks_of(long)[1], at=[MIDDLE])

    assert judgments_in(owner, [eval_set], "水果的颜色", chunks_of(long)) == {part.pk: 2 for part in parts}


def test_splitting_changed_text_is_refused(long):
    stale = chunks_of(long)[1]
    chunk_update(chunks_of(long)[1], text="改了。", enabled=True)

    with pytest.raises(Rejected) as error:
        chunk_split(chunk=stale, at=[MIDDLE])

    assert error.value.code == "chunk_changed"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("一。二！三", ["一。", "二！", "三"]),
        ("他说：“好。”然后走了。", ["他说：“好。”", "然后走了。"]),
        ("One. Two 3.5 kg? Three", ["One. ", "Two 3.5 kg? ", "Three"]),
        ("行一\n行二\n", ["行一\n", "行二\n"]),
        ("没有", ["没有"]),
    ],
)
def test_sentences_begin_where_others_end(text, sentences):
    starts = [0, *sentence_starts(text), len(text)]

    assert [text[start:end] for start, end in itertools.pairwise(starts)] == sentences


def test_the_parts_stand_where_the_whole_did(long):
    regions = [{"page": 1, "box": [0, 0, 1, 0.5]}]
    Chunk.objects.filter(document=long).update(regions=regions, seconds=75)
    chunk_split(chunk=chunks_of(long)[1], at=[MIDDLE])
    assert [(chunk.regions, chunk.seconds) for chunk in chunks_of(long)] == [(regions, 75)] * 4
