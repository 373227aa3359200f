from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.contrib.filters.admin import DropdownFilter
from unfold.views import ChangeList

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk
from kb.quality.debug.admin.form import parameters_of
from kb.quality.debug.services import searches_that_found
from kb.search.admin.labels import degradation_heading
from kb.search.models import SearchLog
from kb.search.services.search_log import WITHHELD
from kb.web.admin.parts import add_part
from kb.web.admin.rows import row_id
from kb.web.admin.scoped import ScopedModelAdmin, column, principal, visible

QUERY_CHARACTERS = 100
BADGE = '<span class="fq-badge {}">{}<b>{}</b></span>'
FEEDBACK_CLASSES = {SearchLog.Feedback.GOOD: "good", SearchLog.Feedback.BAD: "bad"}


def debug_url(kb_ids: Iterable[int], query: str, asked: Mapping[str, Any] | None) -> str:
    """Search debug, with a search that was logged and the settings that it asked for, where these were kept."""
    given = [*(("kb", kb_id) for kb_id in kb_ids), ("q", query), *parameters_of(asked or {}).items()]
    return f"{reverse('admin:search_debug')}?{urlencode(given)}"


class SearchedFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("knowledge base")
    parameter_name = "kb"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(str(kb.pk), kb.name) for kb in visible(KnowledgeBase, request)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[SearchLog]) -> QuerySet[SearchLog]:  # noqa: ARG002
        kb_id = row_id(self.value() or "")
        return queryset if kb_id is None else queryset.filter(knowledge_base_ids__contains=[kb_id])


class OutcomeFilter(DropdownFilter):  # type: ignore[misc]
    """By what came of a search; the column has no index, the list is read along the one of the times."""

    title = gettext_lazy("outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, Any]]:  # noqa: ARG002
        return SearchLog.Outcome.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[SearchLog]) -> QuerySet[SearchLog]:  # noqa: ARG002
        chosen = self.value()
        return queryset.filter(outcome=chosen) if chosen in SearchLog.Outcome.values else queryset


class DegradedFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("completeness")
    parameter_name = "degraded"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("no", _("complete")), ("yes", _("degraded"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[SearchLog]) -> QuerySet[SearchLog]:  # noqa: ARG002
        condition = {"no": Q(degraded=[]), "yes": ~Q(degraded=[])}.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class FeedbackFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("feedback")
    parameter_name = "feedback"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ARG002
        return [*((str(value), label) for value, label in SearchLog.Feedback.choices), ("none", _("none"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[SearchLog]) -> QuerySet[SearchLog]:  # noqa: ARG002
        chosen = {str(value): Q(feedback=value) for value in SearchLog.Feedback.values} | {"none": Q(feedback=None)}
        condition = chosen.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


def name_knowledge_bases(rows: Iterable[Any], request: HttpRequest) -> None:
    """Gives each row `named`: the names by id of the knowledge bases that it searched, as far as the caller sees them."""
    ids = {kb_id for row in rows for kb_id in row.knowledge_base_ids}
    names = dict(visible(KnowledgeBase, request).filter(pk__in=ids).values_list("pk", "name"))
    for row in rows:
        row.named = {kb_id: names[kb_id] for kb_id in row.knowledge_base_ids if kb_id in names}


class SearchLogChangeList(ChangeList):  # type: ignore[misc]
    """Names the knowledge bases of all rows in one query; a row leads to its search."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        name_knowledge_bases(self.result_list, request)

    def url_for_result(self, result: Any) -> str:
        return debug_url(result.named, result.query, result.asked_for)


@admin.register(SearchLog)
class SearchLogAdmin(ScopedModelAdmin):
    list_display = ("asked", "searched", "profile_name", "result_count", "came_of_it", "took", "user", "created_at")
    list_select_related = ("user",)
    list_filter = (SearchedFilter, OutcomeFilter, DegradedFilter, FeedbackFilter)
    list_filter_submit = True
    search_fields = ("query",)
    search_help_text = gettext_lazy("Search in the queries")
    actions = ()
    ordering = ("-created_at",)
    show_full_result_count = False  # a second count of a table that grows long

    class Media:
        css: ClassVar[Any] = {"all": ["kb/searches.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[SearchLog]:
        rows: QuerySet[SearchLog] = (
            super()
            .get_queryset(request)
            .defer("trace", "configuration", "history")
            .annotate(asked_for=F("trace__request"), is_withheld=F(f"trace__{WITHHELD}"))
        )
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:  # noqa: ARG002
        return SearchLogChangeList

    def change_view(self, request: HttpRequest, object_id: str, *_args: Any, **_kwargs: Any) -> HttpResponse:
        """An entry's page is the search itself, run again."""
        row = self.get_object_or_404(request, object_id)
        visible_ids = visible(KnowledgeBase, request).filter(pk__in=row.knowledge_base_ids).values_list("pk", flat=True)
        return HttpResponseRedirect(debug_url(list(visible_ids), row.query, row.asked_for))

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    @column(gettext_lazy("query"), ordering="query")
    def asked(self, row: Any) -> str:
        if row.is_withheld:
            return format_html('<i class="text-subtle">{}</i>', _("not kept"))
        return Truncator(row.query).chars(QUERY_CHARACTERS)

    @column(gettext_lazy("knowledge bases"))
    def searched(self, row: Any) -> str:
        return ", ".join(row.named.values()) or "-"

    @column(gettext_lazy("profile"), ordering="profile")
    def profile_name(self, row: SearchLog) -> str:
        return f"{row.profile} v{row.profile_version}"

    @column(gettext_lazy("outcome"))
    def came_of_it(self, row: SearchLog) -> SafeString:
        """What came of it, what was said of it, and what it could not do, each once."""
        badges = [(row.outcome, row.get_outcome_display(), "")]
        if row.feedback is not None:
            badges.append((FEEDBACK_CLASSES[SearchLog.Feedback(row.feedback)], row.get_feedback_display(), ""))
        headings = dict.fromkeys(degradation_heading(each["code"]) for each in row.degraded)
        return format_html(
            '<span class="fq-cell"><span class="fq-badges">{}</span>{}</span>',
            format_html_join("", BADGE, badges),
            format_html(
                '<span class="kb-outcome">{}</span>',
                format_html_join("", "<span>{}</span>", ((each,) for each in headings)),
            )
            if headings
            else "",
        )

    @column(gettext_lazy("milliseconds"), ordering="duration_ms")
    def took(self, row: SearchLog) -> str:
        return f"{row.duration_ms:.0f}"


def _searches_that_found(request: HttpRequest, chunk: Chunk) -> dict[str, Any]:
    searches = searches_that_found(principal(request), chunk)
    return {"searches": [(each, debug_url(each.knowledge_base_ids, each.query, each.asked)) for each in searches]}


add_part(Chunk, context=_searches_that_found)
