"""Importing this module registers the models of every feature, and names them in one place."""
# ruff: noqa: F401

from kb.access.models import (
    ApiKey,
    AuditEntry,
    AuditQuerySet,
    GroupMembership,
    Invitation,
    KnowledgeBase,
    Membership,
    Principal,
    ScopedQuerySet,
    User,
    UserGroup,
)
from kb.answers.models import Conversation, Message
from kb.assistants.models import Assistant, AssistantUse, AssistantVersion, ShareLink, Visitor
from kb.base.models import Installation
from kb.content.models import Chunk, ChunkParent, Document, DuplicateScan, FileDetails, Folder, IngestBatch, Picture
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
from kb.index.models import (
    BM25Index,
    ChunkChange,
    ChunkEmbedding,
    ChunkPostings,
    KnowledgeBaseVersion,
    Reembedding,
    StoreChange,
    StoreState,
    VectorIndex,
)
from kb.jobs.models import MoveAttempt, Turn
from kb.profiles.models import RetrievalProfile
from kb.providers.downloads.models import ModelDownload
from kb.providers.models import ProviderModel, TokenizerSettings
from kb.providers.usage.models import ModelUse
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet, FailedQuery, Judgment
from kb.search.models import SearchLog
from kb.signin.models import SignInProvider
from kb.sources.models import ListedItem, SearchProvider, Source, SourceItem, SourceItemChange, SourceRun
from kb.web.models import IdempotencyKey
