"""What the audit log calls tables and columns, in the words that their own pages use."""

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist

MODELS = {
    "knowledge_base": "KnowledgeBase",
    "membership": "Membership",
    "document": "Document",
    "chunk": "Chunk",
    "api_key": "ApiKey",
    "user": "User",
    "retrieval_profile": "RetrievalProfile",
    "concept": "Concept",
    "concept_term": "ConceptTerm",
    "entity": "Entity",
    "fact": "GraphFact",
    "web_source": "WebSource",
    "external_source": "SearchProvider",
    "eval_set": "EvalSet",
    "eval_query": "EvalQuery",
    "judgment": "Judgment",
}


def kind_in_words(kind: str) -> str:
    """What an object is called; a kind that is unknown here by its code."""
    return str(apps.get_model("kb", MODELS[kind])._meta.verbose_name) if kind in MODELS else kind


def kinds_in_words() -> dict[str, str]:
    """All kinds of objects."""
    return {kind: kind_in_words(kind) for kind in MODELS}


def field_in_words(kind: str, name: str) -> str:
    """What a field is called; one that is gone, or never had a name for people, by its code."""
    try:
        field = apps.get_model("kb", MODELS[kind])._meta.get_field(name)
    except (KeyError, FieldDoesNotExist):
        return name
    return str(getattr(field, "verbose_name", name))
