from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.base.shapes import as_values
from kb.index.services.tokenizing import (
    TokenizerState,
    Tokens,
    problem_text,
    read_settings,
    tokenizer_change,
    tokenizer_change_cancel,
    tokenizer_state,
    tokens_of,
)
from kb.providers.models import TokenizerSettings
from kb.web.api.fields import StrictBooleanField, StrictCharField, StrictSerializer, answers, shape
from kb.web.api.views import ApiViewSet, one
from retrieval.dictionary import MAX_TEXT_CHARACTERS, DictionaryError, parse_dictionary, parse_stop_words

MAX_SAMPLE_CHARACTERS = 10_000
TOKENIZER = shape(TokenizerState, "Tokenizer")


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
            raise serializers.ValidationError(problem_text(error)) from error
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


class TextSerializer(StrictSerializer):
    text = StrictCharField(max_length=MAX_SAMPLE_CHARACTERS, allow_blank=True, trim_whitespace=False)


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read the tokenizer of a knowledge base",
        description="While it moves to other settings, these are reported, with the progress.",
        responses=answers({200: TOKENIZER}, 404),
    ),
    update=extend_schema(
        summary="Replace the settings of the tokenizer",
        description="202: a worker tokenises the chunks, and searches use the present tokenizer until it is done. "
        "200: these settings are in use already.",
        request=TokenizerChangeSerializer,
        responses=answers({200: TOKENIZER, 202: TOKENIZER}, 400, 403, 404, 413, 415, 503),
    ),
    destroy=extend_schema(
        summary="Give up a change of the tokenizer that is not done yet",
        description="The present tokenizer stays.",
        responses=answers({204: None}, 403, 404),
    ),
)
class TokenizerViewSet(ApiViewSet):
    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(as_values(tokenizer_state(one(KnowledgeBase.objects.visible_to(self.principal), pk))))

    def update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        is_started = tokenizer_change(kb, read_settings(**self.checked(TokenizerChangeSerializer)))
        code = status.HTTP_202_ACCEPTED if is_started else status.HTTP_200_OK
        return Response(as_values(tokenizer_state(kb)), status=code)

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        tokenizer_change_cancel(self.editable(KnowledgeBase.objects.visible_to(self.principal), pk))
        return Response(status=status.HTTP_204_NO_CONTENT)


@extend_schema_view(
    create=extend_schema(
        operation_id="tokens",
        summary="Tell the tokens of a text under a knowledge base's tokenizer",
        description="Of a text or of a query: they are cut alike. A key with the scope read suffices.",
        request=TextSerializer,
        responses=answers({200: shape(Tokens)}, 400, 404, 413, 415, 503),
    )
)
class TokensViewSet(ApiViewSet):
    post_reads = True

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        return Response(as_values(tokens_of(kb, self.checked(TextSerializer)["text"])))
