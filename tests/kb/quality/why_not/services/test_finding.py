import pytest

from kb.models import Document
from kb.quality.why_not.services.places import MOST_FOUND, find_chunks
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.quality.why_not.services.asking import bare_chunk

pytestmark = pytest.mark.django_db

TEXT = "Employees may rebook their flight.\nThe office books hotels (two nights at most)."


@pytest.fixture
def chunk(kb):
    make_document(kb, "Nothing of the kind.", "差旅报销标准由财务部公布。")
    return make_document(kb, TEXT).chunks.get()


def find(kb, text, who=None):
    return find_chunks(who or principal(kb.owner), [kb.pk], text)


@pytest.mark.parametrize(
    "text",
    [
        "rebook their flight",
        "REBOOK   their\n flight",
        "hotels (two nights",
        TEXT,
        TEXT.replace("\n", "  "),
        "flight. The office",
    ],
)
def test_a_chunk_is_found_by_any_part_of_it_whatever_its_white_space_and_case(kb, chunk, text):
    found = find(kb, text)

    assert [each.pk for each in found.chunks] == [chunk.pk]
    assert not found.is_alike


def test_a_chunk_that_no_index_holds_is_found(kb):
    chunk = bare_chunk(kb, "只有文字的片段")
    chunk.enabled = False
    chunk.save()

    assert [each.pk for each in find(kb, "文字的片段").chunks] == [chunk.pk]


def test_the_chunk_that_is_all_of_the_text_is_meant_and_not_those_that_hold_it(kb, chunk):
    longer = make_document(kb, f"{TEXT} And more.").chunks.get()

    assert [each.pk for each in find(kb, TEXT).chunks] == [chunk.pk]
    assert [each.pk for each in find(kb, "rebook their").chunks] == [chunk.pk, longer.pk]


def test_a_text_that_is_written_a_little_otherwise_is_found_by_its_n_grams(kb, chunk):
    found = find(kb, "employees can rebook flights, and the office books their hotels")

    assert chunk.pk in [each.pk for each in found.chunks]
    assert found.is_alike


@pytest.mark.parametrize("text", ["100%", "a_b", r"c\d", ".*", "x[y]"])
def test_signs_of_patterns_are_only_signs(kb, chunk, text):
    meant = make_document(kb, f"so {text} it is").chunks.get()

    assert [each.pk for each in find(kb, text).chunks] == [meant.pk]


@pytest.mark.parametrize("text", ["", "  \n", "\x00"])
def test_nothing_is_found_by_nothing(kb, chunk, text):
    assert find(kb, text).chunks == ()


def test_only_so_many_are_told_of(kb):
    make_document(kb, *[f"the same words {number}" for number in range(MOST_FOUND + 3)])

    found = find(kb, "the same words")

    assert (len(found.chunks), found.has_more) == (MOST_FOUND, True)


def test_where_nothing_is_found_documents_that_are_not_ready_are_told_of(kb, chunk):
    failed = Document.objects.create(knowledge_base=kb, sha256="x", title="Broken", status="failed")

    assert find(kb, "zzz qqq").unready == (failed,)


def test_a_strangers_chunks_are_not_found(kb, chunk):
    stranger = make_user()
    make_kb(owner=stranger)

    found = find(kb, "rebook their flight", principal(stranger))

    assert (found.chunks, found.unready) == ((), ())
