import json
import time

import pytest

from retrieval.errors import DegradationCode, InvalidConfiguration, RerankerUnavailable
from retrieval.rerankers.cross_encoder import HttpReranker
from retrieval.rerankers.forms import FORMS
from tests.retrieval.rerankers.jobs import candidate, job, of_texts, soon
from tests.servers import ModelServer, Reply

THREE = of_texts("abcd", ["ab", "abcd", "x"])


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def connect(server):
    def make(base_url=None, **options):
        return HttpReranker(base_url or server.base_url, **options)

    return make


def code_of(reranker, a_job=THREE, deadline=None):
    with pytest.raises(RerankerUnavailable) as raised:
        reranker.scores(a_job, soon() if deadline is None else deadline)
    return raised.value.code


@pytest.mark.parametrize("form", FORMS)
def test_scores_come_in_the_order_of_the_candidates(connect, form):
    assert connect(form=form).scores(THREE, soon()).tolist() == [0.5, 1.0, 0.0]


def test_the_request_in_the_form_of_jina(server, connect):
    in_context = candidate(1, text="text", title="title", headings=("one", "two"))
    connect(api_key="secret", model="m").scores(job("q", [in_context]), soon())

    (request,) = server.requests
    assert request.path == "/v1/rerank"
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.body == {
        "model": "m",
        "query": "q",
        "documents": ["title\none > two\ntext"],
        "top_n": 1,
        "return_documents": False,
    }


def test_the_request_in_the_form_of_tei(server, connect):
    connect(form="tei").scores(of_texts("q", ["a", "b"]), soon())

    (request,) = server.requests
    assert request.body == {"query": "q", "texts": ["a", "b"], "truncate": True}
    assert "Authorization" not in request.headers


def test_the_request_in_the_form_of_dashscope(server, connect):
    connect(server.root_url, form="dashscope", model="m").scores(of_texts("q", ["a"]), soon())

    (request,) = server.requests
    assert request.path == "/services/rerank/text-rerank/text-rerank"
    assert request.body == {
        "model": "m",
        "input": {"query": "q", "documents": ["a"]},
        "parameters": {"top_n": 1, "return_documents": False},
    }


def test_the_request_in_the_form_of_cohere_holds_nothing_that_its_second_version_does_not_know(server, connect):
    connect(form="cohere", model="m").scores(of_texts("q", ["a"]), soon())

    assert server.requests[0].body == {"model": "m", "query": "q", "documents": ["a"], "top_n": 1}


def test_the_whole_endpoint_may_be_given(server, connect):
    connect(f"{server.root_url}/rerank/").scores(THREE, soon())
    assert server.requests[0].path == "/rerank"


def test_an_empty_passage_is_sent_as_a_space(server, connect):
    connect().scores(of_texts("q", ["", "a"]), soon())
    assert server.requests[0].body["documents"] == [" ", "a"]


def test_no_candidates_make_no_request(server, connect):
    assert connect().scores(job("q", []), soon()).shape == (0,)
    assert server.calls["rerank"] == 0


def test_an_unknown_form_names_the_known_ones():
    with pytest.raises(InvalidConfiguration, match="jina, cohere, tei"):
        HttpReranker("http://localhost", form="other")


@pytest.mark.parametrize("status", [401, 422, 429, 500, 503])
def test_a_refusal_is_unavailable_and_says_what_to_check(server, connect, status):
    server.always("rerank", Reply(status=status))

    with pytest.raises(RerankerUnavailable, match=rf"HTTP {status}: .*RERANK_API_KEY") as raised:
        connect().scores(THREE, soon())
    assert raised.value.code == DegradationCode.RERANKER_UNAVAILABLE


def test_a_server_that_is_down_is_unavailable(server, connect):
    server.stop()
    assert code_of(connect()) == DegradationCode.RERANKER_UNAVAILABLE


def test_a_cut_connection_is_unavailable(server, connect):
    server.always("rerank", Reply(break_after=0))
    assert code_of(connect()) == DegradationCode.RERANKER_UNAVAILABLE


@pytest.mark.parametrize("address", ["localhost:1", "http://[", ""])
def test_an_address_that_is_none_is_unavailable(address):
    assert code_of(HttpReranker(address)) == DegradationCode.RERANKER_UNAVAILABLE


@pytest.mark.parametrize("reply", [Reply(hang=True), Reply(trickle_s=0.5)])
def test_the_server_s_timeout_ends_the_wait(server, connect, reply):
    server.always("rerank", reply)
    assert code_of(connect(timeout_s=0.1)) == DegradationCode.RERANKER_TIMEOUT


def test_the_search_s_deadline_ends_the_wait(server, connect):
    server.always("rerank", Reply(hang=True))
    assert code_of(connect(timeout_s=20), deadline=time.monotonic() + 0.1) == DegradationCode.RERANKER_TIMEOUT


def test_without_time_left_the_server_is_not_asked_and_not_blamed(server, connect):
    reranker = connect()
    codes = {code_of(reranker, deadline=time.monotonic() - 1) for _ in range(5)}
    assert codes == {DegradationCode.RERANKER_TIMEOUT}
    assert reranker.scores(THREE, soon()).shape == (3,)
    assert server.calls["rerank"] == 1


def jina(*rows):
    return json.dumps({"results": [{"index": index, "relevance_score": score} for index, score in rows]}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"not JSON",
        b"[]",
        b"null",
        b"{}",
        b'{"results": 3}',
        b'{"results": [1, 2, 3]}',
        b'{"results": [{"index": 0}, {"index": 1}, {"index": 2}]}',
        jina((0, "high"), (1, 0.5), (2, 0.5)),
        jina((0, None), (1, 0.5), (2, 0.5)),
        jina((0, 0.5), (1, 0.5)),
        jina((0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)),
        jina((0, 0.5), (1, 0.5), (1, 0.5)),
        jina((-1, 0.5), (0, 0.5), (1, 0.5)),
        jina((0, float("nan")), (1, 0.5), (2, 0.5)),
        jina((0, float("inf")), (1, 0.5), (2, 0.5)),
        jina((0, 7.2), (1, -3.1), (2, 0.5)),
    ],
)
def test_an_unusable_answer_is_a_failure(server, connect, raw):
    server.always("rerank", Reply(raw=raw))
    assert code_of(connect()) == DegradationCode.RERANKER_FAILED


def test_raw_logits_name_the_remedy(server, connect):
    server.always("rerank", Reply([4.0, -2.0, 0.0]))
    with pytest.raises(RerankerUnavailable, match=r"from -2 to 4: .*raw_scores"):
        connect(form="tei").scores(THREE, soon())


def test_an_answer_in_the_other_form_is_a_failure(server, connect):
    server.always("rerank", Reply(raw=jina((0, 0.5), (1, 0.5), (2, 0.5))))
    assert code_of(connect(form="tei")) == DegradationCode.RERANKER_FAILED


def test_a_server_that_fails_three_times_is_left_alone_for_a_while(server, connect):
    server.always("rerank", Reply(status=500))
    reranker = connect()
    codes = [code_of(reranker) for _ in range(4)]
    assert codes == [DegradationCode.RERANKER_UNAVAILABLE] * 3 + [DegradationCode.MODEL_CIRCUIT_OPEN]
    assert server.calls["rerank"] == 3


def test_searches_with_little_time_do_not_take_a_slow_server_from_others(server, connect):
    server.always("rerank", Reply(hang=True))
    reranker = connect()
    codes = {code_of(reranker, deadline=time.monotonic() + 0.05) for _ in range(4)}
    server.always("rerank", Reply([0.1, 0.2, 0.3]))
    assert codes == {DegradationCode.RERANKER_TIMEOUT}
    assert reranker.scores(THREE, soon()).shape == (3,)
