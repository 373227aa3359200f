"""The curators' inbox: queries that failed, who fixes them, and how far that is."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.forms import ModelChoiceField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy, ngettext, ngettext_lazy
from django.views.generic import FormView
from unfold.contrib.filters.admin import DropdownFilter
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase, Principal, User
from kb.assistants.models import Assistant
from kb.base.errors import Rejected
from kb.quality.debug.admin.form import search_parameters
from kb.quality.debug.admin.log import BADGE, QUERY_CHARACTERS, SearchedFilter, name_knowledge_bases
from kb.quality.eval_sets.services.sets import NAME_CHARACTERS
from kb.quality.failed_queries.services import (
    assign,
    assignable_user,
    may_name_assignees,
    remarks_on,
    set_state,
    to_eval_query,
)
from kb.quality.models import EvalSet, FailedQuery
from kb.search.models import SearchLog
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.parts import Task, add_tasks
from kb.web.admin.scoped import (
    ConditionFilter,
    Empty,
    ScopedModelAdmin,
    column,
    principal,
    reporting_in,
    row_id,
    signed_in,
    visible,
)


class ToEvalSetForm(forms.Form):
    target = forms.ChoiceField(label=gettext_lazy("Evaluation set"), widget=UnfoldAdminSelectWidget)
    name = forms.CharField(
        label=gettext_lazy("Name of the new set"),
        max_length=NAME_CHARACTERS,
        required=False,
        widget=UnfoldAdminTextInputWidget({"placeholder": gettext_lazy("Default set")}),
    )
    unanswerable = forms.BooleanField(
        label=gettext_lazy("The knowledge base has no answer to it, and finding nothing is right"),
        required=False,
        widget=UnfoldBooleanSwitchWidget,
    )

    def __init__(self, caller: Principal, failed: FailedQuery, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        bases = list(KnowledgeBase.objects.editable_by(caller).filter(pk__in=failed.knowledge_base_ids))
        sets = list(EvalSet.objects.filter(knowledge_base__in=bases).select_related("knowledge_base"))
        self._targets = {
            **{f"set-{each.pk}": each for each in sets},
            **{f"new-{kb.pk}": EvalSet(knowledge_base=kb) for kb in bases},
        }
        cast(forms.ChoiceField, self.fields["target"]).choices = [
            (_("There are already"), [(f"set-{each.pk}", f"{each.knowledge_base} / {each}") for each in sets]),
            (_("A new one"), [(f"new-{kb.pk}", _("A new one of “%(kb)s”") % {"kb": kb}) for kb in bases]),
        ][0 if sets else 1 :]

    def chosen(self) -> EvalSet:
        """A new one is not saved yet."""
        chosen = self._targets[self.cleaned_data["target"]]
        return chosen if chosen.pk else EvalSet(knowledge_base=chosen.knowledge_base, name=self.cleaned_data["name"])


class ToEvalSetView(FormView):  # type: ignore[type-arg]
    template_name = "quality/failed_queries/to_set.html"
    form_class = ToEvalSetForm
    model_admin: Any = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.failed = self.model_admin.get_object_or_404(request, str(kwargs["object_id"]), to_change=True)
        return super().dispatch(request, *args, **kwargs)

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "caller": principal(self.request), "failed": self.failed}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            **self.model_admin.admin_site.each_context(self.request),
            title=_("Add to an evaluation set"),
            failed=self.failed,
            inbox_url=self.inbox_url,
        )

    @property
    def inbox_url(self) -> str:
        """With the filters that it had."""
        filters = self.request.GET.get("_changelist_filters", "")
        return f"{reverse('admin:kb_failedquery_changelist')}{f'?{filters}' if filters else ''}"

    def form_valid(self, form: ToEvalSetForm) -> HttpResponse:
        answerable = not form.cleaned_data["unanswerable"]
        with reporting_in(form, None, Rejected):
            query = to_eval_query(principal(self.request), self.failed, form.chosen(), answerable=answerable)
            sentence = _(
                "“%(query)s” is in the evaluation set “%(set)s” now; it stays on the to-do list until you resolve it."
            )
            messages.success(self.request, sentence % {"query": query.text, "set": query.eval_set})
            return HttpResponseRedirect(self.inbox_url)
        return self.form_invalid(form)


REMARKS_LISTED = 2
State, Reason = FailedQuery.State, FailedQuery.Reason


class StateFilter(ConditionFilter):
    """What waits for somebody, unless other states are asked for."""

    title = gettext_lazy("state")
    parameter_name = "state"
    all_option = ("", gettext_lazy("open and in progress"))
    conditions = {
        **{state: (label, Q(state=state)) for state, label in State.choices},
        "all": (gettext_lazy("all"), Q()),
    }

    def queryset(self, request: HttpRequest, queryset: QuerySet[FailedQuery]) -> QuerySet[FailedQuery]:
        if self.value() in self.conditions:
            return cast("QuerySet[FailedQuery]", super().queryset(request, queryset))
        return queryset.filter(state__in=FailedQuery.WAITING)


class ReasonFilter(ConditionFilter):
    title = gettext_lazy("reason")
    parameter_name = "reason"
    conditions = {reason: (label, Q(reasons__has_key=reason)) for reason, label in Reason.choices}


class AssigneeFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("assignee")
    parameter_name = "assignee"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("mine", _("mine")), ("nobody", _("nobody")), ("others", _("others"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[FailedQuery]) -> QuerySet[FailedQuery]:
        mine, nobody = Q(assignee=signed_in(request)), Q(assignee=None)
        condition = {"mine": mine, "nobody": nobody, "others": ~mine & ~nobody}.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class AssistantFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("assistant")
    parameter_name = "assistant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(str(each.pk), each.name) for each in Assistant.objects.editable_by(principal(request))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[FailedQuery]) -> QuerySet[FailedQuery]:  # noqa: ARG002
        assistant_id = row_id(self.value() or "")
        return queryset if assistant_id is None else queryset.filter(assistant_ids__contains=[assistant_id])


class FailedQueryForm(forms.ModelForm):  # type: ignore[type-arg]
    """Names nobody whom the caller does not know: others are given a query by typing who they are."""

    request: HttpRequest
    assignee_name = forms.CharField(
        label=gettext_lazy("Another assignee"),
        help_text=gettext_lazy(
            "The exact user name of a member of all its knowledge bases; their owners may name one."
        ),
        max_length=150,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "assignee" in self.fields:
            field = cast("ModelChoiceField[User]", self.fields["assignee"])
            field.queryset = User.objects.filter(pk__in=[self.request.user.pk, self.instance.assignee_id])
            field.empty_label = _("nobody")

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if name := values.get("assignee_name", "").strip():
            with reporting_in(self, "assignee_name"):
                values["assignee"] = assignable_user(principal(self.request), self.instance.knowledge_base_ids, name)
        return values


@admin.register(FailedQuery)
class FailedQueryAdmin(ScopedModelAdmin):
    form = FailedQueryForm
    empty = Empty(
        gettext_lazy(
            "Queries without a result, those below the relevance threshold, and answers that somebody did not find helpful come "
            "in here by themselves."
        ),
        gettext_lazy("For example “who pays for returns” finds no passage: see why, or write the answer."),
        "task_alt",
        "search_debug",
        gettext_lazy("Try a query"),
    )
    list_display = ("asked", "badges", "count", "last_seen", "searched", "standing", "opens")
    list_select_related = ("assignee",)
    list_filter = (StateFilter, ReasonFilter, AssigneeFilter, SearchedFilter, AssistantFilter)
    search_fields = ("query",)
    search_help_text = gettext_lazy("Search in the queries")
    actions = ("assign_to_me", "resolve", "ignore", "open_again", "delete_selected")
    ordering: ClassVar[Any] = ("-last_seen",)
    list_before_template = "quality/failed_queries/about.html"
    change_form_outer_before_template = "quality/failed_queries/panel.html"
    fields = ("state", "assignee", "assignee_name", "badges", "count", "searched", "first_seen", "last_seen")
    readonly_fields: ClassVar[Any] = ("badges", "count", "searched", "first_seen", "last_seen")

    class Media:
        css: ClassVar[Any] = {"all": ["kb/searches.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - searches come in by themselves
        return False

    def completed(self, request: HttpRequest, rows: Any) -> Any:
        """Rows with `named` and `editable` (see `name_knowledge_bases`), `asked_for`, `assistants` and `remarks`.

        That is what the last search, if kept, asked for, the names of those that were asked, as far as the caller may edit
        them, and what their visitors said of the answers. Not joined in the list's own query: a long search log would then slow down its count.
        """
        name_knowledge_bases(rows, request)
        searches = visible(SearchLog, request).filter(pk__in=[row.last_search_id for row in rows if row.last_search_id])
        asked_for = dict(searches.values_list("pk", "trace__request"))
        ids = {assistant_id for row in rows for assistant_id in row.assistant_ids}
        asked = Assistant.objects.editable_by(principal(request)).filter(pk__in=ids)
        names = dict(asked.values_list("pk", "name")) if ids else {}
        remarks = remarks_on(principal(request), rows, list(names)) if names else {}
        preserved = self.get_preserved_filters(request)
        for row in rows:
            row.to_set_url = (
                f"{reverse('admin:kb_failedquery_to_set', args=[row.pk])}{f'?{preserved}' if preserved else ''}"
            )
            row.remarks = remarks.get(row.pk, [])
            row.asked_for = asked_for.get(row.last_search_id)
            row.assistants = [names[assistant_id] for assistant_id in row.assistant_ids if assistant_id in names]
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        failed = super().get_object(request, object_id, from_field)
        if failed is not None:
            self.completed(request, [failed])
            failed.may_name = may_name_assignees(principal(request), failed.knowledge_base_ids)
        return failed

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Sequence[Any]:
        shown = super().get_fields(request, obj)
        return [name for name in shown if name != "assignee_name" or getattr(obj, "may_name", False)]

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("<int:object_id>/to-evaluation-set/", ToEvalSetView.as_view(model_admin=self), "to_set"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"title": _("To do"), **(extra_context or {})}
        return cast(HttpResponse, super().changelist_view(request, context))

    def form_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {
            **super().form_context(request, row),
            "title": _("Failed query"),
            "subtitle": None,
            "failed": row,
            "test_url": _page_with("search_debug", row),
            "why_url": _page_with("why_not", row),
            "write_url": _page_with("ask_write", row),
            "to_set_url": row.to_set_url,
            "may_change": self.has_change_permission(request, row),
            "show_save_and_continue": False,
            "show_history": False,  # none is kept, see `log_change`
        }

    # -- Writes ----------------------------------------------------------------------------------------------------------
    def save_model(self, request: HttpRequest, obj: FailedQuery, form: Any, change: Any) -> None:  # noqa: ARG002
        rows, caller = FailedQuery.objects.filter(pk=obj.pk), principal(request)
        if form.initial["assignee"] != obj.assignee_id:
            assign(caller, rows, form.cleaned_data["assignee"])
        if "state" in form.changed_data:
            set_state(caller, rows, form.cleaned_data["state"])

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """The history of the admin would keep a query's words longer than the search log does."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        """As `log_change`."""

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        """None is kept."""
        raise Http404

    @admin.action(description=gettext_lazy("Assign to me"), permissions=["change"])
    def assign_to_me(self, request: HttpRequest, queryset: QuerySet[FailedQuery]) -> None:
        message = ngettext_lazy("%(count)d query is yours now.", "%(count)d queries are yours now.", "count")
        self._write(request, queryset, partial(assign, user=signed_in(request)), message)

    @admin.action(description=gettext_lazy("Resolve"), permissions=["change"])
    def resolve(self, request: HttpRequest, queryset: QuerySet[FailedQuery]) -> None:
        message = ngettext_lazy(
            "%(count)d query is resolved; should it fail again, it opens again.",
            "%(count)d queries are resolved; those that fail again open again.",
            "count",
        )
        self._write(request, queryset, partial(set_state, state=State.RESOLVED), message)

    @admin.action(description=gettext_lazy("Ignore"), permissions=["change"])
    def ignore(self, request: HttpRequest, queryset: QuerySet[FailedQuery]) -> None:
        message = ngettext_lazy(
            "%(count)d query is ignored, also when it fails again.",
            "%(count)d queries are ignored, also when they fail again.",
            "count",
        )
        self._write(request, queryset, partial(set_state, state=State.IGNORED), message)

    @admin.action(description=gettext_lazy("Open again"), permissions=["change"])
    def open_again(self, request: HttpRequest, queryset: QuerySet[FailedQuery]) -> None:
        message = ngettext_lazy("%(count)d query is open.", "%(count)d queries are open.", "count")
        self._write(request, queryset, partial(set_state, state=State.OPEN), message)

    def _write(
        self, request: HttpRequest, queryset: QuerySet[FailedQuery], write: Callable[..., int], message: Any
    ) -> None:
        if count := write(principal(request), self.only_granted(request, queryset, self.delete_grant)):
            self.report(request, message, count)

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("query"), ordering="query")
    def asked(self, failed: Any) -> str:
        query = format_html('<span class="kb-excerpt">{}</span>', Truncator(failed.query).chars(QUERY_CHARACTERS))
        if not failed.assistants:
            return query
        asked = _("asked of %(assistants)s") % {"assistants": ", ".join(failed.assistants)}
        remarks = format_html_join("", "<q>{}</q>", [(each.feedback_text,) for each in failed.remarks[:REMARKS_LISTED]])
        return format_html("{}<small>{}</small>{}", query, asked, remarks)

    @column(gettext_lazy("reasons"))
    def badges(self, failed: FailedQuery) -> SafeString:
        counted = [(reason, failed.reasons[reason]) for reason in Reason if failed.reasons.get(reason)]
        rows = [(reason.value, reason.label, f" ×{times}" if times > 1 else "") for reason, times in counted]
        return format_html('<span class="fq-badges">{}</span>', format_html_join("", BADGE, rows))

    @column(gettext_lazy("knowledge bases"))
    def searched(self, failed: Any) -> str:
        return ", ".join(failed.named.values()) or _("a deleted knowledge base")

    @column(gettext_lazy("state"), ordering="state")
    def standing(self, failed: FailedQuery) -> SafeString:
        badge = format_html(BADGE, failed.state, failed.get_state_display(), "")
        return format_html('<span class="fq-cell">{}<small>{}</small></span>', badge, failed.assignee or "")

    @column(gettext_lazy("next"))
    def opens(self, failed: Any) -> SafeString:
        links = [
            (_page_with("search_debug", failed), _("Retrieval test")),
            (_page_with("why_not", failed), _("Find out why")),
            (_page_with("ask_write", failed), _("Write the answer")),
        ]
        shown = format_html_join("", '<a href="{}" class="kb-link">{}</a>', links)
        return format_html('<span class="fq-links">{}{}</span>', shown, _to_set_button(failed))


def _page_with(name: str, failed: Any) -> str:
    """A page with the query filled in, and what was asked for with it."""
    given = search_parameters(failed.named, failed.query, failed.asked_for or {})
    return f"{reverse(f'admin:{name}')}?{urlencode(given)}"


def _to_set_button(failed: Any) -> str:
    """One click to the default set of the only knowledge base that was asked, if the caller may edit it."""
    if not failed.editable or len(failed.knowledge_base_ids) > 1:
        return ""
    button = '<button form="to-set" formaction="{}" name="target" value="new-{}" class="kb-link">{}</button>'
    return format_html(button, failed.to_set_url, failed.editable[0], _("Add to an evaluation set"))


add_tab(Section.QUALITY, gettext_lazy("To do"), "kb_failedquery_changelist", order=10)


@add_tasks
def waiting_queries(request: HttpRequest) -> Iterator[Task]:
    """The failed queries that wait, and how many of them for the user; of those who may change what is searched."""
    rows = FailedQuery.objects.editable_by(principal(request)).filter(state__in=FailedQuery.WAITING)
    counts = rows.aggregate(all=Count("pk"), mine=Count("pk", filter=Q(assignee=signed_in(request))))
    if not counts["all"]:
        return
    if counts["mine"]:
        text = ngettext(
            "%(count)d question has no good answer; yours: %(mine)d",
            "%(count)d questions have no good answer; yours: %(mine)d",
            counts["all"],
        )
    else:
        text = ngettext(
            "%(count)d question has no good answer", "%(count)d questions have no good answer", counts["all"]
        )
    said = text % {"count": counts["all"], "mine": counts["mine"]}
    yield Task(said, reverse("admin:kb_failedquery_changelist"), _("Go through them"), order=30, count=counts["all"])
