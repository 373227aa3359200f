from kb.models.access import Principal, ScopedQuerySet
from kb.models.accounts import ApiKey, User
from kb.models.audit import AuditEntry, AuditQuerySet
from kb.models.batches import FileDetails, IngestBatch
from kb.models.connectors import SearchProvider, WebPage, WebPageChange, WebSource
from kb.models.conversations import Conversation, Message
from kb.models.duplicates import DuplicateScan
from kb.models.evaluation import EvalQuery, EvalRun, EvalRunQuery, EvalSet, Judgment
from kb.models.graph import (
    Concept,
    ConceptTerm,
    DocumentConcept,
    Entity,
    EntityName,
    FactSource,
    GraphExtraction,
    GraphFact,
    GraphReading,
    Origin,
)
from kb.models.idempotency import IdempotencyKey
from kb.models.index import (
    BM25Index,
    ChunkChange,
    ChunkEmbedding,
    ChunkPostings,
    Installation,
    KnowledgeBaseVersion,
    VectorIndex,
)
from kb.models.invitations import Invitation
from kb.models.knowledge import Chunk, ChunkParent, Document, KnowledgeBase, Membership
from kb.models.reembedding import Reembedding
from kb.models.search import FailedQuery, RetrievalProfile, SearchLog
from kb.models.stores import StoreChange, StoreState
from kb.models.tokenizer import TokenizerSettings

__all__ = [
    "ApiKey",
    "AuditEntry",
    "AuditQuerySet",
    "BM25Index",
    "Chunk",
    "ChunkChange",
    "ChunkEmbedding",
    "ChunkParent",
    "ChunkPostings",
    "Concept",
    "ConceptTerm",
    "Conversation",
    "Document",
    "DocumentConcept",
    "DuplicateScan",
    "Entity",
    "EntityName",
    "EvalQuery",
    "EvalRun",
    "EvalRunQuery",
    "EvalSet",
    "FactSource",
    "FailedQuery",
    "FileDetails",
    "GraphExtraction",
    "GraphFact",
    "GraphReading",
    "IdempotencyKey",
    "IngestBatch",
    "Installation",
    "Invitation",
    "Judgment",
    "KnowledgeBase",
    "KnowledgeBaseVersion",
    "Membership",
    "Message",
    "Origin",
    "Principal",
    "Reembedding",
    "RetrievalProfile",
    "ScopedQuerySet",
    "SearchLog",
    "SearchProvider",
    "StoreChange",
    "StoreState",
    "TokenizerSettings",
    "User",
    "VectorIndex",
    "WebPage",
    "WebPageChange",
    "WebSource",
]
