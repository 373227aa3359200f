"""The order in which a page is read, where it differs from the one in which it was written."""

from collections.abc import Iterator, Sequence

from kb.ingest.formats.outline import Line
from kb.ingest.formats.pdf.grids import NEAR
from kb.ingest.formats.pdf.items import Item, Ruled

# Lines of a box beside the text, and boxes that were written before it.
_MOST_BESIDE = 30
_MOST_BOXES = 20
# From one line of a paragraph to the next, and of a box, in sizes of letters, at most.
_PARAGRAPH_STEP = 1.75
_BOX_STEP = 4.0


def in_order(items: Sequence[Item]) -> list[Item]:
    """The items as they are read: programs write what stands beside or above others at another time, at times."""
    ordered: list[Item] = []
    waiting: list[list[Line]] = []
    for run in _runs(items):
        if isinstance(run, Ruled):
            ordered.append(run)
            continue
        boxes = [box for box in waiting if _stands_beside(box, run)][::-1]
        moved = {id(line) for box in boxes for line in box}
        if moved:
            ordered = [item for item in ordered if id(item) not in moved]
        waiting = [box for box in waiting if id(box[0]) not in moved] + ([run] if len(run) <= _MOST_BESIDE else [])
        waiting = waiting[-_MOST_BOXES:]
        place = len(ordered)
        while place and isinstance(above := ordered[place - 1], Ruled) and _stands_above(run, above):
            place -= 1
        ordered[place:place] = _with_boxes(run, boxes)
    return ordered


def _runs(items: Sequence[Item]) -> Iterator[list[Line] | Ruled]:
    """Lines that go down the page one after the other, and tables."""
    run: list[Line] = []
    for item in items:
        if run and not (
            isinstance(item, Line)
            and -NEAR <= run[-1].baseline - item.baseline <= _BOX_STEP * max(item.size, run[-1].size)
            and item.left < max(line.right for line in run[-3:])
            and item.right > min(line.left for line in run[-3:])
        ):
            yield run
            run = []
        if isinstance(item, Line):
            run.append(item)
        else:
            yield item
    if run:
        yield run


def _stands_above(run: Sequence[Line], table: Ruled) -> bool:
    is_over = min(line.left for line in run) < table.lefts[-1] and max(line.right for line in run) > table.lefts[0]
    return is_over and run[0].baseline > table.top


def _stands_beside(box: Sequence[Line], run: Sequence[Line]) -> bool:
    """Whether a box that was written before some text stands within its height, at its right: at its left is a column."""
    if not run[-1].baseline < box[0].baseline < run[0].baseline - NEAR:
        return False
    left = min(line.left for line in box)
    return all(line.right <= left for line in run if box[-1].baseline - NEAR <= line.baseline <= box[0].baseline + NEAR)


def _with_boxes(run: Sequence[Line], boxes: Sequence[Sequence[Line]]) -> list[Line]:
    """Each box before the paragraph that it begins beside."""
    lines = list(run)
    for box in boxes:
        place = next(number for number, line in enumerate(lines) if line.baseline <= box[0].baseline + NEAR)
        while place and lines[place - 1].baseline - lines[place].baseline <= _PARAGRAPH_STEP * lines[place].size:
            place -= 1
        lines[place:place] = box
    return lines
