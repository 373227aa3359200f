"""What happens to indexes that other features have a say in."""

from django.dispatch import Signal

vectors_dropping = Signal()
"""Sent with `knowledge_base` before vectors of a former model are deleted: a receiver that reads them raises `Rejected`."""
