"""Where pictures stand in the text of sections, and the words that stand for them there."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from kb.ingest.parser.parsed import Picture, Region, Section, SectionKind

_BREAK = "\n\n"
_LONGEST_CAPTION = 300
_NUMBER = r"\s*(?:\d{1,3}|[A-Z]|[一二三四五六七八九十]{1,3})(?:[-.–—\u2011]\d{1,3}){0,2}"
_CAPTION = re.compile(
    rf"(?:附?[图圖](?:片|表|示)?|示意[图圖]|(?:figure|fig\.?|picture|photo|chart|diagram|illustration|plate)){_NUMBER}"
    r"(?:[\s:：.\uff0e、,，)）—–-]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands for pictures in a text that is being read; the secret keeps a document from writing marks itself."""

    secret: str

    def of(self, number: int) -> str:
        return f"\ue000{self.secret}:{number}\ue001"

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"[ \t]?\ue000{self.secret}:(\d+)\ue001")


@dataclass(slots=True)
class _Block:
    """A paragraph, a table or the like; regions count from its beginning, and the first of them begins there."""

    text: str
    regions: list[Region] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)

    def show(self, number: int) -> None:
        """Has the block stand for a picture, besides those that it stands for."""
        regions = self.regions or [Region()]
        if any(region.picture is not None for region in regions):
            self.regions = [replace(regions[0], start=0, picture=number), *regions]
        else:
            self.regions = [replace(region, picture=number) for region in regions]


def without_marks(
    sections: Sequence[Section],
    marks: Marks,
    numbers: Mapping[int, int],
    pictures: Sequence[Picture],
    captions: Collection[str] = (),
) -> tuple[tuple[Section, ...], dict[int, str]]:
    """Sections with regions of pictures where marks were, and the captions found beside them.

    `numbers` gives by mark the number of the picture in `pictures`; one that is left out has none. A picture belongs to
    the caption beside it, or the block that it stands in; its other words are a block of their own below it, once. One
    without any belongs to the block before it, or else to the next. `captions` are paragraphs known to be such.
    """
    found: dict[int, str] = {}
    told: set[int] = set()
    waiting: list[int] = []  # without words, of sections that have no text
    written: list[Section] = []
    for section in sections:
        if section.kind is not SectionKind.TEXT:
            written.append(section)
            continue
        blocks = _unmarked(section, marks, numbers)
        blocks = _placed(blocks, pictures, captions, found, told)
        texts = [block for block in blocks if block.text]
        homeless = [number for block in blocks if not block.text for number in block.marked]
        if texts:
            for number in (*waiting, *homeless):
                texts[0].show(number)
            waiting = []
            written.append(_joined(section, texts))
        elif homeless and written:
            written[-1] = _shown_at_end(written[-1], homeless)
        else:
            waiting += homeless
    return tuple(written), found


def with_descriptions(sections: Sequence[Section], texts: Mapping[int, str]) -> tuple[Section, ...]:
    """Sections with a text below each picture that has one, once, as part of what stands for it."""
    left = dict(texts)
    written = []
    for section in sections:
        if not any(region.picture in left for region in section.regions):
            written.append(section)
            continue
        blocks: list[_Block] = []
        for block, following in pairwise([*_blocks(section), None]):
            if block is None:
                continue
            blocks.append(block)
            shown = [each for region in block.regions if (each := region.picture) is not None]
            for number in dict.fromkeys(shown):
                goes_on = following is not None and number in [region.picture for region in following.regions]
                if number in left and not goes_on:
                    blocks.append(_words(left.pop(number), replace(block.regions[-1], start=0, picture=number)))
        written.append(_joined(section, blocks))
    return tuple(written)


def _words(text: str, region: Region) -> _Block:
    """A block of quoted lines, as Markdown marks what is not the document's own running text."""
    return _Block("\n".join(f"> {line}" for line in text.split("\n") if line.strip()), [region])


def _blocks(section: Section) -> Iterator[_Block]:
    """The blocks of a section, each with its regions."""
    place = 0
    for text in section.text.split(_BREAK):
        end = place + len(text)
        before = [region for region in section.regions if region.start <= place]
        regions = [replace(before[-1], start=0)] if before else []
        same = [replace(region, start=0) for region in before[:-1] if region.start == place and regions]
        inside = [
            replace(region, start=region.start - place) for region in section.regions if place < region.start < end
        ]
        if not regions and inside:
            regions = [Region()]
        yield _Block(text, [*same, *regions, *inside])
        place = end + len(_BREAK)


def _unmarked(section: Section, marks: Marks, numbers: Mapping[int, int]) -> list[_Block]:
    blocks = []
    for block in _blocks(section):
        cuts = list(marks.pattern.finditer(block.text))
        marked = [numbers[int(cut[1])] for cut in cuts if int(cut[1]) in numbers]
        regions = [
            replace(
                region,
                start=region.start - sum(min(region.start, cut.end()) - min(region.start, cut.start()) for cut in cuts),
            )
            for region in block.regions
        ]
        text = marks.pattern.sub("", block.text)
        if cuts:
            text = text.strip("\n") if text.strip() else ""
        if text or marked or not cuts:
            blocks.append(_Block(text, regions if text else [], marked))
    return blocks


def _placed(
    blocks: list[_Block],
    pictures: Sequence[Picture],
    captions: Collection[str],
    found: dict[int, str],
    told: set[int],
) -> list[_Block]:
    """The blocks with the words of the pictures among them; a block without text keeps those that found no place."""
    is_taken = [False] * len(blocks)
    below: dict[int, list[_Block]] = {}
    for place, block in enumerate(blocks):
        for number in dict.fromkeys(block.marked):
            caption = _caption_beside(blocks, is_taken, place, captions)
            host = place if caption is None else caption
            picture = pictures[number]
            if caption is not None:
                is_taken[caption] = True
                found.setdefault(number, " ".join(blocks[caption].text.split()))
            words = [
                each for each in (picture.alternative, picture.recognised) if each and each not in blocks[host].text
            ]
            if number in told:
                words = []
            told.add(number)
            if words:
                below.setdefault(host, []).append(
                    _words("\n".join(words), Region(0, picture.page, picture.box, number))
                )
            if blocks[host].text:
                blocks[host].show(number)
            elif words or (before := next((each for each in reversed(blocks[:host]) if each.text), None)) is None:
                block.marked = block.marked if not words else [each for each in block.marked if each != number]
                continue
            else:
                before.show(number)
            block.marked = [each for each in block.marked if each != number]
    return [each for place, block in enumerate(blocks) for each in (block, *below.get(place, []))]


def _caption_beside(
    blocks: Sequence[_Block], is_taken: Sequence[bool], place: int, captions: Collection[str]
) -> int | None:
    """The place of the caption of a picture: its own block, the next one, or the one before."""
    following = next((each for each in range(place + 1, len(blocks)) if blocks[each].text), None)
    before = next((each for each in range(place - 1, -1, -1) if blocks[each].text), None)
    for each in (place, following, before):
        if each is not None and not is_taken[each] and is_caption(blocks[each].text, captions):
            return each
    return None


def is_caption(text: str, captions: Collection[str] = ()) -> bool:
    line = " ".join(text.split())
    return 0 < len(line) <= _LONGEST_CAPTION and (line in captions or bool(_CAPTION.match(line)))


def _joined(section: Section, blocks: Sequence[_Block]) -> Section:
    """The section of blocks; a region begins where what holds before it does not hold any more."""
    regions: list[Region] = []
    place = 0
    has_regions = any(block.regions for block in blocks)
    for block in blocks:
        for region in block.regions or ([Region()] if has_regions else []):
            moved = replace(region, start=place + region.start)
            if not regions or replace(regions[-1], start=moved.start) != moved:
                regions.append(moved)
        place += len(block.text) + len(_BREAK)
    return replace(section, text=_BREAK.join(block.text for block in blocks), regions=tuple(regions))


def _shown_at_end(section: Section, numbers: Sequence[int]) -> Section:
    blocks = list(_blocks(section))
    for number in numbers:
        blocks[-1].show(number)
    return _joined(section, blocks)
