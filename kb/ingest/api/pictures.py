from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_values
from kb.content.models import Document, Picture
from kb.ingest.services.pictures import ShownPicture, picture_response, shown_picture
from kb.ingest.services.previews import USUAL_WIDTH, WIDTHS, page_response
from kb.web.api.fields import NOT_MODIFIED, StrictSerializer, answers, shape
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


class PageQuerySerializer(StrictSerializer):
    width = serializers.IntegerField(
        min_value=1,
        max_value=WIDTHS[-1],
        default=USUAL_WIDTH,
        help_text="In pixels; drawn in the next larger of a few widths.",
    )


@extend_schema_view(
    get=extend_schema(
        operation_id="documents_pages_retrieve",
        summary="Show a page of a document as a picture",
        description="As WebP: a page of a PDF, or a slide of a presentation where LibreOffice is installed on the server. It "
        "is drawn when it is first asked for, by itself; 503 with Retry-After: it is not there yet. Who may see the document "
        "may see it.",
        parameters=[IF_NONE_MATCH, PageQuerySerializer],
        responses=answers({(200, "image/webp"): PICTURE_BYTES, 304: NOT_MODIFIED}, 400, 404, 503),
    )
)
class PageView(ApiView):
    content_negotiation_class = AnyAccept

    def get(self, request: Request, pk: int, page: int) -> HttpResponse:
        asked = PageQuerySerializer(data=request.query_params)
        asked.is_valid(raise_exception=True)
        etag = request.headers.get("If-None-Match", "")
        return page_response(self.principal, pk, page, asked.validated_data["width"], etag)


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
