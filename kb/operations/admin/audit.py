"""The audit log: who changed what, for owners of knowledge bases and superusers.

Whole knowledge bases as files: the page that gives one out, and the one that takes one in.
"""

import json
from datetime import date, datetime, time, timedelta
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.apps import apps
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import display_for_value
from django.db.models import DateTimeField, QuerySet
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_GET
from django.views.generic import FormView
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter, FieldTextFilter, RangeDateFilter
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminTextInputWidget

from kb.access.models import MODELS, AuditEntry, KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.base.errors import Rejected
from kb.content.models import Chunk, Document
from kb.operations.services.archives.export import export_download
from kb.operations.services.archives.restore import import_upload
from kb.quality.models import EvalSet
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import (
    Empty,
    ModelPage,
    ReadOnlyAdmin,
    ScopedRelatedFilter,
    column,
    principal,
    reporting_in,
    signed_in,
)
from kb.web.admin.site import add_part


def kind_text(kind: str) -> str:
    """What an object is called; a kind that is unknown here by its code."""
    return str(apps.get_model("kb", MODELS[kind])._meta.verbose_name) if kind in MODELS else kind


def field_text(kind: str, name: str) -> str:
    """What a field is called; one that is gone, or never had a name for people, by its code."""
    return str(getattr(field_of(kind, name), "verbose_name", name))


def field_of(kind: str, name: str) -> Any:
    """The field behind a name in the log, which leaves out the end of a column's; None where there is none any more."""
    fields = apps.get_model("kb", MODELS[kind])._meta.fields if kind in MODELS else ()
    return next((each for each in fields if name in {each.name, each.column.removesuffix("_id")}), None)


def value_text(kind: str, name: str, value: Any) -> str:
    """A value as the pages of its kind show it: choices by their label, times in the site's time zone."""
    field = field_of(kind, name)
    labels = dict(getattr(field, "flatchoices", ()))
    if value is None:
        return ""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, str | int) and value in labels:
        return str(labels[value])
    if isinstance(field, DateTimeField) and (moment := parse_datetime(str(value))):
        return display_for_value(moment, "")
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " · ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


ACTION_LABELS = {"create": "success", "update": "info", "delete": "danger", "bind": "info", "unbind": "warning"}
FIELDS_IN_LIST = 4


class KindFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(kind, kind_text(kind)) for kind in MODELS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:  # noqa: ARG002
        return queryset.filter(object_type=self.value()) if self.value() in MODELS else queryset


class DaysFilter(RangeDateFilter):  # type: ignore[misc]
    """From the beginning of a day to the end of another, by the clock of this site."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:  # noqa: ARG002
        first, last = (self._day(each) for each in ("from", "to"))
        if first:
            queryset = queryset.filter(at__gte=timezone.make_aware(datetime.combine(first, time.min)))
        if last:
            queryset = queryset.filter(at__lt=timezone.make_aware(datetime.combine(last + timedelta(days=1), time.min)))
        return queryset

    def _day(self, end: str) -> date | None:
        given = self.used_parameters.get(f"{self.parameter_name}_{end}")
        value = forms.DateField(required=False, localize=True)
        try:
            day: date | None = value.clean(given)
        except forms.ValidationError:
            return None
        return day if day is None or day.year < 9_999 else None


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """For reading only: the database writes it, and retention alone deletes from it."""

    empty = Empty(
        gettext_lazy(
            "Changes of knowledge bases, documents, members, models and keys are recorded here by themselves."
        ),
        gettext_lazy("For example who made which document unsearchable, and when."),
        "history",
    )
    list_display = ("at", "who", "did", "kind", "named", "base", "changed", "how")
    list_filter = (
        ("knowledge_base", ScopedRelatedFilter),
        ("username", FieldTextFilter),
        ("action", ChoicesDropdownFilter),
        KindFilter,
        ("how", ChoicesDropdownFilter),
        ("at", DaysFilter),
    )
    linked_lookups = frozenset({"object_id"})  # of an object's history
    list_filter_sheet = True
    search_fields = ("object_name", "object_id", "request_id")
    search_help_text = gettext_lazy("Search by name, id or request")
    actions = ()
    show_full_result_count = False  # a second count of a table that grows long
    change_form_outer_after_template = "operations/audit/changes.html"
    fields: ClassVar[Any] = (
        "at", "who", "did_text", "kind", "named", "object_id", "base", "how_it_came", "api_key", "address", "request_id",
    )  # fmt: skip
    readonly_fields: ClassVar[Any] = fields

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        entry = kwargs.get("obj")
        if entry is not None:
            context |= {"entry": entry, "differences": _differences(entry)}
        return super().render_change_form(request, context, **kwargs)

    # -- Columns -------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("user"))
    def who(self, entry: AuditEntry) -> str:
        of_nobody = _("by itself") if entry.how == AuditEntry.How.TASK else _("unknown")
        name = entry.username or of_nobody
        return format_html('{} <code class="kb-mono">{}</code>', name, entry.api_key) if entry.api_key else name

    @column(gettext_lazy("action"), label=ACTION_LABELS)
    def did(self, entry: AuditEntry) -> tuple[str, str]:
        return entry.action, entry.get_action_display()

    @column(gettext_lazy("action"))
    def did_text(self, entry: AuditEntry) -> str:
        return entry.get_action_display()

    @column(gettext_lazy("kind"))
    def kind(self, entry: AuditEntry) -> str:
        return kind_text(entry.object_type)

    @column(gettext_lazy("name"))
    def named(self, entry: AuditEntry) -> str:
        if entry.object_name or entry.amount == 1:
            return format_html('<span class="kb-name">{}</span>', Truncator(entry.object_name or "-").chars(80))
        return ngettext("%(count)d row", "%(count)d rows", entry.amount) % {"count": entry.amount}

    @column(gettext_lazy("knowledge base"))
    def base(self, entry: AuditEntry) -> str:
        return entry.knowledge_base_name or "-"

    @column(gettext_lazy("fields"))
    def changed(self, entry: AuditEntry) -> str:
        if entry.action != AuditEntry.Action.UPDATE:
            return "-"
        names = [field_text(entry.object_type, name) for name in entry.changes]
        more = len(names) - FIELDS_IN_LIST
        return ", ".join(names[:FIELDS_IN_LIST]) + (f" +{more}" if more > 0 else "") or "-"

    @column(gettext_lazy("by way of"))
    def how_it_came(self, entry: AuditEntry) -> str:
        how = entry.get_how_display()
        return format_html('{} <code class="kb-mono">{}</code>', how, entry.via) if entry.via else how


def _differences(entry: AuditEntry) -> list[dict[str, str]]:
    return [
        {
            "field": field_text(entry.object_type, name),
            "before": "" if secret else value_text(entry.object_type, name, before),
            "after": _("changed; its value is not kept") if secret else value_text(entry.object_type, name, after),
        }
        for name, (before, after) in entry.changes.items()
        for secret in [before is None and after is None]
    ]


class ArchiveForm(forms.Form):
    file = forms.FileField(
        label=gettext_lazy("Archive"), widget=UnfoldAdminFileFieldWidget({"accept": ".zip,application/zip"})
    )
    name = forms.CharField(
        label=gettext_lazy("Name of the knowledge base"),
        required=False,
        max_length=120,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("Blank: the name in the archive."),
    )


class ImportArchiveView(ModelPage, FormView):  # type: ignore[type-arg]
    title = gettext_lazy("Import a knowledge base")
    template_name = "operations/archives/import.html"
    form_class = ArchiveForm
    rate_limit_kind = UPLOAD

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, max_megabytes=settings.MAX_UPLOAD_BYTES // 1024**2)

    def form_valid(self, form: ArchiveForm) -> HttpResponse:
        given = form.cleaned_data
        with reporting_in(form, "file", Rejected):
            done = import_upload(principal(self.request), signed_in(self.request), given["file"], given["name"])
            message = _("“%(name)s” was imported: documents %(documents)d, chunks %(chunks)d, judgments %(judgments)d.")
            messages.success(self.request, message % {**done.rows, "name": done.knowledge_base.name})
            for note in done.notes:
                messages.warning(self.request, note)
            return HttpResponseRedirect(reverse("admin:kb_knowledgebase_change", args=[done.knowledge_base.pk]))
        return self.form_invalid(form)


def export_view(model_admin: Any, request: HttpRequest, object_id: int) -> HttpResponse:
    """Says what an export holds, with a choice of what to leave out."""
    kb: KnowledgeBase = model_admin.get_object_or_404(request, str(object_id), to_change=True)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": _("Export “%(name)s”") % {"name": kb.name},
        "opts": model_admin.opts,
        "original": kb,
        "kb": kb,
        "document_count": Document.objects.filter(knowledge_base=kb).count(),
        "chunk_count": Chunk.objects.filter(knowledge_base=kb).count(),
        "eval_set_count": EvalSet.objects.filter(knowledge_base=kb).count(),
        "file_count": Document.objects.filter(knowledge_base=kb).exclude(file="").count(),
    }
    return render(request, "operations/archives/export.html", context)


def export_file_view(model_admin: Any, request: HttpRequest, object_id: int) -> FileResponse:
    """The archive itself."""
    kb: KnowledgeBase = model_admin.get_object_or_404(request, str(object_id), to_change=True)
    return export_download(principal(request), kb, vectors="vectors" in request.GET)


def archive_pages(model_admin: Any) -> list[URLPattern]:
    return [
        model_admin.page("import/", ImportArchiveView.as_view(model_admin=model_admin), "import"),
        model_admin.page("<int:object_id>/export/", require_GET(partial(export_view, model_admin)), "export"),
        model_admin.page(
            "<int:object_id>/export/file/", require_GET(partial(export_file_view, model_admin)), "export_file"
        ),
    ]


add_part(KnowledgeBase, pages=archive_pages)

add_tab(Section.SYSTEM, gettext_lazy("Audit log"), "kb_auditentry_changelist", order=30)
