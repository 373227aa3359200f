from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.tokenizer import (
    TextSerializer,
    TokenizerChangeSerializer,
    TokenizerSerializer,
    TokensSerializer,
)
from kb.api.views.base import ApiViewSet, one
from kb.models import KnowledgeBase
from kb.services.tokenizing.state import tokenizer_as_json, tokens_as_json
from kb.services.tokenizing.tokenizing import read_settings, tokenizer_change, tokenizer_change_cancel


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read the tokenizer of a knowledge base",
        description="While it moves to other settings, these are told, with the progress.",
        responses=answers({200: TokenizerSerializer}, 404),
    ),
    update=extend_schema(
        summary="Replace the settings of the tokenizer",
        description="202: a worker tokenises the chunks, and searches use the present tokenizer until it is done. "
        "200: these settings are in use already.",
        request=TokenizerChangeSerializer,
        responses=answers({200: TokenizerSerializer, 202: TokenizerSerializer}, 400, 403, 404, 413, 415, 503),
    ),
    destroy=extend_schema(
        summary="Give up a change of the tokenizer that is not done yet",
        description="The present tokenizer stays.",
        responses=answers({204: None}, 403, 404),
    ),
)
class TokenizerViewSet(ApiViewSet):
    queryset = KnowledgeBase.objects.none()

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(tokenizer_as_json(one(KnowledgeBase.objects.visible_to(self.principal), pk)))

    def update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        is_started = tokenizer_change(kb, read_settings(**self.checked(TokenizerChangeSerializer)))
        status_code = status.HTTP_202_ACCEPTED if is_started else status.HTTP_200_OK
        return Response(tokenizer_as_json(kb), status=status_code)

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        tokenizer_change_cancel(self.editable(KnowledgeBase.objects.visible_to(self.principal), pk))
        return Response(status=status.HTTP_204_NO_CONTENT)


@extend_schema_view(
    create=extend_schema(
        operation_id="tokens",
        summary="Tell the tokens of a text under a knowledge base's tokenizer",
        description="Of a text or of a query: they are cut alike. A key with the scope read suffices.",
        request=TextSerializer,
        responses=answers({200: TokensSerializer}, 400, 404, 413, 415, 503),
    )
)
class TokensViewSet(ApiViewSet):
    queryset = KnowledgeBase.objects.none()
    post_reads = True

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        return Response(tokens_as_json(kb, self.checked(TextSerializer)["text"]))
