"""Web sources: what is read by itself, when it is due, and how a run of it begins and ends."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import regex
from django.db import transaction
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.base.db.transactions import lock_knowledge_bases
from kb.base.errors import Rejected
from kb.base.messages import shown
from kb.base.net.addresses import MESSAGES as FETCH_MESSAGES, FetchError, parse_url
from kb.content.models import Document
from kb.ingest.parser.parsed import MESSAGES as PARSE_MESSAGES, ParseError
from kb.ingest.services.documents import documents_delete
from kb.jobs.leases import TASK_AWAITED, Queue
from kb.sources.connectors.listing import compiled
from kb.sources.connectors.live import LIVE_KINDS
from kb.sources.models import WebPage, WebPageChange, WebSource

LEASE: Final = timedelta(minutes=10)
SWEEP_LIMIT: Final = 200
UNFINISHED: Final = (WebSource.Status.WAITING, WebSource.Status.RUNNING)
WEB_SOURCES = Queue(
    WebSource,
    waiting=WebSource.Status.WAITING,
    running=WebSource.Status.RUNNING,
    lasts=lambda: LEASE,
    related=("knowledge_base", "created_by"),
)
WHAT_IS_READ: Final = frozenset({"kind", "url", "include", "exclude", "max_pages", "max_depth"})


def web_source_check(source: WebSource) -> None:
    """Raises Rejected where a source's name is taken, its address or an expression is wrong, or it cannot be live."""
    try:
        parse_url(source.url)
    except FetchError as error:
        raise Rejected("url_refused", error_of(error)) from error
    if source.live and source.kind not in LIVE_KINDS:
        raise Rejected(
            "live_invalid",
            _("Only a page or a feed can be read at query time: choose one of these, or leave that off."),
        )
    for field in ("include", "exclude"):
        for pattern in getattr(source, field):
            try:
                compiled(pattern)
            except regex.error as error:
                raise Rejected(
                    f"{field}_invalid",
                    _(
                        "“%(pattern)s” is no regular expression (%(reason)s). Put a backslash before signs that stand for "
                        "themselves."
                    ),
                    pattern=pattern,
                    reason=error.msg,
                ) from error
    if WebSource.objects.filter(knowledge_base=source.knowledge_base, name=source.name).exclude(pk=source.pk).exists():
        raise Rejected(
            "name_taken",
            _("This knowledge base has a web source named “%(name)s” already: choose another name."),
            name=source.name,
        )


def web_source_create(*, knowledge_base: KnowledgeBase, user: User | None, **fields: Any) -> WebSource:
    """Creates a source, whose first run begins at once unless it is switched off; raises as `web_source_check`.

    The caller has checked that the user may write to the knowledge base.
    """
    source = WebSource(knowledge_base=knowledge_base, created_by=user, **fields)
    web_source_check(source)
    with transaction.atomic():
        source.save()
        if source.enabled:
            web_source_request(source)
    return source


def web_source_update(source: WebSource, **changes: Any) -> None:
    """Changes a source; a run begins at once where that changes what is read. Raises as `web_source_check`."""
    with transaction.atomic():
        source.refresh_from_db(from_queryset=WebSource.objects.select_for_update(no_key=True))
        changed = {name for name, value in changes.items() if value != getattr(source, name)}
        for name, value in changes.items():
            setattr(source, name, value)
        web_source_check(source)
        if changed & {"every_minutes", "enabled"}:
            source.next_run_at = next_run(source)
        source.save(update_fields=[*changes, "next_run_at"])
        if source.enabled and changed & WHAT_IS_READ:
            web_source_cancel(source)
            web_source_request(source)


def web_source_delete(source: WebSource, *, keep_documents: bool) -> None:
    """Deletes a source; a run of it ends with its next page."""
    with transaction.atomic():
        lock_knowledge_bases([source.knowledge_base_id])  # as a run does for each page
        if not keep_documents:
            documents_delete(Document.objects.filter(web_page__source=source))
        source.delete()


def web_source_request(source: WebSource) -> bool:
    """Asks for a run, which a worker begins once the transaction is committed; False where one is under way."""
    with transaction.atomic():
        row = WebSource.objects.select_for_update(no_key=True).get(pk=source.pk)
        if row.status in UNFINISHED:
            return False
        fresh = _fresh_run()
        for name, value in fresh.items():
            setattr(row, name, value)
            setattr(source, name, value)
        row.save(update_fields=list(fresh))
    return True


def web_source_cancel(source: WebSource) -> None:
    """Ends a run with the page at hand; what it has read stays. One that has ended stays as it is."""
    ended = {**WEB_SOURCES.freed(WebSource.Status.CANCELLED), "finished_at": timezone.now()}
    if WebSource.objects.filter(pk=source.pk, status__in=UNFINISHED).update(**ended, next_run_at=next_run(source)):
        WebPageChange.objects.filter(page__source=source).delete()
    source.refresh_from_db()


def held_back(source: WebSource) -> QuerySet[WebPage]:
    """Pages that are gone or show the text of others, and whose documents are kept for now."""
    return WebPage.objects.filter(Q(state=WebPage.State.GONE) | ~Q(shown_key=""), source=source, document__isnull=False)


def web_source_accept(source: WebSource) -> None:
    """Lets the next run, which begins at once, do what a run has held back.

    Pages that are gone by now lose their documents where it finds them gone still, and pages may turn into the texts
    that they were found to share.
    """
    with transaction.atomic():
        pages = WebPage.objects.filter(source=source)
        keys = list(pages.exclude(shown_key="").order_by().values_list("shown_key", flat=True).distinct())
        WebSource.objects.filter(pk=source.pk).update(accepted_at=timezone.now(), accepted_keys=keys)
        web_source_cancel(source)
        web_source_request(source)


def sweep_web_sources() -> list[int]:
    """Plans what is due, and takes up runs that lost their task or worker; returns the ids to send a task for."""
    lost = WEB_SOURCES.sweep(limit=SWEEP_LIMIT)
    planned = WebSource.objects.filter(enabled=True, next_run_at__lte=timezone.now()).exclude(status__in=UNFINISHED)
    due = list(planned.order_by("next_run_at", "pk").values_list("pk", flat=True)[:SWEEP_LIMIT])
    WebSource.objects.filter(pk__in=due).exclude(status__in=UNFINISHED).update(**_fresh_run())
    return lost + due


def web_source_overview(principal: Principal) -> QuerySet[Any]:
    """Sources with `page_count` and `document_count`."""
    pages = WebPage.objects.filter(source=OuterRef("pk")).order_by().values("source")
    rows: QuerySet[Any] = WebSource.objects.visible_to(principal).annotate(
        page_count=Coalesce(Subquery(pages.annotate(rows=Count("pk")).values("rows")), 0),
        document_count=Coalesce(Subquery(pages.annotate(rows=Count("document")).values("rows")), 0),
    )
    return rows


def next_run(source: WebSource) -> Any:
    """When it is due again; None: not by itself."""
    if not source.enabled or source.every_minutes is None:
        return None
    return timezone.now() + timedelta(minutes=source.every_minutes)


def error_text(error: str, code: str, params: Mapping[str, Any]) -> str:
    """A stored error in the reader's language."""
    template = FETCH_MESSAGES.get(code) or PARSE_MESSAGES.get(code)
    with suppress(KeyError):  # written by a version whose sentence had other fields
        return _(template).format(**params) if template else shown(error)
    return error


def error_of(error: FetchError | ParseError | None) -> str:
    """An error in the reader's language; blank for none."""
    return "" if error is None else error_text(str(error), error.code, error.params)


def _fresh_run() -> dict[str, Any]:
    return {
        **WEB_SOURCES.freed(WebSource.Status.WAITING, until=timezone.now() + TASK_AWAITED),
        "attempts": 0,
        "started_at": None,
        "finished_at": None,
        "next_run_at": None,
        "counts": {},
        "error": "",
        "error_code": "",
        "error_params": {},
    }
