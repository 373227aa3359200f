import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding

from retrieval.embedders.hashing import HashingEmbedder
from retrieval.langchain import KnowledgeBaseVectorStore
from retrieval.protocols import FoundText, StoredText


class Texts:
    """Answers every search with the texts that were added, in this order, with one score."""

    def __init__(self, *, score=0.5, scale="overlap"):
        self.kept, self._score, self._scale = {}, score, scale
        self.searches = []

    def search(self, query, k, *, metadata=None):
        self.searches.append((query, k, metadata))
        provenance = {"chunk_id": 7, "score": self._score, "score_scale": self._scale}
        return [FoundText(text, self._score, self._scale, provenance) for text in list(self.kept.values())[:k]]

    def add(self, texts):
        self.kept |= {text.id: text for text in texts}

    def delete(self, ids):
        self.kept = {} if ids is None else {name: text for name, text in self.kept.items() if name not in ids}

    def get(self, ids):
        return {name: self.kept[name] for name in ids if name in self.kept}

    def embedder(self):
        return HashingEmbedder()


def store_of(*rows, **scores):
    store = KnowledgeBaseVectorStore(Texts(**scores))
    store.add_texts([content for content, _ in rows], [metadata for _, metadata in rows])
    return store


def test_a_plain_search_returns_what_was_given_and_nothing_else():
    store = store_of(("warranty", {"page": 3}))
    assert store.similarity_search("x")[0].metadata == {"page": 3}


def test_provenance_stands_beside_the_metadata_and_takes_no_name_of_theirs():
    document = store_of(("warranty", {"score": "mine"})).similarity_search("x", provenance=True)[0]
    assert document.metadata == {"score": "mine", "chunk_id": 7, "zhiku_score": 0.5, "score_scale": "overlap"}


def test_a_search_with_scores_says_their_scale():
    document, score = store_of(("warranty", {})).similarity_search_with_score("x")[0]
    assert (score, document.metadata["score_scale"]) == (0.5, "overlap")


def test_changing_a_result_changes_nothing_that_is_kept():
    store = store_of(("warranty", {"page": 3}))
    store.similarity_search("x")[0].metadata["page"] = 4
    assert store.similarity_search("x")[0].metadata == {"page": 3}


def test_ids_are_made_up_where_none_are_given():
    store = KnowledgeBaseVectorStore(Texts())
    ids = store.add_texts(["one", "two", "three"], ids=["a", None, ""])
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert all(ids)


@pytest.mark.parametrize("given", [{"metadatas": [{}]}, {"ids": ["a"]}])
def test_as_many_metadatas_and_ids_as_texts_are_needed(given):
    store = KnowledgeBaseVectorStore(Texts())
    with pytest.raises(ValueError, match="as many"):
        store.add_texts(["one", "two"], **given)
    assert not store.knowledge_base.kept


def test_documents_come_in_the_order_of_the_ids_each_once():
    store = KnowledgeBaseVectorStore(Texts())
    store.add_texts(["one", "two"], ids=["a", "b"])
    assert [document.id for document in store.get_by_ids(["b", "missing", "a", "b"])] == ["b", "a"]


def test_the_filter_reaches_the_search():
    store = store_of(("warranty", {}))
    store.similarity_search("x", 3, filter={"lang": "en"})
    store.similarity_search_with_score("x", 3, filter={"lang": "en"})
    store.similarity_search_with_relevance_scores("x", 3, filter={"lang": "en"})
    assert store.knowledge_base.searches == [("x", 3, {"lang": "en"})] * 3


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.similarity_search("x", fliter={}),
        lambda store: store.similarity_search_with_score("x", fliter={}),
        lambda store: store.similarity_search_with_relevance_scores("x", fliter={}),
        lambda store: store.add_texts(["x"], fliter={}),
        lambda store: store.delete(["x"], fliter={}),
    ],
)
def test_a_misspelt_keyword_does_not_pass_for_none(call):
    with pytest.raises(TypeError, match="fliter"):
        call(store_of(("warranty", {})))


@pytest.mark.parametrize(("score", "relevance"), [(0.5, 0.5), (-0.2, 0.0), (1.0001, 1.0)])
def test_relevance_is_a_calibrated_score_from_0_to_1(score, relevance):
    store = store_of(("warranty", {}), score=score, scale="cosine")
    assert [value for _, value in store.similarity_search_with_relevance_scores("x")] == [relevance]


def test_a_score_threshold_cuts_calibrated_scores():
    retriever = store_of(("warranty", {})).as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.6}
    )
    assert retriever.invoke("x") == []


async def test_a_score_threshold_cuts_when_awaited_too():
    store = store_of(("warranty", {}))
    assert len(await store.asimilarity_search_with_relevance_scores("x", score_threshold=0.5)) == 1
    assert await store.asimilarity_search_with_relevance_scores("x", score_threshold=0.6) == []


def test_scores_without_a_scale_are_not_taken_for_relevance():
    with pytest.raises(ValueError, match="reranker"):
        store_of(("warranty", {}), scale="rrf").similarity_search_with_relevance_scores("x")


def test_embeddings_are_those_of_the_knowledge_bases_model():
    embeddings = KnowledgeBaseVectorStore(Texts()).embeddings
    expected = HashingEmbedder().embed_query("warranty")
    assert np.allclose(embeddings.embed_query("warranty"), expected)
    assert np.allclose(embeddings.embed_documents(["warranty"]), [HashingEmbedder().embed_documents(["warranty"])[0]])


def test_texts_enter_a_knowledge_base_that_is_there():
    texts = Texts()
    store = KnowledgeBaseVectorStore(texts)
    again = KnowledgeBaseVectorStore.from_texts(
        ["one"], store.embeddings, [{"n": 1}], ids=["a"], knowledge_base=store.knowledge_base
    )
    assert again.knowledge_base is texts
    assert texts.kept == {"a": StoredText("a", "one", {"n": 1})}


def test_texts_alone_make_no_knowledge_base():
    with pytest.raises(NotImplementedError, match="create one"):
        KnowledgeBaseVectorStore.from_texts(["one"])


def test_another_embedding_model_is_refused_rather_than_ignored():
    texts = Texts()
    with pytest.raises(ValueError, match="own model"):
        KnowledgeBaseVectorStore.from_texts(["one"], DeterministicFakeEmbedding(size=6), knowledge_base=texts)
    assert not texts.kept


def test_a_retrievers_k_is_a_parameter_or_a_search_keyword():
    store = store_of(("one", {}), ("two", {}), ("three", {}))
    assert len(store.as_retriever(k=2).invoke("x")) == 2
    assert len(store.as_retriever(search_kwargs={"k": 1}).invoke("x")) == 1
    assert store.as_retriever(k=2).search_kwargs["k"] == 2


def test_a_retriever_leaves_the_dictionary_it_was_given_as_it_was():
    given = {"k": 1}
    store_of().as_retriever(search_kwargs=given)
    assert given == {"k": 1}
