"""Why was this chunk not found? The stages of a search, followed with one chunk in hand."""

from kb.services.why_not.walk import why_not_found

__all__ = ["why_not_found"]
