"""The programmatic front door."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from kb.access.models import Principal, User
from kb.answers.services.answers import AskRequest, answer
from kb.base.errors import NotVisible
from kb.base.shapes import as_values
from kb.profiles.services import environment_config
from kb.search.services.search import SearchRequest, respond
from kb.search.services.texts import PermittedTexts
from retrieval import packing

if TYPE_CHECKING:
    from langchain_core.vectorstores import VectorStoreRetriever

    from retrieval.langchain import KnowledgeBaseVectorStore


class RAGService:
    """Search and answers for Python callers, under the rights of a user.

    A chunk is a dictionary with chunk_id, document_id, knowledge_base_id, title, source, page, text, score, score_scale,
    relevance, ranks, scores, metadata and neighbours, and the profile (its name and version) that it was found under.

    A `profile` that is named serves all searches, in its published version unless `profile_version` names another, such
    as a draft; without one each knowledge base is searched by its own. `score_threshold` is the least score: 0 is no
    gate, None the profile's, or the default of the score's scale.
    """

    def __init__(self, *, profile: str = "", profile_version: int | None = None) -> None:
        self.profile = profile
        self.profile_version = profile_version

    def search(
        self, query: str, knowledge_base_id: int, user_id: int, top_k: int = 5, score_threshold: float | None = 0.0
    ) -> list[dict[str, Any]]:
        """At most `top_k` chunks of one knowledge base, best first.

        Raises:
            NotVisible: the user, the knowledge base or the profile does not exist, or the user may not see it.
            NoChannelAvailable: no channel could answer.
        """
        return self._search(query, [knowledge_base_id], user_id, top_k, score_threshold)["results"]

    def search_multiple_knowledge_bases(
        self, query: str, knowledge_base_ids: Sequence[int], user_id: int, top_k: int = 5
    ) -> list[dict[str, Any]]:
        """Chunks of several knowledge bases, merged by score, ties in the order of the ids; raises as `search`."""
        return self._search(query, knowledge_base_ids, user_id, top_k, 0.0)["results"]

    def near_misses(
        self, query: str, knowledge_base_ids: Sequence[int], user_id: int, top_k: int = 5
    ) -> list[dict[str, Any]]:
        """The chunks just below the built-in cut of an uncalibrated scale, at most three, best first; raises as `search`.

        They are none of what `search` finds with `score_threshold=None`, and are for a reader or an agent to judge. A cut
        that somebody has chosen, or a cross-encoder's, leaves none.
        """
        return self._search(query, knowledge_base_ids, user_id, top_k, None)["near_misses"]

    def ask(
        self,
        query: str,
        knowledge_base_ids: Sequence[int],
        user_id: int,
        top_k: int = 5,
        score_threshold: float | None = None,
        *,
        conversation_id: UUID | None = None,
        remember: bool = False,
    ) -> dict[str, Any]:
        """An answer, written from at most `top_k` chunks, as POST /api/v1/ask/ returns it.

        The order of the knowledge bases breaks ties; they may be left empty where the question continues a
        conversation. With `remember` it begins one, whose id is in the answer. Raises as `search`, and Rejected where
        the conversation has other knowledge bases.
        """
        asked = AskRequest(
            query=query,
            knowledge_base_ids=knowledge_base_ids,
            profile=self.profile,
            profile_version=self.profile_version,
            overrides=_overrides(top_k, score_threshold),
            conversation_id=conversation_id,
            remember=remember,
        )
        return cast(dict[str, Any], as_values(answer(_principal(user_id), asked)))

    def format_for_context(self, chunks: Sequence[Mapping[str, Any]], max_chars: int) -> str:
        """Numbered, cited fragments for a prompt, at most `max_chars` characters; the last one may be cut short."""
        return packing.format_for_context(chunks, max_chars, max_chunk_chars=environment_config().max_chunk_chars)

    def format_for_tool_output(self, chunks: Sequence[Mapping[str, Any]], max_chunks: int) -> str:
        """What an agent's tool returns: the first chunks with citation and score, or a sentence when there are none."""
        return packing.format_for_tool_output(chunks, max_chunks, max_chunk_chars=environment_config().max_chunk_chars)

    def get_vector_store(self, user_id: int, knowledge_base_id: int) -> "KnowledgeBaseVectorStore":
        """A LangChain vector store: reads as `search`, writes texts under ids of the caller; NotVisible as `search`."""
        from retrieval.langchain import KnowledgeBaseVectorStore  # noqa: PLC0415 - LangChain is slow to import

        texts = PermittedTexts(
            partial(_principal, user_id), knowledge_base_id, profile=self.profile, profile_version=self.profile_version
        )
        texts.check()
        return KnowledgeBaseVectorStore(texts)

    def get_retriever(self, user_id: int, knowledge_base_id: int, k: int) -> "VectorStoreRetriever":
        """A LangChain retriever over `get_vector_store`, whose documents say where they come from; raises as that."""
        return self.get_vector_store(user_id, knowledge_base_id).as_retriever(k=k)

    def _search(
        self, query: str, kb_ids: Sequence[int], user_id: int, top_k: int, score_threshold: float | None
    ) -> dict[str, list[dict[str, Any]]]:
        """The lists of chunks of a response, by name."""
        request = SearchRequest(
            query=query,
            knowledge_base_ids=kb_ids,
            profile=self.profile,
            profile_version=self.profile_version,
            overrides=_overrides(top_k, score_threshold),
        )
        response = as_values(respond(_principal(user_id), request))
        return {
            name: [{**chunk, "profile": response["profile"]} for chunk in response[name]]
            for name in ("results", "near_misses")
        }


def _overrides(top_k: int, score_threshold: float | None) -> dict[str, Any]:
    return {"top_k": top_k} if score_threshold is None else {"top_k": top_k, "score_threshold": score_threshold}


def _principal(user_id: int) -> Principal:
    try:
        return Principal(user=User.objects.get(pk=user_id))
    except User.DoesNotExist as error:
        raise NotVisible(f"there is no user with the id {user_id}") from error
