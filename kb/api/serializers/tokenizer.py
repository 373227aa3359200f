from collections.abc import Callable
from typing import Any

from rest_framework import serializers

from kb.api.fields import StrictBooleanField, StrictCharField, StrictSerializer
from kb.models import TokenizerSettings
from kb.services.tokenizing.dictionary_errors import problem_in_words
from retrieval.dictionary import MAX_TEXT_CHARACTERS, parse_dictionary, parse_stop_words
from retrieval.errors import DictionaryError
from retrieval.tokenize import TokenKind

MAX_SAMPLE_CHARACTERS = 10_000


class LinesField(StrictCharField):
    """A text of one word a line; an error names the line."""

    def __init__(self, *, parse: Callable[[str], Any], **kwargs: Any) -> None:
        self._parse = parse
        # Not trimmed, so that the line is that of the request's text.
        super().__init__(max_length=MAX_TEXT_CHARACTERS, allow_blank=True, default="", trim_whitespace=False, **kwargs)

    def run_validation(self, data: Any = serializers.empty) -> str:
        text = str(super().run_validation(data))
        try:
            self._parse(text)
        except DictionaryError as error:
            raise serializers.ValidationError(problem_in_words(error)) from error
        return text


class TokenizerChangeSerializer(StrictSerializer):
    engine = serializers.ChoiceField(
        TokenizerSettings.Engine.choices, default=TokenizerSettings.Engine.JIEBA, help_text="What cuts Chinese."
    )
    dictionary = LinesField(
        parse=parse_dictionary,
        help_text="Own words, one a line as in jieba's dictionaries: `word [frequency] [part of speech]`. Left out: none.",
    )
    stop_words = LinesField(
        parse=parse_stop_words,
        help_text="Words that are neither indexed nor searched, one a line, beside the English ones. Left out: none.",
    )
    simplify = StrictBooleanField(default=False, help_text="Traditional Chinese becomes simplified.")


class ProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField()
    total = serializers.IntegerField(help_text="Chunks in all.")


class TokenizerSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="Of the tokenizer that searches use.")
    engine = serializers.ChoiceField(TokenizerSettings.Engine.choices)
    dictionary = serializers.CharField(allow_blank=True)
    stop_words = serializers.CharField(allow_blank=True)
    simplify = serializers.BooleanField()
    target_id = serializers.CharField(
        allow_null=True, help_text="Of the tokenizer that these settings make, while the chunks are tokenised for it."
    )
    progress = ProgressSerializer(allow_null=True, help_text="In chunks, while the knowledge base has a target.")


class TextSerializer(StrictSerializer):
    text = StrictCharField(max_length=MAX_SAMPLE_CHARACTERS, allow_blank=True, trim_whitespace=False)


class TokenSerializer(serializers.Serializer[Any]):
    term = serializers.CharField(help_text="What is indexed and searched.")
    surface = serializers.CharField(help_text="What of the normalised text it was made of.")
    kind = serializers.ChoiceField([(kind.value, kind.value) for kind in TokenKind])
    is_dropped = serializers.BooleanField(help_text="A stop word: neither indexed nor searched.")


class TokensSerializer(serializers.Serializer[Any]):
    tokenizer = serializers.CharField(help_text="Its id.")
    tokens = TokenSerializer(many=True)
