from typing import Any, ClassVar, cast

from django.db.models import Q, QuerySet
from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.content.models import Chunk
from kb.quality.eval_sets.services.files import eval_set_import_archive, eval_set_response
from kb.quality.eval_sets.services.sets import (
    NAME_CHARACTERS,
    QUERY_CHARACTERS,
    eval_query_overview,
    eval_set_overview,
    eval_set_save,
    judge,
    judgments_regrade,
    mark_unanswerable,
    queries_add,
    queries_delete,
    query_of,
    query_update,
)
from kb.quality.models import MAX_GRADE, EvalQuery, EvalSet, Judgment
from kb.web.api.fields import MAX_ID, StrictBooleanField, StrictCharField, StrictIntegerField, StrictSerializer, answers
from kb.web.api.views import (
    AnyAccept,
    ApiView,
    ApiViewSet,
    Flag,
    ListFilters,
    OneOf,
    Related,
    Text,
    Whole,
    asked,
    knowledge_bases_of,
    one,
)
from retrieval.eval.judged_sets import Layout

GRADES = "0 irrelevant, 1 partly relevant, 2 relevant, 3 highly relevant."
LAYOUTS = [(layout.value, layout.value) for layout in Layout]


class EvalSetSerializer(serializers.ModelSerializer[EvalSet]):
    query_count = serializers.IntegerField(read_only=True)
    judged_count = serializers.IntegerField(read_only=True, help_text="Queries that have judgments.")
    unanswerable_count = serializers.IntegerField(
        read_only=True, help_text="Queries to which the knowledge base has no answer."
    )
    judgment_count = serializers.IntegerField(read_only=True)
    last_run_id = serializers.IntegerField(read_only=True, allow_null=True, help_text="The last run that is done.")

    class Meta:
        model = EvalSet
        fields = (
            "id",
            "knowledge_base_id",
            "name",
            "query_count",
            "judged_count",
            "unanswerable_count",
            "judgment_count",
            "last_run_id",
        )
        read_only_fields = fields


class EvalSetCreateSerializer(StrictSerializer):
    knowledge_base_id = StrictIntegerField(min_value=1, max_value=MAX_ID)
    name = StrictCharField(max_length=NAME_CHARACTERS)


class EvalSetChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=NAME_CHARACTERS)


class EvalSetImportSerializer(StrictSerializer):
    knowledge_base_id = serializers.IntegerField(
        min_value=1, max_value=MAX_ID, help_text="Its documents are judged; they are known by their source."
    )
    file = serializers.FileField(allow_empty_file=True, help_text="A ZIP file in the layout of BEIR or TREC.")
    name = StrictCharField(
        max_length=NAME_CHARACTERS, required=False, allow_blank=True, help_text="Left out: the name in the files."
    )
    replace = serializers.BooleanField(
        default=False, help_text="Replace the queries and judgments of a set of this name; its runs stay."
    )


class ImportedEvalSetSerializer(serializers.Serializer[Any]):
    eval_set_id = serializers.IntegerField(source="eval_set.pk")
    name = serializers.CharField(source="eval_set.name")
    queries = serializers.IntegerField()
    judgments = serializers.IntegerField()
    missing = serializers.IntegerField(
        help_text="Judgments of documents that the knowledge base does not have: they count once it does."
    )


class EvalSetExportSerializer(serializers.Serializer[Any]):
    layout = serializers.ChoiceField(LAYOUTS, default=Layout.BEIR.value)
    documents = serializers.BooleanField(
        default=False, help_text="With the texts of all documents, for an installation that lacks them."
    )


class EvalQuerySerializer(serializers.ModelSerializer[EvalQuery]):
    judgment_count = serializers.IntegerField(read_only=True)
    relevant_count = serializers.IntegerField(read_only=True, help_text="Judgments of a grade of 1 or more.")

    class Meta:
        model = EvalQuery
        fields = ("id", "external_id", "text", "answerable", "judgment_count", "relevant_count")
        read_only_fields = fields


class EvalQueryCreateSerializer(StrictSerializer):
    text = StrictCharField(max_length=QUERY_CHARACTERS)
    answerable = StrictBooleanField(default=True, help_text="false: the knowledge base has no answer to it.")


class EvalQueryChangeSerializer(StrictSerializer):
    text = StrictCharField(max_length=QUERY_CHARACTERS)
    answerable = StrictBooleanField(help_text="false is refused while passages are judged relevant.")


class JudgmentSerializer(serializers.ModelSerializer[Judgment]):
    document_id = serializers.SerializerMethodField(help_text="null once the document is deleted; its source stays.")

    class Meta:
        model = Judgment
        fields = ("id", "query_id", "document_id", "source", "quote", "grade", "created_at")
        read_only_fields = fields

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_document_id(self, judgment: Judgment) -> int | None:
        return judgment.document_id


class JudgeSerializer(StrictSerializer):
    query = StrictCharField(max_length=QUERY_CHARACTERS, help_text="Its text; a query that the set lacks is added.")
    chunk_id = StrictIntegerField(min_value=1, max_value=MAX_ID)
    grade = StrictIntegerField(min_value=0, max_value=MAX_GRADE, help_text=GRADES)


class OfSetViewSet(ApiViewSet):
    """Views of what belongs to a set."""

    def visible_set(self, pk: int) -> EvalSet:
        return one(self._sets(), pk)

    def editable_set(self, pk: int) -> EvalSet:
        return self.editable(self._sets(), pk)

    def _sets(self) -> QuerySet[EvalSet]:
        return cast("QuerySet[EvalSet]", EvalSet.objects.visible_to(self.principal).select_related("knowledge_base"))


class EvalSetFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    knowledge_base_id = Related(knowledge_bases_of, field_name="knowledge_base", help_text="Only its sets.")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")


@extend_schema_view(
    list=extend_schema(
        summary="List the evaluation sets that the caller may see",
        parameters=EvalSetFilters.parameters(),
        responses=answers({200: EvalSetSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Create an evaluation set",
        request=EvalSetCreateSerializer,
        responses=answers({201: EvalSetSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(summary="Read an evaluation set", responses=answers({200: EvalSetSerializer}, 404)),
    partial_update=extend_schema(
        summary="Rename an evaluation set",
        request=EvalSetChangeSerializer,
        responses=answers({200: EvalSetSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete an evaluation set with its queries, judgments and runs",
        responses=answers({204: None}, 403, 404),
    ),
)
class EvalSetViewSet(OfSetViewSet):
    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(eval_set_overview(self.principal), EvalSetSerializer, EvalSetFilters)

    def create(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(EvalSetCreateSerializer)
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), fields["knowledge_base_id"])
        eval_set = EvalSet(knowledge_base=kb)
        eval_set_save(self.principal, eval_set, fields["name"])
        return Response(self._described(eval_set.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        eval_set = self.editable_set(pk)
        if "name" in (fields := self.checked(EvalSetChangeSerializer, partial=True)):
            eval_set_save(self.principal, eval_set, fields["name"])
        return Response(self._described(pk))

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        self.editable_set(pk).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _described(self, pk: int) -> dict[str, object]:
        return EvalSetSerializer(one(eval_set_overview(self.principal), pk)).data


class EvalQueryFilters(ListFilters):
    orders: ClassVar = ("id", "-id", "external_id", "-external_id")
    q = Text(method="with_words", help_text="Stands in the text or the id.")
    answerable = Flag(help_text="false: the knowledge base has no answer to it.")

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(text__icontains=value) | Q(external_id__icontains=value))


@extend_schema_view(
    list=extend_schema(
        summary="List the queries of an evaluation set",
        parameters=EvalQueryFilters.parameters(),
        responses=answers({200: EvalQuerySerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Add a query to an evaluation set",
        description="200: the set has the query already; what is said of its answer is changed.",
        request=EvalQueryCreateSerializer,
        responses=answers({200: EvalQuerySerializer, 201: EvalQuerySerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(
        summary="Read a query of an evaluation set", responses=answers({200: EvalQuerySerializer}, 404)
    ),
    partial_update=extend_schema(
        summary="Change a query of an evaluation set",
        request=EvalQueryChangeSerializer,
        responses=answers({200: EvalQuerySerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a query of an evaluation set with its judgments", responses=answers({204: None}, 403, 404)
    ),
)
class EvalQueryViewSet(OfSetViewSet):
    def list(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(
            eval_query_overview(self.principal, self.visible_set(pk)), EvalQuerySerializer, EvalQueryFilters
        )

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        eval_set = self.editable_set(pk)
        fields = self.checked(EvalQueryCreateSerializer)
        added = queries_add(self.principal, eval_set, [fields["text"]])
        mark_unanswerable(self.principal, eval_set, fields["text"], not fields["answerable"])
        return Response(
            self._described(eval_set, query_of(eval_set, fields["text"]).pk),
            status=status.HTTP_201_CREATED if added else status.HTTP_200_OK,
        )

    def retrieve(self, request: Request, pk: int, query_id: int) -> Response:  # noqa: ARG002
        return Response(self._described(self.visible_set(pk), query_id))

    def partial_update(self, request: Request, pk: int, query_id: int) -> Response:  # noqa: ARG002
        eval_set = self.editable_set(pk)
        query = one(EvalQuery.objects.filter(eval_set=eval_set).select_related("eval_set"), query_id)
        query_update(self.principal, query, **self.checked(EvalQueryChangeSerializer, partial=True))
        return Response(self._described(eval_set, query_id))

    def destroy(self, request: Request, pk: int, query_id: int) -> Response:  # noqa: ARG002
        eval_set = self.editable_set(pk)
        queries_delete(self.principal, eval_set, [one(EvalQuery.objects.filter(eval_set=eval_set), query_id).pk])
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _described(self, eval_set: EvalSet, query_id: int) -> dict[str, object]:
        return EvalQuerySerializer(one(eval_query_overview(self.principal, eval_set), query_id)).data


class JudgmentFilters(ListFilters):
    orders: ClassVar = ("id", "-id", "query_id", "-query_id")
    query_id = Whole(field_name="query")
    document_id = Whole(field_name="document")
    grade = OneOf(["0", "1", "2", "3"])


@extend_schema_view(
    list=extend_schema(
        summary="List the judgments of an evaluation set",
        parameters=JudgmentFilters.parameters(),
        responses=answers({200: JudgmentSerializer(many=True)}, 400, 404),
    ),
    update=extend_schema(
        summary="Judge how relevant a chunk is to a query",
        description="The judgment is anchored to the chunk's words and its document's source, so that it survives another "
        "chunking and another import. Judging again replaces.",
        request=JudgeSerializer,
        responses=answers({200: JudgmentSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(summary="Take a judgment back", responses=answers({204: None}, 403, 404)),
)
class JudgmentViewSet(OfSetViewSet):
    def list(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(
            Judgment.objects.filter(query__eval_set=self.visible_set(pk)), JudgmentSerializer, JudgmentFilters
        )

    def update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        eval_set = self.editable_set(pk)
        fields = self.checked(JudgeSerializer)
        chunks = Chunk.objects.visible_to(self.principal).select_related("document")
        judgment = judge(self.principal, eval_set, fields["query"], one(chunks, fields["chunk_id"]), fields["grade"])
        return Response(JudgmentSerializer(judgment).data)

    def destroy(self, request: Request, pk: int, judgment_id: int) -> Response:  # noqa: ARG002
        judgment = one(
            Judgment.objects.filter(query__eval_set=self.editable_set(pk)).select_related("query__eval_set"),
            judgment_id,
        )
        judgments_regrade(self.principal, judgment.query, {judgment.pk: None})
        return Response(status=status.HTTP_204_NO_CONTENT)


@extend_schema_view(
    post=extend_schema(
        operation_id="eval_sets_import",
        summary="Import an evaluation set from a ZIP file",
        description="A set of the name is replaced only with `replace`. A wrong line changes nothing.",
        request={"multipart/form-data": EvalSetImportSerializer},
        responses=answers({201: ImportedEvalSetSerializer}, 400, 403, 404, 413, 415),
    )
)
class EvalSetImportView(ApiView):
    rate_limit_kind = UPLOAD
    parser_classes = [MultiPartParser]

    def post(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(EvalSetImportSerializer)
        kb = one(KnowledgeBase.objects.visible_to(self.principal), fields["knowledge_base_id"])
        done = eval_set_import_archive(
            self.principal, kb, fields["file"], fields.get("name", ""), replace=fields["replace"]
        )
        return Response(ImportedEvalSetSerializer(done).data, status=status.HTTP_201_CREATED)


@extend_schema_view(
    get=extend_schema(
        operation_id="eval_sets_export",
        summary="Export an evaluation set as a ZIP file",
        parameters=[EvalSetExportSerializer],
        responses=answers({(200, "application/zip"): OpenApiResponse(OpenApiTypes.BINARY, "The file.")}, 400, 404),
    )
)
class EvalSetExportView(ApiView):
    content_negotiation_class = AnyAccept

    def get(self, request: Request, pk: int) -> FileResponse:
        eval_set = one(EvalSet.objects.visible_to(self.principal).select_related("knowledge_base"), pk)
        given = asked(EvalSetExportSerializer, request)
        return eval_set_response(self.principal, eval_set, Layout(given["layout"]), with_documents=given["documents"])
