from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_values
from kb.content.models import Document, Picture
from kb.ingest.services.pictures import ShownPicture, picture_response, shown_picture
from kb.web.api.fields import NOT_MODIFIED, answers, shape
from kb.web.api.idempotency import IF_NONE_MATCH
from kb.web.api.views import AnyAccept, ApiView, ApiViewSet, one

PICTURE_BYTES = OpenApiResponse(OpenApiTypes.BINARY, "The file.")


class PictureListSerializer(serializers.Serializer[Picture]):
    pictures = shape(ShownPicture)(many=True, help_text="In the order of the document.")


@extend_schema_view(
    get=extend_schema(
        operation_id="pictures_retrieve",
        summary="Show a picture of a document",
        description="As PNG, JPEG or WebP, written by this server. Who may see the document may see it; with If-None-Match "
        "that is asked again, and nothing is sent twice.",
        parameters=[IF_NONE_MATCH],
        responses=answers(
            {(200, mime): PICTURE_BYTES for mime in Picture.MIMES} | {304: NOT_MODIFIED},
            404,
        ),
    )
)
class PictureView(ApiView):
    content_negotiation_class = AnyAccept

    def get(self, request: Request, pk: int) -> HttpResponse:
        return picture_response(self.principal, pk, request.headers.get("If-None-Match", ""))


@extend_schema_view(
    retrieve=extend_schema(
        operation_id="documents_pictures",
        summary="List the pictures of a document",
        description="At most 500; those that stand in many places, such as logos, are not among them.",
        responses=answers({200: PictureListSerializer}, 404),
    )
)
class DocumentPicturesViewSet(ApiViewSet):
    pagination_class = None

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document = one(Document.objects.visible_to(self.principal), pk)
        rows = Picture.objects.visible_to(self.principal).filter(document=document)
        return Response({"pictures": [as_values(shown_picture(picture)) for picture in rows]})
