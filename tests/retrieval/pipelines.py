"""Pipelines over fakes: scopes as a test gives them, and the parts that it does not care about."""

from retrieval.analysis import Analyser
from retrieval.config import RetrievalConfig
from retrieval.execution import InlineExecutor
from retrieval.pipeline import Pipeline
from retrieval.protocols import Scope
from retrieval.rerankers.chain import RerankChain
from tests.fakes import FakePassages, WordTokenizer

WORDS = WordTokenizer()


def scope(kb_id, *channels, space="m", tokenizer=WORDS, fallbacks=(), **settings):
    return Scope(kb_id, space, tokenizer, channels, RetrievalConfig(**settings), tuple(fallbacks))


def pipeline(*scopes, passages=None, rerankers=(), executor=None, **parts):
    tokenizers = {each.kb_id: each.tokenizer for each in scopes if each.tokenizer is not None}
    return Pipeline(
        scopes,
        Analyser(tokenizers),
        passages or FakePassages(),
        RerankChain(rerankers),
        executor or InlineExecutor(),
        **parts,
    )


def run(pipe, query="a query", *, explain=False, history=(), latency_budget=10.0, **settings):
    """Without a gate, unless a test asks for one: the scores of fakes mean nothing."""
    config = RetrievalConfig(**{"score_threshold": 0.0, **settings})
    return pipe.run(query, config, history=history, explain=explain, latency_budget=latency_budget)


def chunk_ids(result):
    return [hit.passage.chunk_id for hit in result.hits]
