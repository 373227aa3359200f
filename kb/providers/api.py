from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_values
from kb.providers.embedding_models import Choice, model_choices
from kb.providers.recommended import Role
from kb.web.api.fields import answers, shape
from kb.web.api.views import ApiView

MODELS = shape(Choice, "Model")(many=True)


@extend_schema_view(
    get=extend_schema(
        operation_id="models_list",
        summary="List the models that may be chosen",
        description="Embedding, rerank and chat models by name, those that cannot be used now with the reason. `id` is what "
        "`embedding_model` of a knowledge base takes; a `slug` will do, too. Addresses and keys are not told.",
        responses=answers({200: MODELS}),
    )
)
class ModelsView(ApiView):
    def get(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return Response([as_values(choice) for role in Role for choice in model_choices(role)])
