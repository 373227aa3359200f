from types import SimpleNamespace

import docx
import pytest
from django.core.files.base import ContentFile
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kb.content.services import knowledge_base_delete
from kb.ingest.chunkers.strategies import split
from kb.ingest.parser.parsed import ParsedDocument, Region, Section
from kb.ingest.services import indexing, parsing
from kb.ingest.services.chunks import chunk_update
from kb.ingest.services.documents import (
    document_add,
    document_requeue,
    document_update,
    documents_recut,
)
from kb.ingest.services.indexing import chunk_settings, index_document, outdated_documents
from kb.ingest.services.rechunk import (
    MOST_ENTRIES,
    MOST_REGIONS,
    carry_over,
    chunks_of,
    page_regions,
    recut,
    share_questions,
)
from kb.models import Chunk, ChunkEmbedding, ChunkParent, ChunkPostings, Document, EvalSet, GraphFact, KnowledgeBase
from kb.quality.eval_sets.services.sets import judge, judgments_in
from kb.search.services.search import SearchRequest, search
from retrieval.types import PageRegion
from tests.factories import make_document, make_kb, principal
from tests.fakes import CountingEmbedder
from tests.kb.ingest.parser.documents import save

pytestmark = pytest.mark.django_db

SENTENCES = [f"第{number}条规定了事项{number * 37}的办法。" for number in range(12)]
PARAGRAPHS = ["".join(SENTENCES[start : start + 3]) for start in range(0, 12, 3)]
TEXT = "\n\n".join(PARAGRAPHS)
ONE, TWO, FOUR = 55, 120, 400


@pytest.fixture
def kb():
    kb = make_kb()
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=ONE, chunk_overlap=0)
    return kb


@pytest.fixture
def counted(monkeypatch):
    model = CountingEmbedder()
    monkeypatch.setattr(indexing, "embedder", lambda _model_id: model)
    return model


@pytest.fixture
def document(kb):
    added = document_add(knowledge_base=kb, file=ContentFile(TEXT.encode()), name="规定.txt", user=kb.owner)
    index_document(added.pk)
    assert [chunk.text for chunk in chunks_of(added)] == PARAGRAPHS
    return added


def again(document, text=None, **settings):
    """Cuts a document again, under other settings or with another text in its file."""
    document = Document.objects.get(pk=document.pk)
    KnowledgeBase.objects.filter(pk=document.knowledge_base_id).update(**settings)
    if text is not None:
        with document.file.storage.open(document.file.name, "wb") as file:
            file.write(text.encode())
    document_requeue(document)
    index_document(document.pk)
    document.refresh_from_db()
    assert document.status == "ready", document.error
    return chunks_of(document)


def edit(document, number, **changes):
    chunk = Chunk.objects.select_related("document", "knowledge_base").get(document=document, position=number)
    chunk_update(chunk, **{"text": chunk.text, "enabled": chunk.enabled, **changes})
    chunk.refresh_from_db()
    return chunk


def index_rows(document):
    """What the indexes hold: rows with all that tells whether they were written again."""
    postings = ChunkPostings.objects.filter(chunk__document=document).order_by("pk").values_list("pk", "terms")
    vectors = ChunkEmbedding.objects.filter(chunk__document=document).order_by("pk").values_list("pk", "kind")
    return [(pk, bytes(terms)) for pk, terms in postings], list(vectors)


def test_cutting_the_same_again_writes_and_embeds_nothing(document, counted):
    before, rows = chunks_of(document), index_rows(document)
    after = again(document)
    assert [(chunk.pk, chunk.updated_at) for chunk in after] == [(chunk.pk, chunk.updated_at) for chunk in before]
    assert index_rows(document) == rows
    assert counted.embedded == []


def test_only_what_changed_in_the_file_is_embedded(document, counted):
    before = chunks_of(document)
    after = again(document, "\n\n".join([*PARAGRAPHS[:2], "这里插入了全新的一段。", *PARAGRAPHS[2:]]))
    kept = [chunk.pk for chunk in before]
    assert [chunk.pk for chunk in after if chunk.pk in kept] == kept
    assert [chunk.position for chunk in after] == [0, 1, 2, 3, 4]
    assert [text.rpartition("\n")[2] for text in counted.embedded] == ["这里插入了全新的一段。"]


def test_a_paragraph_that_goes_takes_its_chunk_along_and_no_other(document, counted):
    before = chunks_of(document)
    after = again(document, "\n\n".join(PARAGRAPHS[1:]))
    assert [chunk.pk for chunk in after] == [chunk.pk for chunk in before[1:]]
    assert counted.embedded == []


def test_the_vectors_of_other_models_are_deleted_once(document, counted):
    document.refresh_from_db()
    document_update(document, title="新的标题")
    with CaptureQueriesContext(connection) as queries:
        again(document)
    assert counted.embedded
    deletions = [each["sql"] for each in queries if each["sql"].startswith('DELETE FROM "kb_chunkembedding"')]
    assert len([sql for sql in deletions if 'NOT ("kb_chunkembedding"."model"' in sql]) == 1


def test_another_size_cuts_only_what_it_cuts_otherwise(document, counted):
    short = "短的一段。"
    again(document, f"{TEXT}\n\n{'长' * 200}\n\n{short}")
    counted.embedded.clear()
    before = {chunk.text: chunk.pk for chunk in chunks_of(document)}
    after = {chunk.text: chunk.pk for chunk in again(document, chunk_size=54)}
    assert set(PARAGRAPHS) <= set(after)
    assert {text: after[text] for text in PARAGRAPHS} == {text: before[text] for text in PARAGRAPHS}
    assert len(counted.embedded) == len(set(after) - set(before))


def test_a_new_title_indexes_the_surviving_chunks_under_it(document, counted):
    document.refresh_from_db()
    document_update(document, title="新的标题")
    before = [chunk.pk for chunk in chunks_of(document)]
    assert [chunk.pk for chunk in again(document)] == before
    assert len(counted.embedded) == 4
    assert all(text.startswith("新的标题\n") for text in counted.embedded)


def test_a_new_heading_indexes_the_chunk_under_it(kb, counted):
    text = f"# 一\n\n{TEXT}"
    added = document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="a.md", title="题", user=kb.owner)
    index_document(added.pk)
    before = {chunk.text: chunk.pk for chunk in chunks_of(added)}
    counted.embedded.clear()
    after = {chunk.text: chunk for chunk in again(added, text.replace("# 一", "# 二"))}
    last = after[PARAGRAPHS[3]]
    assert (last.pk, last.heading_path) == (before[PARAGRAPHS[3]], ["二"])
    assert len(counted.embedded) == len(after)


@pytest.mark.parametrize("strategy", ["recursive", "parent_child"])
def test_regions_that_have_moved_are_written_without_embedding_anything(kb, counted, monkeypatch, strategy):
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_strategy=strategy, parent_size=TWO)
    places = {"page": 1, "left": 0.123456, "seconds": None}

    def parsed(*_args, **_options):
        regions = tuple(
            Region(TEXT.index(text), page=places["page"], box=(places["left"], 0, 1, 1), seconds=places["seconds"])
            for text in PARAGRAPHS
        )
        return ParsedDocument("题", (Section(TEXT, 1, regions=regions),), mime="application/pdf")

    monkeypatch.setattr(parsing, "parse_file", parsed)
    added = document_add(knowledge_base=kb, file=ContentFile(TEXT.encode() * 20), name="a.pdf", user=kb.owner)
    index_document(added.pk)
    before = chunks_of(added)
    assert [chunk.regions for chunk in before] == [[{"page": 1, "box": [0.1235, 0, 1, 1]}]] * 4
    counted.embedded.clear()
    places |= {"page": 2, "left": 0.5, "seconds": 75}
    after = again(added, TEXT * 20)
    assert counted.embedded == []
    assert [chunk.pk for chunk in after] == [chunk.pk for chunk in before]
    assert [(chunk.page, chunk.seconds, chunk.regions) for chunk in after] == [
        (2, 75, [{"page": 2, "box": [0.5, 0, 1, 1]}])
    ] * 4
    for parent in ChunkParent.objects.filter(document=added):
        assert parent.regions == [{"page": 2, "box": [0.5, 0, 1, 1]}]


def test_at_most_a_hundred_regions_are_stored_each_once():
    regions = [Region(number, page=number // 2 + 1) for number in range(250)] + [Region(250, seconds=3)]
    assert page_regions(regions) == [PageRegion(page, None) for page in range(1, MOST_REGIONS + 1)]


def test_a_chunk_that_lacks_its_vector_gets_one(document, counted):
    first = chunks_of(document)[0]
    ChunkEmbedding.objects.filter(chunk=first).delete()
    again(document)
    assert [text.rpartition("\n")[2] for text in counted.embedded] == [first.text]
    assert first.embeddings.count() == 1


# -- What a curator did ----------------------------------------------------------------------------------------------------
def test_an_edit_survives_where_its_text_is_cut_the_same(document, counted):
    edited = edit(document, 1, text="编辑过的第二段。")
    counted.embedded.clear()
    after = again(document, f"{TEXT}\n\n附则。")
    assert (after[1].pk, after[1].text, after[1].cut_text) == (edited.pk, "编辑过的第二段。", PARAGRAPHS[1])
    assert len(counted.embedded) == 1


def test_an_edit_goes_into_the_larger_chunk_that_holds_its_text(document):
    edit(document, 1, text="编辑过的第二段。")
    first, *_ = again(document, chunk_size=TWO)
    assert first.text == f"{PARAGRAPHS[0]}\n\n编辑过的第二段。"
    assert first.cut_text == f"{PARAGRAPHS[0]}\n\n{PARAGRAPHS[1]}"


def test_an_edit_goes_into_the_smaller_chunks_that_its_text_holds(document):
    edit(document, 1, text=PARAGRAPHS[1].replace(SENTENCES[4], "这一句改过了。"))
    after = again(document, chunk_size=20)
    assert SENTENCES[4] not in [chunk.text for chunk in after]
    [changed] = [chunk for chunk in after if chunk.cut_text]
    assert (changed.text, changed.cut_text) == ("这一句改过了。", SENTENCES[4])


@pytest.mark.parametrize(
    ("before", "whole", "after"),
    [
        ([("In November. ", ""), ("Yes", "No")], "In November. No", "In November. Yes"),
        ([("Maybe. ", "No. "), ("Yes. ", "No. ")], "No. No. ", "Maybe. Yes. "),
        ([("One. ", "Two of two. "), ("Three. ", "two. ")], "Two of two. two. ", "One. Three. "),
    ],
)
def test_edits_go_where_their_chunks_stood_and_not_where_their_words_do(before, whole, after):
    lost = [Chunk(text=text, cut_text=cut) for text, cut in before]
    fresh = Chunk(text=whole, cut_text="")
    assert carry_over(lost, [fresh])[0] == sum(bool(cut) for _text, cut in before)
    assert fresh.text == after


def test_an_edit_is_taken_from_where_a_smaller_chunk_stands():
    whole = Chunk(text="In November. Yes", cut_text="In November. No")
    fresh = [Chunk(text="In November. ", cut_text=""), Chunk(text="No", cut_text="")]
    carry_over([whole], fresh)
    assert [chunk.text for chunk in fresh] == ["In November.", "Yes"]


def test_an_edit_survives_larger_and_smaller_again(document):
    edit(document, 1, text=PARAGRAPHS[1].replace(SENTENCES[4], "这一句改过了。"))
    again(document, chunk_size=FOUR)
    after = again(document, chunk_size=20)
    assert "这一句改过了。" in [chunk.text for chunk in after]
    assert SENTENCES[4] not in [chunk.text for chunk in after]


def test_a_sentence_that_a_curator_deleted_is_not_searched_where_it_is_a_chunk_of_its_own(document):
    edit(document, 1, text=PARAGRAPHS[1].replace(SENTENCES[4], ""))
    after = {chunk.text: chunk.enabled for chunk in again(document, chunk_size=20)}
    assert after[SENTENCES[4]] is False
    assert sum(after.values()) == len(after) - 1


def test_what_is_indexed_of_an_edited_chunk_is_the_edit(document, counted):
    edit(document, 1, text="编辑过的第二段。")
    counted.embedded.clear()
    again(document, chunk_size=TWO)
    assert any("编辑过的第二段" in text for text in counted.embedded)
    assert not any(SENTENCES[4] in text for text in counted.embedded)


def test_an_edit_taken_back_is_none(document):
    edit(document, 1, text="编辑过的第二段。")
    assert edit(document, 1, text=PARAGRAPHS[1]).cut_text == ""


def test_a_second_edit_remembers_what_was_cut(document):
    edit(document, 1, text="一改。")
    assert edit(document, 1, text="再改。").cut_text == PARAGRAPHS[1]


def test_a_chunk_that_is_switched_off_stays_off(document):
    off = edit(document, 2, enabled=False)
    after = again(document, f"前言。\n\n{TEXT}")
    assert [chunk.pk for chunk in after if not chunk.enabled] == [off.pk]


def test_smaller_chunks_of_one_that_is_switched_off_are_off(document):
    edit(document, 2, enabled=False)
    after = again(document, chunk_size=20)
    assert [chunk.text for chunk in after if not chunk.enabled] == SENTENCES[6:9]


def test_a_larger_chunk_is_off_where_all_of_it_was(document):
    edit(document, 0, enabled=False)
    edit(document, 1, enabled=False)
    assert [chunk.enabled for chunk in again(document, chunk_size=TWO)] == [False, True]


def test_a_larger_chunk_is_on_where_part_of_it_was(document):
    edit(document, 0, enabled=False)
    assert [chunk.enabled for chunk in again(document, chunk_size=TWO)] == [True, True]


def test_questions_of_a_curator_survive(document, counted):
    asked = edit(document, 1, questions=["事项怎么办?"])
    counted.embedded.clear()
    after = again(document, f"{TEXT}\n\n附则。")
    assert (after[1].pk, after[1].questions, after[1].own_questions) == (asked.pk, ["事项怎么办?"], True)
    assert ChunkEmbedding.objects.filter(chunk=after[1], kind="question").count() == 1
    assert "事项怎么办?" not in counted.embedded


def test_questions_of_a_curator_go_into_the_larger_chunk(document):
    edit(document, 0, questions=["甲?"])
    edit(document, 1, questions=["乙?"])
    first, *_ = again(document, chunk_size=TWO)
    assert first.questions == ["甲?", "乙?"]
    assert ChunkEmbedding.objects.filter(chunk=first, kind="question").count() == 2


def test_a_question_goes_to_the_smaller_chunk_that_it_has_most_in_common_with(document):
    edit(document, 1, questions=["事项148怎么办?"])
    after = again(document, chunk_size=20)
    assert [chunk.text for chunk in after if chunk.questions] == [SENTENCES[4]]


def test_keywords_of_a_curator_go_to_the_chunks_that_hold_them(document):
    Chunk.objects.filter(document=document, position=1).update(keywords=["事项148", "办法"], own_keywords=True)
    plan = recut(document, chunks_of(document), _drafts(document, chunk_size=20))
    keywords = {chunk.text: chunk.keywords for chunk in plan.chunks if chunk.own_keywords}
    assert keywords == {SENTENCES[3]: ["办法"], SENTENCES[4]: ["事项148", "办法"], SENTENCES[5]: ["办法"]}


def test_facts_keep_the_chunk_that_they_were_taken_from(document):
    taken_from = chunks_of(document)[2]
    fact = GraphFact.objects.create(
        knowledge_base=document.knowledge_base, subject="甲", predicate="是", object="乙", source_chunk=taken_from
    )
    again(document, f"前言。\n\n{TEXT}")
    fact.refresh_from_db()
    assert fact.source_chunk_id == taken_from.pk


@pytest.mark.parametrize("changed", [{"chunk_size": TWO}, {"chunk_size": 20}, {"chunk_strategy": "parent_child"}])
def test_judgments_survive(document, changed):
    owner = principal(document.knowledge_base.owner)
    eval_set = EvalSet.objects.create(name="集", knowledge_base=document.knowledge_base)
    judge(owner, eval_set, "事项怎么办", chunks_of(document)[1], 2)
    again(document, **changed)
    after = list(Chunk.objects.filter(document=document).select_related("document"))
    judged = judgments_in(owner, [eval_set], "事项怎么办", after)
    assert set(judged.values()) == {2}
    assert all(SENTENCES[4] in chunk.text or chunk.text in PARAGRAPHS[1] for chunk in after if chunk.pk in judged)


def test_the_plan_tells_what_survives(document):
    edit(document, 0, text="改。")
    edit(document, 1, enabled=False)
    plan = recut(document, chunks_of(document), _drafts(document, chunk_size=20))
    survival = plan.survival
    assert (survival.kept, survival.new, survival.gone) == (0, 12, 4)
    assert (survival.edits, survival.edits_kept, survival.disabled, survival.disabled_kept) == (1, 1, 1, 1)


def test_an_edit_made_while_the_document_is_cut_is_kept(document, monkeypatch):
    real = indexing.writing_chunks
    state = SimpleNamespace(edits=0)

    def edited_just_before(kb):
        if not state.edits:
            state.edits += 1
            Chunk.objects.filter(document=document, position=0).update(text="刚改的。", cut_text=PARAGRAPHS[0])
        return real(kb)

    monkeypatch.setattr(indexing, "writing_chunks", edited_just_before)
    after = again(document, chunk_size=TWO)
    assert after[0].text == f"刚改的。\n\n{PARAGRAPHS[1]}"


def _drafts(document, **settings):
    KnowledgeBase.objects.filter(pk=document.knowledge_base_id).update(**settings)
    kb = KnowledgeBase.objects.get(pk=document.knowledge_base_id)
    return split(ParsedDocument("", (Section(TEXT),)), chunk_settings(kb))


# -- Parents ---------------------------------------------------------------------------------------------------------------
PARENTS = {"chunk_strategy": "parent_child", "parent_size": 120}


def test_chunks_of_the_strategy_have_parents(document):
    after = again(document, **PARENTS)
    assert [chunk.text for chunk in after] == PARAGRAPHS
    assert [chunk.parent.text for chunk in after[:2]] == [f"{PARAGRAPHS[0]}\n\n{PARAGRAPHS[1]}"] * 2
    assert ChunkParent.objects.count() == 2


def test_taking_on_parents_embeds_nothing_where_the_chunks_are_the_same(document, counted):
    before = [chunk.pk for chunk in chunks_of(document)]
    assert [chunk.pk for chunk in again(document, **PARENTS)] == before
    assert counted.embedded == []


def test_parents_of_the_same_text_stay(document):
    again(document, **PARENTS)
    before = list(ChunkParent.objects.order_by("position"))
    after = again(document, f"{TEXT}\n\n{'另外一段很长的话。' * 6}\n\n{'最后一段也很长的。' * 6}")
    assert ChunkParent.objects.filter(pk__in=[parent.pk for parent in before]).count() == 2
    assert all(chunk.parent_id for chunk in after)


def test_parents_go_with_the_strategy(document):
    again(document, **PARENTS)
    after = again(document, chunk_strategy="recursive")
    assert not ChunkParent.objects.exists()
    assert {chunk.parent_id for chunk in after} == {None}


def test_a_knowledge_base_with_parents_can_be_deleted(document):
    again(document, **PARENTS)
    knowledge_base_delete(document.knowledge_base)
    assert not ChunkParent.objects.exists()


def test_a_document_with_parents_can_be_deleted(document):
    again(document, **PARENTS)
    Document.objects.get(pk=document.pk).delete()
    assert not ChunkParent.objects.exists()


def test_questions_of_a_document_find_its_answers(kb):
    text = "问：多久退款？\n答：七天之内。\n\n问：门店在哪里？\n答：解放路。"
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_strategy="questions")
    added = document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="问答.txt", user=kb.owner)
    index_document(added.pk)
    result = search(principal(kb.owner), SearchRequest(query="多久退款？", knowledge_base_ids=[kb.pk])).result
    assert result.hits[0].passage.text == "多久退款？\n七天之内。"
    assert "question" in result.hits[0].ranks


# -- Whole knowledge bases -------------------------------------------------------------------------------------------------
def test_a_document_remembers_how_it_was_cut(document):
    document.refresh_from_db()
    kb = KnowledgeBase.objects.get(pk=document.knowledge_base_id)
    assert document.chunking == chunk_settings(kb).fingerprint(kb.embedding_model)
    assert not outdated_documents(kb).exists()
    kb.chunk_strategy = "headings"
    assert outdated_documents(kb).get() == document


def test_another_choice_of_what_is_read_in_word_documents_makes_these_outdated_and_no_others(kb, document):
    word = docx.Document()
    commented = word.add_paragraph("期限是七天。")
    word.add_comment(commented.runs, "与合同不符", author="李四")
    file = ContentFile(save(word))
    added = document_add(knowledge_base=kb, file=file, name="规定.docx", user=kb.owner)
    index_document(added.pk)
    kb.refresh_from_db()
    assert not outdated_documents(kb).exists()
    kb.word_parts = ["notes", "comments"]
    kb.save()
    assert outdated_documents(kb).get() == added
    [chunk] = again(added)
    assert chunk.text == "期限是七天。\n批注（李四）：与合同不符"
    assert not outdated_documents(kb).exists()


def test_what_was_never_cut_was_not_cut_otherwise(kb):
    make_document(kb, "没有文件")
    assert not outdated_documents(kb).exists()


def test_all_documents_with_files_are_queued(kb, document):
    failed, waiting = (
        document_add(knowledge_base=kb, file=ContentFile(name.encode()), name=f"{name}.txt", user=kb.owner)
        for name in ("failed", "waiting")
    )
    Document.objects.filter(pk=failed.pk).update(status="failed")
    imported = make_document(kb, "没有文件")
    assert documents_recut(Document.objects.filter(knowledge_base=kb)) == 1
    status = dict(Document.objects.values_list("pk", "status"))
    assert status == {document.pk: "pending", failed.pk: "failed", waiting.pk: "pending", imported.pk: "ready"}
    assert Document.objects.get(pk=document.pk).keep_chunks is False


def test_a_larger_chunk_has_no_more_questions_and_keywords_than_a_chunk_may_have(document):
    many = [str(number) for number in range(MOST_ENTRIES)]
    edit(document, 0, questions=many, keywords=many)
    edit(document, 1, questions=["乙?"], keywords=["乙"])
    first, *_ = again(document, chunk_size=TWO)
    assert (first.questions, first.keywords) == (many, many)


def test_a_smaller_chunk_has_no_more_questions_than_a_chunk_may_have():
    whole = Chunk(questions=["甲?", "乙?"], own_questions=True)
    part = Chunk(text="甲乙", questions=[str(number) for number in range(MOST_ENTRIES - 1)])
    share_questions(whole, [part])
    assert (len(part.questions), part.questions[-1]) == (MOST_ENTRIES, "甲?")
