from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.content.folders.services import (
    MOST_DEPTH,
    Tree,
    folder_create,
    folder_delete,
    folder_in,
    folder_overview,
    folder_update,
)
from kb.content.models import FOLDER_NAME_CHARACTERS, Folder
from kb.web.api.fields import IdField, StrictCharField, StrictSerializer, answers
from kb.web.api.views import ApiViewSet, ListFilters, Related, Text, asked, one


class FolderSerializer(serializers.ModelSerializer[Folder]):
    folder_id = serializers.IntegerField(
        source="parent_id", allow_null=True, help_text="The folder that it is in; null: the top."
    )
    path = serializers.SerializerMethodField(help_text="The names that lead to it, its own the last.")
    document_count = serializers.IntegerField(read_only=True, help_text="Of those right in it.")

    class Meta:
        model = Folder
        fields = ("id", "knowledge_base_id", "folder_id", "name", "path", "document_count", "created_at")
        read_only_fields = fields

    def get_path(self, folder: Folder) -> list[str]:
        trees: dict[int, Tree] = self.context["trees"]
        if folder.knowledge_base_id not in trees:
            trees[folder.knowledge_base_id] = Tree(folder.knowledge_base_id)
        return list(trees[folder.knowledge_base_id].names(folder.pk))


class FolderChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=FOLDER_NAME_CHARACTERS, help_text="Once in a folder; without “/”.")
    folder_id = IdField(
        required=False,
        allow_null=True,
        help_text=f"The folder that it is in, at most {MOST_DEPTH} deep; null: the top.",
    )


class FolderDeletionSerializer(StrictSerializer):
    documents = serializers.ChoiceField(
        [("move", "move"), ("delete", "delete")],
        default="move",
        help_text="move: its documents, and those of folders in it, go to the folder around it; delete: they are deleted.",
    )


class FolderFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id", "created_at", "-created_at")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    folder_id = Related(Folder.objects.visible_to, field_name="parent", help_text="Right in this folder.")


@extend_schema_view(
    list=extend_schema(
        operation_id="knowledge_base_folders",
        summary="List the folders of a knowledge base",
        parameters=FolderFilters.parameters(),
        responses=answers({200: FolderSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        operation_id="knowledge_base_folders_create",
        summary="Make a folder",
        request=FolderChangeSerializer,
        responses=answers({201: FolderSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(summary="Read a folder", responses=answers({200: FolderSerializer}, 404)),
    partial_update=extend_schema(
        summary="Rename or move a folder",
        request=FolderChangeSerializer,
        responses=answers({200: FolderSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a folder with the folders in it",
        parameters=[FolderDeletionSerializer],
        responses=answers({204: None}, 400, 403, 404),
    ),
)
class FolderViewSet(ApiViewSet):
    """Its URL sets `delete_documents`, which deletes documents as their own address does."""

    delete_documents: Any = None

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        found = self.found(folder_overview(self.principal).filter(knowledge_base=kb), FolderFilters)
        return self.get_paginated_response(FolderSerializer(found, many=True, context={"trees": {}}).data)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        fields = self.checked(FolderChangeSerializer)
        folder = folder_create(kb=kb, name=fields["name"], parent=folder_in(kb, fields.get("folder_id")))
        return Response(self._described(folder.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        folder = self.editable(Folder.objects.visible_to(self.principal), pk)
        changes = self.checked(FolderChangeSerializer, partial=True)
        if "folder_id" in changes:
            changes["parent"] = folder_in(folder.knowledge_base, changes.pop("folder_id"))
        folder_update(folder, **changes)
        return Response(self._described(pk))

    def destroy(self, request: Request, pk: int) -> Response:
        folder = self.editable(Folder.objects.visible_to(self.principal), pk)
        goes = asked(FolderDeletionSerializer, request)["documents"] == "delete"
        folder_delete(folder, delete_documents=self.delete_documents if goes else None)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _described(self, pk: int) -> Any:
        return FolderSerializer(one(folder_overview(self.principal), pk), context={"trees": {}}).data
