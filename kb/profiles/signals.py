"""What happens to profiles that other features have a say in."""

from django.dispatch import Signal

version_deleting = Signal()
"""Sent with `profile`, a version that was never published: a receiver returns why it has to stay, or a blank string."""
