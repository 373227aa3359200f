"""By paragraphs and sentences: chunks end where sentences end, in Chinese and in English."""

from collections.abc import Iterator
from typing import Final

from kb.ingest.chunkers.drafts import ChunkDraft, ChunkSettings
from kb.ingest.chunkers.passages import by_page
from kb.ingest.parser.parsed import ParsedDocument

# From the strongest boundary to none. Each swallows the white space after it, so that no piece is blank; groups are
# non-capturing, because the splitter adds one of its own; the lookbehind keeps a long row of dots linear.
_SEPARATORS: Final = (
    r"\n[^\S\n]*\n\s*",
    r"\n\s*",
    r"(?:[。！？…]+[”’」』）》]*\s*|(?<![.!?])[.!?]+[\"'”’)\]]*\s+)",
    r"(?:；\s*|;\s+)",
    r"(?:[，、：]\s*|[,:]\s+)",
    r"\s+",
    "",
)


def split_recursively(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """No chunk crosses a heading or a page, or is longer than settings.size."""
    drafts: list[ChunkDraft] = []
    for section in by_page(document):
        for text in split_text(section.text, settings):
            tokens = settings.token_counter(text)
            drafts.append(ChunkDraft(text, len(drafts), section.page, section.heading_path, tokens))
    return drafts


def split_text(text: str, settings: ChunkSettings) -> Iterator[str]:
    """Pieces of a text, none of them blank or longer than settings.size."""
    from langchain_text_splitters import RecursiveCharacterTextSplitter  # noqa: PLC0415 - LangChain is slow to import

    splitter = RecursiveCharacterTextSplitter(
        separators=list(_SEPARATORS),
        is_separator_regex=True,
        keep_separator="end",
        chunk_size=settings.size,
        chunk_overlap=settings.overlap,
        length_function=settings.length,
    )
    for piece in splitter.split_text(text):
        yield from _fitted(piece, settings)


def _fitted(text: str, settings: ChunkSettings) -> Iterator[str]:
    """Halves what is still too long: a tokenizer may count more for a whole than for its parts."""
    text = text.strip()
    if not text:
        return
    if settings.length(text) <= settings.size or len(text) == 1:
        yield text
        return
    middle = len(text) // 2
    yield from _fitted(text[:middle], settings)
    yield from _fitted(text[middle:], settings)
