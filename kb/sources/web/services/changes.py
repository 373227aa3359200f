"""What a run decides on when it ends: pages that say something else now, and pages that are gone.

A site under maintenance answers every address with one page. So the change of a document is held until the run has seen
what the other pages say; a document goes only where a later run finds the same, and never a large share of them at once.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet, Value
from django.db.models.functions import Coalesce, NullIf
from django.utils import timezone

from kb.base.errors import AlreadyThere
from kb.base.net.errors import FetchCode, FetchError
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.services.documents import documents_delete
from kb.sources.models import WebPage, WebPageChange
from kb.sources.web.services.pages import Run, error_fields, save_page

# Of the pages with a document: fewer than that, and fewer than two, may turn into one text or go in one run.
SHARE: Final = 0.25
# So many pages with one text end a run whatever their share is, so that not the whole site is asked.
MOST_ALIKE: Final = 100
MOST_HELD: Final = 200
EXCERPT_CHARACTERS: Final = 80


class Changes:
    def __init__(self, run: Run) -> None:
        self._run, self._source = run, run.source
        self._known = WebPage.objects.filter(source=run.source, document__isnull=False).count()
        self._many = max(2, math.ceil(self._known * SHARE))

    def check(self, text: str, text_key: str) -> None:
        """Is called for each change that is held.

        Raises:
            FetchError: a large share of the pages shows this text now; nothing of them is changed.
        """
        if text_key not in self._source.accepted_keys:
            alike = self._held().filter(text_key=text_key).exclude(page__text_key=text_key)
            text_before = Coalesce(NullIf(F("page__text_key"), Value("")), F("page__content_hash"))
            count = alike.aggregate(count=Count(text_before, distinct=True))["count"]
            if count >= min(self._many, MOST_ALIKE):
                excerpt = storable(" ".join(text[: 4 * EXCERPT_CHARACTERS].split())[:EXCERPT_CHARACTERS])
                error = FetchError(FetchCode.ONE_TEXT, count=count, known=self._known, excerpt=excerpt)
                # The pages stay as they were; those with the one text say so, which starts no time after which they go.
                fields = {**error_fields(error), "state": WebPage.State.DUPLICATE, "gone_at": None}
                with self._run.holding():
                    WebPage.objects.filter(change__in=alike).update(shown_key=text_key, **fields)
                    self._held().delete()
                raise error
        self._write_some()

    def settle(self) -> None:
        """Writes the changes, and deletes the documents of pages that have gone for long enough.

        Raises:
            FetchError: a large share of the documents would go, so none of them does.
        """
        held = self._held().select_related("page").order_by("pk")
        # All before any is written: pages that were alike change together.
        names = {change.pk: self._others_name(change) for change in held.iterator(chunk_size=20)}
        confirmed = [pk for pk, name in names.items() if self._decide(pk, name) is None]
        gone, accepted_gone = self._gone()
        losses = len(confirmed) + len(gone)
        is_too_much = losses >= self._many
        for pk in confirmed:
            self._decide(pk, names[pk], is_confirmed=not is_too_much)
        for pk in accepted_gone if is_too_much else gone | accepted_gone:
            self._delete(pk)
        if is_too_much:
            self._run.counts["gone"] += len(gone)
            raise FetchError(FetchCode.MANY_GONE, count=losses, known=self._known)

    def shows_several(self) -> bool:
        """Whether the site has shown more than one text in this run; one alone may be its answer to every address."""
        return bool(self._run.counts["unchanged"]) or self._held().values("text_key").distinct().count() > 1

    def _held(self) -> QuerySet[WebPageChange]:
        return WebPageChange.objects.filter(page__source=self._source)

    def _write_some(self) -> None:
        """Writes the older half of many changes, but for those whose text other pages have; so few are held at once."""
        count = self._held().count()
        if count < MOST_HELD or count % (MOST_HELD // 2):
            return
        for pk in list(_pks(self._held()))[: MOST_HELD // 2]:
            if self._others_name(WebPageChange.objects.select_related("page").get(pk=pk)) is None:
                self._decide(pk, None)

    def _decide(self, pk: int, name: str | None, *, is_confirmed: bool | None = None) -> str | None:
        """Writes a change, or notes that its page shows the text of another.

        Args:
            pk: of the change.
            name: as of `_others_name`.
            is_confirmed: whether its document may give way to another with this text; None: not known yet.

        Returns:
            What it was counted as; None: an earlier run has found the same, and it is still held.
        """
        self._run.report()
        with self._run.holding():
            change = WebPageChange.objects.select_related("page").filter(pk=pk).first()
            if change is None or change.page.document_id is None:
                return ""  # a curator has deleted the document: it comes again with the next run
            page = self._run.locked(change.page.url)
            is_accepted = change.text_key in self._source.accepted_keys
            name = None if is_accepted else name
            is_shown = page.state == WebPage.State.DUPLICATE and page.shown_key == change.text_key
            since = page.gone_at if is_shown else None
            if name is not None and is_confirmed is None and since and since <= self._run.gone_before:
                return None  # an earlier run, long enough ago, has found the same
            outcome = "duplicate"
            if name is None or is_confirmed:
                gives_way = name is not None or is_accepted
                try:
                    outcome = self._run.replace(page, change.details, bytes(change.data), gives_way=gives_way)
                except AlreadyThere as error:
                    name = str(error)
            if outcome == "duplicate":  # others are compared with it until the run has ended
                hours = int(settings.WEB_DELETE_AFTER_HOURS)
                fields = error_fields(FetchError(FetchCode.SAME_TEXT, title=str(name), hours=hours))
                fields |= {"gone_at": since or timezone.now(), "shown_key": change.text_key}
                save_page(page, state=WebPage.State.DUPLICATE, **fields)
            else:
                change.delete()
        self._run.counts[outcome] += 1
        return outcome

    def _others_name(self, change: WebPageChange) -> str | None:
        """Which other page or document has the text that a page shows now; None: no other, or it was so before."""
        page, key = change.page, change.text_key
        if page.text_key == key:
            return None
        base = self._source.knowledge_base_id
        rows = WebPage.objects.filter(source__knowledge_base=base, document__isnull=False).exclude(pk=page.pk)
        shows_now = Q(change__text_key=key) & (Q(text_key="") | ~Q(text_key=page.text_key))
        other = rows.filter(Q(text_key=key, change__isnull=True) | shows_now).order_by("pk").first()
        if other is not None:
            return str(other.title or other.url)
        same = Document.objects.filter(knowledge_base=base, sha256=hashlib.sha256(bytes(change.data)).hexdigest())
        document = same.exclude(pk=page.document_id).first()
        return None if document is None else str(document)

    def _gone(self) -> tuple[set[int], set[int]]:
        """Pages that have been gone for long enough, and those of them whose end somebody has accepted."""
        missing = WebPage.objects.filter(source=self._source, state=WebPage.State.GONE, document__isnull=False)
        found_now = missing.filter(fetched_at__gte=self._run.started_at, gone_at__lt=self._run.started_at)
        accepted_at = self._source.accepted_at
        accepted = set(_pks(found_now.filter(gone_at__lte=accepted_at))) if accepted_at else set()
        return set(_pks(found_now.filter(gone_at__lte=self._run.gone_before))) - accepted, accepted

    def _delete(self, page_id: int) -> None:
        self._run.report()
        with self._run.holding():
            page = WebPage.objects.select_for_update().filter(pk=page_id, state=WebPage.State.GONE).first()
            if page is None:
                return
            documents_delete(Document.objects.filter(pk=page.document_id))
        self._run.counts["deleted"] += 1


def _pks(rows: QuerySet[Any]) -> Iterator[int]:
    return iter(rows.order_by("pk").values_list("pk", flat=True))
