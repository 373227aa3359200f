"""What other tokenizer settings would do to texts and to a knowledge base's chunks; nothing is written."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from django.db.models import FilteredRelation, Q
from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import Rejected
from kb.content.models.documents import Chunk
from kb.providers.models import TokenizerSettings
from kb.providers.tokenizers import options_of, tokenizer
from retrieval.postings import count_postings
from retrieval.scripts import CJK, LATIN
from retrieval.searchable import searchable_text
from retrieval.tokenize import JiebaTokenizer, Token, normalize

MAX_CHUNKS_READ = 50_000
MAX_CHUNKS_TOKENIZED = 2_000
MAX_EXAMPLES = 10
READ_BATCH = 1_000
# Frequencies count as shares of their sum, 60 million in jieba's dictionary, so that a large one shifts the balance of
# words that it does not name: 100,000 changed 1 chunk of 10,000 by that alone, 600,000 changed 52 (measured on stard-law).
NEGLIGIBLE_FREQUENCY = 120_000

_CHINESE_RUN = re.compile(f"[{CJK}]+")
_LATIN = re.compile(LATIN)


@dataclass(frozen=True, slots=True)
class MarkedToken:
    """A token, and whether it is the other tokenizer's too."""

    token: Token
    is_changed: bool


@dataclass(frozen=True, slots=True)
class Example:
    """A chunk whose terms change: those that go and those that come, in their order in the text."""

    chunk_id: int
    document: str
    position: int
    lost: tuple[str, ...]
    gained: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a change does to a knowledge base's chunks.

    Attributes:
        total: chunks that there are.
        looked_at: chunks of which it is known whether they change.
        affected: chunks among these whose terms, or their counts, change.
    """

    total: int
    looked_at: int
    affected: int
    examples: tuple[Example, ...]

    @property
    def is_partial(self) -> bool:
        return self.looked_at < self.total


def active_tokenizer(kb: KnowledgeBase) -> JiebaTokenizer:
    """The one that searches use.

    Raises:
        Rejected: its packages are missing.
    """
    active = tokenizer(kb.tokenizer_id)
    if active is None:
        raise Rejected("bm25_dependencies_missing", _("The packages of this knowledge base’s tokenizer are missing."))
    return active


def compare_tokens(before: Sequence[Token], after: Sequence[Token]) -> tuple[list[MarkedToken], list[MarkedToken]]:
    """What two tokenizers make of one text, with what only one of them has marked."""
    keys = [[(token.term, token.is_dropped) for token in tokens] for tokens in (before, after)]
    common = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_matching_blocks()
    kept_before = {block.a + offset for block in common for offset in range(block.size)}
    kept_after = {block.b + offset for block in common for offset in range(block.size)}
    return _marked(before, kept_before), _marked(after, kept_after)


def _marked(tokens: Sequence[Token], kept: Collection[int]) -> list[MarkedToken]:
    return [MarkedToken(token, is_changed=index not in kept) for index, token in enumerate(tokens)]


def dry_run(kb: KnowledgeBase, settings: TokenizerSettings) -> DryRun:
    """Which chunks would have other terms under `settings` than under the active tokenizer.

    A chunk that holds none of the changed words is taken not to change, so that only the others are tokenised; where
    engine or simplification change, or frequencies by more than `NEGLIGIBLE_FREQUENCY`, all of them are. At most
    `MAX_CHUNKS_READ` chunks are read and `MAX_CHUNKS_TOKENIZED` tokenised.

    Args:
        kb: the knowledge base.
        settings: from `kb.index.services.tokenizing.tokenizing.read_settings`.

    Raises:
        Rejected: packages of the active tokenizer are missing.
    """
    before = active_tokenizer(kb)
    after = JiebaTokenizer(options_of(settings))
    total = Chunk.objects.filter(knowledge_base=kb).count()
    if after.id == kb.tokenizer_id:
        return DryRun(total, total, 0, ())
    return _compare_chunks(kb, before, after, total)


def _compare_chunks(kb: KnowledgeBase, before: JiebaTokenizer, after: JiebaTokenizer, total: int) -> DryRun:
    # Postings that another version's rules have made say nothing about these two tokenizers.
    is_suspect = _suspects(before, after) if before.id == kb.tokenizer_id else _Everything()
    looked_at = tokenized = affected = 0
    examples: list[Example] = []
    for row in _stored_chunks(kb):
        looked_at += 1
        text = searchable_text(row["document__title"], row["heading_path"], row["text"])
        if not is_suspect(text):
            continue
        tokenized += 1
        terms = after(text)
        if not _holds(row, terms):
            affected += 1
            if len(examples) < MAX_EXAMPLES:
                examples.append(_example(row, before(text), terms))
        if tokenized == MAX_CHUNKS_TOKENIZED:
            break
    return DryRun(max(total, looked_at), looked_at, affected, tuple(examples))


def _stored_chunks(kb: KnowledgeBase) -> Iterator[dict[str, Any]]:
    """Chunks by id with their active postings, in pieces."""
    rows = (
        Chunk.objects.filter(knowledge_base=kb)
        .annotate(stored=FilteredRelation("postings", condition=Q(postings__tokenizer_id=kb.tokenizer_id)))
        .order_by("pk")
        .values(
            "pk", "document__title", "document__source", "position", "heading_path", "text",
            "stored__terms", "stored__frequencies",
        )
    )  # fmt: skip
    last = 0
    for _start in range(0, MAX_CHUNKS_READ, READ_BATCH):
        batch = list(rows.filter(pk__gt=last)[:READ_BATCH])
        yield from batch
        if len(batch) < READ_BATCH:
            return
        last = batch[-1]["pk"]


def _holds(row: dict[str, Any], terms: Sequence[str]) -> bool:
    """Whether a chunk's stored postings are those of the terms."""
    if row["stored__terms"] is None:
        return False
    postings = count_postings(terms)
    stored = bytes(row["stored__terms"]), bytes(row["stored__frequencies"])
    return stored == (postings.terms_bytes, postings.frequencies_bytes)


def _example(row: dict[str, Any], before: Sequence[str], after: Sequence[str]) -> Example:
    lost, gained = Counter(before) - Counter(after), Counter(after) - Counter(before)
    title = row["document__title"] or row["document__source"]
    return Example(row["pk"], title, row["position"], tuple(lost), tuple(gained))


# -- Which texts a change can touch --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Words:
    """Options, normalised as texts are, so that two spellings of one word are no change."""

    frequencies: dict[str, int | None]
    stop_words: frozenset[str]

    @property
    def weight(self) -> int:
        return sum(filter(None, self.frequencies.values()))


@dataclass(slots=True)
class _WordFinder:
    """Whether a text holds one of many words."""

    words: Collection[str]
    _lengths: dict[str, set[int]] = field(init=False)
    _starts: "re.Pattern[str]" = field(init=False)

    def __post_init__(self) -> None:
        self.words = frozenset(filter(None, self.words))
        self._lengths = defaultdict(set)
        for word in self.words:
            self._lengths[word[0]].add(len(word))
        self._starts = re.compile(f"[{re.escape(''.join(sorted(self._lengths)))}]" if self.words else r"(?!)")

    def is_in(self, text: str) -> bool:
        return any(
            text[match.start() : match.start() + length] in self.words
            for match in self._starts.finditer(text)
            for length in self._lengths[match[0]]
        )


def _suspects(before: JiebaTokenizer, after: JiebaTokenizer) -> "_Suspects | _Everything":
    old, new = _normalized(before), _normalized(after)
    is_wide = (before.options.engine, before.options.simplify) != (after.options.engine, after.options.simplify)
    if is_wide or abs(new.weight - old.weight) > NEGLIGIBLE_FREQUENCY:
        return _Everything()
    words = {word for word, _frequency in old.frequencies.items() ^ new.frequencies.items()}
    return _Suspects(words, old.stop_words ^ new.stop_words, after)


class _Everything:
    def __call__(self, _text: str) -> bool:
        return True


class _Suspects:
    """Texts that hold a changed word of the dictionary, or a term that a changed stop word drops."""

    def __init__(self, words: Iterable[str], stop_words: Iterable[str], cutter: JiebaTokenizer) -> None:
        self._cutter = cutter
        self._plain = JiebaTokenizer()
        self._finder = _WordFinder({*words, *stop_words})
        # A stop word drops its stem too, and so words that do not contain it.
        latin = [word for word in stop_words if _LATIN.search(word)]
        self._terms = {term for word in latin for term in (word, *self._plain(word))}

    def __call__(self, text: str) -> bool:
        folded = _fold(text, self._cutter)
        if self._finder.is_in(folded):
            return True
        # Without its Chinese a text is cut at once.
        return bool(self._terms) and not self._terms.isdisjoint(self._plain(_CHINESE_RUN.sub(" ", text)))


def _normalized(cutter: JiebaTokenizer) -> _Words:
    return _Words(
        {_fold(entry.word, cutter): entry.frequency for entry in cutter.options.dictionary},
        frozenset(_fold(word, cutter) for word in cutter.options.stop_words),
    )


def _fold(text: str, cutter: JiebaTokenizer) -> str:
    return " ".join(cutter.simplify(normalize(text)).casefold().split())
