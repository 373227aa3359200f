"""Files that came in one request, taken in one by one: what is wrong with one of them keeps none of the others out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.files import File
from django.utils.translation import gettext as _

from kb.access.models.accounts import User
from kb.base.errors import AlreadyThere, Rejected
from kb.content.models.batches import IngestBatch
from kb.content.models.documents import Document
from kb.ingest.parser.parsed import MESSAGES
from kb.ingest.services.batches.files import batch_add


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that became no document.

    Attributes:
        name: as it was sent.
        code: stable.
        message: a sentence to act on.
        document_id: of the document that holds the same bytes, if that is why.
    """

    name: str
    code: str
    message: str
    document_id: int | None = None


def batch_add_files(
    batch: IngestBatch,
    files: Sequence[tuple[str, "File[bytes]"]],
    *,
    user: User | None,
    source_type: str = Document.SourceType.BOOK,
) -> list[Refused]:
    """Takes files into an upload, each with the name, and the folders, that it is known by.

    Returns:
        Those that became no document; one that this upload has already is not among them, so that a request whose answer
        was lost can be sent again.
    """
    refused = []
    for name, file in files:
        try:
            batch_add(batch, file, name, user=user, source_type=source_type)
        except AlreadyThere as error:
            if not Document.objects.filter(pk=error.document_id, batch=batch).exists():
                refused.append(Refused(name, "known", str(error), error.document_id))
        except Rejected as error:
            refused.append(Refused(name, error.code, str(error)))
    return refused


def note_message(note: dict[str, Any]) -> str:
    """Why a file of an archive became no document, in the reader's language; blank where this version cannot tell."""
    if note["code"] == "known":
        return _("The same content is here already.")
    templates = {code.value: message for code, message in MESSAGES.items()}
    template = templates.get(note["code"])
    return _(template).format(**note["params"]) if template else ""
