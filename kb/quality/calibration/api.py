from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_values
from kb.profiles.services import MAX_NAME_CHARACTERS
from kb.quality.calibration.services import LEAST_SHARE, MOST_SHARE, SHARE, Calibration, calibrate, save_cut
from kb.quality.models import EvalRun
from kb.quality.profiles.services import ProfileVersion
from kb.web.api.fields import StrictBooleanField, StrictCharField, StrictFloatField, StrictSerializer, answers, shape
from kb.web.api.views import ApiView, one, require_known, valid


class ShareSerializer(serializers.Serializer[Any]):
    share = serializers.FloatField(
        min_value=LEAST_SHARE,
        max_value=MOST_SHARE,
        default=SHARE,
        help_text="Of the queries with an answer that a cut is to keep.",
    )


class CutCreateSerializer(StrictSerializer):
    cut = StrictFloatField(
        min_value=0, max_value=1, help_text="On the scale of the run, as a suggestion has it; 0: everything passes."
    )
    name = StrictCharField(
        max_length=MAX_NAME_CHARACTERS,
        required=False,
        allow_blank=True,
        help_text="Of a profile of the run's knowledge base, without / and @. Left out: the profile that was run, or "
        "PROFILE-KNOWLEDGE BASE, a copy, where other knowledge bases share it.",
    )
    confirm_shared = StrictBooleanField(
        required=False,
        help_text="Without a name, or with that of the profile that was run: the draft is a version of that profile, "
        "although other knowledge bases search by it.",
    )


@extend_schema_view(
    get=extend_schema(
        operation_id="calibration",
        summary="Read where to cut the scores of an evaluation run",
        description="Histograms of the judged scores before the gate; the cut in force, and those that keep a share of the "
        "queries with an answer, refuse all without one, or have the highest F1, with what each of them does.",
        parameters=[ShareSerializer],
        responses=answers({200: shape(Calibration)}, 400, 404),
    ),
    post=extend_schema(
        operation_id="calibration_save",
        summary="Save a cut in a draft profile of the run's knowledge base",
        description="The draft has the settings of the run and this cut, and changes no search until it is published. Needs a "
        "key with the scope write.",
        request=CutCreateSerializer,
        responses=answers({201: shape(ProfileVersion)}, 400, 403, 404, 413, 415),
    ),
)
class CalibrationView(ApiView):
    def get(self, request: Request, pk: int) -> Response:
        run = self._run(pk)
        require_known(request, ["share"])
        share = valid(ShareSerializer, request.query_params).validated_data["share"]
        return Response(as_values(calibrate(run, share)))

    def post(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        run = self._run(pk)
        draft = save_cut(self.principal, run, **self.checked(CutCreateSerializer))
        return Response(as_values(ProfileVersion.of(draft)), status=status.HTTP_201_CREATED)

    def _run(self, pk: int) -> EvalRun:
        runs: QuerySet[EvalRun] = EvalRun.objects.visible_to(self.principal)
        return one(runs.select_related("eval_set__knowledge_base", "profile__knowledge_base"), pk)
