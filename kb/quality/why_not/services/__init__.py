"""Why was this chunk not found? The stages of a search, followed with one chunk in hand."""

from kb.quality.why_not.services.walk import why_not_found

__all__ = ["why_not_found"]
