from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from kb.base.messages import shown
from kb.base.remarks import REMARKS
from kb.content.models.documents import Document
from kb.ingest.parser.parsed import MESSAGES
from retrieval.messages import Message


def error_sentence(document: Document) -> str:
    """What went wrong with a document and what to do, in the reader's language."""
    templates: Mapping[str, str] = {code.value: message for code, message in MESSAGES.items()}
    template = templates.get(document.error_code)
    if template is not None:
        try:
            return _(template).format(**document.error_params)
        except KeyError:
            pass  # written by a version whose sentence had other fields
    return shown(document.error)


def remark_sentences(document: Document) -> list[str]:
    """What the reader of a document's file left out or guessed, in the reader's language."""
    templates: Mapping[str, str] = {code.value: message for code, message in REMARKS.items()}
    told = [(templates.get(remark["code"]), remark["params"]) for remark in document.remarks]
    return [shown(_remark(template, params)) for template, params in told if template is not None]


def _remark(template: str, params: Mapping[str, Any]) -> Message:
    return Message.from_dict({"template": template, "arguments": params})
