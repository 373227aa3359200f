"""What happens in searches that other features have to know of."""

from django.dispatch import Signal

searches_logged = Signal()
"""Sent with `rows`, searches that were written to the search log, but for explained ones."""
