"""Moving a knowledge base to another embedding model: beside the one in use, with a swap at the end and a way back."""

import time
from collections.abc import Iterator, Sequence

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.dispatch import Signal
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import Purpose
from kb.base.errors import Rejected
from kb.content.models import Chunk
from kb.index.keywords import Source
from kb.index.models import ChunkEmbedding, Reembedding
from kb.index.services.writing import (
    add_vectors,
    any_chunk_without,
    chunk_batches,
    holding_model,
    prepare,
    searchable_text_of,
    unchanged,
)
from kb.index.vector_index import maintain_vector_indexes
from kb.jobs.moves import LOOK_SECONDS, RETIRED_FOR, FollowedMove, lock_row
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import STARTING, reference, starting_profile, suitable_name
from kb.providers.embedding_models import embedder
from kb.providers.usage.counting import counted_for
from retrieval.errors import RetrievalError, message_of
from retrieval.protocols import Embedder

# Sent with `knowledge_base` before vectors of a former model are deleted: a receiver that reads them raises `Rejected`.
vectors_dropping = Signal()

Status = Reembedding.Status


# -- What a curator asks for -----------------------------------------------------------------------------------------------
def reembedding_start(kb: KnowledgeBase, model_id: str, *, swaps: bool = False) -> None:
    """Sets the target; a worker makes its vectors, and searches use the present ones until the swap.

    A change to the same target that was interrupted or has failed goes on where it stood. With `swaps` searches change
    over as soon as every chunk has its vector. A model in use, and one beside another that is on its way, is Rejected.
    """
    with REEMBED.changing(kb) as locked:
        if model_id == locked.embedding_model:
            raise Rejected("model_in_use", _("Searches use the model “%(model)s” already."), model=model_id)
        if locked.target_embedding_model not in ("", model_id):
            message = _("The knowledge base is on its way to “%(model)s”: swap to it or cancel that change first.")
            raise Rejected("already_changing", message, model=locked.target_embedding_model)
        row, _created = Reembedding.objects.get_or_create(knowledge_base=locked, defaults={"model": model_id})
        if not locked.target_embedding_model:
            row.model, row.dimension = model_id, None
            if model_id != locked.previous_embedding_model:
                _vectors(locked, model_id).delete()  # what an older change has left behind
            locked.target_embedding_model = model_id
            locked.save(update_fields=["target_embedding_model"])
        now = timezone.now()
        row.status, row.error, row.swaps = Status.BUILDING, "", swaps
        row.counted_from, row.counted_at, row.told_at = REEMBED.done(locked, model_id), now, now
        row.save()


def reembedding_cancel(kb: KnowledgeBase) -> None:
    """Gives up the target and its vectors; those that are kept for a return stay."""
    with REEMBED.changing(kb) as locked:
        target = locked.target_embedding_model
        if target:
            locked.target_embedding_model = ""
            locked.save(update_fields=["target_embedding_model"])
            Reembedding.objects.filter(knowledge_base=locked).update(status=Status.CANCELLED, swaps=False)
            if target != locked.previous_embedding_model:
                _vectors(locked, target).delete()


def reembedding_swap(kb: KnowledgeBase) -> bool:
    """Changes searches over to the target: at once where every chunk has its vector (True), else a worker does later.

    Without a target it is Rejected.
    """
    kb.refresh_from_db()
    if not kb.target_embedding_model:
        raise Rejected("no_target", _("There is nothing to swap to: start a change of the embedding model first."))
    is_ready = Reembedding.objects.filter(knowledge_base=kb, status=Status.READY).exists()
    if is_ready and REEMBED.swap(kb, kb.target_embedding_model):
        return True
    reembedding_start(kb, kb.target_embedding_model, swaps=True)
    return False


def reembedding_rollback(kb: KnowledgeBase) -> bool:
    """Goes back to the former model: at once where no chunk has changed since (True), else a worker embeds those first.

    Rejected where the former vectors were dropped, or the knowledge base is on its way to another model.
    """
    kb.refresh_from_db()
    if not kb.previous_embedding_model:
        message = _("There are no former vectors to return to: start a change of the model instead.")
        raise Rejected("nothing_kept", message)
    reembedding_start(kb, kb.previous_embedding_model, swaps=True)
    return REEMBED.swap(kb, kb.target_embedding_model)


def reembedding_drop(kb: KnowledgeBase) -> int:
    """Deletes the former model's vectors, so that to return to it means to embed again; how many there were.

    Rejected where there are none, or something may still be reading them.
    """
    with REEMBED.changing(kb) as locked:
        previous = locked.previous_embedding_model
        if not previous:
            raise Rejected("nothing_kept", _("There are no former vectors to drop."))
        if previous == locked.target_embedding_model:
            message = _("The knowledge base is returning to these vectors: cancel that first.")
            raise Rejected("already_changing", message)
        if Reembedding.objects.filter(knowledge_base=locked, swapped_at__gt=timezone.now() - RETIRED_FOR).exists():
            message = _("Searches that began before the swap may still read the former vectors: try again in a minute.")
            raise Rejected("just_swapped", message)
        vectors_dropping.send(KnowledgeBase, knowledge_base=locked)
        locked.previous_embedding_model = ""
        locked.save(update_fields=["previous_embedding_model"])
        dropped, _by_model = _vectors(locked, previous).delete()
    return dropped


def profile_after(kb: KnowledgeBase, model_id: str) -> RetrievalProfile:
    """What a knowledge base searches by with another model: its own profile, unless it started with that.

    Where the environment sets variables of the fusion, of those only the one that suits its present model gives way.
    """
    given = (suitable_name(kb.embedding_model),) if settings.FUSION_VARIABLES else STARTING
    return starting_profile(model_id) if reference(kb.profile) in given else kb.profile


def search_with(kb: KnowledgeBase, model_id: str) -> None:
    """Makes this object, and nothing that is stored, search a model on its way or kept; without its vectors: Rejected."""
    if model_id == kb.embedding_model:
        return
    if not model_id or model_id not in (kb.target_embedding_model, kb.previous_embedding_model):
        message = _("The knowledge base holds no vectors of the model “%(model)s”: start a change to it first.")
        raise Rejected("no_such_vectors", message, model=model_id)
    kb.embedding_model, kb.dimension = model_id, None  # whatever the model answers with is what made them


# -- What a worker does ----------------------------------------------------------------------------------------------------
class Reembed(FollowedMove):
    target = "target_embedding_model"
    fields = ("profile", "embedding_model", "previous_embedding_model", "target_embedding_model", "dimension")
    stamp = "told_at"
    purpose = Purpose.REEMBED
    busy = gettext_lazy("Another process is embedding this knowledge base: wait until it is done.")
    failures = (RetrievalError,)

    def build(self, kb: KnowledgeBase, left: Iterator[int]) -> bool:
        """Makes the target's vectors where they are missing, then its indexes, and swaps where that is wanted.

        Raises ModelUnavailable where the model cannot be loaded or reached.
        """
        model_id = kb.target_embedding_model
        model = embedder(model_id)
        _update_status(kb, Status.BUILDING, dimension=model.dimension)  # loads the model, or says why not
        while True:
            for batch in chunk_batches(
                kb, done=lambda ids: _contents(model_id).filter(chunk__in=ids).values_list("chunk_id", flat=True)
            ):
                if next(left, None) is None:
                    return False
                if not _embed(kb, model, batch):
                    return True
            if any_chunk_without(kb, _contents(model_id)):
                continue
            _update_status(kb, Status.INDEXING)
            if not _indexed(kb):
                return False
            row = _update_status(kb, Status.READY)
            if row is None or not row.swaps or self.swap(kb, model_id):
                return True

    def swap(self, kb: KnowledgeBase, model_id: str) -> bool:
        """Moves searches to the target; False where a chunk was written meanwhile. What searches under way read stays."""
        with self.changing(kb) as row:
            if row.target_embedding_model != model_id:
                return True
            if any_chunk_without(kb, _contents(model_id)):
                return False
            state = Reembedding.objects.select_for_update().get(knowledge_base=row)
            row.profile = profile_after(row, model_id)
            row.previous_embedding_model, row.embedding_model = row.embedding_model, model_id
            row.target_embedding_model = ""
            row.dimension = state.dimension or embedder(model_id).dimension
            row.save(update_fields=self.fields)
            state.status, state.swaps, state.error, state.swapped_at = Status.SWAPPED, False, "", timezone.now()
            state.save()
        drop_unused_vectors(row)
        return True

    def done(self, kb: KnowledgeBase, target: str) -> int:
        return _contents(target).filter(knowledge_base=kb).count()

    def has_ended(self, kb: KnowledgeBase, target: str) -> bool:  # noqa: ARG002
        row = Reembedding.objects.get(knowledge_base=kb)
        if row.status == Status.FAILED:
            raise Rejected("reembedding_failed", row.error)
        if row.status == Status.CANCELLED:
            raise Rejected("reembedding_cancelled", _("The change of the embedding model was cancelled meanwhile."))
        return row.status == Status.SWAPPED

    def unfinished(self) -> QuerySet[Reembedding]:
        return Reembedding.objects.filter(status__in=(Status.BUILDING, Status.INDEXING)).exclude(
            knowledge_base__target_embedding_model=""
        )

    def note_failure(self, kb_id: int, error: Exception) -> None:
        self.unfinished().filter(pk=kb_id).update(status=Status.FAILED, error=message_of(error), told_at=timezone.now())


REEMBED = Reembed()


def _embed(kb: KnowledgeBase, model: Embedder, batch: Sequence[Chunk]) -> bool:
    """Writes the vectors of chunks, less those that have been edited meanwhile; False where the target has changed."""
    sources = [  # another model is no reason to look for other keywords and questions than the chunk has
        Source(
            searchable_text_of(chunk),
            chunk.text,
            tuple(chunk.questions),
            tuple(chunk.keywords) if kb.keyword_vectors or chunk.own_keywords else (),
        )
        for chunk in batch
    ]
    with counted_for(kb.pk):
        prepared = prepare(sources, tokenizers=(), embedder=model)
    with holding_model(kb):
        if not KnowledgeBase.objects.filter(pk=kb.pk, target_embedding_model=model.model_id).exists():
            return False
        add_vectors(unchanged(zip(batch, prepared, strict=True)), model.model_id)
        Reembedding.objects.filter(knowledge_base=kb).update(told_at=timezone.now())
    return True


def _indexed(kb: KnowledgeBase) -> bool:
    for _attempt in range(20):
        if maintain_vector_indexes(kb.pk):
            return True
        time.sleep(LOOK_SECONDS)
    return False


def drop_unused_vectors(kb: KnowledgeBase) -> None:
    """Vectors of models that are neither in use nor kept go, in a transaction of their own: nobody reads them."""
    with transaction.atomic():
        locked = lock_row(kb)
        kept = (locked.embedding_model, locked.previous_embedding_model, locked.target_embedding_model)
        ChunkEmbedding.objects.filter(knowledge_base=locked).exclude(model__in=kept).delete()


def _update_status(kb: KnowledgeBase, status: Reembedding.Status, **fields: object) -> Reembedding | None:
    """Writes what is being done, unless the change was given up; returns how it stands now."""
    target = kb.target_embedding_model
    own = Reembedding.objects.filter(knowledge_base=kb, model=target, knowledge_base__target_embedding_model=target)
    own.update(status=status, told_at=timezone.now(), **fields)
    return own.first()


def _vectors(kb: KnowledgeBase, model_id: str) -> QuerySet[ChunkEmbedding]:
    return ChunkEmbedding.objects.filter(knowledge_base=kb, model=model_id)


def _contents(model_id: str) -> QuerySet[ChunkEmbedding]:
    return ChunkEmbedding.objects.filter(model=model_id, kind=ChunkEmbedding.Kind.CONTENT)
