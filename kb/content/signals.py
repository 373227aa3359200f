"""Signals of knowledge bases, documents and chunks, for features above."""

from django.dispatch import Signal

# Sent on commit with `ids`: documents that were added together, for which no row is saved by itself.
documents_waiting = Signal()
# Sent on commit with `batch_id`: an upload some of whose documents are to be processed.
batch_waiting = Signal()
# Sent with `knowledge_base`, in the transaction that deletes it: receivers delete their rows of it.
knowledge_base_deleting = Signal()
# Sent with `kept`, a chunk, and `gone`, ids of chunks that become part of it, in the transaction that deletes them.
chunks_replacing = Signal()
