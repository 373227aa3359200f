from kb.access.models.accounts import ApiKey, Principal, ScopedQuerySet, User
from kb.access.models.audit import AuditEntry, AuditQuerySet
from kb.access.models.invitations import Invitation
from kb.access.models.knowledge import KnowledgeBase, Membership
from kb.answers.models import Conversation, Message
from kb.base.models import Installation
from kb.content.models.batches import FileDetails, IngestBatch
from kb.content.models.documents import Chunk, ChunkParent, Document
from kb.content.models.duplicates import DuplicateScan
from kb.graph.models import (
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
from kb.index.models.index import (
    BM25Index,
    ChunkChange,
    ChunkEmbedding,
    ChunkPostings,
    KnowledgeBaseVersion,
    VectorIndex,
)
from kb.index.models.reembedding import Reembedding
from kb.index.models.stores import StoreChange, StoreState
from kb.profiles.models import RetrievalProfile
from kb.providers.models import TokenizerSettings
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet, FailedQuery, Judgment
from kb.search.models import SearchLog
from kb.sources.models import SearchProvider, WebPage, WebPageChange, WebSource
from kb.web.models import IdempotencyKey

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
