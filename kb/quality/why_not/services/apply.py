"""Doing what would help, and the search that shows whether it does."""

import dataclasses

from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import NotAllowed, Rejected
from kb.content.models.documents import Chunk
from kb.index.services.tokenizing.tokenizing import read_settings, tokenizer_change, tokenizer_settings
from kb.ingest.services.chunk_work.editing import chunk_reindex, chunk_update
from kb.ingest.services.documents import document_requeue
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, create_version, reference
from kb.quality.why_not.services.types import Remedy, RemedyCode, Stage, WhyNot
from kb.search.services.search import SearchRequest

MOST_QUESTION_CHARACTERS = 2_000

OF_COUNTS = frozenset({"top_k", "rerank_top_k", "general_final_count"})
"""An explicit `top_k` of a request sets all three."""


def apply_remedy(principal: Principal, why: WhyNot, remedy: Remedy, text: str = "") -> SearchRequest:
    """Does what a remedy says.

    A word for the dictionary and a document take effect when a worker is done; the rest at once.

    Args:
        principal: who does it.
        why: what the remedy is for.
        remedy: one of those of `why`.
        text: the word or the question; blank: the first suggestion.

    Returns:
        The search that shows the effect.

    Raises:
        NotAllowed: the principal may not change this.
        Rejected: the text cannot be used, a model is out of reach, or there is nothing to do here.
        Superseded: the knowledge base moved to another model meanwhile; nothing was changed.
    """
    if remedy.code is RemedyCode.DRAFT:
        return _with_draft(principal, why, remedy)
    if remedy.request is not None:
        return remedy.request
    _require_editable(principal, why.chunk)
    said = " ".join(text.split()) or next(iter(remedy.suggestions), "")
    match remedy.code:
        case RemedyCode.ENABLE:
            chunk_update(why.chunk, text=why.chunk.text, enabled=True)
        case RemedyCode.INDEX_CHUNK:
            chunk_reindex(why.chunk)
        case RemedyCode.RETRY_DOCUMENT:
            document_requeue(why.chunk.document, keep_chunks=True)
        case RemedyCode.ADD_QUESTION:
            _add_question(why.chunk, said)
        case RemedyCode.ADD_WORD:
            _add_word(why.chunk.knowledge_base, said)
        case _:
            raise Rejected("no_such_remedy", _("There is nothing to do here: follow its link, or run its command."))
    return why.request


def _require_editable(principal: Principal, chunk: Chunk) -> None:
    if not Chunk.objects.editable_by(principal).filter(pk=chunk.pk).exists():
        raise NotAllowed(_("You may see this, but not change it: ask its owner to make you an editor."))


def _add_question(chunk: Chunk, question: str) -> None:
    if not 0 < len(question) <= MOST_QUESTION_CHARACTERS:
        message = _("Write a question of 1 to %(most)s characters.")
        raise Rejected("unusable_question", message % {"most": MOST_QUESTION_CHARACTERS})
    questions = list(dict.fromkeys([*chunk.questions, question]))
    chunk_update(chunk, text=chunk.text, enabled=chunk.enabled, questions=questions)


def _add_word(kb: KnowledgeBase, word: str) -> None:
    """Adds a word to the dictionary that the knowledge base has, or is moving to."""
    if not word:
        raise Rejected("blank_word", _("Write the word that is to be kept whole."))
    row = tokenizer_settings(kb)
    dictionary = "\n".join(part for part in (row.dictionary.rstrip(), word) if part)
    settings = read_settings(engine=row.engine, dictionary=dictionary, stop_words=row.stop_words, simplify=row.simplify)
    if not tokenizer_change(kb, settings):
        message = _("“%(word)s” is in the dictionary already: nothing was changed.")
        raise Rejected("word_known", message % {"word": word})


def _with_draft(principal: Principal, why: WhyNot, remedy: Remedy) -> SearchRequest:
    """Saves the change as a draft, and searches by it; it serves all knowledge bases of the search."""
    draft = _draft(principal, why, remedy)
    settings = remedy.settings.keys()
    given_up = settings | (OF_COUNTS if settings & OF_COUNTS else frozenset())
    return dataclasses.replace(
        why.request,
        profile=reference(draft),
        profile_version=draft.version,
        own_profiles={},
        overrides={name: value for name, value in why.request.overrides.items() if name not in given_up},
    )


def _draft(principal: Principal, why: WhyNot, remedy: Remedy) -> RetrievalProfile:
    """The next version of the profile in force; of one of the knowledge base's own where that is not the caller's to change.

    A draft with the same settings, from an earlier try, serves again.
    """
    profile, kb = profile_in_force(why), why.chunk.knowledge_base
    name, place = profile.name, profile.knowledge_base
    if not RetrievalProfile.objects.editable_by(principal).filter(pk=profile.pk).exists():
        _require_editable(principal, why.chunk)
        name, place = _own_name(profile, kb), kb
    settings = {**profile.settings, **remedy.settings}
    same = RetrievalProfile.objects.editable_by(principal).filter(
        name=name, knowledge_base=place, settings=settings, published_at=None
    )
    message = _("So that “%(query)s” finds chunk %(id)s.") % {"query": why.request.query, "id": why.chunk.pk}
    return same.order_by("-version").first() or create_version(
        principal, name, settings, description=message, knowledge_base=place
    )


def profile_in_force(why: WhyNot) -> RetrievalProfile:
    """The profile that ruled where the chunk was lost: the channels search by that of its knowledge base."""
    if why.verdict.stage is not Stage.CHANNELS or why.request.profile:
        return why.outcome.wiring.profile
    return next(kb.profile for kb in why.outcome.knowledge_bases if kb.pk == why.chunk.knowledge_base_id)


def _own_name(profile: RetrievalProfile, kb: KnowledgeBase) -> str:
    return f"{profile.name}-kb{kb.pk}"[-MAX_NAME_CHARACTERS:]
