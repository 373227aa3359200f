"""Attachments of mails, which become documents beside them."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import transaction

from kb.base.files import local_file
from kb.base.findings import Remark, RemarkCode
from kb.content.models import Document
from kb.ingest.parser.archives import MAIL_LIMITS, detach
from kb.ingest.parser.parsed import MESSAGES, ParseError
from kb.ingest.services.batches import BETWEEN, NewFile, add_notes, notes_of, take_in, unpacking_folder
from kb.jobs.leases import Job
from retrieval.errors import Message

MOST_DEPTH: Final = 3  # A mail within so many others keeps its attachments
_SHOWN: Final = 10


def take_in_attachments(job: Job[Document], own: Collection[str], report: Callable[[int], None]) -> list[Remark]:
    """Makes every attachment of a mail a document of the mail's upload, named by the mail.

    They get its tags and its metadata but for `own`, which is what the mail says of itself. Documents that are there from an earlier attempt are found by their bytes and stay. What becomes no document is
    noted with the upload; the remarks name it, and where no attachment could be taken out they say why: the mail itself
    is read in any case. Raises LeaseLost where the mail is no longer this worker's.
    """
    mail = job.row
    chain = [*filter(None, [str(mail.metadata.get("mail", ""))]), mail.source.rpartition(BETWEEN)[2]]
    try:
        return _taken_in(job, BETWEEN.join(chain), own, report)
    except ParseError as error:
        reason = Message(MESSAGES[error.code], **error.params)
        return [Remark(RemarkCode.ATTACHMENTS_NOT_READ, {"reason": reason})]


def _taken_in(job: Job[Document], chain: str, own: Collection[str], report: Callable[[int], None]) -> list[Remark]:
    mail = job.row
    if (depth := chain.count(BETWEEN)) >= MOST_DEPTH:
        raise ParseError("nested_mail", depth=depth)
    limits = replace(
        MAIL_LIMITS,
        file_bytes=settings.MAX_UPLOAD_BYTES,
        archive_bytes=settings.MAX_UPLOAD_BYTES,
        seconds=settings.PARSE_SECONDS,
        memory_bytes=settings.PARSE_MEMORY_BYTES,
    )
    with unpacking_folder(mail) as folder:
        with local_file(mail.file) as path:
            members, skipped = detach(path, mail.source, Path(folder), limits=limits)
        given = {name: value for name, value in mail.metadata.items() if name not in own}
        files = [
            NewFile(
                f"{mail.source}{BETWEEN}{name}",
                file,
                metadata={**given, "mail": chain, "attachment": name},
                tags=mail.tags,
            )
            for name, file in members
        ]
        known = take_in(job, files, ("mail", "attachment"), report)
    if notes := [*notes_of((f"{mail.source}{BETWEEN}{name}", reason) for name, reason in skipped), *known]:
        with transaction.atomic():
            add_notes(mail, notes, once=True)
            job.update()
    names = [name for name, _ in skipped]
    listed = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return [Remark(RemarkCode.ATTACHMENTS_LEFT_OUT, {"names": listed})] if names else []
