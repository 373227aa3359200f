"""Plain text, which may be a transcript: lines with the times of a recording."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from kb.ingest.formats.outline import join_lines
from kb.ingest.formats.subtitles import LINE_END, Cue, seconds_of, spoken
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParsedDocument, Section

_HOURS: Final = r"(?P<hours>\d{1,3}):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]\d)(?:[.,]\d{1,3})?"
_SHORT: Final = r"(?:(?P<hours>\d{1,3}):)?(?P<minutes>\d{1,3}):(?P<seconds>[0-5]\d)(?:[.,]\d{1,3})?"
# "[01:23]" or "Ann (00:01:23): …"; without brackets "00:01:23 Ann: …", and at the end of a speaker's line "Ann 00:01:23":
# these have hours, or they may be times of day. They match lines without blanks around them, of which many take long.
_FORMS: Final = (
    re.compile(rf"[\[(（【]{_SHORT}[\])）】]\s*[-–—:：]?\s*(?P<said>.*)"),
    re.compile(
        rf"(?P<who>[^\[(（【:：。，,.!?]{{1,40}}?)\s*[\[(（【]{_SHORT}[\])）】]\s*(?:[-–—:：]\s*(?P<said>.*)|$)"
    ),
    re.compile(rf"{_HOURS}(?:\s*[-–—:：]\s*|\s+|$)(?P<said>.*)"),
    re.compile(rf"(?P<who>[^:：。，,.!?]{{1,40}}?)\s+{_HOURS}"),
)
_SPEAKER = re.compile(r"([^:：。，,.!?\[(（]{1,40})[:：]\s*(?=\S)")
_HEAD_CHARACTERS: Final = 50_000
_HEAD_LINES: Final = 200
_MOST_BEFORE: Final = 10  # Lines above the first time: a title, who takes part
_FEWEST_TIMES: Final = 3
_STAMPED: Final = 0.2  # Of the lines
_BEGINS_WITHIN: Final = 1800.0  # Seconds: a recording begins near 0, a log and an agenda at a time of day


def read(data: bytes) -> ParsedDocument:
    text = decode(data)
    if not is_transcript(text):
        return ParsedDocument("", (Section(text),))
    head, cues = _stamped(LINE_END.split(text))
    above = (Section("\n".join(head)),) if any(map(str.strip, head)) else ()
    return ParsedDocument("", (*above, spoken(cues)))


def is_transcript(text: str) -> bool:
    """Whether lines of a text, by its beginning, have the times of a recording, which ascend from near 0."""
    lines = [line for line in LINE_END.split(text[:_HEAD_CHARACTERS])[:_HEAD_LINES] if line.strip()]
    found = [(number, stamp[0]) for number, line in enumerate(lines) if (stamp := _stamp(line))]
    if len(found) < max(_FEWEST_TIMES, _STAMPED * len(lines)) or found[0][0] > _MOST_BEFORE:
        return False
    times = [time for _, time in found]
    return times[0] < min(_BEGINS_WITHIN, times[-1]) and all(one <= other for one, other in pairwise(times))


def _stamped(lines: Sequence[str]) -> tuple[list[str], list[Cue]]:
    """The lines above the first time, and what is said from each time to the next."""
    head: list[str] = []
    said: list[tuple[float, str, list[str]]] = []
    for line in lines:
        if stamp := _stamp(line):
            time, speaker, text = stamp
            said.append((time, speaker, [text] if text else []))
        elif not said:
            head.append(line)
        elif line.strip():
            said[-1][2].append(line)
    ends = [time for time, _, _ in said[1:]] + [0.0]
    return head, [
        Cue(time, end, join_lines(texts), speaker)
        for (time, speaker, texts), end in zip(said, ends, strict=True)
        if texts
    ]


def _stamp(line: str) -> tuple[float, str, str] | None:
    """The time of a line of a transcript, who speaks and what is said, both of which may be blank."""
    line = line.strip()
    found = next((found for form in _FORMS if (found := form.fullmatch(line))), None)
    if found is None:
        return None
    parts = found.groupdict(default="")
    speaker, said = parts.get("who", "").strip(), parts.get("said", "").strip()
    if not speaker and (named := _SPEAKER.match(said)):
        speaker, said = named[1].strip(), said[named.end() :]
    return seconds_of(parts["hours"], parts["minutes"], parts["seconds"]), speaker, said
