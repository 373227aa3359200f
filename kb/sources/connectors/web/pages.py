"""What a run notes of the addresses of a source of the web, each with the document that it is kept as."""

from collections.abc import Mapping
from typing import Any

from django.core.files.base import ContentFile
from django.db import transaction
from django.utils import timezone

from kb.base.errors import AlreadyThere, Rejected
from kb.base.net.addresses import FetchError
from kb.base.net.client import Fetched
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services.documents import document_add, document_replace_file, documents_delete
from kb.sources.connectors.markup import Candidate, PageContent
from kb.sources.models import SourceItem, SourceItemChange
from kb.sources.services.items import NO_ERROR, TITLE_CHARACTERS, error_fields, locked_item, save_item
from kb.sources.services.runs import Run
from retrieval.errors import message_of


class PageRun(Run):
    """A run that writes what became of addresses."""

    def keep(self, candidate: Candidate, content: PageContent, fetched: Fetched) -> str | None:
        """Stores what was read; of a page whose text has not changed, only that it was read.

        Returns what to count it as: "added", "unchanged", "duplicate" or "failed"; None where the change of a document
        is held, and decided on when the run ends.
        """
        published = candidate.published or content.published
        found = {
            "name": content.name,
            "title": storable(candidate.title or content.title)[:TITLE_CHARACTERS],
            "published": published.isoformat(timespec="seconds") if published else "",
            "text_hash": content.text_hash,
            "text_key": content.text_key,
            "etag": storable(fetched.etag),
            "last_modified": storable(fetched.last_modified),
            "version": candidate.version,
        }
        with self.holding():
            page = locked_item(self.source, candidate.url, url=candidate.url)
            if page.document_id is None:
                return self._add(page, found, content.data)
            if page.content_hash == content.text_hash:
                save_item(page, state=SourceItem.State.UNCHANGED, text_key=content.text_key, **_seen(found))
                return "unchanged"
            values = {"text_key": content.text_key, "data": content.data, "details": found}
            SourceItemChange.objects.update_or_create(item=page, defaults=values)
            save_item(page, fetched_at=timezone.now())
        return None

    def unchanged(self, candidate: Candidate, fetched: Fetched | None = None) -> str:
        """Notes that a page is as it was; `fetched` None: it was not even asked for."""
        fields = {**NO_ERROR, "version": candidate.version}
        if fetched is not None:
            fields |= {"etag": storable(fetched.etag), "last_modified": storable(fetched.last_modified)}
        return self._note(candidate, SourceItem.State.UNCHANGED, fields)

    def fail(self, candidate: Candidate, error: FetchError | ParseError) -> str | None:
        """Notes why a page could not be read; the document stays as it was, unless the page is gone."""
        if isinstance(error, FetchError) and error.code == "gone":
            return self.gone(candidate.url, error)
        state = SourceItem.State.REFUSED if error.code == "robots" else SourceItem.State.FAILED
        return self._note(candidate, state, error_fields(error))

    def _note(self, candidate: Candidate, state: SourceItem.State, fields: Mapping[str, Any]) -> str:
        with self.holding():
            save_item(
                locked_item(self.source, candidate.url, url=candidate.url),
                state=state,
                fetched_at=timezone.now(),
                **fields,
            )
        return state.value

    def gone(self, url: str, error: FetchError | None = None) -> str | None:
        """Notes that a page is not there; returns "gone", or None where its document goes when the run ends."""
        with self.holding():
            page = locked_item(self.source, url, url=url)
            since = page.gone_at if page.state == SourceItem.State.GONE and page.gone_at else timezone.now()
            SourceItemChange.objects.filter(item=page).delete()
            fields = error_fields(error) if error else NO_ERROR
            fields = fields | {"gone_at": since, "shown_key": "", "fetched_at": timezone.now()}
            save_item(page, state=SourceItem.State.GONE, **fields)
        return None if page.document_id is not None and since <= self.gone_before else "gone"

    def replace(self, page: SourceItem, found: Mapping[str, str], data: bytes, *, gives_way: bool) -> str:
        """Gives the document of a page, which is locked, its new text; returns "changed", "deleted" or "failed".

        Where another document of the knowledge base has the text, it is deleted if it gives way; else AlreadyThere is
        raised.
        """
        document = Document.objects.select_for_update().get(pk=page.document_id)
        changes: dict[str, Any] = {"metadata": document.metadata | metadata_of(page.url, found["published"])}
        if document.title == page.title:  # a curator's own title stays
            changes["title"] = found["title"]
        try:
            with transaction.atomic():
                document_replace_file(document=document, file=ContentFile(data), name=found["name"], **changes)
        except AlreadyThere as error:
            if not gives_way:
                raise
            documents_delete(Document.objects.filter(pk=document.pk))
            page.document = None
            _refuse(page, error, found)
            return "deleted"
        except Rejected as error:
            return _refuse(page, error, found)
        _save_kept(page, found)
        return "changed"

    def _add(self, page: SourceItem, found: Mapping[str, str], data: bytes) -> str:
        try:
            with transaction.atomic():
                page.document = document_add(
                    knowledge_base=self.source.knowledge_base,
                    file=ContentFile(data),
                    name=found["name"],
                    user=self.source.created_by,
                    title=found["title"],
                    metadata=metadata_of(page.url, found["published"]),
                    tags=list(self.source.tags),
                    source_type=Document.SourceType.WEB,
                )
        except (AlreadyThere, Rejected) as error:
            return _refuse(page, error, found)
        _save_kept(page, found)
        return "added"


def _save_kept(page: SourceItem, found: Mapping[str, str]) -> None:
    fields: dict[str, Any] = {"document_id": page.document_id, "content_hash": found["text_hash"]}
    fields |= {"text_key": found["text_key"], "title": found["title"]}
    if page.text_key != found["text_key"]:  # a notice may change its numbers at every run
        fields["former_hash"] = page.content_hash
    save_item(page, state=SourceItem.State.KEPT, **fields, **_seen(found))


def _refuse(page: SourceItem, error: AlreadyThere | Rejected, found: Mapping[str, str]) -> str:
    """Notes why what a page holds is not kept; returns what to count it as."""
    if isinstance(error, AlreadyThere):
        other = Document.objects.filter(pk=error.document_id).first()
        state = SourceItem.State.DUPLICATE
        reason = error_fields(FetchError("duplicate", title=str(other or "")))
    else:
        state = SourceItem.State.FAILED
        reason = {"error": message_of(error), "error_code": error.code, "error_params": {}}
    save_item(page, state=state, **(_seen(found) | reason))
    return state.value


def _seen(found: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a page that was read without a fault."""
    validators = {name: found[name] for name in ("etag", "last_modified", "version")}
    return {**NO_ERROR, "fetched_at": timezone.now(), **validators}


def metadata_of(url: str, published: str) -> dict[str, str]:
    """The metadata of the document of a page that was read now; `published`: ISO 8601, blank for unknown."""
    metadata = {"url": url, "fetched_at": timezone.now().isoformat(timespec="seconds")}
    return metadata | ({"published": published} if published else {})
