"""Moving a knowledge base to another tokenizer: beside the active one, with a swap at the end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count

from django.db import transaction
from django.db.models import Max, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.db.locks import Purpose, try_lock
from kb.base.errors import Rejected, Superseded
from kb.content.models.documents import Chunk
from kb.index.models.index import ChunkPostings
from kb.index.preparing import tokenize, write_postings
from kb.index.services.chunk_batches import any_chunk_without, chunk_batches, searchable_text_of
from kb.index.services.writing import holding_model, unchanged
from kb.providers.models import TokenizerSettings
from kb.providers.tokenizers import options_of, tokenizer
from retrieval.dictionary import (
    MAX_CHARACTERS,
    MAX_FREQUENCY,
    MAX_LINES,
    MAX_WORD_CHARACTERS,
    DictionaryError,
    DictionaryProblem,
)
from retrieval.errors import DependencyMissing
from retrieval.tokenize import JiebaTokenizer

RETIRED_FOR = timedelta(minutes=1)
LOOK_SECONDS = 0.5
FOLLOWED_BATCHES = 10


class AlreadyRunning(Rejected):
    """Another process is tokenising the knowledge base."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a knowledge base is on its way to its target tokenizer, in chunks."""

    done: int
    total: int

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 100


def read_settings(*, engine: str, dictionary: str, stop_words: str, simplify: bool) -> TokenizerSettings:
    """Unsaved settings with the id that their options have.

    Raises:
        Rejected: a line of the dictionary or of the stop words cannot be used, or a package is missing.
    """
    # Only the ends are trimmed, so that an error names the line as it was written.
    row = TokenizerSettings(
        engine=engine, dictionary=dictionary.rstrip(), stop_words=stop_words.rstrip(), simplify=simplify
    )
    try:
        row.tokenizer_id = JiebaTokenizer(options_of(row)).id
    except DictionaryError as error:
        raise Rejected("invalid_dictionary", problem_in_words(error)) from error
    except DependencyMissing as error:
        raise Rejected("bm25_dependencies_missing", str(error)) from error
    return row


def tokenizer_settings(kb: KnowledgeBase) -> TokenizerSettings:
    """Those that the knowledge base has, or is moving to."""
    return _settings_of(kb, kb.target_tokenizer_id or kb.tokenizer_id)


def renewed_settings(kb: KnowledgeBase, tokenizer_id: str, newer_id: str) -> TokenizerSettings:
    """The options of an id, unsaved, under the id that they have in this version."""
    row = _settings_of(kb, tokenizer_id)
    row.pk, row.tokenizer_id = None, newer_id
    return row


def _settings_of(kb: KnowledgeBase, tokenizer_id: str) -> TokenizerSettings:
    wanted = {"knowledge_base": kb, "tokenizer_id": tokenizer_id}
    return TokenizerSettings.objects.filter(**wanted).first() or TokenizerSettings(**wanted)


def tokenizer_change(kb: KnowledgeBase, settings: TokenizerSettings) -> bool:
    """Sets the target tokenizer; a worker makes its postings, and searches use the active one until they are complete.

    Args:
        kb: the knowledge base.
        settings: from `read_settings`.

    Returns:
        Whether there is anything to do: False where these are the active settings already.
    """
    with transaction.atomic():
        locked = KnowledgeBase.objects.select_for_update(no_key=True).get(pk=kb.pk)
        wanted = settings.tokenizer_id
        written = {name: getattr(settings, name) for name in ("engine", "dictionary", "stop_words", "simplify")}
        TokenizerSettings.objects.update_or_create(knowledge_base=locked, tokenizer_id=wanted, defaults=written)
        target = "" if wanted == locked.tokenizer_id else wanted
        if target != locked.target_tokenizer_id:
            _keep_only(locked.pk, locked.tokenizer_id, target)
            ChunkPostings.objects.filter(knowledge_base=locked, tokenizer_id=target).delete()
            locked.target_tokenizer_id, locked.tokenizing_at = target, timezone.now()
            locked.save(update_fields=["target_tokenizer_id", "tokenizing_at"])
    kb.target_tokenizer_id = locked.target_tokenizer_id
    return bool(locked.target_tokenizer_id)


def tokenizer_change_cancel(kb: KnowledgeBase) -> None:
    """Gives up the target tokenizer; the active one stays."""
    with transaction.atomic():
        locked = KnowledgeBase.objects.select_for_update(no_key=True).get(pk=kb.pk)
        locked.target_tokenizer_id = ""
        locked.save(update_fields=["target_tokenizer_id"])
        _keep_only(locked.pk, locked.tokenizer_id)
    kb.target_tokenizer_id = ""


def tokenizing_progress(kb: KnowledgeBase) -> Progress | None:
    """None where the knowledge base is not on its way to another tokenizer."""
    if not kb.target_tokenizer_id:
        return None
    done = ChunkPostings.objects.filter(knowledge_base=kb, tokenizer_id=kb.target_tokenizer_id).count()
    return Progress(done, Chunk.objects.filter(knowledge_base=kb).count())


def tokenize_to_target(kb: KnowledgeBase, *, batches: int | None = None) -> bool:
    """Makes the target tokenizer's postings where they are missing, and swaps when every chunk has them.

    Args:
        kb: the knowledge base, read anew.
        batches: stop after so many, so that a worker can take turns.

    Returns:
        Whether there is nothing left to do.

    Raises:
        AlreadyRunning: another process is at it.
        Rejected: the tokenizer's packages are missing.
        Superseded: the knowledge base moved to another model meanwhile.
    """
    if not kb.target_tokenizer_id:
        return True
    with try_lock(Purpose.TOKENIZE, kb.pk) as taken:
        if not taken:
            raise AlreadyRunning(
                "already_running", _("Another process is tokenising this knowledge base: wait until it is done.")
            )
        cutter = tokenizer(kb.target_tokenizer_id)
        if cutter is None:
            raise Rejected("bm25_dependencies_missing", _("The packages of the chosen tokenizer are not installed."))
        if cutter.id != kb.target_tokenizer_id:  # a package was upgraded on the way
            tokenizer_change(kb, renewed_settings(kb, kb.target_tokenizer_id, cutter.id))
            return not kb.target_tokenizer_id
        left = count() if batches is None else iter(range(batches))
        target = ChunkPostings.objects.filter(tokenizer_id=cutter.id)
        # An earlier run went by id too; what it left out stands before its last chunk, for the next round.
        after = target.filter(knowledge_base=kb).aggregate(last=Max("chunk_id"))["last"] or 0
        while True:
            for batch in chunk_batches(kb, after=after, done=partial(_among, target)):
                if next(left, None) is None:
                    return False
                write_tokens(kb, batch, cutter)
                KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizing_at=timezone.now())
            if _swap(kb, cutter.id):
                return True
            after = 0


def follow_to_target(kb: KnowledgeBase, *, on_progress: Callable[[int], None] = lambda _: None) -> None:
    """Returns when the knowledge base has reached its target, brought there by this process or by a worker.

    Args:
        kb: the knowledge base; read anew while this goes on.
        on_progress: told how many further chunks are done.

    Raises:
        Rejected: the tokenizer's packages are missing.
    """
    done = total = 0
    while progress := tokenizing_progress(kb):
        on_progress(progress.done - done)
        done, total = progress.done, progress.total
        try:
            tokenize_to_target(kb, batches=FOLLOWED_BATCHES)
        except Superseded:  # the knowledge base was changed meanwhile
            pass
        except AlreadyRunning:
            time.sleep(LOOK_SECONDS)
        kb.refresh_from_db()
    on_progress(total - done)


def write_tokens(kb: KnowledgeBase, batch: list[Chunk], cutter: JiebaTokenizer) -> None:
    """Tokenises chunks and writes their postings, less those that have been edited meanwhile.

    Nothing is written where the tokenizer has ceased to be wanted.

    Raises:
        Superseded: the knowledge base moved to another model or tokenizer meanwhile.
    """
    pairs = zip(batch, tokenize([searchable_text_of(chunk) for chunk in batch], [cutter]), strict=True)
    with holding_model(kb) as wanted:
        if cutter.id in wanted:
            write_postings(unchanged(pairs))


def _swap(kb: KnowledgeBase, tokenizer_id: str) -> bool:
    """Moves to the target if every chunk has its postings. What searches under way still read goes a little later."""
    with transaction.atomic():
        locked = KnowledgeBase.objects.select_for_update(no_key=True).get(pk=kb.pk)
        if locked.target_tokenizer_id != kb.target_tokenizer_id:
            return True
        if lacks_postings(kb, tokenizer_id):
            return False
        locked.tokenizer_id, locked.target_tokenizer_id, locked.lacks_postings = tokenizer_id, "", False
        locked.tokenizer_swapped_at = timezone.now()
        locked.save(update_fields=["tokenizer_id", "target_tokenizer_id", "lacks_postings", "tokenizer_swapped_at"])
    return True


def drop_retired_postings() -> int:
    """Deletes what former tokenizers have left behind, once no search can be under way with it.

    Returns:
        How many knowledge bases were cleared.
    """
    retired = KnowledgeBase.objects.filter(tokenizer_swapped_at__lt=timezone.now() - RETIRED_FOR)
    cleared = 0
    for kb_id in list(retired.values_list("pk", flat=True)):
        with transaction.atomic():
            locked = KnowledgeBase.objects.select_for_update(no_key=True).filter(pk=kb_id).first()
            if locked is None:
                continue
            _keep_only(kb_id, locked.tokenizer_id, locked.target_tokenizer_id)
            KnowledgeBase.objects.filter(pk=kb_id).update(tokenizer_swapped_at=None)
        cleared += 1
    return cleared


def _among(postings: QuerySet[ChunkPostings], chunk_ids: Sequence[int]) -> QuerySet[ChunkPostings, int]:
    return postings.filter(chunk__in=chunk_ids).values_list("chunk_id", flat=True)


def lacks_postings(kb: KnowledgeBase, tokenizer_id: str) -> bool:
    """Whether any chunk has no postings of a tokenizer."""
    return any_chunk_without(kb, ChunkPostings.objects.filter(tokenizer_id=tokenizer_id))


def _keep_only(kb_id: int, *tokenizer_ids: str) -> None:
    """Drops the postings and settings of all other tokenizers."""
    ChunkPostings.objects.filter(knowledge_base=kb_id).exclude(tokenizer_id__in=tokenizer_ids).delete()
    TokenizerSettings.objects.filter(knowledge_base=kb_id).exclude(tokenizer_id__in=tokenizer_ids).delete()


def problem_in_words(error: DictionaryError) -> str:
    """What is wrong with a line of a dictionary or of stop words, and the remedy, in the reader's language."""
    sentences: Mapping[str, str] = {
        DictionaryProblem.EMPTY_WORD: _("Line %(line)d: there is no word before the frequency: write one."),
        DictionaryProblem.NO_LETTERS: _(
            "Line %(line)d: what has no letter and no digit is never searched: take the line out."
        ),
        DictionaryProblem.WORD_TOO_LONG: _(
            "Line %(line)d: the word is too long: write one of at most %(characters)s characters."
        ),
        DictionaryProblem.BAD_FREQUENCY: _(
            "Line %(line)d: the frequency is not a whole number from 1 to %(frequency)s: correct it, or add a frequency "
            "if the word ends in this number."
        ),
        DictionaryProblem.TOO_MANY_LINES: _("There are more than %(lines)s lines: leave out words that seldom occur."),
        DictionaryProblem.TOO_MANY_CHARACTERS: _(
            "The words have more than %(all_characters)s characters in all: leave out words that seldom occur."
        ),
    }
    return sentences[error.problem] % {
        "line": error.line,
        "characters": MAX_WORD_CHARACTERS,
        "frequency": f"{MAX_FREQUENCY:,}",
        "lines": f"{MAX_LINES:,}",
        "all_characters": f"{MAX_CHARACTERS:,}",
    }
