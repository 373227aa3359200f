"""The newcomer's questions of tests/data/newcomer, and the knowledge bases that they are asked of, made as on a first start."""

import json
from dataclasses import dataclass
from pathlib import Path

from retrieval.eval.judged_sets import squeezed

FOLDER = Path(__file__).parent / "data" / "newcomer"


@dataclass(frozen=True)
class Question:
    """`document` and `answer` are None where the knowledge base has no answer."""

    id: str
    kb: str
    language: str
    query: str
    document: str | None
    answer: str | None

    def is_answered_by(self, source: str, text: str) -> bool:
        """Whether a chunk is of the right document, and the words of the answer stand in it."""
        return source == self.document and squeezed(self.answer) in squeezed(text)


def questions() -> list[Question]:
    lines = (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [Question(**json.loads(line)) for line in lines]


def make_knowledge_bases(owner, embedding_model: str) -> dict:
    """The searchable knowledge bases, by the name that questions know them by."""
    from kb.content.services import knowledge_base_create
    from kb.operations.services.bootstrap import DEMOS, demo_files

    files = sorted((FOLDER / "files").iterdir())
    described = [(f"demo-{folder}", demo, demo_files(folder)) for folder, demo in DEMOS.items()]
    described.append(("files", {"name": "files", "language": "zh"}, files))
    made = {}
    for name, fields, documents in described:
        made[name] = knowledge_base_create(owner=owner, embedding_model=embedding_model, **fields)
        upload(made[name], documents)
    return made


def upload(kb, files) -> None:
    """Indexed here and now, without a worker."""
    from django.core.files.base import ContentFile

    from kb.ingest.services.documents import document_add
    from kb.ingest.services.indexing import index_document, index_documents
    from kb.models import Document
    from kb.operations.services.bootstrap import SOURCE_TYPES

    ids = [
        document_add(
            knowledge_base=kb,
            file=ContentFile(file.read_bytes()),
            name=file.name,
            user=kb.owner,
            source_type=SOURCE_TYPES.get(file.name, Document.SourceType.BOOK),
        ).pk
        for file in files
    ]
    for document_id in index_documents(ids):
        index_document(document_id)
