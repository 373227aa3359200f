"""Folders that a client keeps in step with a source: it sends a manifest, learns what is missing, and sends that.

Every request may be sent again: what has been done is found done.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Final

from django.conf import settings
from django.core.files import File
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_noop
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, User
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.errors import NotVisible, Rejected
from kb.base.files import sha256_of
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS, unsupported_name
from kb.ingest.services.documents import document_update
from kb.sources.connectors.protocol import Item
from kb.sources.models import Source, SourceItem
from kb.sources.push.plan import Plan, plan_of
from kb.sources.services.items import (
    NO_ERROR,
    hash_of,
    item_delete,
    item_match,
    item_take,
    metadata_of_item,
)
from kb.sources.services.sources import error_of, error_text, many, run_log, source_create
from retrieval.errors import Message

MOST_FILES: Final = 10_000
PATH_CHARACTERS: Final = 1_000
# For moves and deletions in one request; the next one goes on.
BUDGET_S: Final = 20.0
ROWS_A_QUERY: Final = 1_000
State = SourceItem.State
BAD_PATH: Final = gettext_noop(
    "“{path}” is no path of a file within the folder. Write it with slashes and without “..”, as in manuals/pump.md."
)
LARGE: Final = gettext_noop("“{path}” is larger than {megabytes} MB: split it into smaller files, or leave it out.")


@dataclass(frozen=True, slots=True)
class PushedFile:
    """A file of the folder as its manifest has it; `metadata` None: says nothing of it."""

    path: str
    sha256: str
    size: int
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class MovedFile:
    """A document that goes over to the path that has its content now."""

    from_path: str
    to_path: str


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that need not be sent, and why."""

    path: str
    code: Annotated[str, Doc("Stable, for programs.")]
    detail: Annotated[str, Doc("What is wrong and what to do, as a sentence for people.")]


@dataclass(frozen=True, slots=True)
class DeletionQuestion:
    """So large a share of the documents would be deleted that none is unless `accept` says so."""

    count: Annotated[int, Doc("Documents that would be deleted: the number to give as `accept`.")]
    known: Annotated[int, Doc("Documents of the source.")]
    max_share: Annotated[int, Doc("Percent of them that go unasked.")]


@dataclass(frozen=True, slots=True)
class FolderSync:
    """What a manifest asks for."""

    source: str
    dry_run: bool
    send: Annotated[list[str], Doc("Paths whose files are missing: send each.")]
    moved: Annotated[
        list[MovedFile],
        Doc("Documents that keep chunks, edits and judgments under another path, as far as it is done."),
    ]
    unchanged: int
    delete: Annotated[list[str], Doc("Paths of documents that the folder has no more; deleted where `delete` says so.")]
    deleted: Annotated[int, Doc("How many of them are deleted now.")]
    refused: list[RefusedFile]
    asks: DeletionQuestion | None
    more: Annotated[bool, Doc("Moves and deletions are left: send the same manifest again before any file.")]


@dataclass(frozen=True, slots=True)
class FileSync:
    """What became of a file that was sent."""

    path: str
    outcome: Annotated[str, Doc("added, changed, unchanged, moved, or duplicate: another document has the same bytes.")]
    document_id: int | None


def push_sync(
    *,
    knowledge_base: KnowledgeBase,
    user: User | None,
    name: str,
    files: Sequence[PushedFile],
    delete: bool = False,
    accept: int = 0,
    dry_run: bool = False,
    budget_s: float = BUDGET_S,
) -> FolderSync:
    """Compares a folder with the source of this name, which the first sync makes; moves and deletes unless it is a dry run.

    The caller has checked that the user may write to the knowledge base. `accept`: so many deletions at most are consented to,
    however large a share they are. Raises Rejected where the name is that of another kind of source, the source is paused, or
    a path comes twice.
    """
    at, ends_at = timezone.now(), time.monotonic() + budget_s
    source = _source(knowledge_base, name)
    if source is None and not dry_run:
        with holding_knowledge_bases([knowledge_base.pk]):  # another first sync may be making it
            source = _source(knowledge_base, name) or source_create(
                knowledge_base=knowledge_base, user=user, name=name, kind=Source.Kind.PUSH
            )
    rows = _rows(source)
    refused, wanted = _sorted_out(files, rows)
    kept = frozenset(each.path for each in refused)
    held = {path: row.digest for path, row in rows.items() if row.document_id is not None}
    plan = plan_of(wanted, held, _settled(knowledge_base, rows, wanted), kept)
    asks = _question(source, plan, len(held), files, accept)
    send, moved, deleted, more = list(plan.send), list(plan.moved), 0, False
    if source is not None and not dry_run:
        work = _Work(source, {file.path: file for file in files}, wanted, kept, at, ends_at)
        moved, missed = work.move(plan)
        send += missed
        if delete and asks is None:
            deleted = work.delete(plan.delete)
        unchanged = [row for path in plan.unchanged if (row := rows.get(path)) is not None]
        work.describe(unchanged)
        more = work.is_out_of_time
        absent = [row.pk for path, row in rows.items() if path not in work.files]
        SourceItem.objects.filter(pk__in=absent, document=None).delete()
        failed = sum(each.code != "unsupported_type" for each in refused)
        work.note(unchanged, done=not send and not more, failed=failed)
    return FolderSync(
        source=name,
        dry_run=dry_run,
        send=send,
        moved=[MovedFile(*each) for each in moved],
        unchanged=len(plan.unchanged),
        delete=list(plan.delete),
        deleted=deleted,
        refused=refused,
        asks=asks if delete else None,
        more=more,
    )


def push_file(
    *,
    knowledge_base: KnowledgeBase,
    name: str,
    path: str,
    sha256: str,
    file: "File[bytes]",
    metadata: Mapping[str, str] | None = None,
) -> FileSync:
    """Takes a file of the folder in; one that has arrived before is only noted.

    Raises:
        NotVisible: there is no such source: its manifest comes first.
        Rejected: the file that arrived has another SHA-256, or is none that can be read.
    """
    source = _source(knowledge_base, name)
    if source is None:
        raise NotVisible(_("There is no source of this name that is synced: send its manifest first."))
    if (refusal := _refusal(PushedFile(path, sha256, file.size))) is not None:
        raise Rejected(refusal.code, refusal.detail)
    if sha256_of(file) != sha256:
        raise Rejected(
            "sha256_mismatch", _("The file that arrived has another SHA-256 than was stated: send it again.")
        )
    item = _item(PushedFile(path, sha256, file.size, metadata))
    with holding_knowledge_bases([knowledge_base.pk]):
        outcome = item_take(source, item, file, sha256, is_free=lambda _: False, at=timezone.now())
        counts = Source.objects.select_for_update(no_key=True).values_list("counts", flat=True).get(pk=source.pk)
        Source.objects.filter(pk=source.pk).update(counts=dict(Counter(counts) + Counter([outcome])))
        row = SourceItem.objects.get(source=source, key_hash=hash_of(path))
    if outcome == "failed":
        raise Rejected(row.error_code, error_text(row.error, row.error_code, row.error_params))
    return FileSync(path, outcome, row.document_id)


class _Work:
    """Moves, deletions and notes of one request, each in a transaction of its own that holds the knowledge base."""

    def __init__(
        self,
        source: Source,
        files: Mapping[str, PushedFile],
        wanted: Mapping[str, str],
        kept: frozenset[str],
        at: datetime,
        ends_at: float,
    ) -> None:
        self._source, self.files, self._at, self._ends_at = source, files, at, ends_at
        self._wanted = {hash_of(path): digest for path, digest in wanted.items()}
        self._kept = {hash_of(path) for path in kept}
        self._counts = Counter[str]()
        self.is_out_of_time = False

    def move(self, plan: Plan) -> tuple[list[tuple[str, str]], list[str]]:
        """Hands documents over; returns the moves that are done, and paths whose files are needed after all.

        Those are of documents that somebody has changed meanwhile.
        """
        done, missed = [], []
        for source_path, path in plan.moved:
            if self._is_over():
                break
            file = self.files[path]
            with holding_knowledge_bases([self._source.knowledge_base_id]):
                outcome = item_match(self._source, _item(file), file.sha256, is_free=self._is_free, at=self._at)
            if outcome is None:
                missed.append(path)
            else:
                done.append((source_path, path))
                self._counts[outcome] += 1
        return done, missed

    def delete(self, paths: Sequence[str]) -> int:
        """Deletes documents; another path with the same content takes one over instead. Returns how many have gone."""
        deleted = 0
        for path in paths:
            if self._is_over():
                break
            with holding_knowledge_bases([self._source.knowledge_base_id]):
                rows = SourceItem.objects.select_for_update().filter(source=self._source, key_hash=hash_of(path))
                row = rows.filter(document__isnull=False).first()
                if row is None or self._wanted.get(row.key_hash) == row.digest:
                    continue
                if row.key_hash not in self._wanted:
                    row.state = State.GONE
                outcome = item_delete(row)
            self._counts[outcome] += 1
            deleted += outcome == "deleted"
        return deleted

    def describe(self, rows: Sequence[SourceItem]) -> None:
        """Gives documents of unchanged files the metadata that the manifest has for them."""
        told = [row for row in rows if row.document_id is not None and self.files[row.key].metadata]
        documents = Document.objects.in_bulk([row.document_id for row in told])
        for row in told:
            said, document = metadata_of_item(_item(self.files[row.key])), documents.get(row.document_id or 0)
            if document is None or said.items() <= document.metadata.items():
                continue
            if self._is_over():
                break
            with holding_knowledge_bases([self._source.knowledge_base_id]):
                held = Document.objects.select_for_update().filter(pk=document.pk).first()
                if held is not None:
                    document_update(held, metadata=held.metadata | said)

    def note(self, unchanged: Sequence[SourceItem], *, done: bool, failed: int) -> None:
        """Notes what is as it was, and counts; `done`: nothing is missing, so that the sync is one line of the log."""
        for first in range(0, len(unchanged), ROWS_A_QUERY):
            pks = [row.pk for row in unchanged[first : first + ROWS_A_QUERY]]
            rows = SourceItem.objects.filter(pk__in=pks, document__isnull=False).exclude(state=State.DUPLICATE)
            rows.update(seen_at=self._at, state=State.UNCHANGED, **NO_ERROR)
        with transaction.atomic():
            source = Source.objects.select_for_update(no_key=True).get(pk=self._source.pk)
            is_first = source.finished_at is not None or source.started_at is None
            counts = self._counts + Counter({} if is_first else source.counts)
            source.counts = {**counts, "unchanged": len(unchanged), "failed": failed}
            source.started_at = self._at if is_first else source.started_at
            source.finished_at = timezone.now() if done else None
            source.status = Source.Status.DONE if done else source.status
            source.save(update_fields=["counts", "started_at", "finished_at", "status"])
            if done:
                run_log(source, Source.Status.DONE)

    def _is_free(self, other: SourceItem) -> bool:
        return other.key_hash not in self._kept and self._wanted.get(other.key_hash) != other.digest

    def _is_over(self) -> bool:
        self.is_out_of_time = time.monotonic() >= self._ends_at
        return self.is_out_of_time


def _source(knowledge_base: KnowledgeBase, name: str) -> Source | None:
    source = Source.objects.filter(knowledge_base=knowledge_base, name=name).first()
    if source is not None and source.kind != Source.Kind.PUSH:
        raise Rejected(
            "source_invalid",
            _("“%(name)s” is a source that this server reads by itself: choose another name for the folder."),
            name=name,
        )
    if source is not None and source.paused:
        raise Rejected("paused", _("The source “%(name)s” is paused: resume it, then sync again."), name=name)
    return source


def _rows(source: Source | None) -> dict[str, SourceItem]:
    """The items of a source by their paths."""
    rows = SourceItem.objects.filter(source=source).order_by("pk")
    return {
        row.key: row
        for row in rows.only(
            "key", "key_hash", "digest", "content_hash", "state", "document_id", "error", "error_code", "error_params"
        )
    }


def _sorted_out(
    files: Sequence[PushedFile], rows: Mapping[str, SourceItem]
) -> tuple[list[RefusedFile], dict[str, str]]:
    """Files that need not be sent, and the SHA-256 of the others by path."""
    refused, wanted, paths = [], {}, set[str]()
    for file in files:
        if file.path in paths:
            raise Rejected(
                "path_twice", _("“%(path)s” comes twice in the manifest: list each file once."), path=file.path
            )
        paths.add(file.path)
        refusal = _refusal(file)
        row = rows.get(file.path)
        if refusal is None and row is not None and row.state == State.FAILED and row.content_hash == file.sha256:
            detail = error_text(row.error, row.error_code, row.error_params)
            refusal = RefusedFile(file.path, row.error_code, detail)  # the same bytes would fail again
        if refusal is None:
            wanted[file.path] = file.sha256
        else:
            refused.append(refusal)
    return refused, wanted


def _refusal(file: PushedFile) -> RefusedFile | None:
    """Why a file is not taken, by what its manifest says of it."""
    path = PurePosixPath(file.path)
    parts = file.path.split("/")
    if len(file.path) > PATH_CHARACTERS or storable(file.path) != file.path or not {"", ".", ".."}.isdisjoint(parts):
        message = Message(BAD_PATH, path=file.path[:100])
        return RefusedFile(file.path, "bad_path", message.translated(_))
    if path.suffix.lower() not in SUPPORTED_EXTENSIONS:
        return RefusedFile(file.path, "unsupported_type", error_of(unsupported_name(path.name)))
    if file.size > settings.MAX_UPLOAD_BYTES:
        message = Message(LARGE, path=file.path, megabytes=settings.MAX_UPLOAD_BYTES // 1024**2)
        return RefusedFile(file.path, "too_large", message.translated(_))
    return None


def _settled(
    knowledge_base: KnowledgeBase, rows: Mapping[str, SourceItem], wanted: Mapping[str, str]
) -> dict[str, str]:
    """Paths that were sent with bytes which another document has still, and their SHA-256."""
    same = {
        path: row.digest if row.document_id is None else row.content_hash
        for path, row in rows.items()
        if row.state == State.DUPLICATE and path in wanted
    }
    documents = Document.objects.filter(knowledge_base=knowledge_base, sha256__in=set(same.values()))
    there = set(documents.values_list("sha256", flat=True))
    return {path: digest for path, digest in same.items() if digest in there}


def _question(
    source: Source | None, plan: Plan, known: int, files: Sequence[PushedFile], accept: int
) -> DeletionQuestion | None:
    count = len(plan.delete)
    if source is None or count <= accept or (files and count < many(source, known)):
        return None
    return DeletionQuestion(count, known, source.max_share)


def _item(file: PushedFile) -> Item:
    return Item(
        key=file.path,
        version=file.sha256,
        digest=file.sha256,
        name=file.path.rpartition("/")[2],
        size=file.size,
        metadata=file.metadata or {},
    )
