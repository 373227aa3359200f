"""Where a text holds the terms of a query: what to mark on a page, and which part of a long text to show."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from retrieval.protocols import Tokenizer
from retrieval.tokenize import CHINESE_PARTICLES_ALONE, CHINESE_STOP_WORDS, CONNECTORS, INVISIBLE, RUNS, normalize

Span = tuple[int, int]

ELLIPSIS = "…"
_RULE = re.compile(r"\n\|(?: ?:?-{3,}:? ?\|)+(?:\n|\Z)")
# jieba's dictionary has no word of more characters; the words inside one are fewer than twice its characters.
MOST_WORDS_IN_A_WORD = 32


class Segment(NamedTuple):
    text: str
    is_match: bool


def highlight(text: str, terms: Collection[str], tokenizer: Tokenizer) -> list[Segment]:
    """Cuts a text, as it is shown, where it holds terms; the segments, joined, are the text.

    Terms are as the tokenizer makes them, which index and query went through: stemmed, folded, from words inside words.
    A match is a word, or the part of a word, that it turns into one of them. Chinese function words, of which every text is
    full, are marked only where the query has nothing else.
    """
    wanted = frozenset(terms) - CHINESE_STOP_WORDS - CHINESE_PARTICLES_ALONE or frozenset(terms)
    if not wanted or not text:
        return [Segment(text, is_match=False)] if text else []
    plain, origins = _normalize_with_origins(text)
    simplified = tokenizer.simplify(plain)
    if len(simplified) == len(plain):  # it nearly always is, and only then do the places correspond
        plain = simplified
    spans = [
        (origins[start][0], origins[end - 1][1])
        for run in RUNS.finditer(plain)
        for start, end in (_cjk_matches if run.lastgroup == "cjk" else _latin_matches)(run, wanted, tokenizer)
    ]
    return [Segment(text[start:end], is_match) for start, end, is_match in _pieces(len(text), _merge(spans))]


def excerpt(segments: Sequence[Segment], limit: int) -> list[Segment]:
    """The stretch of at most `limit` characters of a highlighted text that holds the most of its matches.

    The segments as they are when they fit, else a cut of them with an ellipsis at each end that was cut. The lines below
    the headers of tables, which hold no words, are left out.
    """
    segments = [each._replace(text=words) for each in segments if (words := without_rules(each.text))]
    text = "".join(segment.text for segment in segments)
    if len(text) <= limit:
        return list(segments)
    ends = accumulate((len(segment.text) for segment in segments), initial=0)
    matches = [span for span, segment in zip(pairwise(ends), segments, strict=True) if segment.is_match]
    start = _best_start(text, matches, limit)
    end = min(start + limit, len(text))
    end = next((first for first, last in matches if start < first < end < last), end)
    clipped = [(max(first, start), min(last, end)) for first, last in matches]
    kept = [
        Segment(text[start + first : start + last], is_match)
        for first, last, is_match in _pieces(end - start, [(a - start, b - start) for a, b in clipped if a < b])
    ]
    cut = [Segment(ELLIPSIS, is_match=False)]
    return (cut if start else []) + kept + (cut if end < len(text) else [])


def without_rules(text: str) -> str:
    """A text without the lines that Markdown puts below the headers of tables."""
    return _RULE.sub("\n", text)


def _best_start(text: str, matches: Sequence[Span], limit: int) -> int:
    """Where a window covers the most distinct matches, then the most matched characters, then stands earliest."""
    lead = limit // 5
    firsts, lasts = [first for first, _ in matches], [last for _, last in matches]

    def worth(start: int) -> tuple[int, int]:
        covered = matches[bisect_left(firsts, start) : bisect_right(lasts, start + limit)]
        return len({text[a:b].casefold() for a, b in covered}), sum(b - a for a, b in covered)

    starts = [max(0, min(first - lead, len(text) - limit)) for first in firsts]
    best = max(starts, key=worth, default=0)
    # Begin with a whole word, where one begins before the first match.
    space = text.find(" ", best, best + lead) if best and not text[best - 1].isspace() else -1
    return space + 1 if space >= 0 and bisect_left(firsts, best) == bisect_left(firsts, space) else best


def _normalize_with_origins(text: str) -> tuple[str, list[Span]]:
    """The text as the tokenizer reads it, and for each of its characters the span of the original it came from."""
    if normalize(text) == text:
        return text, [(index, index + 1) for index in range(len(text))]
    plain: list[str] = []
    origins: list[Span] = []
    # Normalisation may join marks and Hangul vowels with the character before, also past an invisible one.
    starts = [
        index
        for index, character in enumerate(text)
        if not index
        or not (unicodedata.combining(character) or "\u1160" <= character <= "\u11ff" or character in INVISIBLE)
    ]
    for start, end in pairwise([*starts, len(text)]):
        piece = normalize(text[start:end])
        plain.append(piece)
        origins += [(start, end)] * len(piece)
    return "".join(plain), origins


def _latin_matches(run: re.Match[str], terms: frozenset[str], tokenizer: Tokenizer) -> list[Span]:
    """The whole of a run where the code itself is among the terms, else its parts that are."""
    code, start = run[0], run.start()
    found = terms & _terms_of(code, run, tokenizer)
    if not found:
        return []
    parts = [part for part in CONNECTORS.split(code) if part]
    if code.casefold() in found or len(parts) == 1:
        return [run.span()]
    cursor, spans = 0, []
    for part in parts:
        at = code.index(part, cursor)
        cursor = at + len(part)
        if not found.isdisjoint(_terms_of(part, run, tokenizer)):
            spans.append((start + at, start + cursor))
    return spans or [run.span()]


def _terms_of(word: str, run: re.Match[str], tokenizer: Tokenizer) -> set[str]:
    """The terms of a word as it stands: next to a Chinese character (A股) a stop word is a name and stays."""
    start, end = run.span()
    before, after = run.string[max(start - 1, 0) : start], run.string[end : end + 1]
    before, after = before if before.isalnum() else "", after if after.isalnum() else ""
    if not before and not after:
        return set(tokenizer(word))
    return set(tokenizer(before + word + after)).difference(tokenizer(before), tokenizer(after))


def _cjk_matches(run: re.Match[str], terms: frozenset[str], tokenizer: Tokenizer) -> list[Span]:
    return [
        (run.start() + start, run.start() + start + len(token))
        for token, start in _locate(run[0], tokenizer(run[0]))
        if token in terms
    ]


def _locate(run: str, tokens: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Finds the tokens of search mode in their text: each word comes after the shorter words inside it."""
    first, base = 0, 0
    while first < len(tokens) and base < len(run):
        last = _word_at(run, base, tokens, first)
        if last is None:  # punctuation, which has no token
            base += 1
            continue
        word = tokens[last]
        for token, start in zip(tokens[first:last], _inside(word, tokens[first:last]) or (), strict=True):
            yield token, base + start
        yield word, base
        first, base = last + 1, base + len(word)


def _word_at(run: str, base: int, tokens: Sequence[str], first: int) -> int | None:
    """Index of the token that is the word at `base`: the last one that holds all tokens from `first` up to it."""
    found = None
    for index in range(first, min(first + MOST_WORDS_IN_A_WORD, len(tokens))):
        word = tokens[index]
        if run.startswith(word, base) and _inside(word, tokens[first:index]) is not None:
            found = index
    return found


def _inside(word: str, tokens: Sequence[str]) -> list[int] | None:
    """Where shorter tokens stand in a word: they come by length, and among one length in order; None if they do not fit."""
    starts: list[int] = []
    cursor, length = 0, 0
    for token in tokens:
        if len(token) != length:
            cursor, length = 0, len(token)
        start = word.find(token, cursor) if length < len(word) else -1
        if start < 0:
            return None
        cursor = start + 1
        starts.append(start)
    return starts


def _merge(spans: Collection[Span]) -> list[Span]:
    """Overlapping spans become one; neighbours stay two."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _pieces(length: int, spans: Sequence[Span]) -> Iterator[tuple[int, int, bool]]:
    """The spans, and what lies between them."""
    cursor = 0
    for start, end in spans:
        if cursor < start:
            yield cursor, start, False
        yield start, end, True
        cursor = end
    if cursor < length:
        yield cursor, length, False
