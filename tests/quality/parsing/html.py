"""A document as a page that Chromium prints: columns, headings, rules and edges by its style."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Literal

from tests.quality.parsing.documents import (
    Aside,
    Block,
    Document,
    Form,
    Heading,
    Items,
    Note,
    Paragraph,
    Picture,
    Table,
)


@dataclass(frozen=True, slots=True)
class Style:
    """How a document is set.

    `headings` says what tells a heading from text: its size, or its weight alone at the size of the text, or nothing but
    the number that its text begins with.
    """

    columns: int = 1
    headings: Literal["size", "weight", "number"] = "size"
    is_landscape: bool = False
    is_vertical: bool = False
    is_justified: bool = True
    size_pt: float = 10.5


_SIZES = {1: 1.9, 2: 1.5, 3: 1.2}
_FONTS = "'Noto Sans CJK SC', 'Noto Serif CJK SC', 'DejaVu Sans', sans-serif"


def page_of(document: Document, style: Style) -> str:
    """The whole page, without its edges, which the printer adds."""
    language = "en" if document.language == "en" else "zh-CN"
    body = "\n".join(part for block in document.blocks for part in _html(block))
    return f'<!doctype html><html lang="{language}"><meta charset="utf-8"><style>{_css(style)}</style><body>{body}</body></html>'


def _css(style: Style) -> str:
    heading = {
        "size": "".join(f"h{level} {{ font-size: {size}em }} " for level, size in _SIZES.items()),
        "weight": "h1, h2, h3 { font-size: 1em; font-weight: 700 }",
        "number": "h1, h2, h3 { font-size: 1em; font-weight: 400 }",
    }[style.headings]
    return f"""
    @page {{ size: A4 {"landscape" if style.is_landscape else "portrait"}; margin: 24mm 20mm }}
    html {{ font: {style.size_pt}pt/1.55 {_FONTS}; {"writing-mode: vertical-rl;" if style.is_vertical else ""} }}
    body {{ margin: 0; columns: {style.columns}; column-gap: 9mm; {"text-align: justify; hyphens: auto;" if style.is_justified else ""} }}
    h1, h2, h3 {{ margin: 1em 0 .4em; line-height: 1.3; text-align: left; break-after: avoid }}
    {heading}
    p {{ margin: 0 0 .7em }}
    ul, ol {{ margin: 0 0 .7em; padding-left: 1.6em }}
    table {{ border-collapse: collapse; width: 100%; margin: .4em 0 1em; text-align: left; font-size: .95em }}
    th, td {{ padding: 3px 8px; vertical-align: top }}
    table.ruled th, table.ruled td {{ border: .6pt solid #333 }}
    caption, figcaption {{ font-size: .9em; text-align: left; padding: 3px 0 }}
    figure {{ margin: .6em 0 1em }} figure div {{ height: 28mm; background: linear-gradient(135deg, #9bd, #e9c) }}
    aside {{ float: right; width: 34%; margin: 0 0 .6em 6mm; padding: 3mm; background: #eee; text-align: left; font-size: .92em }}
    .note {{ font-size: .82em; border-top: .4pt solid #333; padding-top: 2mm; margin-top: 3mm }}
    .form p {{ margin: .2em 0 }} .form span {{ display: inline-block; min-width: 45mm; border-bottom: .5pt solid #333 }}
    """


def _html(block: Block) -> Iterator[str]:
    match block:
        case Heading(level, text):
            yield f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            yield f"<p>{escape(text)}</p>"
        case Items(texts, is_numbered):
            name = "ol" if is_numbered else "ul"
            yield f"<{name}>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</{name}>"
        case Table():
            yield _table(block)
        case Note(mark, text):
            yield f'<p class="note"><sup>{escape(mark)}</sup> {escape(text)}</p>'
        case Aside(texts):
            yield f"<aside>{''.join(f'<p>{escape(text)}</p>' for text in texts)}</aside>"
        case Picture(caption):
            yield f"<figure><div></div><figcaption>{escape(caption)}</figcaption></figure>"
        case Form(fields):
            lines = "".join(f"<p>{escape(name)} <span>{escape(value)}</span></p>" for name, value in fields)
            yield f'<div class="form">{lines}</div>'


def _table(table: Table) -> str:
    covered: set[tuple[int, int]] = set()
    rows = []
    for number, row in enumerate(table.rows):
        cells = []
        for column, text in enumerate(row):
            if (number, column) in covered:
                continue
            height, width = table.merged.get((number, column), (1, 1))
            covered |= {(number + down, column + across) for down in range(height) for across in range(width)}
            name = "th" if number < table.header_rows else "td"
            spans = f' rowspan="{height}" colspan="{width}"' if (height, width) != (1, 1) else ""
            cells.append(f"<{name}{spans}>{escape(text).replace(chr(10), '<br>')}</{name}>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head, body = rows[: table.header_rows], rows[table.header_rows :]
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    return (
        f'<table class="{"ruled" if table.is_ruled else ""}">{caption}<thead>{"".join(head)}</thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )
