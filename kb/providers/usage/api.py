from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.errors import NotAllowed
from kb.base.shapes import as_values
from kb.providers.usage.figures import DAYS, Used, days, used_since
from kb.web.api.fields import answers, shape
from kb.web.api.views import ApiView


class ModelUseQuerySerializer(serializers.Serializer[Any]):
    days = serializers.IntegerField(
        min_value=1, max_value=3_660, default=DAYS, help_text="The last days, the present one among them."
    )


@extend_schema_view(
    get=extend_schema(
        operation_id="models_usage",
        summary="Sum up what models were asked of late",
        description="For superusers, whose key is not limited to knowledge bases: by role, model and knowledge base (0: none; "
        "a blank name: deleted), the most tokens first.",
        parameters=[ModelUseQuerySerializer],
        responses=answers({200: shape(Used, "ModelUse")(many=True)}, 400, 403),
    )
)
class ModelUseView(ApiView):
    def get(self, request: Request) -> Response:
        if not self.principal.user.is_superuser or self.principal.kb_ids is not None:
            raise NotAllowed(_("Only superusers may see the use of models."))
        given = ModelUseQuerySerializer(data=request.query_params)
        given.is_valid(raise_exception=True)
        return Response([as_values(used) for used in used_since(days(given.validated_data["days"])[0])])
