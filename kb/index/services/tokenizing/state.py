"""What is wrong with a dictionary, said to people."""

from dataclasses import asdict
from typing import Any

from kb.access.models.knowledge import KnowledgeBase
from kb.index.services.tokenizing.preview import active_tokenizer
from kb.index.services.tokenizing.tokenizing import tokenizer_settings, tokenizing_progress


def tokenizer_as_json(kb: KnowledgeBase) -> dict[str, Any]:
    """The response of GET /api/v1/knowledge-bases/{id}/tokenizer/, which `manage.py tokenizer --json` prints too.

    While a knowledge base moves to other settings these are told, and `id` is still that of those in use.
    """
    settings, progress = tokenizer_settings(kb), tokenizing_progress(kb)
    return {
        "id": kb.tokenizer_id,
        "engine": settings.engine,
        "dictionary": settings.dictionary,
        "stop_words": settings.stop_words,
        "simplify": settings.simplify,
        "target_id": kb.target_tokenizer_id or None,
        "progress": asdict(progress) if progress else None,
    }


def tokens_as_json(kb: KnowledgeBase, text: str) -> dict[str, Any]:
    """What the tokenizer in use makes of a text, in its order, with the stop words that it drops.

    Raises:
        Rejected: its packages are missing.
    """
    active = active_tokenizer(kb)
    tokens = active.explain(text)
    return {"tokenizer": active.id, "tokens": [{**asdict(token), "kind": token.kind.value} for token in tokens]}
