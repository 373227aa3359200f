import json
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from kb.agents.dify.authentication import DifyAuthentication
from kb.agents.dify.errors import dify_exception_handler
from kb.agents.dify.records import degradations_of, records_of
from kb.agents.dify.serializers import RetrievalSerializer
from kb.search.services.responses import respond
from kb.web.api.views import AnyAccept, ApiView


class DifyRetrievalView(ApiView):
    """Dify's External Knowledge API: the same search as everywhere, in its form.

    It is no part of the OpenAPI description, for Dify has its own.
    """

    authentication_classes = [DifyAuthentication]
    content_negotiation_class = AnyAccept
    post_reads = True
    schema = None

    def get_exception_handler(self) -> Any:
        return dify_exception_handler

    def post(self, request: Request) -> Response:
        serializer = RetrievalSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        response = json.loads(respond(self.principal, serializer.to_request()))
        headers = {"Zhiku-Trace-Id": response["trace_id"]}
        if degraded := degradations_of(response):
            headers["Zhiku-Degraded"] = ", ".join(degraded)
        return Response({"records": records_of(response)}, headers=headers)
