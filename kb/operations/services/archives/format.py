"""What an archive of a knowledge base holds: tables of JSON lines that refer to one another by line number, and files."""

from dataclasses import dataclass, field
from typing import Final

from django.conf import settings
from django.db.models import Model, Q

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk, ChunkParent, Document
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, FactSource, GraphFact
from kb.index.models import ChunkEmbedding
from kb.profiles.models import RetrievalProfile
from kb.quality.models import EvalQuery, EvalSet, Judgment
from kb.sources.models import SearchProvider, WebPage, WebSource

FORMAT: Final = "zhiku-knowledge-base"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
FILES: Final = "files/"
FILE_LIST: Final = "files.jsonl"
"""Of every original: the line of its document, the ending of its name, its size and its SHA-256."""
VECTOR_KINDS: Final = tuple(ChunkEmbedding.Kind.values)

_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Limits:
    """What is read of an archive.

    Attributes:
        archive_bytes: of the archive itself.
        total_bytes: of all that it unpacks to.
        ratio: unpacked to packed, of an entry of more than `ratio_from` bytes.
        directory_bytes: of the list of its entries, which is held in memory.
        line_bytes: of a row, in JSON.
        manifest_bytes: of the manifest, which holds the tokenizer's dictionary.
    """

    archive_bytes: int
    total_bytes: int
    ratio: int = 200
    ratio_from: int = 64 * _MIB
    directory_bytes: int = 16 * _MIB
    line_bytes: int = 16 * _MIB
    manifest_bytes: int = 32 * _MIB


def limits() -> Limits:
    """Those of the installation."""
    return Limits(archive_bytes=settings.MAX_ARCHIVE_BYTES, total_bytes=8 * settings.MAX_ARCHIVE_BYTES)


@dataclass(frozen=True, slots=True)
class Table:
    """A part of an archive: one row of the database a line, in the order of their ids.

    Attributes:
        model: of the rows.
        fields: that are written as they are.
        refers: foreign keys, with the table that they lead into; a row is known by its line there, counted from 0.
        kb_path: the lookup that leads to the knowledge base.
        only: which rows are written.
    """

    name: str
    model: type[Model]
    fields: tuple[str, ...] = ()
    refers: dict[str, str] = field(default_factory=dict)
    kb_path: str = "knowledge_base"
    only: Q = field(default_factory=Q)

    @property
    def part(self) -> str:
        """Its name in the archive."""
        return f"{self.name}.jsonl"

    @property
    def keys(self) -> frozenset[str]:
        """Those of a line."""
        return frozenset((*self.fields, *self.refers))


KNOWLEDGE_BASE_FIELDS: Final = (
    "name",
    "description",
    "language",
    "chunk_size",
    "chunk_overlap",
    "chunk_unit",
    "chunk_strategy",
    "parent_size",
    "keyword_vectors",
    "keyword_method",
    "ask_questions",
    "extract_graph",
    "no_answer",
)
TOKENIZER_FIELDS: Final = ("engine", "dictionary", "stop_words", "simplify")

_DOCUMENTS: Final = Table(
    "documents",
    Document,
    (
        "title",
        "source",
        "source_type",
        "mime",
        "size",
        "sha256",
        "metadata",
        "tags",
        "status",
        "keep_chunks",
        "chunking",
        "indexed_title",
        "remarks",
        "created_at",
    ),
)
_CHUNKS: Final = Table(
    "chunks",
    Chunk,
    (
        "position",
        "text",
        "cut_text",
        "page",
        "heading_path",
        "keywords",
        "questions",
        "own_keywords",
        "own_questions",
        "own_cut",
        "enabled",
        "token_count",
    ),
    {"document": "documents", "parent": "parents"},
)
_WEB_SOURCES: Final = Table(
    "web_sources",
    WebSource,
    (
        "name",
        "kind",
        "url",
        "enabled",
        "live",
        "every_minutes",
        "max_pages",
        "max_depth",
        "include",
        "exclude",
        "tags",
    ),
)
_WEB_PAGES: Final = Table(
    "web_pages",
    WebPage,
    ("url", "title", "state", "etag", "last_modified", "content_hash", "version", "fetched_at", "gone_at"),
    {"source": "web_sources", "document": "documents"},
    kb_path="source__knowledge_base",
)
# A table comes after those that it refers to, so that its rows can be written as they are read.
TABLES: Final = (
    Table("profiles", RetrievalProfile, ("name", "version", "description", "settings", "published", "published_at")),
    Table("concepts", Concept, ("name", "description"), {"parent": "concepts"}),
    Table("concept_terms", ConceptTerm, ("text", "kind"), {"concept": "concepts"}),
    _DOCUMENTS,
    Table(
        "document_concepts",
        Document.concepts.through,
        refers={"document": "documents", "concept": "concepts"},
        kb_path="document__knowledge_base",
    ),
    Table("parents", ChunkParent, ("position", "text", "page", "heading_path"), {"document": "documents"}),
    _CHUNKS,
    Table("entities", Entity, ("name", "kind", "description", "origin")),
    Table("entity_names", EntityName, ("text",), {"entity": "entities"}),
    Table("facts", GraphFact, ("subject", "predicate", "object", "origin"), {"source_chunk": "chunks"}),
    Table(
        "fact_sources",
        FactSource,
        refers={"fact": "facts", "document": "documents", "chunk": "chunks"},
        kb_path="fact__knowledge_base",
    ),
    Table("eval_sets", EvalSet, ("name",)),
    Table(
        "eval_queries",
        EvalQuery,
        ("external_id", "text", "answerable"),
        {"eval_set": "eval_sets"},
        kb_path="eval_set__knowledge_base",
    ),
    Table(
        "judgments",
        Judgment,
        ("source", "quote", "grade", "created_at"),
        {"query": "eval_queries", "document": "documents"},
        kb_path="query__eval_set__knowledge_base",
    ),
    _WEB_SOURCES,
    _WEB_PAGES,
    Table("search_providers", SearchProvider, ("name", "kind", "settings", "enabled", "timeout_ms", "weight")),
)
TABLE: Final = {table.name: table for table in TABLES}

# What is not written, and why: it is rebuilt, belongs to the installation, or is of the moment.
LEFT_OUT: Final[dict[type[Model], frozenset[str]]] = {
    KnowledgeBase: frozenset(
        {
            "owner",
            "embedding_model",  # in the manifest, with its dimension
            "dimension",
            "target_embedding_model",
            "previous_embedding_model",
            "tokenizer_id",  # in the manifest, with its options
            "target_tokenizer_id",
            "tokenizing_at",
            "tokenizer_swapped_at",
            "lacks_postings",
            "store",  # the installation's: a copy is filled by `manage.py migrate_store`
            "target_store",
            "profile",  # in the manifest, by name and version
            "created_at",
            "updated_at",
        }
    ),
    RetrievalProfile: frozenset({"knowledge_base", "created_by", "created_at"}),
    ConceptTerm: frozenset({"key"}),
    EntityName: frozenset({"key"}),
    GraphFact: frozenset({"subject_key", "object_key"}),
    Document: frozenset(
        {
            "file",  # see FILE_LIST
            "batch",
            "stage",
            "progress",
            "attempts",
            "waiting_since",
            "lease",
            "lease_until",
            "error_code",
            "error",
            "error_params",
            "created_by",
            "updated_at",
        }
    ),
    Chunk: frozenset({"content_hash", "updated_at"}),
    Judgment: frozenset({"quote_hash", "created_by"}),
    WebSource: frozenset(
        {
            "status",
            "attempts",
            "error_code",
            "error",
            "error_params",
            "counts",
            "started_at",
            "finished_at",
            "next_run_at",
            "lease",
            "lease_until",
            "accepted_at",
            "accepted_keys",
            "created_by",
            "created_at",
        }
    ),
    WebPage: frozenset({"url_hash", "text_key", "shown_key", "error_code", "error", "error_params"}),
}


def vector_parts(kind: str) -> tuple[str, str]:
    """The part of a kind's vectors, float16 of shape (n, dimension), and that of their rows, int64 of shape (n, 2).

    A row is the chunk's line and the ordinal of the vector among those of its kind; rows ascend.
    """
    return f"vectors/{kind}.npy", f"vectors/{kind}.rows.npy"


def file_part(line: int, suffix: str) -> str:
    """Where a document's original lies in the archive."""
    return f"{FILES}{line}{'.' + suffix if suffix else ''}"
