"""The evaluation set of the project's own fits the demo documents that it was cut from."""

from pathlib import Path

import pytest

from kb.ingest.parser.parse import parse
from kb.operations.services.bootstrap import demo_files
from retrieval.eval.qrels import read_beir

SETS = Path(__file__).parents[2] / "data" / "demo_eval"
LANGUAGES = ("zh", "en")


def squeezed(text):
    return "".join(text.split()).replace("`", "")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_passage_stands_in_a_demo_document(language):
    documents = [parse(file.read_bytes(), file.name) for file in demo_files(language)]
    everything = squeezed("".join(section.text for document in documents for section in document.sections))
    missing = [
        passage.id for passage in read_beir(SETS / language).passages if squeezed(passage.text) not in everything
    ]
    assert missing == []


def test_both_languages_have_the_same_passages_queries_and_judgments():
    chinese, english = (read_beir(SETS / language) for language in LANGUAGES)
    assert [passage.id for passage in chinese.passages] == [passage.id for passage in english.passages]
    assert list(chinese.queries) == list(english.queries)
    assert chinese.qrels == english.qrels


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_query_has_judgments_unless_it_has_no_answer(language):
    demo = read_beir(SETS / language)
    assert sum(query.answerable is False for query in demo.queries.values()) == 8
    assert {key for key, query in demo.queries.items() if query.answerable} == set(demo.qrels)
