"""The history of searches: each row opens its search in the retrieval test."""

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy
from unfold.contrib.filters.admin import DropdownFilter
from unfold.views import ChangeList

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk
from kb.quality.debug.admin.judge import debug_url
from kb.search.admin.labels import degradation_heading
from kb.search.models import SearchLog
from kb.search.services.baseline import beyond_usual, codes_beyond_usual
from kb.search.services.search_log import WITHHELD, searches_that_found
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import ConditionFilter, ReadOnlyAdmin, ScopedChangeList, column, principal, row_id, visible
from kb.web.admin.site import add_part

QUERY_CHARACTERS = 100
BADGE = '<span class="fq-badge {}">{}<b>{}</b></span>'


class SearchedFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("knowledge base")
    parameter_name = "kb"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(str(kb.pk), kb.name) for kb in visible(KnowledgeBase, request)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[SearchLog]) -> QuerySet[SearchLog]:  # noqa: ARG002
        kb_id = row_id(self.value() or "")
        return queryset if kb_id is None else queryset.filter(knowledge_base_ids__contains=[kb_id])


class OutcomeFilter(ConditionFilter):
    """The column has no index, the list is read along the one of the times."""

    title = gettext_lazy("outcome")
    parameter_name = "outcome"
    conditions = {value: (label, Q(outcome=value)) for value, label in SearchLog.Outcome.choices}


class DegradedFilter(ConditionFilter):
    """By what a search lacked beyond what all of them lack here."""

    title = gettext_lazy("completeness")
    parameter_name = "degraded"
    conditions = {"no": (gettext_lazy("complete"), Q(beyond=[])), "yes": (gettext_lazy("degraded"), ~Q(beyond=[]))}

    def queryset(self, request: HttpRequest, queryset: QuerySet[SearchLog]) -> QuerySet[SearchLog]:
        return super().queryset(request, queryset.annotate(beyond=codes_beyond_usual()))


class FeedbackFilter(ConditionFilter):
    title = gettext_lazy("feedback")
    parameter_name = "feedback"
    conditions = {
        **{str(value): (label, Q(feedback=value)) for value, label in SearchLog.Feedback.choices},
        "none": (gettext_lazy("none"), Q(feedback=None)),
    }


def name_knowledge_bases(rows: Iterable[Any], request: HttpRequest) -> None:
    """Gives each row `named`: the names by id of the knowledge bases that it searched, as far as the caller sees them.

    `editable` are the ids of those that the caller may edit.
    """
    ids = {kb_id for row in rows for kb_id in row.knowledge_base_ids}
    may_edit = Exists(KnowledgeBase.objects.editable_by(principal(request)).filter(pk=OuterRef("pk")))
    bases = visible(KnowledgeBase, request).filter(pk__in=ids).annotate(may_edit=may_edit)
    found = {pk: (name, is_mine) for pk, name, is_mine in bases.values_list("pk", "name", "may_edit")}
    for row in rows:
        row.named = {kb_id: found[kb_id][0] for kb_id in row.knowledge_base_ids if kb_id in found}
        row.editable = [kb_id for kb_id in row.named if found[kb_id][1]]


class SearchLogChangeList(ScopedChangeList):
    def url_for_result(self, result: Any) -> str:
        return debug_url(result.named, result.query, result.asked_for)


@admin.register(SearchLog)
class SearchLogAdmin(ReadOnlyAdmin):
    list_display = ("asked", "searched", "profile_name", "result_count", "outcome_badges", "took", "user", "created_at")
    list_select_related = ("user",)
    list_filter = (SearchedFilter, OutcomeFilter, DegradedFilter, FeedbackFilter)
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

    def completed(self, request: HttpRequest, rows: Any) -> Any:
        name_knowledge_bases(rows, request)
        return rows

    def change_view(self, request: HttpRequest, object_id: str, *_args: Any, **_kwargs: Any) -> HttpResponse:
        """An entry's page is the search itself, run again."""
        row = self.get_object_or_404(request, object_id)
        name_knowledge_bases([row], request)
        return HttpResponseRedirect(debug_url(row.named, row.query, row.asked_for))

    @column(gettext_lazy("query"), ordering="query")
    def asked(self, row: Any) -> str:
        if row.is_withheld:
            return format_html('<i class="text-subtle">{}</i>', _("not kept"))
        return Truncator(row.query).chars(QUERY_CHARACTERS)

    @column(gettext_lazy("knowledge bases"))
    def searched(self, row: Any) -> str:
        return ", ".join(row.named.values()) or _("a deleted knowledge base")

    @column(gettext_lazy("profile"), ordering="profile")
    def profile_name(self, row: SearchLog) -> str:
        return f"{row.profile} v{row.profile_version}"

    @column(gettext_lazy("outcome"))
    def outcome_badges(self, row: SearchLog) -> SafeString:
        badges = [(row.outcome, row.get_outcome_display(), "")]
        if row.feedback is not None:
            kind = "good" if row.feedback == SearchLog.Feedback.GOOD else "bad"
            badges.append((kind, row.get_feedback_display(), ""))
        headings = dict.fromkeys(degradation_heading(each["code"]) for each in beyond_usual(row.degraded))
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

    @column(gettext_lazy("duration"), ordering="duration_ms")
    def took(self, row: SearchLog) -> str:
        return f"{row.duration_ms:.0f} ms"


def _searches_that_found(request: HttpRequest, chunk: Chunk) -> dict[str, Any]:
    return {
        "searches": [
            (each, debug_url(each["knowledge_base_ids"], each["query"], each["asked"]))
            for each in searches_that_found(principal(request), chunk)
        ]
    }


add_part(Chunk, context=_searches_that_found)

add_tab(Section.TEST, gettext_lazy("History"), "kb_searchlog_changelist", order=40)
