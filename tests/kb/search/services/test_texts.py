import pytest
from django.db import connection

from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.base.text import InvalidFilter
from kb.ingest.services.documents import BATCH
from kb.models import Chunk, Document, Principal
from kb.search.services.texts import ID_FIELD, PermittedTexts
from retrieval.protocols import StoredText
from tests.factories import make_document, make_kb, make_member, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb(language="en")


@pytest.fixture
def texts(kb):
    return texts_of(kb, kb.owner)


def texts_of(kb, user, **scope):
    return PermittedTexts(lambda: Principal(user=user, **scope), kb.pk)


def chunk_ids(kb):
    return list(Chunk.objects.filter(knowledge_base=kb).order_by("pk").values_list("pk", flat=True))


def test_a_text_is_one_ready_document_of_one_chunk(kb, texts):
    texts.add([StoredText("a", "The warranty is two years", {"source": "faq.md", "title": "FAQ", "tags": ["x"]})])
    document = Document.objects.get(knowledge_base=kb)
    assert (document.source, document.title, document.status) == ("faq.md", "FAQ", Document.Status.READY)
    assert document.created_by == kb.owner
    assert [chunk.text for chunk in document.chunks.all()] == ["The warranty is two years"]


def test_both_channels_find_it_when_add_returns(texts):
    texts.add([StoredText("a", "The warranty is two years"), StoredText("b", "Switch it off")])
    first = texts.search("warranty", 2)[0]
    assert first.text == StoredText("a", "The warranty is two years", {})
    assert {"vector", "bm25"} <= set(first.provenance["ranks"])


def test_names_that_are_no_strings_stay_in_the_metadata_only(kb, texts):
    texts.add([StoredText("a", "text", {"source": 7, "title": None})])
    document = Document.objects.get(knowledge_base=kb)
    assert (document.source, document.title) == ("a", "")
    assert texts.get(["a"])["a"].metadata == {"source": 7, "title": None}


def test_a_long_source_is_cut_in_the_citation_only(kb, texts):
    texts.add([StoredText("a", "text", {"source": "x" * 2_000})])
    assert len(Document.objects.get(knowledge_base=kb).source) == 1_000
    assert len(texts.get(["a"])["a"].metadata["source"]) == 2_000


def test_metadata_that_clash_with_a_results_own_fields_come_back_as_given(texts):
    given = {"tags": ["mine"], "source_type": "x", "heading_path": [], "score": 3}
    texts.add([StoredText("a", "warranty", given)])
    assert texts.search("warranty", 1)[0].text.metadata == given


def test_a_text_that_is_there_unchanged_keeps_its_chunk(kb, texts):
    texts.add([StoredText("a", "one", {"n": 1}), StoredText("b", "two")])
    before = chunk_ids(kb)
    texts.add([StoredText("a", "one", {"n": 1}), StoredText("b", "two")])
    assert chunk_ids(kb) == before


@pytest.mark.parametrize("changed", [StoredText("a", "other", {"n": 1}), StoredText("a", "one", {"n": 2})])
def test_a_changed_text_or_metadata_replaces_what_was_there(kb, texts, changed):
    texts.add([StoredText("a", "one", {"n": 1})])
    texts.add([changed])
    assert texts.get(["a"]) == {"a": changed}
    assert Document.objects.filter(knowledge_base=kb).count() == 1


def test_the_last_of_several_texts_with_one_id_stays(texts):
    texts.add([StoredText("a", "one"), StoredText("a", "two")])
    assert texts.get(["a"])["a"].content == "two"


def test_more_texts_than_a_batch_are_all_written(kb, texts):
    texts.add([StoredText(str(number), f"text {number}") for number in range(BATCH + 1)])
    assert Document.objects.filter(knowledge_base=kb).count() == BATCH + 1


def test_equal_texts_are_kept_under_each_id(texts):
    texts.add([StoredText("a", "same"), StoredText("b", "same")])
    assert set(texts.get(["a", "b"])) == {"a", "b"}


def test_ids_are_those_of_one_knowledge_base(kb, texts):
    other = texts_of(make_kb(owner=kb.owner), kb.owner)
    texts.add([StoredText("a", "here")])
    other.add([StoredText("a", "there")])
    other.delete(["a"])
    assert texts.get(["a"])["a"].content == "here"


@pytest.mark.parametrize("content", ["", " \n", "\0"])
def test_a_text_without_content_is_refused_and_none_is_written(kb, texts, content):
    with pytest.raises(Rejected, match="“b”为空"):
        texts.add([StoredText("a", "one"), StoredText("b", content)])
    assert not chunk_ids(kb)


@pytest.mark.parametrize(
    "metadata",
    [{"at": object()}, {"n": float("nan")}, {"s": "\0"}, {ID_FIELD: "z"}, {"s": "x" * 40_000}],
    ids=["object", "nan", "nul", "reserved", "long"],
)
def test_metadata_that_cannot_come_back_as_given_are_refused(texts, metadata):
    with pytest.raises(Rejected) as refused:
        texts.add([StoredText("a", "one", metadata)])
    assert refused.value.code == "invalid_metadata"


@pytest.mark.parametrize("text_id", ["\0", "\ud800"])
def test_an_id_that_cannot_be_stored_is_refused_and_never_there(texts, text_id):
    with pytest.raises(Rejected):
        texts.add([StoredText(text_id, "one")])
    assert texts.get([text_id]) == {}


def test_chunks_of_files_are_found_and_got_by_their_chunk_id(kb, texts):
    document = make_document(kb, "The warranty is two years", metadata={"lang": "en"})
    chunk_id = str(document.chunks.get().pk)
    found = texts.search("warranty", 1)[0].text
    assert found == StoredText(chunk_id, "The warranty is two years", {"lang": "en"})
    assert texts.get([chunk_id]) == {chunk_id: found}


def test_an_id_that_is_also_a_chunks_means_the_text(kb, texts):
    chunk_id = str(make_document(kb, "of a file").chunks.get().pk)
    texts.add([StoredText(chunk_id, "of the program")])
    assert texts.get([chunk_id])[chunk_id].content == "of the program"


def test_chunks_of_other_knowledge_bases_are_not_there(kb, texts):
    foreign = make_document(make_kb(owner=kb.owner), "elsewhere").chunks.get().pk
    assert texts.get([str(foreign), "9" * 30, "¹"]) == {}


def test_a_disabled_chunk_is_not_there_and_adding_it_again_leaves_it_disabled(kb, texts):
    texts.add([StoredText("a", "one")])
    Chunk.objects.filter(knowledge_base=kb).update(enabled=False)
    texts.add([StoredText("a", "one")])
    assert texts.get(["a"]) == {}


def test_metadata_alone_make_no_document_a_text(kb, texts):
    document = make_document(kb, "warranty", metadata={ID_FIELD: "a"})
    assert texts.search("warranty", 1)[0].text.id == str(document.chunks.get().pk)
    assert texts.get(["a"]) == {}


def test_delete_takes_neither_chunk_ids_nor_sources(kb, texts):
    document = make_document(kb, "of a file", source="faq.md")
    texts.delete([str(document.chunks.get().pk), "faq.md"])
    assert Document.objects.filter(pk=document.pk).exists()


def test_delete_without_ids_leaves_documents_that_were_not_added_under_an_id(kb, texts):
    document = make_document(kb, "of a file")
    texts.add([StoredText("a", "one"), StoredText("b", "two")])
    texts.delete(None)
    assert list(Document.objects.filter(knowledge_base=kb)) == [document]


def test_a_viewer_reads_and_may_not_write(kb, texts):
    texts.add([StoredText("a", "warranty")])
    viewer = texts_of(kb, make_member(kb))
    assert viewer.search("warranty", 1)[0].text.id == "a"
    for write in (
        lambda: viewer.add([StoredText("b", "x")]),
        lambda: viewer.delete(["a"]),
        lambda: viewer.delete(None),
    ):
        with pytest.raises(NotAllowed):
            write()
    assert set(texts.get(["a", "b"])) == {"a"}


def test_an_editor_writes(kb):
    texts_of(kb, make_member(kb, role="editor")).add([StoredText("a", "x")])
    assert chunk_ids(kb)


def test_a_read_only_key_may_not_write(kb):
    with pytest.raises(NotAllowed):
        texts_of(kb, kb.owner, can_write=False).add([StoredText("a", "x")])


def test_to_a_stranger_nothing_is_there(kb):
    stranger = texts_of(kb, make_user())
    for call in (
        lambda: stranger.add([StoredText("a", "x")]),
        lambda: stranger.delete(["a"]),
        lambda: stranger.get(["a"]),
        lambda: stranger.search("x", 1),
        stranger.embedder,
    ):
        with pytest.raises(NotVisible):
            call()


def ids_found(texts, query, **metadata):
    return {found.text.id for found in texts.search(query, 5, metadata=metadata)}


def test_only_texts_with_all_of_the_metadata_are_found(texts):
    texts.add(
        [
            StoredText("a", "The warranty is two years", {"lang": "en", "year": 2024}),
            StoredText("b", "Warranty cards", {"lang": "en", "year": 2025}),
            StoredText("c", "Garantie: warranty", {"lang": "de", "year": 2024}),
            StoredText("d", "No warranty"),
        ]
    )
    assert ids_found(texts, "warranty", lang="en", year=2024) == {"a"}
    assert ids_found(texts, "warranty", lang="de") == {"c"}
    assert ids_found(texts, "warranty", lang="fr") == set()
    assert ids_found(texts, "warranty") == {"a", "b", "c", "d"}


def test_metadata_are_equal_only_where_their_types_are(texts):
    texts.add([StoredText("a", "warranty", {"year": 2024}), StoredText("b", "warranty cards", {"year": "2024"})])
    assert ids_found(texts, "warranty", year="2024") == {"b"}


def test_chunks_of_documents_are_filtered_by_their_metadata_too(kb, texts):
    make_document(kb, "The warranty is two years", metadata={"lang": "en"})
    make_document(kb, "Warranty cards", metadata={"lang": "de"})
    assert [found.text.content for found in texts.search("warranty", 5, metadata={"lang": "de"})] == ["Warranty cards"]


def test_metadata_that_cannot_be_compared_are_refused_rather_than_ignored(texts):
    with pytest.raises(InvalidFilter):
        texts.search("x", 1, metadata={"lang": ["en", "de"]})


@pytest.mark.django_db(transaction=True)
def test_a_connection_is_given_back_where_the_call_has_opened_it(texts):
    connection.close()
    texts.get(["a"])
    assert connection.connection is None


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_open_stays_open(texts):
    connection.ensure_connection()
    texts.get(["a"])
    assert connection.connection is not None


def test_a_document_of_langchain_says_where_it_stands(kb, texts):
    texts.add([StoredText("a", "The warranty is two years")])
    Chunk.objects.filter(knowledge_base=kb).update(regions=[{"page": 3, "box": None}], seconds=75)
    provenance = texts.search("warranty", 1)[0].provenance
    assert (provenance["regions"], provenance["seconds"]) == ([{"page": 3, "box": None}], 75)
