"""Answers that curators give to questions which found none; searches find them at once, since no worker has to read a file."""

from typing import cast

from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.base.errors import Rejected, not_editable
from kb.base.text import hash_content, storable
from kb.content.models import Chunk, Document
from kb.ingest.services.chunks import check_chunk
from kb.ingest.services.corrections import usable_question
from kb.ingest.services.documents import write_whole_documents
from retrieval.errors import RetrievalError

ANSWER_CHARACTERS = 4_000


def pair_add(principal: Principal, *, knowledge_base: KnowledgeBase, question: str, answer: str) -> Chunk:
    """Makes a question and its answer a document of one chunk, which has the question; the same pair again is one document.

    Raises NotAllowed; Rejected where a text is blank or too long, or the knowledge base's model is out of reach; and
    Superseded where it moved to another model meanwhile. Nothing was written then.
    """
    if not KnowledgeBase.objects.editable_by(principal).filter(pk=knowledge_base.pk).exists():
        raise not_editable()
    asked, said = usable_question(question), storable(answer).strip()
    if not said:
        raise Rejected("blank_text", _("The answer is empty: write what readers shall be told."))
    chunk = Chunk(text=f"{asked}\n{said}", questions=[asked])
    check_chunk(chunk)
    document = Document(
        title=asked,
        source_type=Document.SourceType.QA,
        sha256=hash_content(chunk.text),
        created_by=cast(User, principal.user),
    )
    same = Document.objects.filter(knowledge_base=knowledge_base, sha256=document.sha256)
    try:
        write_whole_documents(knowledge_base, [(document, chunk.text)], replaced=same, questions=(asked,))
    except RetrievalError as error:
        raise Rejected("model_unavailable", str(error)) from error
    written: Chunk = Chunk.objects.select_related("document").get(document=document)
    return written
