"""Results of Vertex AI Search as ours, for pages, files and records alike: each keeps its words in another place."""

import html
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from retrieval.types import ExternalHit

_TAGS: Final = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_TEXTS: Final = ("content", "text", "body", "description", "abstract", "summary")
_TITLES: Final = ("title", "name", "headline")
_URLS: Final = ("link", "url", "uri")
_DATES: Final = ("published", "published_at", "date", "datePublished", "update_time")
_NO_SNIPPET: Final = "NO_SNIPPET_AVAILABLE"
_MOST_CHARACTERS: Final = 8_000


def hit_of(result: Any) -> ExternalHit | None:
    """A result; None for one without any text or title.

    Args:
        result: a `SearchResponse.SearchResult`, of a document or of a chunk.
    """
    if result.chunk and result.chunk.content:
        return _of_chunk(result)
    document = result.document
    derived, own = _as_dict(document, "derived_struct_data"), _as_dict(document, "struct_data")
    title = _first(derived, _TITLES) or _first(own, _TITLES)
    text = _passage(derived) or _first(own, _TEXTS) or _raw(document) or _snippet(derived) or title
    if not text:
        return None
    return ExternalHit(
        url=_first(derived, _URLS) or _first(own, _URLS) or str(document.content.uri or ""),
        title=title,
        text=text[:_MOST_CHARACTERS],
        id=str(result.id or document.id or document.name),
        score=_score(result),
        published=_first(own, _DATES) or _first(derived, _DATES),
    )


def _of_chunk(result: Any) -> ExternalHit:
    chunk = result.chunk
    about = chunk.document_metadata
    own = _as_dict(about, "struct_data")
    return ExternalHit(
        url=str(about.uri or "") or _first(own, _URLS),
        title=str(about.title or "") or _first(own, _TITLES),
        text=str(chunk.content)[:_MOST_CHARACTERS],
        id=str(chunk.id or result.id),
        score=float(chunk.relevance_score) if chunk.relevance_score else _score(result),
        published=_first(own, _DATES),
    )


def _passage(derived: Mapping[str, Any]) -> str:
    """Segments are whole passages, answers the sentences in them."""
    for name in ("extractive_segments", "extractive_answers"):
        parts = [_cleaned(part.get("content")) for part in _parts(derived, name)]
        if text := "\n\n".join(filter(None, parts)):
            return text
    return ""


def _snippet(derived: Mapping[str, Any]) -> str:
    told = (
        _cleaned(part.get("snippet"))
        for part in _parts(derived, "snippets")
        if part.get("snippet_status", "SUCCESS") == "SUCCESS" and part.get("snippet") != _NO_SNIPPET
    )
    return " … ".join(filter(None, told))


def _parts(derived: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    found = derived.get(name)
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, list) else []


def _raw(document: Any) -> str:
    content = document.content
    if not content.raw_bytes or not str(content.mime_type).startswith("text/"):
        return ""
    return _cleaned(bytes(content.raw_bytes).decode("utf-8", "replace"))


def _first(values: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((_cleaned(values[name]) for name in names if isinstance(values.get(name), str) and values[name]), "")


def _score(result: Any) -> float | None:
    scores = result.model_scores
    for name in ("relevance_score", *scores):
        if name in scores and scores[name].values:
            return float(scores[name].values[0])
    relevance = getattr(result.rank_signals, "relevance_score", None) if result.rank_signals else None
    return float(relevance) if relevance else None


def _cleaned(text: Any) -> str:
    """Without the tags and references that snippets are marked up with."""
    return html.unescape(_TAGS.sub("", text)).strip() if isinstance(text, str) else ""


def _as_dict(message: Any, name: str) -> dict[str, Any]:
    """A field of the library's own kind of mapping as ours."""
    from google.protobuf import json_format  # type: ignore[import-untyped]  # noqa: PLC0415 - it comes with the library, which is an optional extra

    values: dict[str, Any] = json_format.MessageToDict(getattr(type(message).pb(message), name))
    return values
