import pytest
from django.db import connection

from kb.index.models import MAX_BYTES, MAX_LEXEME_BYTES, MAX_LEXEMES, storable_lexemes
from kb.models import ChunkPostings
from tests.factories import make_document, make_kb


@pytest.fixture
def postings(db):
    make_document(make_kb(), "some text")
    return ChunkPostings.objects.get()


def matching(lexeme):
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM kb_chunkpostings WHERE lexemes @@ %s::tsquery", [lexeme])
        return cursor.fetchone()[0]


def test_a_list_of_lexemes_is_searched_as_it_was_written(postings):
    postings.lexemes = ["The", "违约金", "~违约", "c++", "it's a 'b'\\"]
    postings.save()

    assert [matching(each) for each in ("'The'", "'the'", "'违约金'", "'~违约'", "'违约'", "'c++'")] == [
        1,
        0,
        1,
        1,
        0,
        1,
    ]


def test_lexemes_are_read_as_a_list(postings):
    ChunkPostings.objects.update(lexemes=["b", "a", "b", "it's"])

    postings.refresh_from_db()

    assert sorted(postings.lexemes) == ["a", "b", "it's"]


def test_a_row_that_was_read_is_written_back_as_it_was(postings):
    ChunkPostings.objects.update(lexemes=["~a b", "x"])

    ChunkPostings.objects.get().save()

    assert sorted(ChunkPostings.objects.get().lexemes) == ["x", "~a b"]


def test_rows_that_other_programs_insert_have_no_lexemes(postings):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO kb_chunkpostings (chunk_id, knowledge_base_id, tokenizer_id, terms, frequencies, length)"
            " SELECT chunk_id, knowledge_base_id, 'other', terms, frequencies, length FROM kb_chunkpostings"
        )

    assert ChunkPostings.objects.get(tokenizer_id="other").lexemes == []


@pytest.mark.parametrize(
    "lexemes",
    [
        ["词" * 682 for _ in range(3)],
        [f"{n:07}" for n in range(2 * MAX_LEXEMES)],
        [f"{n:0{MAX_LEXEME_BYTES}}" for n in range(600)],
        ["", "a\0b", "x" * (MAX_LEXEME_BYTES + 1), "ok"],
    ],
    ids=["long ones", "many", "many long ones", "impossible ones"],
)
def test_what_is_too_much_is_cut_to_what_the_database_takes(postings, lexemes):
    ChunkPostings.objects.update(lexemes=lexemes)

    assert sorted(ChunkPostings.objects.get().lexemes) == sorted(storable_lexemes(lexemes))


def test_the_first_lexemes_are_kept():
    lexemes = [f"{n:07}" for n in range(MAX_LEXEMES + 5)]

    assert storable_lexemes(lexemes) == lexemes[:MAX_LEXEMES]


def test_all_lexemes_together_stay_below_the_limit():
    kept = storable_lexemes(f"{n:0{MAX_LEXEME_BYTES}}" for n in range(600))

    assert sum(len(each.encode()) for each in kept) <= MAX_BYTES
    assert len(kept) == MAX_BYTES // MAX_LEXEME_BYTES
