"""Questions and answers: a pair is a chunk, and its question is what it is found by."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from kb.ingest.chunkers.drafts import MIN_SIZE, ChunkDraft, ChunkSettings
from kb.ingest.chunkers.passages import Passage, by_heading
from kb.ingest.chunkers.recursive import split_text
from kb.ingest.parser.parsed import ParsedDocument

_MARK = r"^[*_#> \t\u3000-]*(?:{words})[*_ \t\u3000\d]*[:：][*_]*[^\S\n]*"
_QUESTION = re.compile(_MARK.format(words="Q|Question|问|问题"), re.MULTILINE | re.IGNORECASE)
_ANSWER = re.compile(_MARK.format(words="A|Answer|答|回答|答案"), re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A part of a document; one without questions is any other text, else the text is their answer."""

    text: str
    page: int | None
    questions: tuple[str, ...] = ()


def split_by_questions(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """A pair too long for one chunk repeats its question in each; text between the pairs is cut by sentences."""
    drafts: list[ChunkDraft] = []
    for path, pairs in _pairs(document):
        for pair in pairs:
            for text in _pieces(pair, settings):
                tokens = settings.token_counter(text)
                drafts.append(ChunkDraft(text, len(drafts), pair.page, path, tokens, None, pair.questions))
    return drafts


def _pairs(document: ParsedDocument) -> Iterator[tuple[tuple[str, ...], Iterator[_Pair]]]:
    """The pairs that a format tells of, and those that are marked in the text."""
    for has_question, group in groupby(document.sections, key=lambda section: bool(section.question)):
        sections = tuple(group)
        if has_question:
            for each in sections:
                questions = tuple(" ".join(question.split()) for question in (each.question, *each.alternatives))
                yield each.heading_path, iter([_Pair(each.answer, each.page, questions)])
        else:
            for passage in by_heading(replace(document, sections=sections)):
                yield passage.heading_path, _marked(passage)


def _marked(passage: Passage) -> Iterator[_Pair]:
    """The text before the first question, then question by question, each with all that follows up to the next."""
    marks = list(_QUESTION.finditer(passage.text))
    starts = [mark.start() for mark in marks] + [len(passage.text)]
    yield from _plain(passage, 0, starts[0])
    for mark, end in zip(marks, starts[1:], strict=True):
        answer = _ANSWER.search(passage.text, mark.end(), end)
        question = " ".join(passage.text[mark.end() : answer.start()].split()) if answer else ""
        if answer and question and passage.text[answer.end() : end].strip():
            yield _Pair(passage.text[answer.end() : end].strip(), passage.page_at(mark.start()), (question,))
        else:
            yield from _plain(passage, mark.start(), end)


def _plain(passage: Passage, start: int, end: int) -> Iterator[_Pair]:
    """Other text, page by page."""
    for page, first, after in zip(passage.pages, passage.starts, (*passage.starts[1:], len(passage.text)), strict=True):
        if text := passage.text[max(start, first) : min(end, after)].strip():
            yield _Pair(text, page)


def _pieces(pair: _Pair, settings: ChunkSettings) -> Iterator[str]:
    if not pair.questions:
        yield from split_text(pair.text, settings)
        return
    opening = f"{pair.questions[0]}\n"
    left = settings.size - settings.length(opening)
    if settings.length(opening + pair.text) <= settings.size:
        yield opening + pair.text
    elif left < max(MIN_SIZE, settings.size // 2):
        # A question of which little of a chunk would be left for the answer opens only the first.
        yield from split_text(opening + pair.text, settings)
    else:
        for text in split_text(pair.text, replace(settings, size=left, overlap=min(settings.overlap, left - 1))):
            yield opening + text
