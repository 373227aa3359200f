"""`GET /v1/models` and `POST /v1/chat/completions`, by API key: the one answer of an assistant in OpenAI's form."""

from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import ApiKey
from kb.access.services.rate_limits import ASK
from kb.agents.openai.completions import ChatCompletion, Completion, Model, Models
from kb.agents.openai.errors import ErrorBody, NoSuchEndpoint, NoSuchModel, openai_exception_handler, stream_fault
from kb.agents.openai.requests import CompletionSerializer
from kb.answers.sse import event_stream
from kb.assistants.models import Assistant, AssistantQuerySet
from kb.assistants.services.asking import ask, stream_ask
from kb.assistants.services.entry import Visit
from kb.base.net.client_address import client_network
from kb.base.shapes import as_values
from kb.web.api.callers import ApiKeyAuthentication
from kb.web.api.fields import shape
from kb.web.api.views import AnyAccept, ApiView, valid

ERRORS = {status: shape(ErrorBody) for status in (400, 401, 403, 404, 413, 415, 429, 500, 503)}
STREAM = "With `stream`: events of chunks, as OpenAI's API sends them; the last chunk holds `citations`."


class OpenAIView(ApiView):
    authentication_classes = [ApiKeyAuthentication]
    content_negotiation_class = AnyAccept

    def get_exception_handler(self) -> Any:
        return openai_exception_handler

    def assistants(self) -> AssistantQuerySet:
        return Assistant.objects.usable_by(self.principal).defer("picture")


class ModelsView(OpenAIView):
    @extend_schema(
        operation_id="models", summary="The assistants that the key opens", responses={200: shape(Models), **ERRORS}
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(as_values(Models([Model.of(each) for each in self.assistants().order_by("slug")])))


class ModelView(OpenAIView):
    @extend_schema(operation_id="model", summary="An assistant", responses={200: shape(Model), **ERRORS})
    def get(self, request: Request, slug: str) -> Response:  # noqa: ARG002 - the framework's interface
        found = self.assistants().filter(slug=slug).first()
        if found is None:
            raise NoSuchModel(slug)
        return Response(as_values(Model.of(found)))


class ChatCompletionsView(OpenAIView):
    """What fails before the first piece is a status of its own; what fails later is an event of the stream."""

    post_reads = True
    rate_limit_kind = ASK

    @extend_schema(
        operation_id="chat_completion",
        summary="Have an assistant answer the last message",
        request=CompletionSerializer,
        responses={
            (200, "application/json"): shape(ChatCompletion),
            (200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR, STREAM),
            **ERRORS,
        },
    )
    def post(self, request: Request) -> HttpResponseBase:
        asked = valid(CompletionSerializer, request.data)
        slug = asked.validated_data["model"]
        assistant = self.assistants().select_related("published", "publisher").filter(slug=slug).first()
        if assistant is None:
            raise NoSuchModel(slug)
        visit = Visit(assistant, uuid5(NAMESPACE_URL, f"{assistant.pk}:{cast(ApiKey, request.auth).prefix}"))
        completion = Completion(assistant)
        address = client_network(request._request)
        if not asked.validated_data.get("stream"):
            return Response(as_values(completion.whole(as_values(ask(visit, asked.to_asked(), address=address)))))
        events = stream_ask(visit, asked.to_asked(), address=address)
        encoded = completion.encoder(with_usage=asked.has_usage)
        return event_stream(events, fault=stream_fault, encoded=encoded, goes_on=False)


class ElsewhereView(OpenAIView):
    """Any other address of the protocol, such as that of embeddings: an error that its clients can read."""

    post_reads = True

    def get(self, request: Request, path: str) -> Response:  # noqa: ARG002
        raise NoSuchEndpoint

    post = get
