"""Outputs as text for a language model. What people have written stands in elements that nothing in it can close.

Chat clients show these texts as Markdown: links, images and HTML in them are taken apart, so that none loads anything.
"""

import re
from collections.abc import Iterable, Sequence

from kb.agents.mcp.outputs import (
    AnswerOutput,
    DegradationOutput,
    DocumentOutput,
    KnowledgeBasesOutput,
    PassageOutput,
    SearchOutput,
)
from retrieval.inert import inert

# Whatever reads like an element's own tag, also with blanks or invisible characters after the bracket.
_TAG = re.compile(r"<(?=\W{0,8}(?:passage|chunk|facts|knowledge_base))", re.IGNORECASE)
_INSTEAD_OF_TAG = "\u2039"
_IN_ATTRIBUTE = str.maketrans({'"': "'", "<": _INSTEAD_OF_TAG, ">": "\u203a", "\n": " ", "\r": " "})


def knowledge_bases_as_text(output: KnowledgeBasesOutput) -> str:
    if not output.knowledge_bases:
        return "This key opens no knowledge base. Ask its owner to share one, or use another key."
    bases = [
        _element(
            "knowledge_base",
            {
                "id": each.id,
                "name": each.name,
                "language": each.language,
                "documents": each.documents,
                "chunks": each.chunks,
                "role": each.role,
            },
            each.description,
        )
        for each in output.knowledge_bases
    ]
    further = [] if output.next_offset is None else [f"{output.total} in all: go on with offset {output.next_offset}."]
    return _joined([f"Knowledge bases, each by its id. {output.notice}", *bases, *further])


def search_as_text(output: SearchOutput) -> str:
    if not output.passages:
        found = "Nothing relevant was found. Try other words, or a lower score_threshold (0: no gate)."
        return _joined([found, *_notes(output.degraded)])
    facts = "\n".join(_safe(f"{fact.subject} | {fact.predicate} | {fact.object}") for fact in output.facts)
    return _joined(
        [
            f"{len(output.passages)} passages, best first. {output.notice}",
            *_notes(output.degraded),
            *_passages(output.passages),
            *([f"<facts>\n{facts}\n</facts>"] if facts else []),
        ]
    )


def answer_as_text(output: AnswerOutput) -> str:
    sources = [f"Sources. {output.notice}", *_passages(output.sources)] if output.sources else []
    return _joined([_safe(output.answer), *_notes(output.degraded), *sources])


def document_as_text(output: DocumentOutput) -> str:
    chunks = [
        _element("chunk", {"chunk_id": each.chunk_id, "position": each.position, "page": each.page}, each.text)
        for each in output.chunks
    ]
    head = f"“{_line(output.title or output.source)}” ({_line(output.source)}), {output.total_chunks} chunks."
    unfinished = [] if output.status == "ready" else [f"It is {output.status}: its text is not complete."]
    further = [] if output.next_start is None else [f"Go on with start {output.next_start}."]
    return _joined([f"{head} {output.notice}", *unfinished, *chunks, *further])


def _passages(passages: Sequence[PassageOutput]) -> Iterable[str]:
    for each in passages:
        attributes = {
            "number": each.number,
            "title": each.title,
            "source": each.source,
            "page": each.page,
            "document_id": each.document_id,
            "chunk_id": each.chunk_id,
            "knowledge_base_id": each.knowledge_base_id,
            "score": f"{each.score:.3f} ({each.score_scale})",
        }
        yield _element("passage", attributes, each.text)


def _element(name: str, attributes: dict[str, object], text: str) -> str:
    given = "".join(f' {key}="{_line(str(value))}"' for key, value in attributes.items() if value not in (None, ""))
    return f"<{name}{given}>\n{_safe(text)}\n</{name}>"


def _notes(degraded: Iterable[DegradationOutput]) -> list[str]:
    return [f"Degraded ({each.stage}, {each.code}): {_line(each.detail)}" for each in degraded]


def _safe(text: str) -> str:
    return inert(_TAG.sub(_INSTEAD_OF_TAG, text))


def _line(text: str) -> str:
    return inert(text).translate(_IN_ATTRIBUTE)


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(parts)
