"""Subtitles, SRT and WebVTT: what is said, in paragraphs, each with its times."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import pairwise
from typing import Final

from kb.ingest.formats.outline import CJK, join_lines
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParsedDocument, Region, Section

_TIME: Final = r"(?:(\d{1,3}):)?(\d{1,2}):([0-5]\d)(?:[.,](\d{1,3}))?"
_TIMING = re.compile(rf"\s*{_TIME}[ \t]*-->[ \t]*{_TIME}(?:\s|$)")
_VOICE = re.compile(r"<v(?:\.[^\s>]{0,100})?\s+([^>]{1,200})>", re.IGNORECASE)
_STYLING = re.compile(r"</?[a-z][^<>]{0,200}>|<[\d:.]{1,20}>|\{\\[^{}]{0,200}\}", re.IGNORECASE)
LINE_END = re.compile(r"\r\n?|\n")
_CJK = re.compile(f"[{CJK}]")
_SENTENCE_END = re.compile(r"[。！？.!?…][”’」』）》\"')\]]*$")
_PAUSE: Final = 3.0  # Seconds of silence after which another paragraph begins
_PARAGRAPH: Final = 300  # Characters from which one ends with a sentence
_LONGEST: Final = 600  # and from which it ends in any case
_STEP: Final = 5  # Seconds at least between the times that a paragraph remembers
# Where fewer of the cues end a sentence, they are lines: such subtitles have no punctuation.
_PUNCTUATED: Final = 0.1
_BLOCKS: Final = ("NOTE", "STYLE", "REGION")
_REPEATED_WITHIN: Final = 1.0  # Seconds after which the same line is not one that rolls up


@dataclass(frozen=True, slots=True)
class Cue:
    """What is said between two seconds; a blank speaker is not known."""

    start: float
    end: float
    text: str
    speaker: str = ""


def read(data: bytes) -> ParsedDocument:
    """SRT or WebVTT; without any time it is plain text."""
    text = decode(data)
    lines = LINE_END.split(text)
    cues = list(_cues(lines))
    title = lines[0].removeprefix("WEBVTT").strip(" \t-") if lines[0].startswith("WEBVTT") else ""
    return ParsedDocument(title, (spoken(cues) if cues else Section(text),))


def _cues(lines: Sequence[str]) -> Iterator[Cue]:
    """What stands between two lines with times, but for notes, styles and the next one's number."""
    places = [number for number, line in enumerate(lines) if "-->" in line and _TIMING.match(line)]
    last, last_end = "", 0.0
    for place, following in pairwise([*places, len(lines)]):
        said = list(lines[place + 1 : following])
        is_number = (
            said and said[-1].strip() and (said[-1].strip().isdigit() or (len(said) > 1 and not said[-2].strip()))
        )
        if is_number and following < len(lines):
            said.pop()
        times = _TIMING.match(lines[place]).groups()  # type: ignore[union-attr]
        start, end = seconds_of(*times[:4]), seconds_of(*times[4:])
        for speaker, shown in _voices(said):
            # Automatic subtitles roll up: a cue begins with the last line of the one before
            new = shown[1:] if shown[0] == last and start <= last_end + _REPEATED_WITHIN else shown
            last, last_end = shown[-1], end
            if new:
                yield Cue(start, end, join_lines(new), speaker)


def _voices(said: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Speakers and their lines, without tags."""
    speaker, shown = "", list[str]()
    is_note = False
    for before, line in pairwise(["-", *said]):
        is_note = bool(line.strip()) and (is_note or (not before.strip() and line.startswith(_BLOCKS)))
        if is_note:
            continue
        if voice := _VOICE.search(line):
            if shown:
                yield speaker, shown
            speaker, shown = " ".join(unescape(voice[1]).split()), []
        if text := " ".join(unescape(_STYLING.sub("", line)).split()):
            shown.append(text)
    if shown:
        yield speaker, shown


def seconds_of(hours: str | None, minutes: str, seconds: str, fraction: str | None = None) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{fraction or 0}")


def spoken(cues: Sequence[Cue]) -> Section:
    """Cues joined into paragraphs by sentences, pauses and speakers, with the time of each place."""
    has_sentences = sum(bool(_SENTENCE_END.search(cue.text)) for cue in cues) >= _PUNCTUATED * len(cues)
    paragraphs: list[str] = []
    regions: list[Region] = []
    begin, text, before = 0, "", cues[0]
    for cue in cues:
        if not text or _is_next(text, before, cue, has_sentences=has_sentences):
            if text:
                paragraphs.append(text)
                begin += len(text) + len("\n\n")
            text = f"{_label(cue.speaker)}{cue.text}"
            regions.append(Region(begin, seconds=int(cue.start)))
        else:
            text = join_lines([text, cue.text]) if has_sentences else f"{text}\n{cue.text}"
            if int(cue.start) >= (regions[-1].seconds or 0) + _STEP:
                regions.append(Region(begin + len(text) - len(cue.text), seconds=int(cue.start)))
        before = cue
    return Section("\n\n".join([*paragraphs, text]), regions=tuple(regions))


def _is_next(text: str, before: Cue, cue: Cue, *, has_sentences: bool) -> bool:
    """Whether a cue begins a paragraph."""
    return (
        cue.speaker != before.speaker
        or cue.start < before.start
        or cue.start - before.end >= _PAUSE
        or len(text) + len(cue.text) > _LONGEST
        or (has_sentences and len(text) >= _PARAGRAPH and bool(_SENTENCE_END.search(text)))
    )


def _label(speaker: str) -> str:
    if not speaker:
        return ""
    return f"{speaker}：" if _CJK.search(speaker) else f"{speaker}: "
