"""The options behind tokenizer ids."""

from kb.providers.models import TokenizerSettings
from retrieval.dictionary import parse_dictionary, parse_stop_words
from retrieval.segmenters import Engine
from retrieval.tokenize import TokenizerOptions


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
