"""The evaluation set of the project's own fits the demo documents that it was cut from."""

from pathlib import Path

import pytest

from kb.ingest.parser.parse import parse
from kb.operations.services.bootstrap import demo_files
from retrieval.eval.judged_sets import read_judged_set
from retrieval.eval.qrels import iter_corpus

SETS = Path(__file__).parents[2] / "data" / "demo_eval"
LANGUAGES = ("zh", "en")


def squeezed(text):
    return "".join(text.split()).replace("`", "")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_passage_stands_in_a_demo_document(language):
    documents = [parse(file.read_bytes(), file.name) for file in demo_files(language)]
    everything = squeezed("".join(section.text for document in documents for section in document.sections))
    missing = [passage.id for passage in iter_corpus(SETS / language) if squeezed(passage.text) not in everything]
    assert missing == []


def read(language):
    """The ids of the passages, and the set, whose judgments may name these alone."""
    passages = [passage.id for passage in iter_corpus(SETS / language)]
    return passages, read_judged_set(SETS / language, documents=passages)


def test_both_languages_have_the_same_passages_queries_and_judgments():
    (chinese_passages, chinese), (english_passages, english) = (read(language) for language in LANGUAGES)
    assert chinese_passages == english_passages
    assert [query.id for query in chinese.queries] == [query.id for query in english.queries]
    assert chinese.judgments == english.judgments


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_query_has_judgments_unless_it_has_no_answer(language):
    _passages, demo = read(language)
    assert sum(not query.answerable for query in demo.queries) == 8
    assert {query.id for query in demo.queries if query.answerable} == {each.query_id for each in demo.judgments}
