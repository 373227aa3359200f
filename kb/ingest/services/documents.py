from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import PurePath
from typing import Any, Final, TypeVar

from django.conf import settings
from django.core.files import File
from django.core.files.base import ContentFile
from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import FileResponse
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_noop

from kb.access.models import KnowledgeBase, User
from kb.base.db.transactions import after_commit, holding_knowledge_bases
from kb.base.errors import AlreadyThere, NotVisible, Rejected
from kb.base.files import delete_folder, sha256_of
from kb.base.findings import REMARKS
from kb.base.messages import shown
from kb.base.text import hash_content
from kb.content.folders.services import folder_in
from kb.content.models import Chunk, Document, IngestBatch, previews_folder
from kb.index.bm25 import BM25Store
from kb.index.keywords import Source
from kb.index.services.writing import ROWS_A_STATEMENT, copy_rows, prepare_chunks, write_chunks, writing_chunks
from kb.ingest.parser import office
from kb.ingest.parser.archives import is_archive_name
from kb.ingest.parser.parse import is_readable_head, is_recording_head, office_kind
from kb.ingest.parser.parsed import MESSAGES, SUPPORTED_EXTENSIONS
from kb.ingest.services.file_kinds import check_kind
from kb.jobs.leases import Queue
from kb.providers.embedding_models import embedder
from retrieval.errors import Message
from retrieval.types import searchable_text

Status, Stage = Document.Status, Document.Stage

# An upload with so many files that exhausted their time has its other files read after those of all others.
MOST_TIMEOUTS: Final = 3
DOCUMENTS = Queue(
    Document,
    waiting=Status.PENDING,
    running=Status.PROCESSING,
    lasts=lambda: timedelta(seconds=settings.INGEST_LEASE_SECONDS),
    waits_since="updated_at",
    stamp="updated_at",
    available=Q(~Exists(IngestBatch.objects.filter(pk=OuterRef("batch"), paused=True))),
    idle={"stage": "", "progress": 0},
    related=("knowledge_base",),
    behind=Q(batch__timeouts__gte=MOST_TIMEOUTS),
)
CLAIMED: Mapping[str, Any] = {"stage": Stage.PARSE, "progress": 0, "error": "", "error_code": ""}
PASTED_NAME = "pasted.txt"
HEAD_BYTES = 8_192
SOURCE_CHARACTERS = 1_000


def document_add(  # noqa: PLR0913 - each is a detail of the document
    *,
    knowledge_base: KnowledgeBase,
    file: "File[bytes]",
    name: str,
    user: User | None,
    title: str = "",
    metadata: Mapping[str, Any] | None = None,
    tags: list[str] | None = None,
    source_type: str = "",
    batch: IngestBatch | None = None,
    folder_id: int | None = None,
) -> Document:
    """Takes a file in; a worker makes it searchable once the transaction commits.

    The caller has checked that the user may write to the knowledge base. The last part of the name becomes the source, a
    blank title is taken from the file by the parser, and a blank source type is `usual_source_type`. A ZIP archive is taken in too; the worker puts the documents that it
    holds in its place.

    Raises:
        AlreadyThere: the knowledge base holds the same bytes.
        NotVisible: the knowledge base is gone, or has no such folder.
        Rejected: the file is too large, or of a type that cannot be read.
    """
    source = source_of_name(name)
    head = check_file(source, file)
    document = Document(
        knowledge_base=knowledge_base,
        folder=folder_in(knowledge_base, folder_id),
        title=title,
        source=source,
        source_type=source_type or usual_source_type(source, head),
        metadata=dict(metadata or {}),
        tags=tags or [],
        size=file.size,
        sha256=sha256_of(file),
        created_by=user,
        batch=batch,
    )
    with _storing(document, file):
        document.save()
    return document


@contextmanager
def _storing(document: Document, file: "File[bytes]") -> Iterator[None]:
    """Stores the file of a document for the row that the block writes; without the row it goes again.

    Raises AlreadyThere and NotVisible as `document_add`, also where somebody else was quicker.
    """
    _refuse_known(document)
    document.file.save(document.source, file, save=False)
    try:
        with transaction.atomic():
            yield
            connection.check_constraints()  # now, so that the knowledge base stays until a transaction around this one ends
    except Exception as error:
        document.file.delete(save=False)
        if isinstance(error, IntegrityError):
            _refuse_known(document)
            if not KnowledgeBase.objects.filter(pk=document.knowledge_base_id).exists():
                raise NotVisible(_("The knowledge base is gone.")) from error
            folder_in(document.knowledge_base, document.folder_id)  # NotVisible: it was deleted meanwhile
        raise


def document_add_text(
    *, knowledge_base: KnowledgeBase, text: str, title: str, user: User | None, **details: Any
) -> Document:
    """Takes pasted text in, kept as a UTF-8 file like any other; raises as `document_add`, and for a blank text."""
    if not text.strip():
        raise Rejected("blank_text", _("The text is empty: paste or type some."))
    return document_add(
        knowledge_base=knowledge_base,
        file=ContentFile(text.encode()),
        name=PASTED_NAME,
        title=title,
        user=user,
        **details,
    )


def document_update(document: Document, **changes: Any) -> None:
    """Changes title, source type, metadata, tags or `folder_id`, inside a transaction that holds the document.

    A new title, which is part of what is indexed, indexes the chunks again. A document that has failed or was cancelled
    stays so; it gets its new title when it is processed once more.
    """
    folder_in(document.knowledge_base, changes.get("folder_id"))  # NotVisible: it has no such folder
    retitled = changes.get("title", document.title) != document.title
    if retitled and document.status not in (Status.FAILED, Status.CANCELLED):
        _wait(document, keep_chunks=document.keep_chunks or document.status == Status.READY, **changes)
    else:
        _save(document, **changes)


def _save(document: Document, *changed: str, **changes: Any) -> None:
    """Saves fields that have changed, or change now; all else may be another's by now."""
    for name, value in changes.items():
        setattr(document, name, value)
    document.save(update_fields=[*changed, *changes, "updated_at"])


def _wait(document: Document, *changed: str, keep_chunks: bool, **changes: Any) -> None:
    _save(document, *changed, **changes, **waiting(), keep_chunks=keep_chunks or not document.file)


def document_delete(document: Document) -> None:
    documents_delete(Document.objects.filter(pk=document.pk))


def documents_delete(documents: QuerySet[Document]) -> None:
    """Deletes documents; a worker that is writing one of them finishes first."""
    with holding_knowledge_bases(documents.values_list("knowledge_base_id", flat=True)):
        documents.delete()


def document_requeue(document: Document, *, keep_chunks: bool = False) -> None:
    """Indexes a document once more; NotVisible: it is gone.

    With `keep_chunks` its chunks stay as they are, edits included, and are only indexed again; else they are cut from
    the stored file. A document that was imported without a file always keeps them.
    """
    with document_held(document) as held:
        _wait(held, keep_chunks=keep_chunks)


def documents_requeue(documents: Iterable[Document]) -> int:
    """Indexes documents once more, cut from their stored files, and returns how many; those that are gone are left."""
    count = 0
    for document in documents:
        with suppress(NotVisible):
            document_requeue(document)
            count += 1
    return count


def documents_recut(documents: QuerySet[Document]) -> int:
    """As `documents_requeue`, but for the unfinished and those without a file, which are left."""
    return documents_requeue(cuttable(documents).order_by("pk").iterator(chunk_size=ROWS_A_STATEMENT))


def cuttable(documents: QuerySet[Document]) -> QuerySet[Document]:
    """Those whose chunks were cut from a file that is kept."""
    return documents.filter(status=Status.READY).exclude(file="")


def waiting() -> dict[str, Any]:
    """What a document that is to be processed once more begins with."""
    return {
        **DOCUMENTS.freed(Status.PENDING),
        "error": "",
        "error_code": "",
        "error_params": {},
        "attempts": 0,
        "waiting_since": timezone.now(),
    }


def document_replace_file(*, document: Document, file: "File[bytes]", name: str, **changes: Any) -> None:
    """Gives a document another file, from which it is re-chunked; belongs inside a transaction that holds it.

    What searches find of it is what they found before, until a worker has read the new file. Raises as `document_add`,
    and Rejected for an archive.
    """
    source, known_as = source_of_name(name), str(document.file.name or "")
    if is_archive_name(source):
        raise Rejected("unsupported_type", _("An archive is many documents: upload it as a new one."))
    check_file(source, file)
    digest = sha256_of(file)
    with ExitStack() as written:
        if digest != document.sha256:
            document.sha256, document.size, document.source = digest, file.size, source
            written.enter_context(_storing(document, file))
            if known_as:
                after_commit(document.file.storage.delete, known_as)
            after_commit(delete_folder, previews_folder(document))
        _wait(document, "sha256", "size", "source", "file", keep_chunks=False, mime="", **changes)


@contextmanager
def document_held(document: Document) -> Iterator[Document]:
    """A transaction in which nobody else changes a document, as it is now, or its chunks; NotVisible: it is gone."""
    with holding_knowledge_bases([document.knowledge_base_id]):  # first, as every writer of chunks does
        held = Document.objects.select_for_update(no_key=True).filter(pk=document.pk).first()
        if held is None:
            raise NotVisible(_("The document is gone."))
        yield held


def file_response(document: Document) -> FileResponse:
    """A document's file as an attachment, for who may see the document; NotVisible: it has none, or none any more."""
    try:
        file = document.file.open("rb")
    except (ValueError, FileNotFoundError) as error:  # not asked for first: it may go at any moment
        raise NotVisible(_("This document has no file.")) from error
    return FileResponse(
        file,
        as_attachment=True,
        filename=document.source,
        content_type="application/octet-stream",
        headers={"X-Content-Type-Options": "nosniff"},
    )


def source_of_name(name: str) -> str:
    """The last part of a path as a browser or an archive gives it; of a very long one the beginning and the extension."""
    path = PurePath(name.replace("\\", "/"))
    if len(path.name) <= SOURCE_CHARACTERS:
        return path.name
    extension = path.suffix[:SOURCE_CHARACTERS]
    return path.name[: SOURCE_CHARACTERS - len(extension)] + extension


def usual_source_type(source: str, head: bytes) -> str:
    """Video for what has the times of a recording, by the name and the first bytes of a file; book for all else."""
    is_recording = is_recording_head(head, PurePath(source).suffix.lower())
    return Document.SourceType.VIDEO if is_recording else Document.SourceType.BOOK


def check_file(source: str, file: "File[bytes]") -> bytes:
    """Refuses, as Rejected, what need not be stored first: by its size, and its first bytes, whatever its name says.

    Returns these first bytes.
    """
    most = settings.MAX_ZIP_BYTES if is_archive_name(source) else settings.MAX_UPLOAD_BYTES
    if file.size > most:
        template = gettext_noop("“{name}” is larger than {megabytes} MB: split it into smaller files.")
        raise Rejected("too_large", Message(template, name=source, megabytes=most // 1024**2))
    head: bytes = file.read(HEAD_BYTES)
    file.seek(0)
    check_kind(source, head)
    # Whatever its name says
    if (error := office.refusal(office_kind(head, PurePath(source).suffix.lower()))) is not None:
        raise Rejected("unsupported_type", Message(MESSAGES[error.code], **error.params))
    if not is_readable_head(head):
        template = gettext_noop("“{name}” is of a type that cannot be read: upload one of {types}.")
        raise Rejected("unsupported_type", Message(template, name=source, types=", ".join(SUPPORTED_EXTENSIONS)))
    return head


def _refuse_known(document: Document) -> None:
    same = Document.objects.filter(knowledge_base=document.knowledge_base_id, sha256=document.sha256)
    if (known := same.exclude(pk=document.pk).first()) is not None:
        message = _("The same content is in this knowledge base already, as “%(title)s”: nothing was added.")
        raise AlreadyThere(known.pk, message % {"title": known.title or known.source})


def error_sentence(document: Document) -> str:
    """What went wrong with a document and what to do, in the reader's language."""
    if template := MESSAGES.get(document.error_code):
        with suppress(KeyError):  # written by a version whose sentence had other fields
            return _(template).format(**document.error_params)
    return shown(document.error)


def remark_sentences(document: Document) -> list[str]:
    """What the reader of a document's file left out or guessed, in the reader's language."""
    return [
        shown(Message.from_dict({"template": REMARKS[remark["code"]], "arguments": remark["params"]}))
        for remark in document.remarks
        if remark["code"] in REMARKS
    ]


T = TypeVar("T")
BATCH = 256
TITLE_CHARACTERS = 500


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """As many at once as are embedded and written together."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def write_whole_documents(
    kb: KnowledgeBase,
    documents: Sequence[tuple[Document, str]],
    *,
    replaced: QuerySet[Document],
    questions: tuple[str, ...] = (),
) -> None:
    """Writes documents of one chunk, each with its text, in place of others, in one transaction.

    They are known by their `sha256`; what is too long of title and source is cut off. Each answers the `questions`. Raises ModelUnavailable where the
    knowledge base's model cannot be loaded, and Superseded where it has another by now.
    """
    if not documents:
        return
    model = embedder(kb.embedding_model)
    for row, text in documents:
        row.knowledge_base, row.mime, row.size = kb, "text/plain", len(text.encode())
        row.title, row.source = row.title[:TITLE_CHARACTERS], row.source[:SOURCE_CHARACTERS]
        row.status, row.progress = Status.READY, 100
    sources = [
        Source(searchable_text(row.title, (), text), text, questions, None, bool(questions)) for row, text in documents
    ]
    prepared = prepare_chunks(kb, sources)
    counts = [model.count_tokens(source.searchable) for source in sources]
    with writing_chunks(kb):
        replaced.delete()
        copy_rows(Document, [row for row, _ in documents])
        chunks = [
            Chunk(
                knowledge_base=kb,
                document=row,
                position=0,
                text=source.text,
                content_hash=hash_content(source.text),
                token_count=count,
                questions=list(questions),
                own_questions=bool(questions),
            )
            for (row, _), source, count in zip(documents, sources, counts, strict=True)
        ]
        write_chunks(chunks, prepared, model_id=model.model_id)
        after_commit(BM25Store().expire, kb.pk)
