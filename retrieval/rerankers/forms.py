"""The forms in which rerank servers are asked, and in which they answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# What a form sends of the model's name, the query and the texts.
Body = Callable[[str, str, Sequence[str]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RerankForm:
    """`path` is what follows the address, `results` the keys that lead to the rows of an answer, `score` a row's key."""

    body: Body
    path: str = "/rerank"
    results: tuple[str, ...] = ("results",)
    score: str = "relevance_score"

    def url(self, address: str) -> str:
        """The endpoint of an address, which may be the endpoint itself."""
        base = address.strip().rstrip("/")
        return base if base.endswith(self.path) else f"{base}{self.path}"

    def pairs(self, answer: Any) -> list[tuple[int, float]]:
        """Each text's place and score, by place; raises LookupError, TypeError or ValueError where it is no such answer."""
        for key in self.results:
            answer = answer[key]
        return sorted((int(row["index"]), float(row[self.score])) for row in answer)

    def tokens(self, answer: Any) -> int | None:
        """The tokens that an answer says it took; None where it does not."""
        usage = answer.get("usage") if isinstance(answer, dict) else None
        count = usage.get("total_tokens") if isinstance(usage, dict) else None
        return count if isinstance(count, int) else None


def _jina(model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    named = {"model": model, "query": query, "documents": list(texts)}
    return named | {"top_n": len(texts), "return_documents": False}


def _cohere(model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    return {"model": model, "query": query, "documents": list(texts), "top_n": len(texts)}


def _tei(_model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    return {"query": query, "texts": list(texts), "truncate": True}


def _dashscope(model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    asked = {"query": query, "documents": list(texts)}
    return {"model": model, "input": asked, "parameters": {"top_n": len(texts), "return_documents": False}}


FORMS: Final[Mapping[str, RerankForm]] = {
    "jina": RerankForm(_jina),  # SiliconFlow, Zhipu, Xinference and vLLM as well
    "cohere": RerankForm(_cohere),  # its second version takes nothing that it does not know
    "tei": RerankForm(_tei, results=(), score="score"),  # which serves one model and needs no name of it
    "dashscope": RerankForm(_dashscope, "/services/rerank/text-rerank/text-rerank", ("output", "results")),
}
