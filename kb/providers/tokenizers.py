"""The options behind tokenizer ids."""

import logging
from functools import lru_cache

from kb.providers.models import TokenizerSettings
from retrieval.bm25 import BM25_UNAVAILABLE, require_dependencies
from retrieval.dictionary import parse_dictionary, parse_stop_words
from retrieval.errors import DependencyMissing
from retrieval.segmenters import Engine
from retrieval.tokenize import JiebaTokenizer, TokenizerOptions

logger = logging.getLogger(__name__)

TOKENIZERS_HELD = 8


def tokenizer_options(tokenizer_id: str) -> TokenizerOptions:
    """The options that made an id; the default ones for an id that no settings are stored for."""
    row = TokenizerSettings.objects.filter(tokenizer_id=tokenizer_id).first()  # all of one id mean the same
    return TokenizerOptions() if row is None else options_of(row)


def options_of(row: TokenizerSettings) -> TokenizerOptions:
    """Settings as people write them, read.

    Raises:
        DictionaryError: a line cannot be used.
    """
    return TokenizerOptions(
        engine=Engine(row.engine),
        dictionary=parse_dictionary(row.dictionary),
        stop_words=parse_stop_words(row.stop_words),
        simplify=row.simplify,
    )


@lru_cache(maxsize=TOKENIZERS_HELD)
def _load_tokenizer(tokenizer_id: str) -> JiebaTokenizer | DependencyMissing:
    try:
        require_dependencies()
        cutter = JiebaTokenizer(tokenizer_options(tokenizer_id))
        logger.debug("tokenizer %s serves %s", cutter.id, tokenizer_id or "new knowledge bases")
    except DependencyMissing as error:
        logger.warning("%s %s", BM25_UNAVAILABLE, error)
        return error
    return cutter


def load_tokenizer(tokenizer_id: str) -> JiebaTokenizer:
    """As `tokenizer`.

    Raises:
        DependencyMissing: a package that it needs is not installed.
    """
    loaded = _load_tokenizer(tokenizer_id)
    if isinstance(loaded, DependencyMissing):
        raise loaded
    return loaded


def tokenizer(tokenizer_id: str = "") -> JiebaTokenizer | None:
    """The tokenizer with the options of an id, under the rules of this version: its own id may be a newer one.

    Args:
        tokenizer_id: of a knowledge base; blank: that of new ones, with the default options.

    Returns:
        None, and one warning, where packages that it needs are missing.
    """
    loaded = _load_tokenizer(tokenizer_id)
    return None if isinstance(loaded, DependencyMissing) else loaded
