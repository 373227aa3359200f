"""Signals of knowledge bases, documents and chunks, for features above."""

from django.dispatch import Signal

documents_waiting = Signal()
"""Sent on commit with `ids`: documents that were added together, for which no row is saved by itself."""
batch_waiting = Signal()
"""Sent on commit with `batch_id`: an upload some of whose documents are to be processed."""
knowledge_base_deleting = Signal()
"""Sent with `knowledge_base`, in the transaction that deletes it: receivers delete their rows of it."""
chunks_replacing = Signal()
"""Sent with `kept`, a chunk, and `gone`, ids of chunks that become part of it, in the transaction that deletes them."""
