"""Evaluation sets: their list, their pages with queries and judgments, import and export."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.generic import TemplateView
from unfold.decorators import action
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from kb.base.errors import Rejected
from kb.graph.admin.rows import GraphAdmin
from kb.quality.debug.admin.judge import SESSION_KEY, debug_url
from kb.quality.eval_sets.services.files import eval_set_import_archive, eval_set_response
from kb.quality.eval_sets.services.sets import (
    NAME_CHARACTERS,
    anchored_chunks,
    eval_query_overview,
    eval_set_overview,
    eval_set_save,
    judgments_regrade,
    queries_add,
    queries_delete,
    query_update,
    source_label,
)
from kb.quality.models import EvalQuery, EvalSet, Judgment
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import (
    Empty,
    IntoKnowledgeBaseForm,
    IntoKnowledgeBaseView,
    ModelPage,
    column,
    principal,
    reporting,
    reporting_in,
    row_id,
    row_ids,
)
from retrieval.eval.judged_sets import Layout


class ImportForm(IntoKnowledgeBaseForm):
    knowledge_base_help = gettext_lazy("Its documents are judged; they are known by their source.")
    file = forms.FileField(
        label=gettext_lazy("ZIP file"), widget=UnfoldAdminFileFieldWidget({"accept": ".zip,application/zip"})
    )
    name = forms.CharField(
        label=gettext_lazy("Name of the set"),
        required=False,
        max_length=NAME_CHARACTERS,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("Blank: the name in the files."),
    )
    replace = forms.BooleanField(
        label=gettext_lazy("Replace the queries and judgments of a set of this name"),
        required=False,
        widget=UnfoldBooleanSwitchWidget,
    )


class ImportView(IntoKnowledgeBaseView):
    title = gettext_lazy("Import an evaluation set")
    template_name = "quality/eval_sets/import.html"
    form_class = ImportForm

    def get_initial(self) -> dict[str, Any]:
        return super().get_initial() | {"name": self.request.GET.get("name", "")}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, has_knowledge_base=self.writable.exists())

    def form_valid(self, form: ImportForm) -> HttpResponse:
        given = form.cleaned_data
        with reporting_in(form, "file", Rejected, name_taken="replace"):
            done = eval_set_import_archive(
                principal(self.request), given["knowledge_base"], given["file"], given["name"], replace=given["replace"]
            )
            message = _("The set “%(name)s” was imported: queries %(queries)d, judgments %(judgments)d.")
            messages.success(
                self.request, message % {"name": done.eval_set, "queries": done.queries, "judgments": done.judgments}
            )
            if done.missing:
                message = ngettext(
                    "%(count)d judgment is of a document that the knowledge base does not have: it counts once a document of the "
                    "same source is uploaded.",
                    "%(count)d judgments are of documents that the knowledge base does not have: they count once documents of the "
                    "same source are uploaded.",
                    done.missing,
                )
                messages.warning(self.request, message % {"count": done.missing})
            return HttpResponseRedirect(reverse("admin:kb_evalset_change", args=[done.eval_set.pk]))
        return self.form_invalid(form)


QUERIES_A_PAGE, JUDGMENTS_A_PAGE = 50, 50
TAKEN_BACK = "none"


class OfSetView(ModelPage, TemplateView):
    """A page of one set. Whoever sees the set sees it; only editors may post.

    `write` does what was posted, and returns the page to go on to; the message of a `ServiceError` says what to do.
    """

    write: Callable[[QueryDict], str]

    @cached_property
    def eval_set(self) -> Any:
        return self.model_admin.get_object_or_404(self.request, str(self.kwargs["object_id"]))

    @cached_property
    def may_edit(self) -> bool:
        return bool(self.model_admin.has_change_permission(self.request, self.eval_set))

    @property
    def url(self) -> str:
        return reverse("admin:kb_evalset_change", args=[self.eval_set.pk])

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            original=self.eval_set,
            eval_set=self.eval_set,
            kb=self.eval_set.knowledge_base,
            may_edit=self.may_edit,
        )

    def post(self, request: HttpRequest, *_args: Any, **_kwargs: Any) -> HttpResponse:
        if not self.may_edit:
            raise PermissionDenied
        with reporting(request):
            return HttpResponseRedirect(self.write(request.POST))
        return self.render_to_response(self.get_context_data(posted=request.POST))


class SetView(OfSetView):
    template_name = "quality/eval_sets/page.html"

    @property
    def title(self) -> str:
        return _("Evaluation set “%(name)s”") % {"name": self.eval_set}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            **self.model_admin.form_context(self.request, self.eval_set),
            table=query_table(self.request, self.eval_set),
            last_run=last_run_text(self.eval_set),
        )

    def write(self, posted: QueryDict) -> str:
        caller = principal(self.request)
        if posted.get("action") == "rename":
            eval_set_save(caller, self.eval_set, posted.get("name", ""))
            messages.success(self.request, _("The set was renamed."))
            return self.url
        lines = [line for line in posted.get("queries", "").splitlines() if line.strip()]
        added = queries_add(caller, self.eval_set, lines)
        message = ngettext("%(count)d query was added.", "%(count)d queries were added.", added) % {"count": added}
        if passed := len(lines) - added:
            known = ngettext("%(count)d line was there already.", "%(count)d lines were there already.", passed)
            message = f"{message} {known % {'count': passed}}"
        messages.success(self.request, message)
        return self.url


class QueryView(OfSetView):
    template_name = "quality/eval_sets/query.html"

    @property
    def title(self) -> str:
        return _("Query of “%(name)s”") % {"name": self.eval_set}

    @cached_property
    def query(self) -> Any:
        return get_object_or_404(
            EvalQuery.objects.select_related("eval_set"), eval_set=self.eval_set, pk=self.kwargs["query_id"]
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        rows = self.query.judgments.select_related("document", "created_by").order_by("-grade", "pk")
        page = Paginator(rows, JUDGMENTS_A_PAGE).get_page(self.request.GET.get("page"))
        return super().get_context_data(
            **kwargs,
            query=self.query,
            page=page,
            rows=judgment_rows(list(page.object_list)),
            grades=[_("irrelevant"), _("partly relevant"), _("relevant"), _("highly relevant")],
            taken_back=TAKEN_BACK,
            set_url=self.url,
        )

    def write(self, posted: QueryDict) -> str:
        caller = principal(self.request)
        if posted.get("action") == "judgments":
            changed = judgments_regrade(caller, self.query, _grades(posted))
            messages.success(
                self.request,
                ngettext("%(count)d judgment was changed.", "%(count)d judgments were changed.", changed)
                % {"count": changed},
            )
        else:
            query_update(caller, self.query, text=posted.get("text", ""), answerable="answerable" in posted)
            messages.success(self.request, _("The query was changed."))
        return self.request.get_full_path()


class DeleteQueriesView(OfSetView):
    """Asks before queries are deleted: they come by GET, and go by POST."""

    template_name = "quality/eval_sets/delete_queries.html"

    @property
    def title(self) -> str:
        return _("Delete queries of “%(name)s”?") % {"name": self.eval_set}

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not self.may_edit:
            raise PermissionDenied
        if not row_ids(request.GET.getlist("query")):
            messages.warning(request, _("Choose some queries first."))
            return HttpResponseRedirect(self.url)
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        chosen = row_ids(self.request.GET.getlist("query"))
        queries = list(eval_query_overview(principal(self.request), self.eval_set).filter(pk__in=chosen).order_by("pk"))
        return super().get_context_data(
            **kwargs, queries=queries, judgment_count=sum(query.judgment_count for query in queries), set_url=self.url
        )

    def write(self, posted: QueryDict) -> str:
        deleted = queries_delete(principal(self.request), self.eval_set, row_ids(posted.getlist("query")))
        messages.success(
            self.request,
            ngettext("%(count)d query was deleted.", "%(count)d queries were deleted.", deleted) % {"count": deleted},
        )
        return self.url


def last_run_text(eval_set: Any) -> str:
    """The figures of the last run that is done; blank where there is none."""
    return figures_text(eval_set.last_figures) if eval_set.last_run_id else ""


def figures_text(figures: Mapping[str, float] | None) -> str:
    """Those of a stage of a run, in one line."""
    labels = {"recall@5": "Recall@5", "ndcg@10": "NDCG@10"}
    known = figures or {}
    text = " · ".join(f"{label} {known[name]:.3f}" for name, label in labels.items() if name in known)
    return text or _("nothing measured")


def query_table(request: HttpRequest, eval_set: EvalSet) -> dict[str, Any]:
    """The queries that the URL asks for: `q` in the text or id, `show` a kind of them, `page`; three queries."""
    has_judgments = Exists(Judgment.objects.filter(query=OuterRef("pk")))
    kinds = {
        "": (_("all queries"), Q()),
        "judged": (_("with judgments"), Q(has_judgments)),
        "unanswerable": (_("without an answer"), Q(answerable=False)),
        "unjudged": (_("without judgments"), Q(~has_judgments, answerable=True)),
    }
    q, show = request.GET.get("q", "").strip(), request.GET.get("show", "")
    show = show if show in kinds else ""
    searched = Q(text__icontains=q) | Q(external_id__icontains=q) if q else Q()
    rows = EvalQuery.objects.filter(kinds[show][1], searched, eval_set=eval_set).order_by("pk")
    page = Paginator(rows, QUERIES_A_PAGE).get_page(request.GET.get("page"))
    shown = eval_query_overview(principal(request), eval_set).filter(pk__in=[query.pk for query in page.object_list])
    return {
        "q": q,
        "show": show,
        "kinds": {kind: label for kind, (label, _condition) in kinds.items()},
        "page": page,
        "rows": [(query, _judged_text(query.judgment_count, query.relevant_count)) for query in shown.order_by("pk")],
        "is_narrowed": bool(q or show),
    }


def judgment_rows(judgments: Sequence[Judgment]) -> list[dict[str, Any]]:
    """Judgments, with their query, its set and document, and the documents and chunks of today that they are of.

    Where there is none, `trouble` says why.
    """
    found = anchored_chunks(judgments)
    here = {source_label(chunk.document): chunk.document for chunk in found.values()}
    rows = []
    for judgment in judgments:
        chunk, document = found.get(judgment.pk), judgment.document or here.get(judgment.source)
        trouble = ""
        if document is None:
            trouble = _("The document is gone: upload one of the same source, and this judgment counts again.")
        elif chunk is None:
            trouble = _(
                "The document no longer has this passage: judge it again in the retrieval test, and take this one back."
            )
        number = _("chunk %(number)d") % {"number": chunk.position + 1} if chunk and judgment.quote else ""
        rows.append({"judgment": judgment, "document": document, "chunk": chunk, "number": number, "trouble": trouble})
    return rows


def _judged_text(judged: int, relevant: int) -> str:
    if not judged:
        return _("no judgments")
    return ngettext(
        "%(relevant)d relevant of %(count)d judgment", "%(relevant)d relevant of %(count)d judgments", judged
    ) % {"relevant": relevant, "count": judged}


def _grades(posted: QueryDict) -> dict[int, int | None]:
    """The chosen grades by judgment id, of fields that are named "grade-ID"."""
    chosen: dict[int, int | None] = {}
    for name, value in posted.items():
        pk = row_id(name.removeprefix("grade-")) if name.startswith("grade-") else None
        if pk is not None and isinstance(value, str) and (value == TAKEN_BACK or re.fullmatch(r"\d{1,2}", value)):
            chosen[pk] = None if value == TAKEN_BACK else int(value)
    return chosen


@admin.register(EvalSet)
class EvalSetAdmin(GraphAdmin):
    empty = Empty(
        gettext_lazy(
            "A set holds queries and the passages that answer them: run it to measure how well searches find them."
        ),
        gettext_lazy("For example twenty questions that customers ask, each with its passage marked as relevant."),
        "quiz",
        "kb_evalset_import",
        gettext_lazy("Import a set"),
    )
    list_display = ("label", "knowledge_base", "queries", "judged", "unanswerable", "last_run")
    search_fields = ("name",)
    search_help_text = gettext_lazy("Search by name")
    fields = ("knowledge_base", "name")
    ordering: ClassVar[Any] = ("name", "pk")
    actions_list: ClassVar[Any] = ["import_files"]
    list_before_template = "quality/eval_sets/list_intro.html"

    def get_queryset(self, request: HttpRequest) -> Any:
        return eval_set_overview(principal(request)).order_by("name", "pk")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"knowledge_base": row_id(request.GET.get("kb", "")), **super().get_changeform_initial_data(request)}

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("name"), ordering="name")
    def label(self, eval_set: EvalSet) -> str:
        return str(eval_set)

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
        return format_html(
            '<a href="{}" class="kb-link">{}</a>',
            reverse("admin:kb_evalrun_change", args=[eval_set.last_run_id]),
            last_run_text(eval_set),
        )

    # -- Pages -----------------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("import/", ImportView.as_view(model_admin=self), "import"),
            self.row_page("export", self.export_view, "GET"),
            self.row_page("judge", self.judge_view, "GET"),
            self.page("<int:object_id>/queries/delete/", DeleteQueriesView.as_view(model_admin=self), "queries_delete"),
            self.page("<int:object_id>/queries/<int:query_id>/", QueryView.as_view(model_admin=self), "query"),
            *super().get_urls(),
        ]

    def change_view(self, request: HttpRequest, object_id: str, *_args: Any, **_kwargs: Any) -> HttpResponse:
        return SetView.as_view(model_admin=self)(request, object_id=object_id)

    def response_add(self, request: HttpRequest, obj: EvalSet, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        self.message_user(request, _("The evaluation set was made: add its queries."))
        return HttpResponseRedirect(reverse("admin:kb_evalset_change", args=[obj.pk]))

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        return HttpResponseRedirect(reverse("admin:kb_evalset_change", args=[object_id]))

    def export_view(self, request: HttpRequest, eval_set: EvalSet) -> Any:
        """The set as a ZIP file, in the layout of `layout`, with the documents where `documents` is given."""
        layout = Layout.TREC if request.GET.get("layout") == Layout.TREC else Layout.BEIR
        return eval_set_response(principal(request), eval_set, layout, with_documents="documents" in request.GET)

    def judge_view(self, request: HttpRequest, eval_set: EvalSet) -> HttpResponse:
        """On to the retrieval test, where judgments from now on go to this set; with the query `q`, where it is given."""
        request.session[SESSION_KEY] = eval_set.name
        kb_id = eval_set.knowledge_base_id
        if q := request.GET.get("q", ""):
            return HttpResponseRedirect(debug_url([kb_id], q, None))
        return HttpResponseRedirect(f"{reverse('admin:search_debug')}?{urlencode({'kb': kb_id})}")

    @action(description=gettext_lazy("Import"), icon="upload_file", url_path="import-files")  # type: ignore[untyped-decorator]
    def import_files(self, request: HttpRequest) -> HttpResponse:
        chosen = row_id(request.GET.get("knowledge_base__id__exact", ""))
        return HttpResponseRedirect(reverse("admin:kb_evalset_import") + (f"?kb={chosen}" if chosen else ""))

    # -- Deletion --------------------------------------------------------------------------------------------------------
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[EvalSet]) -> None:
        # The counts of the list would be kept in the deletion's own queries.
        super().delete_queryset(request, EvalSet.objects.filter(pk__in=list(queryset.values_list("pk", flat=True))))


add_tab(Section.QUALITY, gettext_lazy("Evaluation sets"), "kb_evalset_changelist", order=20)
