"""Texts that a program keeps under ids of its own: one text is one document is one chunk, searchable when `add` returns.

A text's id stands in its document's metadata and, hashed, as its `sha256`: that column is unique in a knowledge base, has
an index, and cannot be edited, so an id names one text, and never a document that came in as a file.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.base.errors import Rejected, found_in, not_editable
from kb.base.shapes import as_values
from kb.base.text import storable, validate_metadata
from kb.content.models import Chunk, Document
from kb.index.conditions import Operator
from kb.index.filters import Filters
from kb.ingest.services.documents import batches, documents_delete, write_whole_documents
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import find_version
from kb.providers.embedding_models import embedder
from kb.search.services.search import SearchRequest, result_of, search
from retrieval.protocols import Embedder, FoundText, StoredText
from retrieval.types import Hit

ID_FIELD = "langchain_id"
PASSAGE_FIELDS = ("source_type", "tags", "heading_path")
CHUNK_ID = re.compile("[0-9]{1,18}")  # what fits a bigint whatever the digits are


@contextmanager
def _borrowed_connection() -> Iterator[None]:
    """Gives the connection back where this call has opened it: an event loop's threads would each keep one for good."""
    held = connection.connection is not None
    try:
        yield
    finally:
        if not held:
            connection.close()


@dataclass(frozen=True, slots=True)
class PermittedTexts:
    """The texts of one knowledge base under a user's rights (`retrieval.protocols.KnowledgeBaseTexts`).

    Every method raises NotVisible where the knowledge base, or the profile, does not exist for the principal, who is
    asked for at every call, so that rights which are withdrawn end at once. The profile is as in SearchRequest.
    """

    principal: Callable[[], Principal]
    kb_id: int
    profile: str = ""
    profile_version: int | None = None

    def check(self) -> None:
        principal = self.principal()
        self._visible(principal)
        if self.profile:
            find_version(principal, self.profile, self.profile_version, scope=[self.kb_id])

    @_borrowed_connection()
    def search(self, query: str, k: int, *, metadata: Mapping[str, Any] | None = None) -> list[FoundText]:
        """Finds texts and chunks of other documents; raises as `search` of services.

        InvalidFilter means that a value of the metadata is neither a text nor a number, true, false or null.
        """
        conditions = [{"key": key, "op": Operator.EQ, "value": value} for key, value in (metadata or {}).items()]
        principal = self.principal()
        request = SearchRequest(
            query=query,
            knowledge_base_ids=[self.kb_id],
            profile=self.profile,
            profile_version=self.profile_version,
            overrides={"top_k": k, "score_threshold": 0.0},
            filters=Filters.parse({"metadata": conditions}) if conditions else None,
        )
        outcome = search(principal, request)
        hits, used = outcome.result.hits, outcome.wiring.profile
        documents = Document.objects.visible_to(principal).in_bulk({hit.passage.document_id for hit in hits})
        return [_found(hit, documents.get(hit.passage.document_id), used) for hit in hits]

    @_borrowed_connection()
    def add(self, texts: Sequence[StoredText]) -> None:
        """Writes texts in batches, each in one transaction; one that is there unchanged stays, also if it is disabled.

        Raises:
            NotAllowed: the user may see the knowledge base, but not change it.
            Rejected: a text is blank or its metadata cannot be stored; nothing was written.
            ModelUnavailable: the knowledge base's model cannot be loaded.
            Superseded: the knowledge base moved to another model meanwhile; earlier batches stay.
        """
        principal = self.principal()
        kb = self._editable(principal)
        latest = {text.id: text for text in map(_storable, texts)}
        for batch in batches(latest.values()):
            _write(kb, batch, principal.user if isinstance(principal.user, User) else None)

    @_borrowed_connection()
    def delete(self, ids: Sequence[str] | None) -> None:
        """Deletes texts added under these ids (None: any), never a document that was a file; NotAllowed as `add`."""
        documents = Document.objects.filter(knowledge_base=self._editable(self.principal()))
        if ids is None:
            documents_delete(documents.filter(file="", metadata__has_key=ID_FIELD))
        else:
            documents_delete(documents.filter(sha256__in=[_key(text_id) for text_id in ids]))

    @_borrowed_connection()
    def get(self, ids: Sequence[str]) -> dict[str, StoredText]:
        """The texts added under these ids; for other ids that are those of chunks, as a search returns them, these."""
        chunks = Chunk.objects.filter(knowledge_base=self._visible(self.principal()), enabled=True)
        found = _texts(chunks.filter(document__sha256__in=[_key(text_id) for text_id in ids]))
        others = [int(each) for each in ids if each not in found and CHUNK_ID.fullmatch(each)]
        return {**_texts(chunks.filter(pk__in=others)), **found}

    @_borrowed_connection()
    def embedder(self) -> Embedder:
        return embedder(self._visible(self.principal()).embedding_model)

    def _visible(self, principal: Principal) -> KnowledgeBase:
        rows: QuerySet[KnowledgeBase] = KnowledgeBase.objects.visible_to(principal).filter(pk=self.kb_id)
        return found_in(rows, _("There is no knowledge base with the id %(ids)s.") % {"ids": self.kb_id})

    def _editable(self, principal: Principal) -> KnowledgeBase:
        kb = self._visible(principal)
        if not KnowledgeBase.objects.editable_by(principal).filter(pk=self.kb_id).exists():
            raise not_editable()
        return kb


def _key(text_id: str) -> str:
    return hashlib.sha256(f"text\0{text_id}".encode(errors="surrogatepass")).hexdigest()


def _stored_text(chunk_id: int, content: str, document: Document) -> StoredText:
    text_id = document.metadata.get(ID_FIELD)
    # Metadata alone do not tell the id that a document was added under, since they are anyone's to edit.
    if not isinstance(text_id, str) or document.sha256 != _key(text_id):
        return StoredText(str(chunk_id), content, document.metadata)
    return StoredText(text_id, content, {name: value for name, value in document.metadata.items() if name != ID_FIELD})


def _texts(chunks: QuerySet[Chunk]) -> dict[str, StoredText]:
    stored = (_stored_text(chunk.pk, chunk.text, chunk.document) for chunk in chunks.select_related("document"))
    return {text.id: text for text in stored}


def _found(hit: Hit, document: Document | None, profile: RetrievalProfile) -> FoundText:
    fields = as_values(result_of(hit))
    passage = hit.passage
    # Deleted since it was found: what the search has read of it is what there is.
    text = _stored_text(passage.chunk_id, passage.text, document or Document(metadata=dict(passage.metadata)))
    if passage.origin is not None:
        text = StoredText(passage.source or passage.origin.id, passage.text, {"source": passage.source})
    provenance = {name: value for name, value in fields.items() if name not in {"text", "metadata"}}
    provenance |= {name: fields["metadata"][name] for name in PASSAGE_FIELDS if name in fields["metadata"]}
    provenance["profile"] = {"name": profile.name, "version": profile.version}
    return FoundText(text, hit.score, hit.score_scale, provenance)


def _storable(text: StoredText) -> StoredText:
    """The text as it will be read back: without what cannot be stored, its metadata as JSON has them."""
    content = storable(text.content)
    if not content.strip():
        raise Rejected("blank_text", _("The text “%(id)s” is empty: leave it out."), id=text.id)
    try:
        metadata = json.loads(json.dumps(dict(text.metadata)))
        validate_metadata({**metadata, ID_FIELD: text.id})
    except (TypeError, ValueError, ValidationError) as error:
        message = _(
            "The metadata of the text “%(id)s” cannot be stored: %(reason)s Give numbers, strings, lists and objects."
        )
        reason = " ".join(error.messages) if isinstance(error, ValidationError) else str(error)
        raise Rejected("invalid_metadata", message, id=text.id, reason=reason) from error
    if ID_FIELD in metadata:
        message = _("The metadata of the text “%(id)s” have the field “%(field)s”, which holds its id: rename it.")
        raise Rejected("invalid_metadata", message, id=text.id, field=ID_FIELD)
    return StoredText(text.id, content, metadata)


def _write(kb: KnowledgeBase, texts: Sequence[StoredText], user: User | None) -> None:
    stored = _texts(Chunk.objects.filter(knowledge_base=kb, document__sha256__in=[_key(text.id) for text in texts]))
    documents = [
        (
            Document(
                title=_named(text, "title"),
                source=_named(text, "source", text.id),
                sha256=_key(text.id),
                metadata={**text.metadata, ID_FIELD: text.id},
                created_by=user,
            ),
            text.content,
        )
        for text in texts
        if stored.get(text.id) != text
    ]
    earlier = Document.objects.filter(knowledge_base=kb, sha256__in=[document.sha256 for document, _ in documents])
    write_whole_documents(kb, documents, replaced=earlier)


def _named(text: StoredText, field: str, default: str = "") -> str:
    value = text.metadata.get(field)
    return value if isinstance(value, str) and value else default
