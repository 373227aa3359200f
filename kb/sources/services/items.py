"""The items of a source and their documents: what a run, or a client that syncs a folder, does with each of them.

A document follows its content. Where an item has the bytes that another one's document was made from, and that other item
has them no more, the document goes over with its edits, questions and judgments.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, cast

from django.core.files.base import File
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_noop

from kb.base.errors import AlreadyThere, Rejected
from kb.base.net.addresses import FetchError
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.parser.archives import is_archive_name
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services.documents import (
    SOURCE_CHARACTERS,
    document_add,
    document_replace_file,
    document_update,
    documents_delete,
    source_of_name,
)
from kb.sources.connectors.protocol import Item
from kb.sources.models import Source, SourceItem
from retrieval.errors import Message, message_of

TITLE_CHARACTERS: Final = 500
VERSION_CHARACTERS: Final = 500
NO_ERROR: Final[dict[str, Any]] = {
    "error": "",
    "error_code": "",
    "error_params": {},
    "gone_at": None,
    "shown_key": "",
}
ARCHIVE = gettext_noop("“{name}” is an archive: put its files themselves where the source is read from, or upload it.")


def hash_of(key: str) -> str:
    """What an item is found by: the SHA-256 of its key, or of its address where that is its key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def version_of(item: Item) -> str:
    """The version as it is stored: a long one by its hash."""
    version = storable(item.version)
    return version if len(version) <= VERSION_CHARACTERS else hash_of(version)


def locked_item(source: Source, identity: str, **fields: str) -> SourceItem:
    """The row of a key or an address, made with these fields if there is none, inside a transaction."""
    rows = SourceItem.objects.select_for_update()
    return cast(SourceItem, rows.get_or_create(source=source, key_hash=hash_of(identity), defaults=fields)[0])


def item_take(
    source: Source, item: Item, file: "File[bytes]", digest: str, *, is_free: Callable[[SourceItem], bool], at: datetime
) -> str:
    """Stores what was read of an item, in a transaction that holds the knowledge base.

    The item is given as it was read, with the SHA-256 of its file; one whose bytes are as before is only noted. `is_free`
    says whether an item of the source that has a document does not have its content any more. `at`: when the run or the
    sync began, as of which the item is seen.

    Returns "added", "changed", "unchanged", "moved", "duplicate" (the knowledge base has the bytes otherwise; what document
    the item had stays for now) or "failed" (it cannot be read; the error says why).
    """
    if (outcome := item_match(source, item, digest, is_free=is_free, at=at)) is not None:
        return outcome
    row = locked_item(source, item.key, key=storable(item.key))
    try:
        _refuse_archive(name_of(item))
        with transaction.atomic():
            if row.document_id is None:
                row.document = _add(source, item, file)
                outcome = "added"
            else:
                _replace(row, item, file)
                outcome = "changed"
    except AlreadyThere as error:
        other = Document.objects.filter(pk=error.document_id).first()
        reason = {**error_fields(FetchError("duplicate", title=str(other or ""))), "content_hash": digest}
        since = row.gone_at if row.state == SourceItem.State.DUPLICATE and row.content_hash == digest else None
        gone_at = (since or timezone.now()) if row.document_id is not None else None
        seen = {} if row.document_id is not None else {"digest": digest}
        _note(row, item, at, state=SourceItem.State.DUPLICATE, **{**seen, **reason, "gone_at": gone_at})
        return "duplicate"
    except Rejected as error:
        reason = {"error": message_of(error), "error_code": error.code, "error_params": {}, "content_hash": digest}
        _note(row, item, at, state=SourceItem.State.FAILED, **reason)
        return "failed"
    # As the place says it, which the next listing is compared with.
    size = file.size if item.size is None else item.size
    kept = {"document": row.document, "digest": digest, "size": size, "content_hash": ""}
    _note(row, item, at, state=SourceItem.State.KEPT, **{**kept, **NO_ERROR})
    return outcome


def item_match(
    source: Source, item: Item, digest: str, *, is_free: Callable[[SourceItem], bool], at: datetime
) -> str | None:
    """As `item_take` where the digest is enough: "unchanged" or "moved"; None: the file itself is needed."""
    rows = SourceItem.objects.filter(source=source)
    row = rows.filter(key_hash=hash_of(item.key)).select_related("document").first()
    if row is not None and row.document is not None and row.digest == digest == row.document.sha256:
        _note(row, item, at, state=SourceItem.State.UNCHANGED, content_hash="", **NO_ERROR)
        return "unchanged"
    same = rows.filter(digest=digest, document__sha256=digest).exclude(pk=row.pk if row else None).order_by("pk")
    free = next((each for each in same.select_related("document") if is_free(each)), None)
    if free is None:
        return None
    _exchange(locked_item(source, item.key, key=storable(item.key)), free, item, at)
    return "moved"


def item_fail(source: Source, item: Item, error: FetchError, at: datetime) -> str:
    """Notes why an item could not be read, inside a transaction; the document stays as it was. Returns "failed"."""
    row = locked_item(source, item.key, key=storable(item.key))
    # The version stays that of what was read: the item is asked again.
    _note(row, item, at, state=SourceItem.State.FAILED, version=row.version, **error_fields(error))
    return "failed"


def item_remark(source: Source, item: Item, error: FetchError) -> None:
    """Notes what was odd about an item that was read all the same."""
    SourceItem.objects.filter(source=source, key_hash=hash_of(item.key)).update(**error_fields(error))


def item_delete(row: SourceItem) -> str:
    """Deletes an item that is gone and its document, in a transaction that holds the knowledge base.

    Another item of the source with the same bytes takes the document over: "moved" is returned then, else "deleted". An
    item that is there and whose bytes are another document's by now keeps its row.
    """
    document = row.document
    is_gone = row.state == SourceItem.State.GONE
    heir = heirs(row.source).filter(digest=row.digest).exclude(pk=row.pk).first() if document and row.digest else None
    if is_gone:
        row.delete()
    else:
        row.document, row.digest = None, row.content_hash
        row.gone_at = None
        row.save(update_fields=["document", "digest", "gone_at"])
    if document is None:
        return "deleted"
    if heir is not None:
        save_item(heir, document=document, state=SourceItem.State.KEPT, **NO_ERROR)
        document_update(document, **_details(document, heir))
        return "moved"
    documents_delete(Document.objects.filter(pk=document.pk))
    return "deleted"


def heirs(source: Source) -> QuerySet[SourceItem]:
    """Items that are there, and have no document since another one has the same bytes."""
    return SourceItem.objects.filter(source=source, state=SourceItem.State.DUPLICATE, document=None).order_by("pk")


def name_of(item: Item) -> str:
    """The name of the file, whose extension says how it is read."""
    return source_of_name(storable(item.name or item.key))


def metadata_of_item(item: Item) -> dict[str, str]:
    """The metadata of the document of an item."""
    known = {"path": item.key, "url": item.url, "modified": item.modified.isoformat() if item.modified else ""}
    stated = {**item.metadata, **{name: value for name, value in known.items() if value}}
    return {storable(name): storable(value) for name, value in stated.items()}


def error_fields(error: FetchError | ParseError) -> dict[str, Any]:
    return {"error": str(error), "error_code": str(error.code), "error_params": {**error.params}}


def _refuse_archive(name: str) -> None:
    """A worker would put the documents in it in the place of its own."""
    if is_archive_name(name):
        raise Rejected("unsupported_type", Message(ARCHIVE, name=name))


def _add(source: Source, item: Item, file: "File[bytes]") -> Document:
    return document_add(
        knowledge_base=source.knowledge_base,
        file=file,
        name=name_of(item),
        user=source.created_by,
        title=storable(item.title)[:TITLE_CHARACTERS],
        metadata=metadata_of_item(item),
        tags=list(source.tags),
    )


def _replace(row: SourceItem, item: Item, file: "File[bytes]") -> None:
    document = Document.objects.select_for_update().get(pk=row.document_id)
    changes: dict[str, Any] = {"metadata": document.metadata | metadata_of_item(item)}
    if item.title and document.title == row.title:  # a curator's own title stays
        changes["title"] = storable(item.title)[:TITLE_CHARACTERS]
    document_replace_file(document=document, file=file, name=name_of(item), **changes)


def _exchange(row: SourceItem, free: SourceItem, item: Item, at: datetime) -> None:
    """Gives an item the document of another one, which gets what this one had: its content is not there any more."""
    document, before, digest = free.document, row.document, row.digest
    SourceItem.objects.filter(pk=free.pk).update(document=None, digest="")
    moved = {"document": document, "digest": free.digest, "content_hash": ""}
    _note(row, item, at, state=SourceItem.State.KEPT, **{**moved, **NO_ERROR})
    left = {"document": before, "digest": digest if before else "", "state": SourceItem.State.KEPT, "gone_at": None}
    # Its version was that of the content which has moved.
    SourceItem.objects.filter(pk=free.pk).update(**left, version="")
    if before is not None:
        document_update(before, **_details(before, free))
    if document is not None:
        document_update(document, **_details(document, row, item))


def _details(document: Document, row: SourceItem, item: Item | None = None) -> dict[str, Any]:
    """What of a document says where its item is."""
    item = item or Item(key=row.key, name=row.name, url=row.url)
    # Of the item before, but for what somebody has added.
    kept = {name: value for name, value in document.metadata.items() if name not in {"path", "url", "modified"}}
    return {"source": name_of(item)[:SOURCE_CHARACTERS], "metadata": kept | metadata_of_item(item)}


def _note(row: SourceItem, item: Item, at: datetime, **fields: Any) -> None:
    """Writes what is known of an item that was asked for now."""
    said: dict[str, Any] = {
        "key": storable(item.key),
        "name": name_of(item),
        "url": item.url[:2_000],
        "title": storable(item.title)[:TITLE_CHARACTERS],
        "version": version_of(item),
        "fetched_at": timezone.now(),
        "seen_at": at,
    } | ({"size": item.size} if item.size is not None else {})
    save_item(row, **{**said, **fields})


def save_item(row: SourceItem, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(row, name, value)
    row.save(update_fields=list(fields))
