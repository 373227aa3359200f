"""What became of one address of a web source: its row, and the document that it is kept as."""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from django.core.files.base import ContentFile
from django.db import transaction
from django.utils import timezone

from kb.ingest.connectors.content import PageContent
from kb.ingest.connectors.listing import Candidate
from kb.ingest.parse import ParseError
from kb.models import Document, WebPage, WebSource
from kb.models.validators import storable
from kb.net.client import Fetched
from kb.net.errors import FetchCode, FetchError
from kb.services.documents import document_add, document_replace_file, documents_delete
from kb.services.errors import AlreadyThere, Rejected

TITLE_CHARACTERS = 500
Hold = Callable[[], AbstractContextManager[None]]
"""A transaction in which the run is still this worker's; leaves with an exception where it is not."""


@dataclass(frozen=True, slots=True)
class PageWriter:
    """Writes what a run has found out about addresses.

    Attributes:
        hold: see `Hold`.
    """

    source: WebSource
    hold: Hold

    def find(self, url: str) -> WebPage | None:
        rows = WebPage.objects.select_related("document")
        found: WebPage | None = rows.filter(source=self.source, url_hash=hash_of(url)).first()
        return found

    def keep(self, candidate: Candidate, content: PageContent, fetched: Fetched) -> str:
        """Keeps what was read; of a page whose text has not changed, only that it was read.

        Returns:
            What to count it as: "added", "changed", "unchanged" or "duplicate".
        """
        with self.hold():
            page = self._locked(candidate.url)
            fields = _seen(fetched, candidate)
            if page.document_id is not None and page.content_hash == content.text_hash:
                _save(page, state=WebPage.State.UNCHANGED, **fields)
                return "unchanged"
            title = storable(candidate.title or content.title)[:TITLE_CHARACTERS]
            try:
                with transaction.atomic():
                    outcome = self._write(page, candidate, content, title)
            except (AlreadyThere, Rejected) as error:
                self._refuse(page, error, fields)
                return "duplicate" if isinstance(error, AlreadyThere) else "failed"
            _save(page, state=WebPage.State.KEPT, content_hash=content.text_hash, title=title, **fields)
        return outcome

    def unchanged(self, candidate: Candidate, fetched: Fetched | None = None) -> str:
        """Notes that a page is as it was; `fetched` None: it was not even asked for."""
        with self.hold():
            page = self._locked(candidate.url)
            fields = _seen(fetched, candidate) if fetched else {"fetched_at": timezone.now()}
            _save(page, state=WebPage.State.UNCHANGED, **(_NO_ERROR | fields))
        return "unchanged"

    def fail(self, candidate: Candidate, error: FetchError | ParseError) -> str:
        """Notes why a page could not be read; the document stays as it was, unless the page is gone."""
        if isinstance(error, FetchError) and error.code == FetchCode.GONE:
            return self.gone(candidate.url, error)
        state = WebPage.State.REFUSED if error.code == FetchCode.ROBOTS else WebPage.State.FAILED
        with self.hold():
            _save(self._locked(candidate.url), state=state, fetched_at=timezone.now(), **_told(error))
        return state.value

    def gone(self, url: str, error: FetchError | None = None) -> str:
        """Notes that a page is not there; at the second run that says so its document goes.

        Returns:
            "gone" at the first, "deleted" at the second.
        """
        told = _told(error) if error else _NO_ERROR
        with self.hold():
            page = self._locked(url)
            if page.state != WebPage.State.GONE or page.gone_at is None:
                _save(page, state=WebPage.State.GONE, fetched_at=timezone.now(), **(told | {"gone_at": timezone.now()}))
                return "gone"
            had_one = page.document_id is not None
            if page.document_id is not None:
                documents_delete(Document.objects.filter(pk=page.document_id))
                page.document = None
            _save(page, fetched_at=timezone.now(), **(told | {"gone_at": page.gone_at}))
        return "deleted" if had_one else "gone"

    def _locked(self, url: str) -> WebPage:
        page: WebPage
        page, _created = WebPage.objects.select_for_update().get_or_create(
            source=self.source, url_hash=hash_of(url), defaults={"url": url}
        )
        return page

    def _write(self, page: WebPage, candidate: Candidate, content: PageContent, title: str) -> str:
        metadata = {"url": candidate.url, "fetched_at": timezone.now().isoformat(timespec="seconds")}
        if published := candidate.published or content.published:
            metadata["published"] = published.isoformat(timespec="seconds")
        if page.document_id is None:
            page.document = document_add(
                knowledge_base=self.source.knowledge_base,
                file=ContentFile(content.data),
                name=content.name,
                user=self.source.created_by,
                title=title,
                metadata=metadata,
                tags=list(self.source.tags),
                source_type=Document.SourceType.WEB,
            )
            return "added"
        document = Document.objects.select_for_update().get(pk=page.document_id)
        changes: dict[str, Any] = {"metadata": document.metadata | metadata}
        if document.title == page.title:  # a curator's own title stays
            changes["title"] = title
        document_replace_file(document=document, file=ContentFile(content.data), name=content.name, **changes)
        return "changed"

    def _refuse(self, page: WebPage, error: AlreadyThere | Rejected, fields: dict[str, Any]) -> None:
        """What a page holds now is not kept, so what it held before is not either, where another document has it."""
        if not isinstance(error, AlreadyThere):
            told = {"error": str(error), "error_code": error.code, "error_params": {}}
            _save(page, state=WebPage.State.FAILED, **(fields | told))
            return
        if page.document_id is not None:
            documents_delete(Document.objects.filter(pk=page.document_id))
            page.document = None
        other = Document.objects.filter(pk=error.document_id).first()
        told = _told(FetchError(FetchCode.DUPLICATE, title=str(other or "")))
        _save(page, state=WebPage.State.DUPLICATE, **(fields | told))


def hash_of(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


_NO_ERROR: dict[str, Any] = {"error": "", "error_code": "", "error_params": {}, "gone_at": None}


def _seen(fetched: Fetched, candidate: Candidate) -> dict[str, Any]:
    return {
        **_NO_ERROR,
        "fetched_at": timezone.now(),
        "etag": storable(fetched.etag),
        "last_modified": storable(fetched.last_modified),
        "version": candidate.version,
    }


def _told(error: FetchError | ParseError) -> dict[str, Any]:
    return {"error": str(error), "error_code": error.code.value, "error_params": dict(error.params)}


def _save(page: WebPage, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(page, name, value)
    page.save()
