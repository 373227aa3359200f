"""The recommended models: what is said of them, and that small ones of their kinds run under their names."""

import numpy as np
import pytest

from kb.providers.recommended import MANY, MODELS, Role, Size, models_of
from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder
from tests.retrieval.rerankers.tiny import save_tiny_embedding_model

EMBEDDING_MODELS = [each.model_id for each in MODELS if each.role == Role.EMBEDDING]
INSTRUCTIONS = {  # before a query and before a passage, by the model cards
    "-zh-": ("为这个句子生成表示以用于检索相关文章：", ""),
    "-en-": ("Represent this sentence for searching relevant passages: ", ""),
    "-e5-": ("query: ", "passage: "),
    "-m3": ("", ""),
    "MiniLM": ("", ""),
}


def test_each_model_is_listed_once():
    ids = [each.model_id for each in MODELS]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("language", ["zh", "en", MANY])
@pytest.mark.parametrize("size", Size)
def test_there_is_an_embedding_model_of_every_language_and_size(language, size):
    assert models_of(Role.EMBEDDING, language, size)


@pytest.mark.parametrize("language", ["zh", "en", MANY])
def test_there_are_a_small_and_a_large_reranker_of_every_language(language):
    assert {Size.SMALL, Size.LARGE} <= {each.size for each in models_of(Role.RERANK, language)}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_id)
def test_what_is_said_of_a_model_fits_together(model):
    assert (model.dimension is None) == (model.role == Role.RERANK)
    assert (
        4 * model.parameters <= model.download_mb <= 4 * model.parameters + 25
    )  # of single precision, with a tokenizer
    assert model.licence in {"MIT", "Apache-2.0"}
    for figure in model.figures:
        assert figure.source.startswith("https://")
        assert figure.metric == "pairs/s" or 0 < figure.value < 100


@pytest.mark.parametrize("model_id", EMBEDDING_MODELS)
def test_queries_and_passages_get_the_instructions_of_the_model_card(tmp_path, model_id):
    (before_query, before_passage) = next(texts for part, texts in INSTRUCTIONS.items() if part in model_id)
    stand_in = save_tiny_embedding_model(tmp_path / model_id.rpartition("/")[2])
    embedder = SentenceTransformerEmbedder(str(stand_in), device="cpu")
    plain = embedder._ready().model

    def direct(text):
        return plain.encode([text], normalize_embeddings=True)[0]

    assert embedder.embed_query("cats") == pytest.approx(direct(f"{before_query}cats"), abs=1e-5)
    assert embedder.embed_documents(["cats"])[0] == pytest.approx(direct(f"{before_passage}cats"), abs=1e-5)
    assert np.allclose(direct("cats"), direct(f"{before_query}cats"), atol=1e-3) == (not before_query)


def test_a_prompt_of_the_model_s_own_goes_before_the_known_one(tmp_path):
    folder = save_tiny_embedding_model(tmp_path / "bge-small-en-v1.5", prompts={"query": "own "})
    embedder = SentenceTransformerEmbedder(str(folder), device="cpu")

    expected = embedder._ready().model.encode(["own cats"], normalize_embeddings=True)[0]

    assert embedder.embed_query("cats") == pytest.approx(expected, abs=1e-5)
