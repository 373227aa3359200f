"""Told on commit where many documents wait at once, for which no row is saved by itself; the task queue listens."""

from django.dispatch import Signal

documents_waiting = Signal()
"""Sent with `ids`: documents that have come in together."""
batch_waiting = Signal()
"""Sent with `batch_id`: an upload some of whose documents are to be taken up."""
