"""Evaluation sets in BEIR layout: one passage is one document is one chunk, so that judgments fit exactly."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.documents import Document
from kb.ingest.services.whole_documents import WholeDocument, batches, write_whole_documents
from kb.quality.eval_sets.services.sets import write_eval_set
from retrieval.eval.judged_sets import Layout, read_judged_set
from retrieval.eval.qrels import BeirPassage, iter_corpus


@dataclass(frozen=True, slots=True)
class BeirImport:
    """What an import did: passages added, passages found there unchanged, queries and judgments of the set."""

    added: int
    unchanged: int
    queries: int = 0
    judgments: int = 0


def import_passages(
    knowledge_base: KnowledgeBase, directory: Path, on_progress: Callable[[int], None] = lambda _: None
) -> BeirImport:
    """Imports a corpus; passages that are there already are kept, changed ones replaced, so it can be run again.

    Args:
        knowledge_base: where to.
        directory: holds corpus.jsonl.
        on_progress: told how many further passages are done.

    Raises:
        BeirFormatError: the file is missing or a line of it is wrong; earlier batches stay imported.
        ModelUnavailable: the knowledge base's model cannot be loaded.
    """
    known = dict(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", "sha256"))
    added = unchanged = 0
    for batch in batches(iter_corpus(directory)):
        fresh = [passage for passage in batch if known.get(passage.id) != _digest(passage)]
        changed = [passage.id for passage in fresh if passage.id in known]
        replaced = Document.objects.filter(knowledge_base=knowledge_base, source__in=changed)
        write_whole_documents(knowledge_base, [_document(passage) for passage in fresh], replaced=replaced)
        added, unchanged = added + len(fresh), unchanged + len(batch) - len(fresh)
        on_progress(len(batch))
    return BeirImport(added, unchanged)


def import_eval_set(knowledge_base: KnowledgeBase, directory: Path, name: str) -> tuple[int, int]:
    """Imports queries and judgments in place of those of a set of the same name; queries of other splits are left out.

    Returns:
        The number of queries and of judgments.

    Raises:
        SetFormatError: a file is missing or a line of it is wrong; nothing was changed.
    """
    documents = frozenset(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", flat=True))
    judged = read_judged_set(directory, Layout.BEIR, documents=documents)
    imported = write_eval_set(knowledge_base, name, judged)
    return imported.queries, imported.judgments


def _digest(passage: BeirPassage) -> str:
    return hashlib.sha256("\0".join((passage.id, passage.title, passage.text)).encode()).hexdigest()


def _document(passage: BeirPassage) -> WholeDocument:
    text = passage.text or passage.title
    return WholeDocument(text, title=passage.title, source=passage.id, sha256=_digest(passage))
