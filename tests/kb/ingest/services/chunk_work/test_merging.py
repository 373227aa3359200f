import pytest

from kb.base.errors import NotVisible, Rejected
from kb.ingest.services import chunks as checks
from kb.ingest.services.chunks import chunk_update, chunks_merge
from kb.models import Chunk, ChunkEmbedding, ChunkParent, ChunkPostings, EvalSet, FactSource, GraphFact, KnowledgeBase
from kb.quality.eval_sets.services.sets import judge, judgments_in
from tests.factories import make_document, principal
from tests.kb.ingest.services.chunk_work.rows import chunks_of, is_indexed, texts_of

pytestmark = pytest.mark.django_db


def merge(document, *numbers):
    chunks = chunks_of(document)
    return chunks_merge(document=chunks[0].document, chunk_ids=[chunks[number].pk for number in numbers])


def test_neighbours_become_one_chunk_with_the_row_of_the_first(document):
    first, *_ = chunks_of(document)

    merged = merge(document, 1, 0)

    assert merged.pk == first.pk
    assert texts_of(document) == ["苹果是红的。\n香蕉是黄的。", "橙子是橙的。"]
    assert [chunk.position for chunk in chunks_of(document)] == [0, 1]


def test_a_merged_chunk_is_indexed_again_and_nothing_is_left_of_the_others(document):
    merge(document, 0, 1, 2)

    [merged] = chunks_of(document)
    assert is_indexed(merged)
    assert (ChunkPostings.objects.count(), ChunkEmbedding.objects.count()) == (1, 1)


def test_an_overlap_is_in_the_merged_text_once(kb):
    document = make_document(kb, "第一句话说完了。这一句是重复的内容。", "这一句是重复的内容。\n第三句话也说完了。")

    assert merge(document, 0, 1).text == "第一句话说完了。这一句是重复的内容。\n第三句话也说完了。"


def test_questions_of_all_and_the_given_keywords_are_united(document):
    first, second, _ = chunks_of(document)
    chunk_update(first, text=first.text, enabled=True, questions=["什么是红的?", "吃什么?"], keywords=["苹果"])
    chunk_update(second, text=second.text, enabled=True, questions=["吃什么?", "什么是黄的?"])

    merged = merge(document, 0, 1)

    merged.refresh_from_db()
    assert merged.questions == ["什么是红的?", "吃什么?", "什么是黄的?"]
    assert (merged.keywords, merged.own_keywords, merged.own_questions) == (["苹果"], True, True)
    assert ChunkEmbedding.objects.filter(chunk=merged, kind="question").count() == 3


@pytest.mark.parametrize(("off", "enabled"), [((0,), True), ((0, 1), False)])
def test_a_merged_chunk_is_found_where_one_of_them_was(document, off, enabled):
    Chunk.objects.filter(document=document, position__in=off).update(enabled=False)

    merged = merge(document, 0, 1)

    assert merged.enabled is enabled
    assert ChunkEmbedding.objects.get(chunk=merged).enabled is enabled


def test_the_text_as_it_was_cut_is_remembered_of_edited_ones(document):
    first, *_ = chunks_of(document)
    chunk_update(first, text="苹果是绿的。", enabled=True)

    merged = merge(document, 0, 1)

    assert merged.text == "苹果是绿的。\n香蕉是黄的。"
    assert merged.cut_text == "苹果是红的。\n香蕉是黄的。"


def test_facts_keep_a_source(document):
    chunks = chunks_of(document)
    kb = document.knowledge_base
    stated = [
        GraphFact.objects.create(knowledge_base=kb, subject=f"甲{n}", predicate="是", object="乙", source_chunk=chunk)
        for n, chunk in enumerate(chunks)
    ]
    for chunk in chunks[1:]:
        FactSource.objects.create(fact=stated[1], document=document, chunk=chunk)

    merged = merge(document, 0, 1, 2)

    assert set(GraphFact.objects.values_list("source_chunk", flat=True)) == {merged.pk}
    assert list(FactSource.objects.values_list("fact", "chunk")) == [(stated[1].pk, merged.pk)]


def test_a_judgment_finds_the_merged_passage(document):
    owner = principal(document.knowledge_base.owner)
    eval_set = EvalSet.objects.create(name="集", knowledge_base=document.knowledge_base)
    judge(owner, eval_set, "黄的", chunks_of(document)[1], 2)

    merged = merge(document, 0, 1)

    assert judgments_in(owner, [eval_set], "黄的", chunks_of(document)) == {merged.pk: 2}


@pytest.mark.parametrize(("numbers", "code"), [((0, 2), "not_adjacent"), ((0,), "merge_count"), ((), "merge_count")])
def test_what_does_not_follow_one_another_is_not_merged(document, numbers, code):
    with pytest.raises(Rejected) as error:
        merge(document, *numbers)

    assert error.value.code == code
    assert len(texts_of(document)) == 3


def test_chunks_of_two_documents_are_not_merged(kb, document):
    other = chunks_of(make_document(kb, "别的。"))[0]

    with pytest.raises(NotVisible):
        chunks_merge(document=chunks_of(document)[0].document, chunk_ids=[chunks_of(document)[0].pk, other.pk])


def test_chunks_of_two_longer_passages_are_not_merged(kb, document):
    for position in (0, 1):
        parent = ChunkParent.objects.create(knowledge_base=kb, document=document, position=position, text="长")
        Chunk.objects.filter(document=document, position=position).update(parent=parent)

    with pytest.raises(Rejected) as error:
        merge(document, 0, 1)

    assert error.value.code == "different_parents"


def test_a_text_beyond_the_limit_is_refused(kb):
    document = make_document(kb, "长" * 60_000, "文" * 60_000)

    with pytest.raises(Rejected) as error:
        merge(document, 0, 1)

    assert error.value.code == "text_too_long"


def test_nothing_is_merged_while_the_model_is_out_of_reach(document):
    KnowledgeBase.objects.update(embedding_model="nobody/no-such-model")

    with pytest.raises(Rejected) as error:
        merge(document, 0, 1)

    assert error.value.code == "model_unavailable"
    assert len(texts_of(document)) == 3


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda document: Chunk.objects.filter(document=document, position=1).update(text="改了。"),
        lambda document: type(document).objects.filter(pk=document.pk).update(title="改名"),
    ],
)
def test_a_change_made_meanwhile_is_not_overwritten(document, monkeypatch, meanwhile):
    prepare = checks.prepare_chunks

    def prepare_while_somebody_changes(kb, sources):
        meanwhile(document)
        return prepare(kb, sources)

    monkeypatch.setattr(checks, "prepare_chunks", prepare_while_somebody_changes)

    with pytest.raises(Rejected) as error:
        merge(document, 0, 1)

    assert error.value.code == "chunk_changed"
    assert len(texts_of(document)) == 3


def test_a_merged_chunk_stands_where_all_of_them_did(document):
    first, second, _third = chunks_of(document)
    shared, own = {"page": 1, "box": [0, 0, 1, 0.5]}, {"page": 2, "box": None}
    for chunk, regions in ((first, [shared]), (second, [shared, own])):
        Chunk.objects.filter(pk=chunk.pk).update(regions=regions, seconds=chunk.position + 5)
    chunks_merge(document=document, chunk_ids=[first.pk, second.pk])
    merged, _third = chunks_of(document)
    assert (merged.regions, merged.seconds) == ([shared, own], 5)
