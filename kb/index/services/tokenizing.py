"""The tokenizer of a knowledge base: its settings, what other ones would do to its chunks, and the move to them."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any

from django.db import transaction
from django.db.models import Exists, FilteredRelation, Max, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy, gettext_noop
from typing_extensions import Doc

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import Purpose
from kb.base.errors import Rejected
from kb.base.messages import shown
from kb.content.models import Chunk
from kb.index.models import ChunkPostings
from kb.index.services.writing import (
    ROWS_A_STATEMENT,
    any_chunk_without,
    chunk_batches,
    holding_model,
    searchable_text_of,
    tokenize,
    unchanged,
    write_postings,
    write_questions,
)
from kb.jobs.moves import RETIRED_FOR, FollowedMove, lock_row
from kb.providers.embedding_models import options_of, tokenizer
from kb.providers.models import TokenizerSettings
from retrieval.characters import CJK, LATIN
from retrieval.dictionary import MAX_CHARACTERS, MAX_FREQUENCY, MAX_LINES, MAX_WORD_CHARACTERS, DictionaryError
from retrieval.errors import DependencyMissing, message_of
from retrieval.postings import count_postings
from retrieval.tokenize import JiebaTokenizer, Token, normalize
from retrieval.types import searchable_text

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
class Example:
    """A chunk whose terms change: those that go and those that come, in their order in the text."""

    chunk_id: int
    document: str
    position: int
    lost: tuple[str, ...]
    gained: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a change does to a knowledge base's chunks: of those `looked_at` it is known whether they are `affected`."""

    total: int
    looked_at: int
    affected: int
    examples: tuple[Example, ...]

    @property
    def is_partial(self) -> bool:
        return self.looked_at < self.total


def active_tokenizer(kb: KnowledgeBase) -> JiebaTokenizer:
    """The one that searches use; raises Rejected where its packages are missing."""
    active = tokenizer(kb.tokenizer_id)
    if active is None:
        raise Rejected("bm25_dependencies_missing", _("The packages of this knowledge base’s tokenizer are missing."))
    return active


def compare_tokens(
    before: Sequence[Token], after: Sequence[Token]
) -> tuple[list[tuple[Token, bool]], list[tuple[Token, bool]]]:
    """What two tokenizers make of one text: each token, and whether only that one makes it."""
    keys = [[(token.term, token.is_dropped) for token in tokens] for tokens in (before, after)]
    common = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_matching_blocks()
    shared_before = {block.a + offset for block in common for offset in range(block.size)}
    shared_after = {block.b + offset for block in common for offset in range(block.size)}
    return (
        [(token, place not in shared_before) for place, token in enumerate(before)],
        [(token, place not in shared_after) for place, token in enumerate(after)],
    )


def dry_run(kb: KnowledgeBase, settings: TokenizerSettings) -> DryRun:
    """Which chunks would have other terms under settings, from `read_settings`, than under the active tokenizer.

    A chunk that holds none of the changed words is taken not to change, so that only the others are tokenised; where
    engine or simplification change, or frequencies by more than `NEGLIGIBLE_FREQUENCY`, all of them are. At most
    `MAX_CHUNKS_READ` chunks are read and `MAX_CHUNKS_TOKENIZED` tokenised. Raises as `active_tokenizer`.
    """
    before = active_tokenizer(kb)
    after = JiebaTokenizer(options_of(settings))
    total = Chunk.objects.filter(knowledge_base=kb).count()
    if after.id == kb.tokenizer_id:
        return DryRun(total, total, 0, ())
    # Postings that another version's rules have made say nothing about these two tokenizers.
    may_differ = _changed_texts(before, after) if before.id == kb.tokenizer_id else None
    looked_at = tokenized = affected = 0
    examples: list[Example] = []
    for row in _stored_chunks(kb):
        looked_at += 1
        text = searchable_text(row["document__title"], row["heading_path"], row["text"])
        if may_differ is not None and not may_differ(text):
            continue
        tokenized += 1
        terms = after(text)
        postings = count_postings(terms)
        if (row["stored__terms"], row["stored__frequencies"]) != (postings.terms_bytes, postings.frequencies_bytes):
            affected += 1
            if len(examples) < MAX_EXAMPLES:
                former = before(text)
                lost, gained = Counter(former) - Counter(terms), Counter(terms) - Counter(former)
                title = row["document__title"] or row["document__source"]
                examples.append(Example(row["pk"], title, row["position"], tuple(lost), tuple(gained)))
        if tokenized == MAX_CHUNKS_TOKENIZED:
            break
    return DryRun(max(total, looked_at), looked_at, affected, tuple(examples))


def _stored_chunks(kb: KnowledgeBase) -> Iterator[dict[str, Any]]:
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


def _changed_texts(before: JiebaTokenizer, after: JiebaTokenizer) -> Callable[[str], bool] | None:
    """What finds the texts with a changed word, or a term that a changed stop word drops; None: any text may change."""
    (old_words, old_stop_words), (new_words, new_stop_words) = _own_words(before), _own_words(after)
    is_wide = (before.options.engine, before.options.simplify) != (after.options.engine, after.options.simplify)
    shift = sum(filter(None, new_words.values())) - sum(filter(None, old_words.values()))
    if is_wide or abs(shift) > NEGLIGIBLE_FREQUENCY:
        return None
    stop_words = old_stop_words ^ new_stop_words
    words = {*stop_words, *(word for word, _frequency in old_words.items() ^ new_words.items())} - {""}
    lengths: dict[str, set[int]] = defaultdict(set)
    for word in words:
        lengths[word[0]].add(len(word))
    starts = re.compile(f"[{re.escape(''.join(sorted(lengths)))}]" if words else r"(?!)")
    # A stop word drops its stem too, and so words that do not contain it.
    plain = JiebaTokenizer()
    terms = {term for word in stop_words if _LATIN.search(word) for term in (word, *plain(word))}

    def may_differ(text: str) -> bool:
        folded = _fold(text, after)
        # Stop words come last, in the text without its Chinese, which is cut at once.
        return any(
            folded[match.start() : match.start() + length] in words
            for match in starts.finditer(folded)
            for length in lengths[match[0]]
        ) or bool(terms and not terms.isdisjoint(plain(_CHINESE_RUN.sub(" ", text))))

    return may_differ


def _own_words(cutter: JiebaTokenizer) -> tuple[dict[str, int | None], frozenset[str]]:
    """Its dictionary and stop words, normalised as texts are, so that two spellings of one word are no change."""
    words = {_fold(entry.word, cutter): entry.frequency for entry in cutter.options.dictionary}
    return words, frozenset(_fold(word, cutter) for word in cutter.options.stop_words)


def _fold(text: str, cutter: JiebaTokenizer) -> str:
    return " ".join(cutter.simplify(normalize(text)).casefold().split())


SETTINGS = ("engine", "dictionary", "stop_words", "simplify")
PACKAGES_MISSING = gettext_noop(
    "The packages of the chosen tokenizer are not installed where the worker runs: see `manage.py doctor`."
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a knowledge base is on its way to its target tokenizer, in chunks."""

    done: int
    total: Annotated[int, Doc("Chunks in all.")]
    error: Annotated[str, Doc("Why the change has stopped; blank: it goes on.")]

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 100


def read_settings(*, engine: str, dictionary: str, stop_words: str, simplify: bool) -> TokenizerSettings:
    """Unsaved settings with the id of their options; Rejected where a line cannot be used, or a package is missing."""
    # Only the ends are trimmed, so that an error names the line as it was written.
    row = TokenizerSettings(
        engine=engine, dictionary=dictionary.rstrip(), stop_words=stop_words.rstrip(), simplify=simplify
    )
    try:
        row.tokenizer_id = JiebaTokenizer(options_of(row)).id
    except DictionaryError as error:
        raise Rejected("invalid_dictionary", problem_text(error)) from error
    except DependencyMissing as error:
        raise Rejected("bm25_dependencies_missing", str(error)) from error
    return row


def tokenizer_settings(kb: KnowledgeBase, tokenizer_id: str | None = None) -> TokenizerSettings:
    """Those of a tokenizer; None: of the one that the knowledge base has, or is moving to."""
    present = kb.target_tokenizer_id or kb.tokenizer_id
    wanted = {"knowledge_base": kb, "tokenizer_id": present if tokenizer_id is None else tokenizer_id}
    return TokenizerSettings.objects.filter(**wanted).first() or TokenizerSettings(**wanted)


def renewed_settings(kb: KnowledgeBase, tokenizer_id: str, newer_id: str) -> TokenizerSettings:
    """The options of an id, unsaved, under the id that they have in this version."""
    row = tokenizer_settings(kb, tokenizer_id)
    row.pk, row.tokenizer_id = None, newer_id
    return row


def tokenizer_change(kb: KnowledgeBase, settings: TokenizerSettings) -> bool:
    """Sets the target tokenizer; a worker makes its postings, and searches use the active one until they are complete.

    False where the settings, from `read_settings`, are the active ones already.
    """
    with TOKENIZING.changing(kb) as row:
        wanted = settings.tokenizer_id
        has_stopped = bool(tokenizer_settings(row, wanted).error)
        TokenizerSettings.objects.update_or_create(
            knowledge_base=row,
            tokenizer_id=wanted,
            defaults={"error": "", **{name: getattr(settings, name) for name in SETTINGS}},
        )
        target = "" if wanted == row.tokenizer_id else wanted
        if target != row.target_tokenizer_id:
            _keep_only(row.pk, row.tokenizer_id, target)
            ChunkPostings.objects.filter(knowledge_base=row, tokenizer_id=target).delete()
        if target != row.target_tokenizer_id or has_stopped:
            row.target_tokenizer_id, row.tokenizing_at = target, timezone.now()
            row.save(update_fields=["target_tokenizer_id", "tokenizing_at"])
    return bool(row.target_tokenizer_id)


def tokenizer_change_cancel(kb: KnowledgeBase) -> None:
    with TOKENIZING.changing(kb) as row:
        row.target_tokenizer_id = ""
        row.save(update_fields=["target_tokenizer_id"])
        _keep_only(row.pk, row.tokenizer_id)


def tokenizing_progress(kb: KnowledgeBase) -> Progress | None:
    """None where the knowledge base is not on its way to another tokenizer."""
    if not kb.target_tokenizer_id:
        return None
    return Progress(
        done=ChunkPostings.objects.filter(knowledge_base=kb, tokenizer_id=kb.target_tokenizer_id).count(),
        total=Chunk.objects.filter(knowledge_base=kb).count(),
        error=shown(tokenizer_settings(kb).error),
    )


class Tokenizing(FollowedMove):
    target = "target_tokenizer_id"
    fields = ("target_tokenizer_id",)
    stamp = "tokenizing_at"
    purpose = Purpose.TOKENIZE
    busy = gettext_lazy("Another process is tokenising this knowledge base: wait until it is done.")
    failures = (Rejected,)

    def build(self, kb: KnowledgeBase, left: Iterator[int]) -> bool:
        """Makes the target tokenizer's postings where they are missing, and swaps when every chunk has them.

        Rejected where the tokenizer's packages are missing.
        """
        cutter = tokenizer(kb.target_tokenizer_id)
        if cutter is None:
            raise Rejected("bm25_dependencies_missing", PACKAGES_MISSING)
        if cutter.id != kb.target_tokenizer_id:  # a package was upgraded on the way
            tokenizer_change(kb, renewed_settings(kb, kb.target_tokenizer_id, cutter.id))
            return not kb.target_tokenizer_id
        target = ChunkPostings.objects.filter(tokenizer_id=cutter.id)
        # An earlier run went by id too; what it left out stands before its last chunk, for the next round.
        after = target.filter(knowledge_base=kb).aggregate(last=Max("chunk_id"))["last"] or 0
        while True:
            for batch in chunk_batches(
                kb, after=after, done=lambda ids: target.filter(chunk__in=ids).values_list("chunk_id", flat=True)
            ):
                if next(left, None) is None:
                    return False
                write_tokens(kb, batch, cutter)
                KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizing_at=timezone.now())
            if self.swap(kb, cutter.id):
                return True
            after = 0

    def swap(self, kb: KnowledgeBase, tokenizer_id: str) -> bool:
        """Moves to the target if every chunk has its postings. What searches under way still read goes a little later."""
        with transaction.atomic():
            row = lock_row(kb)
            if row.target_tokenizer_id != kb.target_tokenizer_id:
                return True
            if lacks_postings(kb, tokenizer_id):
                return False
            row.tokenizer_id, row.target_tokenizer_id, row.lacks_postings = tokenizer_id, "", False
            row.tokenizer_swapped_at = timezone.now()
            row.save(update_fields=["tokenizer_id", "target_tokenizer_id", "lacks_postings", "tokenizer_swapped_at"])
        return True

    def done(self, kb: KnowledgeBase, target: str) -> int:  # noqa: ARG002
        progress = tokenizing_progress(kb)
        return Chunk.objects.filter(knowledge_base=kb).count() if progress is None else progress.done

    def has_ended(self, kb: KnowledgeBase, target: str) -> bool:  # noqa: ARG002 - it changes with an upgrade of a package
        return not kb.target_tokenizer_id

    def unfinished(self) -> QuerySet[KnowledgeBase]:
        """Without those that have failed."""
        target = TokenizerSettings.objects.filter(knowledge_base=OuterRef("pk"), tokenizer_id=OuterRef(self.target))
        return KnowledgeBase.objects.exclude(target_tokenizer_id="").exclude(Exists(target.exclude(error="")))

    def note_failure(self, kb_id: int, error: Exception) -> None:
        kb = KnowledgeBase.objects.filter(pk=kb_id).exclude(target_tokenizer_id="").first()
        if kb is not None:
            row = tokenizer_settings(kb)
            row.error = message_of(error)
            row.save()


TOKENIZING = Tokenizing()


def write_tokens(kb: KnowledgeBase, batch: list[Chunk], cutter: JiebaTokenizer) -> None:
    """Writes the postings of chunks, less those that were edited meanwhile, if the tokenizer is still wanted.

    Superseded where the knowledge base moved to another model or tokenizer meanwhile.
    """
    made = tokenize(list(map(searchable_text_of, batch)), [cutter], [chunk.questions for chunk in batch])
    with holding_model(kb) as wanted:
        if cutter.id in wanted:
            write_postings(unchanged(zip(batch, made, strict=True)))


def tokenize_questions(kb: KnowledgeBase) -> None:
    """Writes the tokens of questions that a version of this package before did not write, or else each build makes them.

    Only of some chunks at a time, since each of them is a change of the index.
    """
    if tokenizer(kb.tokenizer_id) is None:
        return
    asked = Chunk.objects.filter(knowledge_base=kb).exclude(questions=[])
    unread = ChunkPostings.objects.filter(chunk__in=asked, tokenizer_id=kb.tokenizer_id, questions=None)
    with transaction.atomic():
        if KnowledgeBase.objects.select_for_update(no_key=True).filter(pk=kb.pk).first() is not None:
            write_questions(unread[:ROWS_A_STATEMENT])


def drop_retired_postings() -> int:
    """Deletes what former tokenizers left behind, once no search can use it; how many knowledge bases were cleared."""
    retired = KnowledgeBase.objects.filter(tokenizer_swapped_at__lt=timezone.now() - RETIRED_FOR)
    cleared = 0
    for kb_id in list(retired.values_list("pk", flat=True)):
        with transaction.atomic():
            locked = KnowledgeBase.objects.select_for_update(no_key=True).filter(pk=kb_id).first()
            if locked is not None:
                _keep_only(kb_id, locked.tokenizer_id, locked.target_tokenizer_id)
                cleared += KnowledgeBase.objects.filter(pk=kb_id).update(tokenizer_swapped_at=None)
    return cleared


def lacks_postings(kb: KnowledgeBase, tokenizer_id: str) -> bool:
    return any_chunk_without(kb, ChunkPostings.objects.filter(tokenizer_id=tokenizer_id))


def _keep_only(kb_id: int, *tokenizer_ids: str) -> None:
    ChunkPostings.objects.filter(knowledge_base=kb_id).exclude(tokenizer_id__in=tokenizer_ids).delete()
    TokenizerSettings.objects.filter(knowledge_base=kb_id).exclude(tokenizer_id__in=tokenizer_ids).delete()


def problem_text(error: DictionaryError) -> str:
    """What is wrong with a line of a dictionary or of stop words, and the remedy, in the reader's language."""
    return {
        "empty_word": _("Line %(line)d: there is no word before the frequency: write one."),
        "no_letters": _("Line %(line)d: what has no letter and no digit is never searched: take the line out."),
        "word_too_long": _("Line %(line)d: the word is too long: write one of at most %(characters)s characters."),
        "bad_frequency": _(
            "Line %(line)d: the frequency is not a whole number from 1 to %(frequency)s: correct it, or add a frequency "
            "if the word ends in this number."
        ),
        "too_many_lines": _("There are more than %(lines)s lines: leave out words that seldom occur."),
        "too_many_characters": _(
            "The words have more than %(all_characters)s characters in all: leave out words that seldom occur."
        ),
    }[error.problem] % {
        "line": error.line,
        "characters": MAX_WORD_CHARACTERS,
        "frequency": f"{MAX_FREQUENCY:,}",
        "lines": f"{MAX_LINES:,}",
        "all_characters": f"{MAX_CHARACTERS:,}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerState:
    """The response of GET /api/v1/knowledge-bases/{id}/tokenizer/.

    While a knowledge base moves to other settings these are reported, and `id` is still that of those in use.
    """

    id: Annotated[str, Doc("Of the tokenizer that searches use.")]
    engine: TokenizerSettings.Engine
    dictionary: str
    stop_words: str
    simplify: bool
    target_id: Annotated[
        str | None, Doc("Of the tokenizer that these settings make, while the chunks are tokenised for it.")
    ]
    progress: Annotated[Progress | None, Doc("In chunks, while the knowledge base has a target.")]


def tokenizer_state(kb: KnowledgeBase) -> TokenizerState:
    settings = tokenizer_settings(kb)
    return TokenizerState(
        id=kb.tokenizer_id,
        target_id=kb.target_tokenizer_id or None,
        progress=tokenizing_progress(kb),
        **{name: getattr(settings, name) for name in SETTINGS},
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    tokenizer: Annotated[str, Doc("Its id.")]
    tokens: tuple[Token, ...]


def tokens_of(kb: KnowledgeBase, text: str) -> Tokens:
    """What the tokenizer in use makes of a text, with the stop words that it drops; without its packages: Rejected."""
    active = active_tokenizer(kb)
    return Tokens(active.id, tuple(active.explain(text)))
