from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.etags import IF_MATCH, IF_NONE_MATCH, RETURNED, conditional, require_match
from kb.api.schema import CHUNK_EXAMPLES, NOT_MODIFIED, answers
from kb.api.serializers.chunks import (
    BulkChangedSerializer,
    BulkChunksSerializer,
    ChunkChangeSerializer,
    ChunkMergeSerializer,
    ChunkSerializer,
    ChunkSplitSerializer,
    DuplicatesSerializer,
    FoundByListSerializer,
    NearDuplicatesSerializer,
    NeighboursFilterSerializer,
    NeighboursSerializer,
)
from kb.api.views.base import ApiViewSet, asked, one
from kb.models import Chunk, Document, KnowledgeBase
from kb.models.locks import lock_knowledge_bases
from kb.services.chunk_work.bulk import chunks_change
from kb.services.chunk_work.duplicates import duplicate_scan_request, duplicates_of, near_duplicates
from kb.services.chunk_work.editing import chunk_update
from kb.services.chunk_work.found_by import searches_that_found
from kb.services.chunk_work.merging import chunks_merge
from kb.services.chunk_work.neighbours import neighbours_of
from kb.services.chunk_work.splitting import chunk_split


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read a chunk",
        parameters=[IF_NONE_MATCH, RETURNED],
        responses=answers({200: ChunkSerializer, 304: NOT_MODIFIED}, 404),
    ),
    partial_update=extend_schema(
        summary="Change a chunk, and what the indexes hold of it",
        parameters=[IF_MATCH, RETURNED],
        request=ChunkChangeSerializer,
        responses=answers({200: ChunkSerializer}, 400, 403, 404, 409, 412, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a chunk",
        description="A document that is processed again has it again: to keep it out of searches, disable it.",
        parameters=[IF_MATCH],
        responses=answers({204: None}, 403, 404, 412),
    ),
    split=extend_schema(
        operation_id="chunk_split",
        summary="Make several chunks of one",
        description="The first has its id. Cutting the document anew leaves the parts as they are.",
        request=ChunkSplitSerializer,
        examples=CHUNK_EXAMPLES["split"],
        responses=answers({200: ChunkSerializer(many=True)}, 400, 403, 404, 409, 413, 415),
    ),
    neighbours=extend_schema(
        operation_id="chunk_neighbours",
        summary="Read the chunks before and after one",
        parameters=[NeighboursFilterSerializer],
        responses=answers({200: NeighboursSerializer}, 400, 404),
    ),
    queries=extend_schema(
        operation_id="chunk_queries",
        summary="List the newest searches that found a chunk",
        description="Of those whose knowledge bases the caller may all see.",
        responses=answers({200: FoundByListSerializer}, 404),
    ),
    duplicates=extend_schema(
        operation_id="chunk_duplicates",
        summary="List the near-duplicates of a chunk",
        responses=answers({200: DuplicatesSerializer}, 404),
    ),
)
class ChunkViewSet(ApiViewSet):
    queryset = Chunk.objects.none()
    pagination_class = None

    def retrieve(self, request: Request, pk: int) -> Response:
        return conditional(request, ChunkSerializer(one(Chunk.objects.visible_to(self.principal), pk)).data)

    def partial_update(self, request: Request, pk: int) -> Response:
        chunk = self._editable(pk)
        changes = self.checked(ChunkChangeSerializer, partial=True)
        require_match(request, ChunkSerializer(chunk).data)  # before a model runs for nothing
        chunk_update(
            chunk,
            **{"text": chunk.text, "enabled": chunk.enabled, **changes},
            require=lambda locked: require_match(request, ChunkSerializer(locked).data),
        )
        told = ChunkSerializer(one(self._visible(), pk)).data
        return Response(told, headers={"ETag": told["etag"]})

    def destroy(self, request: Request, pk: int) -> Response:
        chunk = self._editable(pk)
        with transaction.atomic():
            lock_knowledge_bases([chunk.knowledge_base_id])
            require_match(request, ChunkSerializer(one(self._visible(), pk)).data)
            chunks_change(knowledge_base=chunk.knowledge_base, chunk_ids=[chunk.pk], action="delete")
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def split(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        chunk = self._editable(pk)
        parts = chunk_split(chunk=chunk, **self.checked(ChunkSplitSerializer))
        return Response(ChunkSerializer(parts, many=True).data)

    @action(detail=True)
    def neighbours(self, request: Request, pk: int) -> Response:
        chunk = one(self._visible(), pk)
        found = neighbours_of(chunk, count=asked(NeighboursFilterSerializer, request)["count"])
        return Response(NeighboursSerializer({"previous": found.previous, "next": found.following}).data)

    @action(detail=True)
    def queries(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        found = searches_that_found(self.principal, one(self._visible(), pk))
        return Response(FoundByListSerializer({"queries": found}).data)

    @action(detail=True)
    def duplicates(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        found = duplicates_of(one(self._visible(), pk))
        pairs = [{"similarity": round(similarity, 4), "chunk": chunk} for chunk, similarity in found]
        return Response(DuplicatesSerializer({"duplicates": pairs}).data)

    def _visible(self) -> QuerySet[Chunk]:
        rows: QuerySet[Chunk] = Chunk.objects.visible_to(self.principal).select_related("document", "knowledge_base")
        return rows

    def _editable(self, pk: int) -> Chunk:
        return self.editable(self._visible(), pk)


@extend_schema_view(
    merge=extend_schema(
        operation_id="chunks_merge",
        summary="Make one chunk of several that follow one another",
        description="It has the id and the place of the first. What two neighbours have in common is in it once. Cutting the "
        "document anew leaves it as it is.",
        request=ChunkMergeSerializer,
        examples=CHUNK_EXAMPLES["merge"],
        responses=answers({200: ChunkSerializer}, 400, 403, 404, 409, 413, 415),
    ),
)
class ChunkMergeViewSet(ApiViewSet):
    queryset = Document.objects.none()

    @action(detail=True, methods=["post"])
    def merge(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        rows: QuerySet[Any] = Document.objects.visible_to(self.principal).select_related("knowledge_base")
        document = self.editable(rows, pk)
        merged = chunks_merge(document=document, **self.checked(ChunkMergeSerializer))
        return Response(ChunkSerializer(merged).data)


@extend_schema_view(
    change=extend_schema(
        operation_id="chunks_bulk",
        summary="Enable, disable or delete many chunks",
        request=BulkChunksSerializer,
        examples=CHUNK_EXAMPLES["bulk"],
        responses=answers({200: BulkChangedSerializer}, 400, 403, 404, 413, 415),
    ),
)
class BulkChunksViewSet(ApiViewSet):
    queryset = KnowledgeBase.objects.none()

    @action(detail=True, methods=["post"])
    def change(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        wanted = self.checked(BulkChunksSerializer)
        changed = chunks_change(knowledge_base=kb, chunk_ids=wanted["ids"], action=wanted["action"])
        return Response({"changed": changed})


@extend_schema_view(
    retrieve=extend_schema(
        summary="List the near-duplicates of a knowledge base",
        description="Among its enabled chunks, by the terms that they have in common. Those of a large one are as a worker "
        "found them last.",
        responses=answers({200: NearDuplicatesSerializer}, 404),
    ),
    create=extend_schema(
        summary="Have a worker look for the near-duplicates of a knowledge base",
        request=None,
        responses=answers({202: NearDuplicatesSerializer}, 403, 404),
    ),
)
class NearDuplicatesViewSet(ApiViewSet):
    queryset = KnowledgeBase.objects.none()

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        return Response(NearDuplicatesSerializer(near_duplicates(kb)).data)

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        duplicate_scan_request(kb)
        return Response(NearDuplicatesSerializer(near_duplicates(kb)).data, status=status.HTTP_202_ACCEPTED)
