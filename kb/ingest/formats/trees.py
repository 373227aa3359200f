"""JSON and XML: lists of objects are records, other values are text under the names above them."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lxml import etree, html

from kb.ingest.formats.outline import Outline, flow
from kb.ingest.formats.package import ENTITY, Element
from kb.ingest.formats.records import MAX_COLUMNS, pair_of
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section, SectionKind

_MOST_DEPTH: Final = 100
_MOST_HEADINGS: Final = 6
# Names of elements that hold prose in DocBook, TEI, JATS, DITA and their like.
_PROSE: Final = frozenset({"para", "simpara", "p", "section", "sect1", "sect2", "chapter", "topic", "conbody", "ab"})
_TITLES: Final = frozenset({"title", "head", "heading", "caption"})
_CELLS: Final = frozenset({"entry", "td", "th", "cell"})
_FEEDS: Final = frozenset({"rss", "feed", "RDF"})
_MARKUP: Final = re.compile(r"<[a-zA-Z][^<>]*>")
_PROSE_SHARE: Final = 0.5
_TITLE_CHARACTERS: Final = 300


def read_json(data: bytes) -> ParsedDocument:
    text = decode(data)
    try:
        # Numbers as they are written: long ones lose digits, and take long
        tree = json.loads(text, object_pairs_hook=_object, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise _too_deep("JSON") from error
    except ValueError as error:
        raise ParseError("damaged_file", format="JSON") from error
    return ParsedDocument("", tuple(_sections(tree, "JSON")))


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A name that comes twice has both values, as a list."""
    found = dict(pairs)
    if len(found) < len(pairs):
        several: dict[str, list[Any]] = {}
        for name, value in pairs:
            several.setdefault(name, []).append(value)
        found = {name: values[0] if len(values) == 1 else values for name, values in several.items()}
    return found


def _too_deep(name: str) -> ParseError:
    return ParseError("nested_values", format=name, levels=_MOST_DEPTH)


def _sections(tree: Any, name: str) -> Iterator[Section]:
    """Raises ParseError where values are nested too deeply, or a record has too many."""
    # What holds nothing but a list of records needs no heading for it
    while isinstance(tree, Mapping) and len(tree) == 1 and not isinstance((only := next(iter(tree.values()))), str):
        if isinstance(only, Mapping):
            break
        tree = only
    yield from _outline(tree, (), name)


def _outline(tree: Any, path: tuple[str, ...], name: str) -> Iterator[Section]:
    if isinstance(tree, list):
        if tree and all(isinstance(each, Mapping) for each in tree):
            yield from (_record(each, path, name) for each in tree if each)
        else:
            yield from _listed(tree, path, name)
    elif isinstance(tree, Mapping):
        below = {key: value for key, value in tree.items() if _is_part(value) and len(path) < _MOST_HEADINGS}
        own = ((key, value) for key, value in tree.items() if key not in below)
        if pair := pair_of(tree):
            yield pair
        else:
            yield from _text((line for key, value in own for line in _lines(key, value, name)), path)
            for key, value in below.items():
                yield from _outline(value, (*path, key), name)
    else:
        yield from _text([_scalar(tree)], path)


def _is_part(value: Any) -> bool:
    """Whether a value has sections of its own below its name: an object, or a list that holds some."""
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(each, Mapping) for each in value))


def _listed(values: Iterable[Any], path: tuple[str, ...], name: str) -> Iterator[Section]:
    """Lists of anything: a line each, and records between them."""
    lines: list[str] = []
    for value in values:
        if isinstance(value, Mapping):
            yield from _text(lines, path)
            lines = []
            yield _record(value, path, name)
        else:
            lines += _lines("", value, name)
    yield from _text(lines, path)


def _text(lines: Iterable[str], path: tuple[str, ...]) -> Iterator[Section]:
    text = "\n".join(filter(None, lines))
    if text:
        yield Section(text, None, path)


def _record(tree: Mapping[str, Any], path: tuple[str, ...], name: str) -> Section:
    if pair := pair_of(tree):
        return Section.pair(pair.question, pair.answer, alternatives=pair.alternatives, heading_path=path)
    lines: list[str] = []
    for line in _lines("", tree, name):
        lines.append(line)
        if len(lines) > MAX_COLUMNS:
            raise ParseError("too_many_values", values=MAX_COLUMNS)
    return Section("\n".join(lines), None, path, SectionKind.RECORD)


def _lines(key: str, value: Any, name: str) -> Iterator[str]:
    """A line for each value, after the names above it: "a.b: value". A list of texts is one line."""
    waiting: list[tuple[str, Any, int]] = [(key, value, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        if depth > _MOST_DEPTH:
            raise _too_deep(name)
        if isinstance(value, list) and not any(isinstance(each, Mapping | list) for each in value):
            value = ", ".join(filter(None, map(_scalar, value)))
        if isinstance(value, Mapping | list):
            entries = value.items() if isinstance(value, Mapping) else enumerate(value, start=1)
            below = [(f"{key}.{each}".strip("."), inner, depth + 1) for each, inner in entries]
            waiting += reversed(below)
        elif text := _scalar(value):
            yield f"{key}: {text}" if key else text


def _scalar(value: Any) -> str:
    """A value on lines without blank ones between, which separate records."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    lines = (line.rstrip() for line in str(value).splitlines())
    return "\n".join(filter(None, lines)).strip()


# -- XML ------------------------------------------------------------------------------------------------------------------
def read_xml(data: bytes) -> ParsedDocument:
    if ENTITY.search(data):
        raise ParseError("unsafe_xml", format="XML")
    options = {"resolve_entities": False, "no_network": True, "load_dtd": False}
    parser = etree.XMLParser(remove_comments=True, remove_pis=True, **options)
    try:
        root = etree.fromstring(data, parser=parser)
    except etree.XMLSyntaxError as error:
        if "depth" in str(error):
            raise _too_deep("XML") from error
        raise ParseError("damaged_file", format="XML") from error
    if _local(root) in _FEEDS:
        return ParsedDocument(_words(_title(root)), tuple(_feed(root)))
    if _is_prose(root):
        outline = Outline()
        _prose(outline, root, 1)
        return ParsedDocument(outline.first_heading, outline.sections())
    tree = _tree(root)
    return ParsedDocument("", tuple(_sections(tree, "XML")))


def _local(element: Element) -> str:
    return etree.QName(element).localname if isinstance(element.tag, str) else ""


def _words(element: Element | None) -> str:
    return "" if element is None else flow("".join(element.itertext())).strip()


def _title(element: Element) -> Element | None:
    return next((each for each in element.iter() if _local(each) == "title"), None)


def _is_mixed(element: Element) -> bool:
    """Whether words stand between an element's children, as marks within a sentence."""
    return len(element) > 0 and any((text or "").strip() for text in (element.text, *(each.tail for each in element)))


def _is_prose(root: Element) -> bool:
    """Whether most of the words stand in paragraphs, and not in fields."""
    words = prose = 0
    inside: Element | None = None
    for event, element in etree.iterwalk(root, events=("start", "end")):
        if event == "start":
            if inside is None and (_is_mixed(element) or _local(element) in _PROSE):
                inside = element
            words += len((element.text or "").strip())
            prose += len((element.text or "").strip()) if inside is not None else 0
        else:
            if inside is element:
                inside = None
            words += len((element.tail or "").strip())
            prose += len((element.tail or "").strip()) if inside is not None else 0
    return prose > _PROSE_SHARE * words


def _prose(outline: Outline, element: Element, level: int) -> None:
    """A paragraph for each element that holds words; titles are headings, by how deep they stand."""
    for child in element:
        name = _local(child)
        if name in _TITLES and _words(child):
            outline.heading(level, _words(child)[:_TITLE_CHARACTERS])
        elif any(_local(each) in _CELLS for each in child):
            outline.block(" | ".join(filter(None, map(_words, child))), joined=True)
        elif len(child) and not _is_mixed(child):
            has_title = any(_local(each) in _TITLES for each in child)
            _prose(outline, child, min(level + has_title, _MOST_HEADINGS))
        else:
            outline.block(_words(child))


def _feed(root: Element) -> Iterator[Section]:
    """An entry is a record, and reads as text what it holds as HTML."""
    about = {"item", "entry"}
    entries = [each for each in root.iter() if _local(each) in about]
    channel = next((each for each in root if _local(each) == "channel"), root)
    intro = [_words(each) for each in channel if _local(each) in ("title", "description", "subtitle")]
    yield from _text(intro, ())
    for entry in entries:
        fields = {}
        for child in entry:
            text = (child.get("href") if _local(child) == "link" else "") or _words(child)
            fields[_local(child)] = _without_markup(text)
        yield _record(fields, (), "XML")


def _without_markup(text: str) -> str:
    if not _MARKUP.search(text):
        return text
    try:
        return flow(html.fromstring(text).text_content()).strip()
    except (etree.LxmlError, ValueError):
        return flow(_MARKUP.sub(" ", text)).strip()


def _tree(element: Element) -> Any:
    """Attributes and children by their names, several of one name as a list; an element that holds only text is that."""
    children = list(element)
    attributes = {_name(name): value for name, value in element.attrib.items() if not _is_technical(name)}
    if _is_mixed(element) or not children:
        text = _words(element)
        return {**attributes, "": text} if attributes and text else attributes or text
    values: list[tuple[str, Any]] = [*attributes.items(), *((_local(child), _tree(child)) for child in children)]
    return _object(values)


def _name(name: str) -> str:
    return name.rpartition("}")[2]


def _is_technical(name: str) -> bool:
    """Such as where a schema lies."""
    return name.startswith("{http://www.w3.org/2001/XMLSchema-instance}")
