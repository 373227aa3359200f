"""Results as numbered, cited fragments under a budget, for a prompt or an agent's tool.

Text of a chat model as text: nothing in it makes a program that shows it load or open anything.

A document may ask the model for an image whose address carries what else the model was shown. In Markdown and in HTML that
is sent as soon as the answer is shown, without a click; so the marks of both are taken apart and the words stay.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from retrieval.types import Hit, Passage, clock

_ELEMENTS = (
    "a|applet|audio|base|body|button|embed|form|frame|frameset|iframe|image|img|input|link|math|meta|object|picture|portal|"
    "script|source|style|svg|track|video"
)
_ACTIVE = re.compile(
    r"\](?=[(:])"  # [text](address), ![image](address) and [name]: address
    rf"|<(?=/?(?:{_ELEMENTS})(?![\w-]))"
    r"|<(?=[a-z][a-z0-9+.-]{1,31}:)",  # <https://address>
    re.IGNORECASE,
)
_HELD = re.compile(r"(?:\]|<[/a-zA-Z0-9+.-]{0,33})\Z")
_INSTEAD = {"]": "] ", "<": "\u2039"}


class InertStream:
    """Takes links, images and HTML of a text apart that comes in pieces; what leaves it does not depend on how it was cut.

    "[manual](https://a.example)" becomes "[manual] (https://a.example)", and the bracket of an element a single quotation
    mark. Only what may be the beginning of such a mark is held back, at most some 35 characters.
    """

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, piece: str) -> str:
        """The part of the text so far that is certain and was not returned before."""
        self._pending += piece
        held = _HELD.search(self._pending)
        end = held.start() if held else len(self._pending)
        # A mark before the end is judged with all that follows it.
        text = _inert(self._pending, end)
        self._pending = self._pending[end:]
        return text

    def finish(self) -> str:
        """The rest, once the text has ended."""
        rest, self._pending = self._pending, ""
        return _inert(rest, len(rest))


def inert(text: str) -> str:
    """The text with its links, images and HTML taken apart; see `InertStream`."""
    return _inert(text, len(text))


def _inert(text: str, end: int) -> str:
    """The first `end` characters, each mark judged by what follows it in the whole."""
    parts, done = [], 0
    for match in _ACTIVE.finditer(text):
        if match.start() >= end:
            break
        parts += [text[done : match.start()], _INSTEAD[match[0]]]
        done = match.end()
    return "".join([*parts, text[done:end]])


ELLIPSIS = "…"
# A fragment after the first is left out rather than cut to fewer.
LEAST_CHARACTERS = 20

_SEPARATOR = "\n\n"
_PAGE_LABELS = {"en": "{name} page {page}", "zh": "{name} 第 {page} 页"}
_NOTHING_FOUND = {"en": "No relevant content found in the knowledge base.", "zh": "知识库中没有找到相关内容。"}
_SENTENCE_END = re.compile(r"[。！？!?；;]+[”’」』）)\"']*|\.(?=\s)|\n")
_WORD_AT_END = re.compile(r"[0-9A-Za-z][0-9A-Za-z.,%'_-]*\Z")
_LONGEST_WORD = 100
# Chunks repeat whole sentences of the one before; fewer equal characters are chance.
_LEAST_OVERLAP, _MOST_OVERLAP = 8, 1_000


@dataclass(frozen=True, slots=True)
class Fragment:
    """A result as packing reads it; `before` and `after` are the chunks around it in its document, in reading order."""

    text: str
    title: str
    source: str
    page: int | None
    chunk_id: int | None = None
    document_id: int | None = None
    kb_id: int | None = None
    before: tuple[Passage, ...] = ()
    after: tuple[Passage, ...] = ()
    matched: str = ""  # the part of the text that was found, where it is not all of it
    seconds: int | None = None  # at which a recording says it

    @classmethod
    def of_hit(cls, hit: Hit) -> Self:
        passage = hit.passage
        return cls(
            passage.text,
            passage.title,
            passage.source,
            passage.page,
            passage.chunk_id,
            passage.stored_document_id,
            passage.kb_id,
            before=tuple(each for each in hit.neighbours if each.position < passage.position),
            after=tuple(each for each in hit.neighbours if each.position > passage.position),
            matched=passage.matched,
            seconds=passage.seconds,
        )

    @classmethod
    def of_chunk(cls, chunk: Mapping[str, Any]) -> Self:
        """A chunk as the API gives it: text, title, source and page, and where there are any, its ids."""
        return cls(
            chunk["text"],
            chunk["title"],
            chunk["source"],
            chunk["page"],
            chunk.get("chunk_id"),
            chunk.get("document_id"),
            chunk.get("knowledge_base_id"),
            matched=chunk.get("matched_text", ""),
            seconds=chunk.get("seconds"),
        )

    @property
    def document(self) -> tuple[int | None, int | str]:
        return self.kb_id, self.source or self.title if self.document_id is None else self.document_id

    def label(self, language: str) -> str:
        """The citation for readers: source, or title, and page, or time in a recording, on one line."""
        name = " ".join((self.source or self.title).split())
        if self.seconds is not None:
            return f"{name} {clock(self.seconds)}"
        if not self.page:
            return name
        return _PAGE_LABELS.get(language, _PAGE_LABELS["en"]).format(name=name, page=self.page)


@dataclass(frozen=True, slots=True)
class Citation:
    """A fragment of a context: the number that answers cite it by, its label, and its text as packed."""

    number: int
    label: str
    chunk_id: int | None
    document_id: int | None
    kb_id: int | None
    page: int | None
    text: str

    def __str__(self) -> str:
        return f"[{self.number}] {self.label}\n{self.text}"


@dataclass(frozen=True, slots=True)
class Context:
    """Fragments packed for a prompt: the text, in which they are numbered from 1 and cited, and the same one by one."""

    text: str
    citations: tuple[Citation, ...]


def pack(
    fragments: Sequence[Fragment],
    *,
    max_tokens: int,
    max_chunk_chars: int,
    max_sources: int,
    count_tokens: Callable[[str], int],
    language: str = "en",
) -> Context:
    """Packs fragments, best first, until a budget is spent.

    A fragment takes in its neighbours as far as they fit. One that does not fit the budget is cut, visibly and where
    possible after a sentence, and is then the last; so the text is never larger than the budget.

    `max_tokens` bounds the text, labels included, as `count_tokens` measures it, and `max_chunk_chars` a fragment with
    its neighbours. Fragments of more than `max_sources` documents are left out. The labels are in "zh" or "en".
    """
    taken = {fragment.chunk_id for fragment in fragments}
    documents: set[tuple[int | None, int | str]] = set()
    citations: list[Citation] = []
    for fragment in fragments:
        if fragment.document not in documents and len(documents) == max_sources:
            continue
        documents.add(fragment.document)
        citations.append(
            Citation(
                number=len(citations) + 1,
                label=fragment.label(language),
                chunk_id=fragment.chunk_id,
                document_id=fragment.document_id,
                kb_id=fragment.kb_id,
                page=fragment.page,
                text=_excerpt(_with_neighbours(fragment, max_chunk_chars, taken), fragment.matched, max_chunk_chars),
            )
        )
    packed = _within(citations, max_tokens, count_tokens)
    return Context(_joined(packed), tuple(packed))


def format_for_context(
    chunks: Sequence[Mapping[str, Any]], max_chars: int, *, max_chunk_chars: int, language: str = "en"
) -> str:
    """Numbered, cited fragments for a prompt, at most `max_chars` characters; the last one may be cut short."""
    return pack(
        [Fragment.of_chunk(chunk) for chunk in chunks],
        max_tokens=max_chars,
        max_chunk_chars=max_chunk_chars,
        max_sources=len(chunks),
        count_tokens=len,
        language=language,
    ).text


def format_for_tool_output(
    chunks: Sequence[Mapping[str, Any]], max_chunks: int, *, max_chunk_chars: int, language: str = "en"
) -> str:
    """What an agent's tool returns: the first chunks with citation and score, or a sentence when there are none.

    Chat clients show it, so nothing in it loads anything; see `retrieval.packing`.
    """
    if not chunks:
        return _NOTHING_FOUND.get(language, _NOTHING_FOUND["en"])
    fragments = (
        f"[{number}] {Fragment.of_chunk(chunk).label(language)} ({chunk['score_scale']} {chunk['score']:.3f})\n"
        f"{_excerpt(chunk['text'], chunk.get('matched_text', ''), max_chunk_chars)}"
        for number, chunk in enumerate(chunks[:max_chunks], start=1)
    )
    return inert(_SEPARATOR.join(fragments))


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of a text; where something is cut off, an ellipsis says so.

    It is cut after a sentence if one ends in the second half of what would fit, else before a word or number in it.
    """
    if len(text) <= limit:
        return text
    room = limit - len(ELLIPSIS)
    if room < 1:
        return ""
    ends = [match.end() for match in _SENTENCE_END.finditer(text, room // 2, room + 1) if match.end() <= room]
    if ends:
        return text[: ends[-1]].rstrip() + ELLIPSIS
    # From every place of a long text without blanks it would read on to the end.
    word = _WORD_AT_END.search(text[max(0, room - _LONGEST_WORD) : room])
    if (
        word
        and room - len(word[0]) > max(room // 2, room - _LONGEST_WORD)
        and text[room].isascii()
        and text[room].isalnum()
    ):
        room -= len(word[0])
    return text[:room].rstrip() + ELLIPSIS


def _excerpt(text: str, matched: str, limit: int) -> str:
    """As `shorten`, and where the part that was found would be cut off, so is what stands before it."""
    if matched not in text:
        matched = matched.split("\n", 2)[-1]  # a later part of a table, without the header that it repeats
    place = text.find(matched)
    if len(text) <= limit or place < 0:
        return shorten(text, limit)
    if place + len(matched) > limit - len(ELLIPSIS):
        # What is left of the room stands half before it, from the beginning of a sentence on.
        before = max(0, limit - len(matched) - 2 * len(ELLIPSIS)) // 2
        ends = [match.end() for match in _SENTENCE_END.finditer(text, place - before, place)]
        text = ELLIPSIS + text[ends[0] if ends else place :].lstrip()
    cut, end = shorten(text, limit), text.find(matched) + len(matched)
    return text[:end] + ELLIPSIS if matched not in cut and end + len(ELLIPSIS) <= limit else cut


def _with_neighbours(fragment: Fragment, limit: int, taken: set[int | None]) -> str:
    """A fragment's text with the chunks around it, nearest first, each once in a context and only whole.

    `limit` is the characters of the whole; chunks that are added join those `taken`, which the context holds already.
    """
    text = fragment.text
    for neighbours, follows in ((fragment.after, True), (reversed(fragment.before), False)):
        for neighbour in neighbours:
            extended = _chained(text, neighbour.text) if follows else _chained(neighbour.text, text)
            if neighbour.chunk_id in taken or len(extended) > limit:
                break
            taken.add(neighbour.chunk_id)
            text = extended
    return text


def _chained(first: str, second: str) -> str:
    """Two chunks that follow one another; the end of the first that opens the second stands there once."""
    for size in range(min(len(first), len(second), _MOST_OVERLAP), _LEAST_OVERLAP - 1, -1):
        if first.endswith(second[:size]):
            return first + second[size:]
    return f"{first}\n{second}"


def _within(citations: Sequence[Citation], max_tokens: int, count_tokens: Callable[[str], int]) -> list[Citation]:
    """The first citations that fit a budget; the last may be cut to do so."""

    def fits(parts: Sequence[Citation]) -> bool:
        return count_tokens(_joined(parts)) <= max_tokens

    if not citations or fits(citations):
        return list(citations)
    whole = _most(len(citations) - 1, lambda count: fits(citations[:count]))
    kept, following = list(citations[:whole]), citations[whole]

    def cut(characters: int) -> Citation:
        return dataclasses.replace(following, text=shorten(following.text, characters))

    most = _most(len(following.text), lambda characters: fits([*kept, cut(characters)]))
    least = LEAST_CHARACTERS if kept else len(ELLIPSIS) + 1
    return [*kept, cut(most)] if most >= least else kept


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to a limit that fits, if whatever is smaller than one that fits does so too; 0 if none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _joined(citations: Sequence[Citation]) -> str:
    return _SEPARATOR.join(map(str, citations))
