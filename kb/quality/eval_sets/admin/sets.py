"""Evaluation sets: their list, and the pages of one."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.forms import ModelChoiceField
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET
from unfold.decorators import action

from kb.graph.admin.concepts import GraphAdmin
from kb.quality.eval_sets.admin.files import ImportView, export_view
from kb.quality.eval_sets.admin.pages import DeleteQueriesView, QueryView, SetView, judge_view, last_run_in_words
from kb.quality.eval_sets.services.overview import eval_set_overview
from kb.quality.models import EvalSet
from kb.web.admin.scoped import column, principal


@admin.register(EvalSet)
class EvalSetAdmin(GraphAdmin):
    list_display = ("name", "knowledge_base", "queries", "judged", "unanswerable", "last_run")
    search_fields = ("name",)
    search_help_text = gettext_lazy("Search by name")
    fields = ("knowledge_base", "name")
    ordering: ClassVar[Any] = ("name", "pk")
    actions_list: ClassVar[Any] = ["import_files"]
    list_before_template = "quality/eval_sets/list_intro.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[EvalSet]:
        return eval_set_overview(principal(request)).order_by("name", "pk")

    def formfield_for_foreignkey(
        self, db_field: "models.ForeignKey[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> "ModelChoiceField[Any] | None":
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if field is not None and (chosen := request.GET.get("kb", "")).isdecimal():
            field.initial = chosen
        return field

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("queries"), ordering="query_count")
    def queries(self, eval_set: EvalSet) -> int:
        return int(eval_set.query_count)  # type: ignore[attr-defined]

    @column(gettext_lazy("with judgments"), ordering="judged_count")
    def judged(self, eval_set: EvalSet) -> int:
        return int(eval_set.judged_count)  # type: ignore[attr-defined]

    @column(gettext_lazy("without an answer"), ordering="unanswerable_count")
    def unanswerable(self, eval_set: EvalSet) -> int:
        return int(eval_set.unanswerable_count)  # type: ignore[attr-defined]

    @column(gettext_lazy("last run"), ordering="last_run_at")
    def last_run(self, eval_set: Any) -> SafeString | str:
        if eval_set.last_run_id is None:
            return "–"
        url = reverse("admin:kb_evalrun_change", args=[eval_set.last_run_id])
        return format_html('<a href="{}" class="kb-link">{}</a>', url, last_run_in_words(eval_set))

    # -- Pages -----------------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("import/", ImportView.as_view(model_admin=self), "import"),
            self.page("<int:object_id>/export/", require_GET(self.export_view), "export"),
            self.page("<int:object_id>/judge/", require_GET(self.judge_view), "judge"),
            self.page("<int:object_id>/queries/delete/", DeleteQueriesView.as_view(model_admin=self), "queries_delete"),
            self.page("<int:object_id>/queries/<int:query_id>/", QueryView.as_view(model_admin=self), "query"),
            *super().get_urls(),
        ]

    def change_view(self, request: HttpRequest, object_id: str, *_args: Any, **_kwargs: Any) -> HttpResponse:
        response: HttpResponse = SetView.as_view(model_admin=self)(request, object_id=object_id)
        return response

    def response_add(self, request: HttpRequest, obj: EvalSet, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        """To the set's page, where its queries are added."""
        self.message_user(request, _("The evaluation set was made: add its queries."))
        return HttpResponseRedirect(reverse("admin:kb_evalset_change", args=[obj.pk]))

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        return HttpResponseRedirect(reverse("admin:kb_evalset_change", args=[object_id]))

    def export_view(self, request: HttpRequest, object_id: int) -> Any:
        return export_view(request, self.get_object_or_404(request, str(object_id)))

    def judge_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        return judge_view(request, self.get_object_or_404(request, str(object_id)))

    @action(description=gettext_lazy("Import"), icon="upload_file", url_path="import-files")  # type: ignore[untyped-decorator]
    def import_files(self, request: HttpRequest) -> HttpResponse:
        chosen = request.GET.get("knowledge_base__id__exact", "")
        return HttpResponseRedirect(
            reverse("admin:kb_evalset_import") + (f"?kb={chosen}" if chosen.isdecimal() else "")
        )

    # -- Deletion --------------------------------------------------------------------------------------------------------
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[EvalSet]) -> None:
        # The counts of the list would be kept in the deletion's own queries.
        super().delete_queryset(request, EvalSet.objects.filter(pk__in=list(queryset.values_list("pk", flat=True))))
