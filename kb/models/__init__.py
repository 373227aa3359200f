from kb.models.access import Principal, ScopedQuerySet
from kb.models.accounts import ApiKey, User
from kb.models.evaluation import EvalQuery, EvalSet, Judgment
from kb.models.index import BM25Index, ChunkChange, ChunkEmbedding, ChunkPostings, Installation, KnowledgeBaseVersion
from kb.models.knowledge import Chunk, Document, KnowledgeBase, Membership
from kb.models.search import RetrievalProfile, SearchLog
from kb.models.tokenizer import TokenizerSettings

__all__ = [
    "ApiKey",
    "BM25Index",
    "Chunk",
    "ChunkChange",
    "ChunkEmbedding",
    "ChunkPostings",
    "Document",
    "EvalQuery",
    "EvalSet",
    "Installation",
    "Judgment",
    "KnowledgeBase",
    "KnowledgeBaseVersion",
    "Membership",
    "Principal",
    "RetrievalProfile",
    "ScopedQuerySet",
    "SearchLog",
    "TokenizerSettings",
    "User",
]
