import json

import pytest

from kb.index.keywords import MOST_KEYWORDS, MOST_QUESTIONS, Terms, read_terms
from retrieval.errors import DegradationCode, GenerationFailed
from retrieval.generation import OpenAIGenerator
from tests.servers import ModelServer, Reply


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def reader(server):
    model = OpenAIGenerator(server.base_url, "", "terms", sleep=lambda _: None)
    model.load()
    return model


def read(reader, *, keywords=True, questions=True):
    return read_terms("保修期是两年。", reader, keywords=keywords, questions=questions)


def test_the_model_is_shown_the_passage_as_data_and_the_schema_of_what_is_wanted(server, reader):
    server.always("chat", Reply('{"questions": ["多久?"]}'))

    assert read(reader, keywords=False) == Terms((), ("多久?",))

    [request] = server.requests
    system, user = request.body["messages"]
    schema = json.loads(system["content"].partition("schema:")[2])
    assert (schema["required"], schema["additionalProperties"]) == (["questions"], False)
    assert json.loads(user["content"]) == {"passage": "保修期是两年。"}
    assert request.body["response_format"] == {"type": "json_object"}


def test_a_fenced_answer_is_read(server, reader):
    server.always("chat", Reply('```json\n{"keywords": ["保修期"], "questions": []}\n```'))
    assert read(reader) == Terms(("保修期",))


def test_texts_are_cleaned_and_bounded(server, reader):
    many = {
        "keywords": ["  a\u0000  b ", "A B", "x" * 400, "", *map(str, range(50))],
        "questions": [f"{number}?" for number in range(50)],
    }
    server.always("chat", Reply(json.dumps(many)))

    found = read(reader)

    assert found.keywords[:2] == ("a b", "0")
    assert (len(found.keywords), len(found.questions)) == (MOST_KEYWORDS, MOST_QUESTIONS)


@pytest.mark.parametrize(
    "answer",
    ["保修期", "[]", "{}", '{"keywords": "a", "questions": []}', '{"keywords": [1], "questions": []}', "[" * 9_999],
)
def test_an_answer_of_another_form_is_refused_with_a_remedy(server, reader, answer):
    server.always("chat", Reply(answer))
    with pytest.raises(GenerationFailed, match="choose a chat model that follows instructions") as caught:
        read(reader)
    assert caught.value.code is DegradationCode.LLM_UNUSABLE


def test_a_server_that_fails_is_told_of(server, reader):
    server.always("chat", Reply(status=500))
    with pytest.raises(GenerationFailed):
        read(reader)


@pytest.mark.parametrize("blanks", ["```json" + " " * 100_000, "```" + "\n" * 100_000 + "{}"])
def test_an_answer_that_is_filled_with_blanks_is_no_answer(server, reader, blanks):
    server.always("chat", Reply(blanks))
    with pytest.raises(GenerationFailed) as failure:
        read(reader)
    assert failure.value.code == DegradationCode.LLM_UNUSABLE
