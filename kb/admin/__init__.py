from kb.admin import accounts, chunks, concepts, documents, facts, knowledge_bases, search_log

__all__ = ["accounts", "chunks", "concepts", "documents", "facts", "knowledge_bases", "search_log"]
