from kb.admin import accounts, chunks, documents, knowledge_bases, search_log

__all__ = ["accounts", "chunks", "documents", "knowledge_bases", "search_log"]
