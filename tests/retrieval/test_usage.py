"""What a request of a model took, as its server counts it or by the length of the texts."""

import pytest

from retrieval import usage
from retrieval.embedders.openai_http import OpenAIEmbedder
from retrieval.errors import GenerationFailed
from retrieval.generation import OpenAIGenerator
from retrieval.rerankers.cross_encoder import HttpReranker
from retrieval.types import Turn
from retrieval.usage import Use
from tests.retrieval.rerankers.jobs import of_texts, soon
from tests.servers import ModelServer, Reply

ASKED = [Turn("system", "答复"), Turn("user", "four")]
TOLD = {"prompt_tokens": 40, "completion_tokens": 5, "total_tokens": 45}


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def used(monkeypatch):
    uses = []
    monkeypatch.setattr(usage, "_listeners", [uses.append])
    return uses


@pytest.fixture
def model(server):
    return OpenAIGenerator(server.base_url, "", "m")


def test_a_whole_answer_takes_what_its_server_says(server, model, used):
    server.always("chat", Reply("年假", usage=TOLD))

    model.complete(ASKED, timeout_s=10)

    assert used == [Use("chat", "m", 40, 5)]


def test_without_figures_texts_are_measured(server, model, used):
    server.always("chat", Reply("年假"))

    model.complete(ASKED, timeout_s=10)
    assert "".join(model.stream(ASKED, timeout_s=10)) == "年假"

    assert used == 2 * [Use("chat", "m", 3, 2, is_estimated=True)]


def test_a_stream_is_asked_for_its_figures_which_come_after_its_end(server, model, used):
    server.always("chat", Reply("年假", usage=TOLD))

    assert "".join(model.stream(ASKED, timeout_s=10)) == "年假"

    assert server.requests[0].body["stream_options"] == {"include_usage": True}
    assert used == [Use("chat", "m", 40, 5)]


def test_a_server_that_refuses_to_be_asked_for_figures_answers_without(server, model, used):
    refusal = Reply(status=400, raw=b'{"error": {"message": "Unknown parameter: stream_options"}}')
    server.once("chat", refusal)

    assert "".join(model.stream(ASKED, timeout_s=10))
    assert "".join(model.stream(ASKED, timeout_s=10))

    assert ["stream_options" in each.body for each in server.requests] == [True, False, False]
    assert [each.is_estimated for each in used] == [True, True]


def test_a_refusal_of_something_else_is_not_asked_again(server, model, used):
    server.always("chat", Reply(status=400))

    with pytest.raises(GenerationFailed):
        list(model.stream(ASKED, timeout_s=10))

    assert server.calls["chat"] == 1
    assert used == []


def test_an_answer_that_its_reader_leaves_or_that_breaks_off_was_written_as_well(server, model, used):
    server.once("chat", Reply(["年", "假"], hang_after=1), Reply(["年", "假", "天"], break_after=2))

    pieces = model.stream(ASKED, timeout_s=10)
    assert next(pieces) == "年"
    pieces.close()
    with pytest.raises(GenerationFailed):
        list(model.stream(ASKED, timeout_s=10))

    assert [each.output_tokens for each in used] == [1, 2]


def test_embeddings_take_what_the_server_says_or_their_length(server, used):
    embedder = OpenAIEmbedder("openai:e", base_url=server.base_url)
    server.once("embeddings", Reply(usage={"prompt_tokens": 9, "total_tokens": 9}))

    embedder.embed_documents(["年假", "four"])
    embedder.embed_documents(["年假", "four"])

    assert used == [Use("embedding", "openai:e", 9), Use("embedding", "openai:e", 3, is_estimated=True)]


def test_a_reranker_reads_the_query_with_every_passage(server, used):
    reranker = HttpReranker(server.base_url, model="r")
    server.once("rerank", Reply(usage={"total_tokens": 7}))

    for _ in range(2):
        reranker.scores(of_texts("年假", ["天", "日"]), soon())

    assert used == [Use("rerank", "r", 7), Use("rerank", "r", 6, is_estimated=True)]
