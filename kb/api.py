from typing import Any

from django.urls import URLPattern, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.parsers import MultiPartParser

from kb.agents.keys import ApiKeyViewSet
from kb.answers.api import AskView, ConversationViewSet
from kb.content.api import InvitationViewSet, MemberGroupViewSet, MemberViewSet
from kb.content.folders.api import FolderViewSet
from kb.graph.api import ConceptViewSet, EntityViewSet, FactViewSet, GraphImportViewSet
from kb.index.api import TokenizerViewSet, TokensViewSet
from kb.ingest.api.batches import BatchViewSet
from kb.ingest.api.chunks import (
    BulkChunksViewSet,
    ChunkMergeViewSet,
    ChunkPreviewViewSet,
    ChunkViewSet,
    NearDuplicatesViewSet,
)
from kb.ingest.api.documents import DocumentFileView, DocumentViewSet, KnowledgeBaseDocumentViewSet
from kb.ingest.api.knowledge_bases import KnowledgeBaseViewSet
from kb.ingest.api.pictures import DocumentPicturesViewSet, PageView, PictureView
from kb.ingest.services.documents import documents_delete
from kb.operations.api.audit import AuditViewSet, KnowledgeBaseExportView, KnowledgeBaseImportView
from kb.operations.api.health import HealthView, MetricsView, NoSuchEndpointView, ReadyView
from kb.providers.api import ModelsView
from kb.providers.usage.api import ModelUseView
from kb.quality.calibration.api import CalibrationView
from kb.quality.compare.api import CompareRunsView, CompareView
from kb.quality.eval_sets.api import (
    EvalQueryViewSet,
    EvalSetExportView,
    EvalSetImportView,
    EvalSetViewSet,
    JudgmentViewSet,
)
from kb.quality.failed_queries.api import FeedbackView
from kb.quality.fitting.api import FitViewSet
from kb.quality.profiles.api import ProfileVersionViewSet, ProfileViewSet
from kb.quality.runs.api import EmbeddingModelViewSet, EvalRunViewSet
from kb.quality.why_not.api import WhyNotView
from kb.search.api import CacheInvalidateView, ChunkQueriesViewSet, ReplayView, SearchBatchView, SearchView, TraceView
from kb.sources.api import ExternalSourceViewSet, SourceViewSet
from kb.sources.connectors.web.preview import page_read
from kb.sources.push.api import SyncViewSet

app_name = "api"

COLLECTION: dict[str, Any] = {"get": "list", "post": "create"}
ROW: dict[str, Any] = {"get": "retrieve", "patch": "partial_update", "delete": "destroy"}
WHOLE_ROW = ROW | {"put": "update"}


def posts(address: str, view: Any, *names: str) -> list[URLPattern]:
    """What is done to a row, each by a POST to its name below the row's address."""
    return [path(f"{address}{name}/", view.as_view({"post": name})) for name in names]


urlpatterns = [
    path("search/", SearchView.as_view()),  # first, since patterns are tried in order
    path("knowledge-bases/", KnowledgeBaseViewSet.as_view(COLLECTION)),
    path("knowledge-bases/import/", KnowledgeBaseImportView.as_view()),
    path("knowledge-bases/<int:pk>/", KnowledgeBaseViewSet.as_view(ROW)),
    path("knowledge-bases/<int:pk>/export/", KnowledgeBaseExportView.as_view()),
    path(
        "knowledge-bases/<int:kb_id>/documents/", KnowledgeBaseDocumentViewSet.as_view(COLLECTION, read_url=page_read)
    ),
    path(
        "knowledge-bases/<int:pk>/tokenizer/",
        TokenizerViewSet.as_view({"get": "retrieve", "put": "update", "delete": "destroy"}),
    ),
    path("knowledge-bases/<int:pk>/tokens/", TokensViewSet.as_view({"post": "create"})),
    path("knowledge-bases/<int:pk>/chunk-preview/", ChunkPreviewViewSet.as_view({"post": "create"})),
    path(
        "knowledge-bases/<int:pk>/embedding-model/",
        EmbeddingModelViewSet.as_view({"get": "retrieve", "post": "create", "delete": "destroy"}),
    ),
    *posts("knowledge-bases/<int:pk>/embedding-model/", EmbeddingModelViewSet, "swap", "rollback", "drop", "evaluate"),
    path("knowledge-bases/<int:kb_id>/entities/", EntityViewSet.as_view(COLLECTION)),
    path("knowledge-bases/<int:kb_id>/facts/", FactViewSet.as_view(COLLECTION)),
    path("knowledge-bases/<int:kb_id>/graph/import/", GraphImportViewSet.as_view({"post": "import_file"})),
    path("knowledge-bases/<int:kb_id>/sync/", SyncViewSet.as_view({"post": "create"})),
    path(
        "knowledge-bases/<int:kb_id>/sync/file/",
        SyncViewSet.as_view({"put": "update"}, parser_classes=[MultiPartParser]),
    ),
    path("knowledge-bases/<int:kb_id>/external-sources/", ExternalSourceViewSet.as_view(COLLECTION)),
    path("knowledge-bases/<int:kb_id>/external-sources/<int:source_id>/", ExternalSourceViewSet.as_view(ROW)),
    *posts("knowledge-bases/<int:kb_id>/external-sources/<int:source_id>/", ExternalSourceViewSet, "test"),
    path("entities/<int:pk>/", EntityViewSet.as_view(ROW)),
    path("facts/<int:pk>/", FactViewSet.as_view(ROW)),
    path("knowledge-bases/<int:kb_id>/concepts/", ConceptViewSet.as_view(COLLECTION)),
    path("concepts/<int:pk>/", ConceptViewSet.as_view(ROW)),
    path("entities/<int:pk>/merge/", EntityViewSet.as_view({"post": "merge"})),
    path("knowledge-bases/<int:kb_id>/batches/", BatchViewSet.as_view(COLLECTION)),
    path("batches/<int:pk>/", BatchViewSet.as_view({"get": "retrieve"})),
    *posts("batches/<int:pk>/", BatchViewSet, "files", "pause", "resume", "cancel", "retry"),
    path("knowledge-bases/<int:kb_id>/folders/", FolderViewSet.as_view(COLLECTION)),
    path("folders/<int:pk>/", FolderViewSet.as_view(ROW, delete_documents=documents_delete)),
    path("documents/<int:pk>/", DocumentViewSet.as_view(WHOLE_ROW)),
    path("documents/<int:pk>/chunks/", DocumentViewSet.as_view({"get": "chunks"})),
    path("documents/<int:pk>/retry/", DocumentViewSet.as_view({"post": "retry"})),
    path("documents/<int:pk>/file/", DocumentFileView.as_view({"get": "get", "put": "put"}), name="document_file"),
    path("documents/<int:pk>/pictures/", DocumentPicturesViewSet.as_view({"get": "retrieve"})),
    path("documents/<int:pk>/pages/<int:page>/", PageView.as_view()),
    path("pictures/<int:pk>/", PictureView.as_view()),
    path("documents/<int:pk>/chunks/merge/", ChunkMergeViewSet.as_view({"post": "merge"})),
    path("chunks/<int:pk>/", ChunkViewSet.as_view(ROW)),
    path("chunks/<int:pk>/split/", ChunkViewSet.as_view({"post": "split"})),
    path("chunks/<int:pk>/neighbours/", ChunkViewSet.as_view({"get": "neighbours"})),
    path("chunks/<int:pk>/queries/", ChunkQueriesViewSet.as_view({"get": "retrieve"})),
    path("chunks/<int:pk>/duplicates/", ChunkViewSet.as_view({"get": "duplicates"})),
    path("knowledge-bases/<int:pk>/chunks/bulk/", BulkChunksViewSet.as_view({"post": "change"})),
    path(
        "knowledge-bases/<int:pk>/near-duplicates/",
        NearDuplicatesViewSet.as_view({"get": "retrieve", "post": "create"}),
    ),
    path("models/", ModelsView.as_view()),
    path("models/usage/", ModelUseView.as_view()),
    path("knowledge-bases/<int:kb_id>/members/", MemberViewSet.as_view(COLLECTION)),
    path("knowledge-bases/<int:kb_id>/members/<int:user_id>/", MemberViewSet.as_view(ROW)),
    path("knowledge-bases/<int:kb_id>/groups/", MemberGroupViewSet.as_view(COLLECTION)),
    path("knowledge-bases/<int:kb_id>/groups/<int:group_id>/", MemberGroupViewSet.as_view(ROW)),
    path("knowledge-bases/<int:kb_id>/owner/", MemberViewSet.as_view({"put": "transfer", "delete": "withdraw"})),
    path("knowledge-bases/<int:kb_id>/leave/", MemberViewSet.as_view({"post": "leave"})),
    path("invitations/", InvitationViewSet.as_view({"get": "list"})),
    *posts("invitations/<int:pk>/", InvitationViewSet, "accept", "decline"),
    path("api-keys/", ApiKeyViewSet.as_view(COLLECTION)),
    path("api-keys/<str:prefix>/", ApiKeyViewSet.as_view({"get": "retrieve", "delete": "destroy"})),
    path("audit/", AuditViewSet.as_view({"get": "list"})),
    path("audit/<int:pk>/", AuditViewSet.as_view({"get": "retrieve"})),
    path("sources/", SourceViewSet.as_view(COLLECTION)),
    path("sources/test/", SourceViewSet.as_view({"post": "test"})),
    path("sources/<int:pk>/", SourceViewSet.as_view(ROW)),
    *posts("sources/<int:pk>/", SourceViewSet, "run", "cancel", "accept", "pause", "resume"),
    path("sources/<int:pk>/delete-gone/", SourceViewSet.as_view({"post": "delete_gone"})),
    path("sources/<int:pk>/items/", SourceViewSet.as_view({"get": "items"})),
    path("sources/<int:pk>/runs/", SourceViewSet.as_view({"get": "runs"})),
    path("search/batch/", SearchBatchView.as_view()),
    path("compare/", CompareView.as_view()),
    path("eval-sets/", EvalSetViewSet.as_view(COLLECTION)),
    path("eval-sets/import/", EvalSetImportView.as_view()),
    path("eval-sets/<int:pk>/", EvalSetViewSet.as_view(ROW)),
    path("eval-sets/<int:pk>/export/", EvalSetExportView.as_view()),
    path("eval-sets/<int:pk>/fit/", FitViewSet.as_view({"post": "start"})),
    path("eval-sets/<int:pk>/queries/", EvalQueryViewSet.as_view(COLLECTION)),
    path("eval-sets/<int:pk>/queries/<int:query_id>/", EvalQueryViewSet.as_view(ROW)),
    path("eval-sets/<int:pk>/judgments/", JudgmentViewSet.as_view({"get": "list", "put": "update"})),
    path("eval-sets/<int:pk>/judgments/<int:judgment_id>/", JudgmentViewSet.as_view({"delete": "destroy"})),
    path("eval-runs/", EvalRunViewSet.as_view(COLLECTION)),
    path("eval-runs/<int:pk>/", EvalRunViewSet.as_view({"get": "retrieve"})),
    path("eval-runs/<int:pk>/cancel/", EvalRunViewSet.as_view({"post": "cancel"})),
    path("eval-runs/<int:pk>/queries/", EvalRunViewSet.as_view({"get": "queries"})),
    path("eval-runs/<int:pk>/compare/<int:other>/", CompareRunsView.as_view()),
    path("eval-runs/<int:pk>/calibration/", CalibrationView.as_view()),
    path("eval-runs/<int:pk>/fit/", FitViewSet.as_view({"get": "fit"})),
    path("why-not/", WhyNotView.as_view()),
    path("ask/", AskView.as_view()),
    path("conversations/", ConversationViewSet.as_view({"get": "list"})),
    path("conversations/<uuid:pk>/", ConversationViewSet.as_view({"get": "retrieve", "delete": "destroy"})),
    path("traces/<uuid:trace_id>/", TraceView.as_view()),
    path("traces/<uuid:trace_id>/replay/", ReplayView.as_view()),
    path("traces/<uuid:trace_id>/feedback/", FeedbackView.as_view()),
    path("profiles/", ProfileViewSet.as_view(COLLECTION)),
    path("profiles/<path:name>/versions/", ProfileVersionViewSet.as_view({"get": "list"})),
    path(
        "profiles/<path:name>/versions/<int:version>/",
        ProfileVersionViewSet.as_view({"get": "retrieve", "delete": "destroy"}),
    ),
    *posts("profiles/<path:name>/versions/<int:version>/", ProfileVersionViewSet, "publish"),
    path("profiles/<path:name>/versions/<int:version>/diff/", ProfileVersionViewSet.as_view({"get": "diff"})),
    path("performance/cache/invalidate", CacheInvalidateView.as_view()),
    path("health/", HealthView.as_view()),
    path("ready/", ReadyView.as_view()),
    re_path("^metrics/?$", MetricsView.as_view()),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path(
        "docs/", SpectacularSwaggerSplitView.as_view(url_name="api:schema", template_name="api/docs.html"), name="docs"
    ),
    re_path("", NoSuchEndpointView.as_view()),
]
