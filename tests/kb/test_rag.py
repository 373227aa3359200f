import inspect
from uuid import UUID

import pytest
from langchain_core.vectorstores import VectorStoreRetriever

from kb.base.errors import NotVisible
from kb.models import KnowledgeBase, RetrievalProfile, SearchLog
from kb.rag import RAGService
from tests.factories import make_document, make_kb, make_user
from tests.kb.providers.language_model import language_model
from tests.servers import Reply

pytestmark = pytest.mark.django_db

SIGNATURES = {
    "search": ["query", "knowledge_base_id", "user_id", "top_k", "score_threshold"],
    "search_multiple_knowledge_bases": ["query", "knowledge_base_ids", "user_id", "top_k"],
    "format_for_context": ["chunks", "max_chars"],
    "format_for_tool_output": ["chunks", "max_chunks"],
    "get_retriever": ["user_id", "knowledge_base_id", "k"],
}
FIELDS = {
    "chunk_id", "document_id", "knowledge_base_id", "title", "source", "page", "text", "score", "score_scale", "relevance", "ranks",
    "scores", "metadata", "neighbours", "profile", "matched_text", "equal_question", "regions", "seconds",
    "pictures",
}  # fmt: skip


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "保修期是两年", "安装前请关闭电源", "退货须在三十天内", source="手册.md")
    return kb


@pytest.mark.parametrize(("method", "parameters"), SIGNATURES.items())
def test_signatures_are_those_of_the_contract(method, parameters):
    assert list(inspect.signature(getattr(RAGService(), method)).parameters) == parameters


def test_defaults_are_five_results_and_no_gate():
    parameters = inspect.signature(RAGService().search).parameters
    assert (parameters["top_k"].default, parameters["score_threshold"].default) == (5, 0.0)


def test_search_returns_chunks_with_the_contracts_fields(kb):
    first = RAGService().search("保修期", kb.pk, kb.owner.pk)[0]
    assert set(first) == FIELDS
    assert first["text"] == "保修期是两年"


def test_search_respects_top_k_and_threshold(kb):
    service = RAGService()
    best, second = service.search("保修期", kb.pk, kb.owner.pk, top_k=2)
    assert best["score"] > second["score"]
    assert service.search("保修期", kb.pk, kb.owner.pk, score_threshold=best["score"]) == [best]


def test_near_misses_are_what_a_search_under_the_built_in_cut_leaves_out(kb, cut_at):
    cut_at(0.98)
    service = RAGService()
    near = service.near_misses("保修期", [kb.pk], kb.owner.pk)
    assert set(near[0]) == FIELDS
    assert (near[0]["text"], near[0]["relevance"]) == ("保修期是两年", "low")
    assert service.search("保修期", kb.pk, kb.owner.pk, score_threshold=None) == []
    assert service.search("保修期", kb.pk, kb.owner.pk)[0]["chunk_id"] == near[0]["chunk_id"]


def test_near_misses_of_a_stranger_s_knowledge_base_are_not_there(kb):
    with pytest.raises(NotVisible):
        RAGService().near_misses("保修期", [kb.pk], make_user().pk)


def test_without_a_threshold_the_profiles_own_applies(kb):
    strict = RetrievalProfile.objects.create(name="none passes", version=1, settings={"score_threshold": 1.0})
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=strict)
    service = RAGService()
    assert service.search("保修期", kb.pk, kb.owner.pk)
    assert service.search("保修期", kb.pk, kb.owner.pk, score_threshold=None) == []


def test_several_bases_are_searched_under_the_users_rights(kb):
    other = make_kb(owner=kb.owner)
    make_document(other, "延长保修期")
    found = RAGService().search_multiple_knowledge_bases("保修期", [kb.pk, other.pk], kb.owner.pk, top_k=2)
    assert {chunk["knowledge_base_id"] for chunk in found} == {kb.pk, other.pk}


@pytest.mark.parametrize("user_id", ["stranger", "nobody"])
def test_what_a_user_may_not_see_is_not_there(kb, user_id):
    who = make_user().pk if user_id == "stranger" else 10**9
    service = RAGService()
    for call in (
        lambda: service.search("x", kb.pk, who),
        lambda: service.search_multiple_knowledge_bases("x", [kb.pk], who),
        lambda: service.get_retriever(who, kb.pk, 3),
    ):
        with pytest.raises(NotVisible):
            call()


def chunk(text, *, source="手册.md", page=None):
    return {"text": text, "source": source, "title": "手册", "page": page, "score": 0.5, "score_scale": "overlap"}


def test_context_is_numbered_and_cited():
    context = RAGService().format_for_context([chunk("甲", page=3), chunk("乙", source="")], 1_000)
    assert context == "[1] 手册.md page 3\n甲\n\n[2] 手册\n乙"


@pytest.mark.parametrize("max_chars", range(0, 60, 5))
def test_context_never_exceeds_its_length(max_chars):
    context = RAGService().format_for_context([chunk("甲" * 20), chunk("乙" * 20)], max_chars)
    assert len(context) <= max_chars


def test_a_fragment_that_does_not_fit_is_cut_short_visibly():
    context = RAGService().format_for_context([chunk("甲" * 100)], 40)
    assert context.endswith("甲…")
    assert len(context) == 40


def test_tool_output_names_scores_and_their_scale():
    output = RAGService().format_for_tool_output([chunk("甲"), chunk("乙")], 1)
    assert output == "[1] 手册.md (overlap 0.500)\n甲"


def test_tool_output_says_when_there_is_nothing():
    assert RAGService().format_for_tool_output([], 3) == "No relevant content found in the knowledge base."


def test_the_retriever_is_langchains_and_finds_what_search_finds(kb):
    retriever = RAGService().get_retriever(kb.owner.pk, kb.pk, 2)
    assert isinstance(retriever, VectorStoreRetriever)
    documents = retriever.invoke("保修期")
    expected = RAGService().search("保修期", kb.pk, kb.owner.pk, top_k=2)
    assert [document.page_content for document in documents] == [each["text"] for each in expected]
    assert documents[0].metadata["score_scale"] == "overlap"
    assert documents[0].id == str(expected[0]["chunk_id"])


@pytest.fixture
def profile(kb):
    RetrievalProfile.objects.create(name="mine", version=1, settings={"rrf_k": 10}, published=True)
    return RetrievalProfile.objects.create(name="mine", version=2, settings={"rrf_k": 20})


@pytest.mark.parametrize(
    ("named", "version"), [({}, None), ({"profile": "mine"}, 1), ({"profile": "mine", "profile_version": 2}, 2)]
)
def test_chunks_answers_and_documents_say_under_which_version_they_were_found(kb, profile, llm, named, version):
    service = RAGService(**named)
    user = kb.owner.pk
    profiles = [
        service.search("保修期", kb.pk, user)[0]["profile"],
        service.search_multiple_knowledge_bases("保修期", [kb.pk], user)[0]["profile"],
        service.ask("保修期", [kb.pk], user)["profile"],
        service.get_retriever(user, kb.pk, 2).invoke("保修期")[0].metadata["profile"],
        service.get_vector_store(user, kb.pk).similarity_search_with_score("保修期")[0][0].metadata["profile"],
    ]
    expected = {"name": "mine", "version": version} if version else {"name": "keyword-led", "version": 1}
    assert profiles == [expected] * 5


@pytest.mark.parametrize("named", [{"profile": "nobodys"}, {"profile": "mine", "profile_version": 3}])
def test_a_profile_that_is_not_there_is_told_at_once(kb, profile, named):
    service = RAGService(**named)
    for call in (
        lambda: service.search("x", kb.pk, kb.owner.pk),
        lambda: service.get_retriever(kb.owner.pk, kb.pk, 3),
    ):
        with pytest.raises(NotVisible):
            call()


def test_texts_alone_make_no_vector_store(kb):
    store = RAGService().get_retriever(kb.owner.pk, kb.pk, 2).vectorstore
    with pytest.raises(NotImplementedError, match="knowledge base"):
        type(store).from_texts(["text"], embedding=None)


@pytest.fixture
def llm(settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 0.0}
    with language_model(settings) as server:
        server.always("chat", Reply("两年[1]。"))
        yield server


def test_ask_returns_the_dictionary_of_the_api(kb, llm):
    found = RAGService().ask("保修期多久？", [kb.pk], kb.owner.pk, top_k=1)
    assert found["answer"] == "两年[1]。\n\n来源：手册.md"
    assert (found["hit"], len(found["sources"]), found["conversation_id"]) == (True, 1, None)


def test_ask_continues_a_conversation(kb, llm):
    begun = RAGService().ask("保修期多久？", [kb.pk], kb.owner.pk, remember=True)["conversation_id"]
    found = RAGService().ask("退货呢？", [], kb.owner.pk, conversation_id=UUID(begun))
    assert found["conversation_id"] == begun


def test_nobody_asks_what_they_may_not_see(kb, llm):
    with pytest.raises(NotVisible):
        RAGService().ask("保修期多久？", [kb.pk], make_user().pk)
    assert llm.requests == []


def test_fragments_of_a_context_are_bounded(settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "max_chunk_chars": 50}
    assert len(RAGService().format_for_context([chunk("甲" * 100)], 1_000)) == len("[1] 手册.md\n") + 50
    assert RAGService().format_for_tool_output([chunk("甲" * 100)], 1).endswith("甲…")


def test_the_same_search_is_answered_from_the_cache(kb):
    found = [RAGService().search("保修期", kb.pk, kb.owner.pk) for _ in range(2)]
    assert found[0] == found[1]
    assert SearchLog.objects.count() == 1
