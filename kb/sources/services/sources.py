"""Sources: what is read by itself, when it is due, and how a run of it begins and ends."""

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import regex
from django.db import transaction
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.encryption import SecretsUnreadable, decrypted, encrypted
from kb.base.errors import Rejected
from kb.base.messages import shown
from kb.base.net.addresses import MESSAGES as FETCH_MESSAGES, FetchError, parse_url
from kb.content.models import GONE_SINCE, Chunk, Document
from kb.ingest.parser.parsed import MESSAGES as PARSE_MESSAGES, ParseError
from kb.ingest.services.documents import documents_delete
from kb.jobs.leases import TASK_AWAITED, Queue
from kb.sources.connectors.listing import compiled
from kb.sources.connectors.live import LIVE_KINDS
from kb.sources.connectors.registry import checked_settings, kind_of, owner_of, secret_names
from kb.sources.models import ListedItem, Source, SourceItem, SourceItemChange, SourceRun

LEASE: Final = timedelta(minutes=10)
SWEEP_LIMIT: Final = 200
RUNS_KEPT: Final = 20
UNFINISHED: Final = (Source.Status.WAITING, Source.Status.RUNNING)
SOURCES = Queue(
    Source,
    waiting=Source.Status.WAITING,
    running=Source.Status.RUNNING,
    lasts=lambda: LEASE,
    available=Q(paused=False),
    related=("knowledge_base", "created_by"),
)
WHAT_IS_READ: Final = frozenset(
    {
        "kind",
        "url",
        "settings",
        "secrets",
        "include",
        "exclude",
        "max_pages",
        "max_depth",
    }
)


def source_check(source: Source) -> None:
    """Completes the settings of a source, whose `secrets` may be a mapping.

    Raises Rejected, whose code begins with the name of a field or setting, where the source cannot be stored.
    """
    kind = kind_of(source)
    if source.kind in Source.WEB:
        _web_check(source)
    else:
        source.url = ""
    # A page is found again by its address, a file by its path: neither kind of run would ever delete what the other has read.
    others = ~Q(key="") if source.kind in Source.WEB else Q(key="")
    if SourceItem.objects.filter(others, source=source.pk).exists():
        raise Rejected(
            "kind_invalid",
            _(
                "This source has read pages or files already, which the other kind does not know: add a source of its own."
            ),
        )
    secrets = source.secrets if isinstance(source.secrets, Mapping) else decrypted(source.secrets)
    values = checked_settings(kind, source.settings, secrets, owner_of(source))
    hidden = secret_names(kind)
    source.settings = {name: value for name, value in values.items() if name not in hidden}
    source.secrets = encrypted({name: values[name] for name in hidden if values[name]})
    if source.live and source.kind not in LIVE_KINDS:
        raise Rejected(
            "live_invalid",
            _("Only a page or a feed can be read at query time: choose one of these, or leave that off."),
        )
    if Source.objects.filter(knowledge_base=source.knowledge_base, name=source.name).exclude(pk=source.pk).exists():
        raise Rejected(
            "name_taken",
            _("This knowledge base has a source named “%(name)s” already: choose another name."),
            name=source.name,
        )


def _web_check(source: Source) -> None:
    try:
        parse_url(source.url)
    except FetchError as error:
        raise Rejected("url_refused", error_of(error)) from error
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


def source_create(*, knowledge_base: KnowledgeBase, user: User | None, **fields: Any) -> Source:
    """Creates a source, whose first run begins at once unless it is switched off; raises as `source_check`.

    The caller has checked that the user may write to the knowledge base.
    """
    source = Source(knowledge_base=knowledge_base, created_by=user, **fields)
    source_check(source)
    with transaction.atomic():
        source.save()
        if source.enabled:
            source_request(source)
    return source


def source_update(source: Source, *, secrets: Mapping[str, str] | None = None, **changes: Any) -> None:
    """Changes a source; a run begins at once where that changes what is read. Raises as `source_check`.

    `secrets`: those that are given take the place of the ones before, blank ones too; the others stay, unless the kind or
    another setting says where they would go now: whoever changes the address gives the password again.
    """
    with holding_knowledge_bases([source.knowledge_base_id]):  # as a run does for each item
        source.refresh_from_db(from_queryset=Source.objects.select_for_update(no_key=True))
        before = {name: getattr(source, name) for name in {*changes, "kind", "settings", "secrets"}}
        for name, value in changes.items():
            setattr(source, name, value)
        if "settings" in changes and source.kind == before["kind"]:
            source.settings = {**before["settings"], **changes["settings"]}
        elif source.kind != before["kind"]:
            source.settings = changes.get("settings", {})
        source.secrets = secrets_after(source, before, secrets or {})
        source_check(source)
        changed = {name for name, value in before.items() if value != getattr(source, name) and name != "secrets"}
        changed |= {"secrets"} if decrypted(source.secrets) != _opened(before["secrets"]) else set()
        if changed & {"every_minutes", "enabled"}:
            source.next_run_at = next_run(source)
        source.save(update_fields={*changes, "url", "settings", "secrets", "next_run_at"})
        if changed & WHAT_IS_READ:
            is_under_way = source.status in UNFINISHED
            source_cancel(source)  # a worker that knows the old place writes nothing more of it
            if is_under_way and source.paused:
                Source.objects.filter(pk=source.pk).update(**_fresh_run())  # it begins once it is resumed
            elif is_under_way or source.enabled:
                source_request(source)
        if "hides_gone" in changed:
            gone_mark(source)


def _opened(token: str) -> dict[str, str]:
    """The secrets of a row; none where no key opens them, so that new ones can be given."""
    try:
        return decrypted(token)
    except SecretsUnreadable:
        return {}


def secrets_after(source: Source, before: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """The secrets of a changed source, which had the "kind", "settings" and "secrets" of `before`.

    Raises Rejected where they would go to another place than they were given for.
    """
    kept = _opened(before["secrets"])
    fields = {field.name: field for field in kind_of(source).fields}
    places = [name for name, field in fields.items() if not (field.is_secret or field.is_filter)]
    # What was added as a setting later has its default until then.
    moved = [
        name for name in places if name in before["settings"] and source.settings.get(name) != before["settings"][name]
    ]
    if not moved and source.kind == before["kind"]:
        return {**kept, **given}
    if missing := [fields[name] for name in kept if name in fields and name not in given]:
        raise Rejected(
            f"{missing[0].name}_invalid",
            _("The place is another one now: give “%(name)s” again, which would else be sent there."),
            name=missing[0].label,
        )
    return dict(given)


def source_delete(source: Source, *, keep_documents: bool) -> None:
    """Deletes a source; a run of it ends with its next item."""
    with holding_knowledge_bases([source.knowledge_base_id]):  # as a run does for each item
        if keep_documents:
            SourceItem.objects.filter(source=source).update(state=SourceItem.State.KEPT)
            gone_mark(source)
        else:
            documents_delete(Document.objects.filter(source_item__source=source))
        source.delete()


def gone_documents(source: Source) -> QuerySet[Document]:
    """Documents of what the last run of a source has not found any more."""
    return Document.objects.filter(source_item__source=source, source_item__state=SourceItem.State.GONE)


def gone_mark(source: Source) -> None:
    """Marks the documents of what a source has no longer, in their metadata, and those no more that it has again.

    Where the source is set so, the chunks of the marked ones are switched off until then.
    """
    with holding_knowledge_bases([source.knowledge_base_id]):
        gone = gone_documents(source)
        new = gone.exclude(metadata__has_key=GONE_SINCE).annotate(since=Coalesce("source_item__gone_at", Now()))
        marks = {each.pk: each.metadata | {GONE_SINCE: f"{each.since:%Y-%m-%dT%H:%M:%SZ}"} for each in new}
        marked = Document.objects.filter(source_item__source=source, metadata__has_key=GONE_SINCE)
        back = {each.pk: each.metadata for each in marked.exclude(pk__in=gone)}
        for pk, metadata in (marks | back).items():
            kept = {name: value for name, value in metadata.items() if pk in marks or name != GONE_SINCE}
            Document.objects.filter(pk=pk).update(metadata=kept, updated_at=timezone.now())
        ids = set(gone.values_list("pk", flat=True))
        hidden = ids if source.hides_gone else set()
        Chunk.objects.filter(document__in=hidden, enabled=True).update(enabled=False, is_hidden=True)
        shown_again = Chunk.objects.filter(document__in={*back, *ids} - hidden, is_hidden=True)
        shown_again.update(enabled=True, is_hidden=False)


def gone_delete(source: Source) -> int:
    """Deletes the documents of what a source has no longer, and returns how many they were."""
    with holding_knowledge_bases([source.knowledge_base_id]):
        count = gone_documents(source).count()
        documents_delete(gone_documents(source))
    return count


def source_request(source: Source) -> bool:
    """Asks for a run, which a worker begins once the transaction is committed; False where one is under way or none can be."""
    with transaction.atomic():
        row = Source.objects.select_for_update(no_key=True).get(pk=source.pk)
        if row.status in UNFINISHED or row.paused or row.kind == Source.Kind.PUSH:
            return False
        fresh = _fresh_run()
        for name, value in fresh.items():
            setattr(row, name, value)
            setattr(source, name, value)
        row.save(update_fields=list(fresh))
    return True


def source_cancel(source: Source) -> None:
    """Ends a run with the item at hand; what it has read stays. One that has ended stays as it is."""
    ended = {**SOURCES.freed(Source.Status.CANCELLED), "finished_at": timezone.now(), "progress": {}, "listing": None}
    with transaction.atomic():
        row = Source.objects.select_for_update(no_key=True).filter(pk=source.pk, status__in=UNFINISHED).first()
        if row is not None:
            Source.objects.filter(pk=row.pk).update(**ended, next_run_at=next_run(row))
            run_log(row, Source.Status.CANCELLED)
    source.refresh_from_db()


def source_pause(source: Source) -> None:
    """Lets nothing read a source until it is resumed; a run that is under way stops with the item at hand and waits."""
    with transaction.atomic():
        row = Source.objects.select_for_update(no_key=True).get(pk=source.pk)
        stopped = SOURCES.freed(Source.Status.WAITING) if row.status == Source.Status.RUNNING else {}
        Source.objects.filter(pk=row.pk).update(paused=True, **stopped)
    source.refresh_from_db()


def source_resume(source: Source) -> None:
    """Lets a source be read again; a run that was stopped goes on where it was, and one that was due begins."""
    with transaction.atomic():
        row = Source.objects.select_for_update(no_key=True).get(pk=source.pk)
        if not row.paused:
            return
        row.paused, changed = False, ["paused"]
        if row.status == Source.Status.WAITING:
            row.lease_until, row.attempts = timezone.now() + TASK_AWAITED, 0
            changed += ["status", "lease_until", "attempts"]  # the status as it is: a task is sent for it
        row.save(update_fields=changed)
    source.refresh_from_db()


def run_log(source: Source, status: str, **fields: Any) -> None:
    """Writes a line of the log of a source for a run that ends now; drops the oldest ones, and what it kept to go on with."""
    SourceItemChange.objects.filter(item__source=source.pk).delete()
    ListedItem.objects.filter(source=source.pk).delete()
    SourceRun.objects.create(
        source=source,
        status=status,
        started_at=source.started_at,
        ended_at=timezone.now(),
        **{"counts": source.counts, **fields},
    )
    old = SourceRun.objects.filter(source=source).order_by("-pk").values_list("pk", flat=True)[RUNS_KEPT:]
    SourceRun.objects.filter(pk__in=list(old)).delete()


# Items that are gone, show the text of others or became the same as another, and whose documents are kept for now.
_HELD_BACK: Final = (Q(state=SourceItem.State.GONE) | ~Q(shown_key="") | Q(state=SourceItem.State.DUPLICATE)) & Q(
    document__isnull=False
)


def held_back(source: Source) -> QuerySet[SourceItem]:
    """Items whose documents a run would delete or change, and keeps for now."""
    return SourceItem.objects.filter(_HELD_BACK, source=source)


def secrets_set(source: Source) -> list[str]:
    """The names of the secrets that a source has, which are never shown themselves."""
    return sorted(_opened(source.secrets))


def many(source: Source, known: int) -> int:
    """So many of `known` documents a run may not delete without asking: the source's share of them, and two at least."""
    return max(2, math.ceil(known * source.max_share / 100))


def source_accept(source: Source) -> None:
    """Lets the next run, which begins at once, do what a run has held back.

    Pages that are gone by now lose their documents where it finds them gone still, and pages may turn into the texts
    that they were found to share.
    """
    with transaction.atomic():
        pages = SourceItem.objects.filter(source=source)
        keys = list(pages.exclude(shown_key="").order_by().values_list("shown_key", flat=True).distinct())
        Source.objects.filter(pk=source.pk).update(accepted_at=timezone.now(), accepted_keys=keys)
        source_cancel(source)
        source_request(source)


def sweep_sources() -> list[int]:
    """Plans what is due, and takes up runs that lost their task or worker; returns the ids to send a task for."""
    lost = SOURCES.sweep(limit=SWEEP_LIMIT)
    planned = Source.objects.filter(enabled=True, paused=False, next_run_at__lte=timezone.now()).exclude(
        status__in=UNFINISHED
    )
    due = list(planned.order_by("next_run_at", "pk").values_list("pk", flat=True)[:SWEEP_LIMIT])
    Source.objects.filter(pk__in=due).exclude(status__in=UNFINISHED).update(**_fresh_run())
    return lost + due


def source_overview(principal: Principal) -> QuerySet[Any]:
    """Sources with `item_count`, `document_count` and `held_back`."""
    items = SourceItem.objects.filter(source=OuterRef("pk")).order_by().values("source")
    rows: QuerySet[Any] = Source.objects.visible_to(principal).annotate(
        item_count=Coalesce(Subquery(items.annotate(rows=Count("pk")).values("rows")), 0),
        document_count=Coalesce(Subquery(items.annotate(rows=Count("document")).values("rows")), 0),
        held_back=Coalesce(Subquery(items.filter(_HELD_BACK).annotate(rows=Count("pk")).values("rows")), 0),
    )
    return rows


def next_run(source: Source) -> Any:
    """When it is due again; None: not by itself."""
    if not source.enabled or source.every_minutes is None or source.kind == Source.Kind.PUSH:
        return None
    return timezone.now() + timedelta(minutes=source.every_minutes)


def error_text(error: str, code: str, params: Mapping[str, Any], *, for_superuser: bool = False) -> str:
    """A stored error in the reader's language."""
    code = "internal_address" if code == "forbidden_address" and for_superuser else code
    template = FETCH_MESSAGES.get(code) or PARSE_MESSAGES.get(code)
    with suppress(KeyError):  # written by a version whose sentence had other fields
        return _(template).format(**params) if template else shown(error)
    return error


def error_of(error: FetchError | ParseError | None, *, for_superuser: bool = False) -> str:
    """An error in the reader's language; blank for none."""
    return "" if error is None else error_text(str(error), error.code, error.params, for_superuser=for_superuser)


def _fresh_run() -> dict[str, Any]:
    return {
        **SOURCES.freed(Source.Status.WAITING, until=timezone.now() + TASK_AWAITED),
        "attempts": 0,
        "started_at": None,
        "finished_at": None,
        "next_run_at": None,
        "counts": {},
        "progress": {},
        "listing": None,
        "error": "",
        "error_code": "",
        "error_params": {},
    }
