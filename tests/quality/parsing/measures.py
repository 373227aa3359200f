"""How near to the truth a reading is: text, tables, headings, and what of every page's edge is left in it."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Indel
from scipy.optimize import linear_sum_assignment

from tests.quality.parsing.documents import Document

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader makes of a file; a merged cell may stand in each place that it covers, or in its first one."""

    text: str
    tables: tuple[Rows, ...] = ()
    headings: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """Each from 0 to 1; None where the document has nothing of the kind."""

    text: float
    tables: float | None
    headings: float | None
    boilerplate: float | None  # the share of headers and footers that is left in the text; less is better


def measure(document: Document, reading: Reading, pages: int) -> Measured:
    edges = [edge for edge in (document.header, document.footer) if edge]
    return Measured(
        text=similarity(document.text, without(reading.text, edges)),
        tables=cell_f1([table.rows for table in document.tables], continued(reading.tables))
        if document.tables
        else None,
        headings=heading_f1(document.headings, reading.headings) if document.headings else None,
        boilerplate=left_in(reading.text, edges, pages) if edges else None,
    )


_MARKUP = re.compile(
    r"^\s{0,3}#{1,6}\s+|^\s*(?:[-*+•●○■□◆▪–·]|\d{1,3}[.)])\s+|^\s*\|?[\s:|-]*-{3,}[\s:|-]*$|[|*`\\]|<br\s*/?>", re.M
)


def squeezed(text: str) -> str:
    """Letters and digits as they would be compared by a reader: NFKC, no white space, no marks of Markdown."""
    return "".join(unicodedata.normalize("NFKC", _MARKUP.sub(" ", text)).casefold().split())


def similarity(expected: str, found: str) -> float:
    """The normalised Indel similarity of both texts: 1 - edits / characters of both."""
    return float(Indel.normalized_similarity(squeezed(expected), squeezed(found)))


def _pattern(edge: str) -> re.Pattern[str]:
    parts = [re.escape(squeezed(part)) for part in edge.split("{page}")]
    return re.compile(r"\d{1,3}".join(parts))


def without(text: str, edges: Iterable[str]) -> str:
    """The text without the edges of pages, which are measured by themselves."""
    text = squeezed(text)
    for edge in edges:
        text = _pattern(edge).sub("", text)
    return text


def left_in(text: str, edges: Sequence[str], pages: int) -> float:
    """How many of the edges of all pages still stand in the text, as a share."""
    text = squeezed(text)
    return min(1.0, sum(len(_pattern(edge).findall(text)) for edge in edges) / (len(edges) * pages))


def heading_f1(expected: Iterable[tuple[int, str]], found: Iterable[tuple[int, str]]) -> float:
    """F1 of headings by level and text."""
    return f1(*(Counter((level, squeezed(text)) for level, text in each) for each in (expected, found)))


def cell_f1(expected: Sequence[Rows], found: Sequence[Rows]) -> float:
    """F1 of the cells of all tables, each found one taken for the expected one that it shares most with, or for none.

    A cell is right where its text stands below the same header and beside the same first cell of its row: so a row that
    was lost costs its own cells only, and one that has lost its header all of them. Empty cells do not count.
    """
    wanted, got = [list(map(_keyed, each)) for each in (expected, found)]
    shared = np.array([[(one & other).total() for other in got] for one in wanted]).reshape(len(wanted), len(got))
    hits = int(shared[linear_sum_assignment(-shared)].sum()) if shared.size else 0
    total = sum(each.total() for each in (*wanted, *got))
    return 2 * hits / total if total else 1.0


def continued(tables: Sequence[Rows]) -> list[Rows]:
    """Tables that begin as the one before them go on with it: one over several pages repeats its header."""
    joined: list[list[Sequence[str]]] = []
    for table in map(list, tables):
        if joined and table and table[0] == joined[-1][0]:
            joined[-1] += table[1:]
        else:
            joined.append(table)
    return [each for each in joined if each]


def _keyed(rows: Rows) -> Counter[tuple[str, str, str]]:
    cells = [[squeezed(cell) for cell in row] for row in rows]
    header = cells[0] if cells else []
    return Counter(
        (header[column] if column < len(header) else "", row[0], cell)
        for row in cells
        for column, cell in enumerate(row)
        if cell
    )


def f1(expected: Counter, found: Counter) -> float:
    hits, total = (expected & found).total(), expected.total() + found.total()
    return 2 * hits / total if total else 1.0
