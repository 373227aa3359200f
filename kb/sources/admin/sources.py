"""Pages of sources: their list and form, how far their runs are, and the list of the items that they read."""

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.postgres.forms import SimpleArrayField
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import URLPattern, reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_GET, require_POST
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import UnfoldAdminTextInputWidget

from kb.base.models import count_of
from kb.base.waits import waiting_outside
from kb.content.models import Document
from kb.sources.admin.base import PREFIX, SourceAdmin, SourceForm, setting_field
from kb.sources.connectors.listing import MOST_PATTERNS
from kb.sources.connectors.registry import KINDS
from kb.sources.models import Source, SourceItem
from kb.sources.services.preview import source_preview
from kb.sources.services.sources import (
    UNFINISHED,
    error_of,
    error_text,
    gone_delete,
    gone_documents,
    held_back,
    secrets_after,
    secrets_set,
    source_accept,
    source_cancel,
    source_check,
    source_create,
    source_delete,
    source_pause,
    source_request,
    source_resume,
    source_update,
)
from kb.web.admin.navigation import add_hub_tab
from kb.web.admin.scoped import Empty, LinesField, ReadOnlyAdmin, ScopedRelatedFilter, column, row_ids, signed_in

OF_MODEL: Final = (
    "knowledge_base",
    "name",
    "kind",
    "url",
    "every_minutes",
    "enabled",
    "live",
    "hides_gone",
    "max_share",
    "tags",
    "max_pages",
    "max_depth",
    "include",
    "exclude",
)


class PatternsField(LinesField):
    def clean(self, value: Any) -> Any:
        lines = super().clean(value)
        if len(lines) > MOST_PATTERNS or any(len(line) > 300 for line in lines):
            raise ValidationError(_("Give at most 50 lines of at most 300 characters."))
        return lines


def name_of(kind: str, setting: str) -> str:
    return f"{PREFIX}{kind}_{setting}"


class SourceRowForm(SourceForm):
    include = PatternsField(
        is_code=True,
        label=gettext_lazy("Include URLs (regex)"),
        help_text=gettext_lazy(
            "Regular expressions, one a line, such as /docs/. None: any of the same host; of a feed, any at all."
        ),
    )
    exclude = PatternsField(
        is_code=True,
        label=gettext_lazy("Exclude URLs (regex)"),
        help_text=gettext_lazy("Regular expressions, one a line."),
    )
    tags = SimpleArrayField(
        forms.CharField(max_length=60),
        label=gettext_lazy("Tags"),
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("Of its documents, separated by commas."),
    )

    class Meta:
        model = Source
        fields = OF_MODEL
        help_texts: ClassVar[Any] = {
            "kind": gettext_lazy(
                "Pages of the web (one, those that a sitemap lists, those that links lead to, the entries of a feed), or the "
                "files of a place."
            ),
            "url": gettext_lazy("Of the page, the sitemap, the first page or the feed."),
            "enabled": gettext_lazy("Off: it is read only when somebody asks for it."),
            "max_depth": gettext_lazy("Of a crawl: how many links from the first page it goes."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:
            made_here = [kind for kind in KINDS.values() if kind.is_open() and kind.kind != Source.Kind.PUSH]
            offered = {str(kind.kind) for kind in made_here} | {self.instance.kind}
            kind_field: Any = self.fields["kind"]
            kind_field.choices = [(value, label) for value, label in Source.Kind.choices if value in offered]
        has = secrets_set(self.instance)
        for field in KINDS[self.instance.kind].fields if self.instance.kind in KINDS else ():
            of_form = self.name_of_setting(field.name)
            if of_form in self.fields and field.is_secret:
                self.fields[of_form] = setting_field(field, is_set=field.name in has)
            elif of_form in self.fields:
                self.initial[of_form] = self.instance.settings.get(field.name, field.default)

    def name_of_setting(self, name: str) -> str:
        return name_of(self.instance.kind, name)

    def check(self) -> None:
        source = self.instance
        self.settings, self.secrets = {}, {}
        for field in KINDS[source.kind].fields if source.kind in KINDS else ():
            value = self.cleaned_data.get(name_of(source.kind, field.name))
            if field.is_secret and value:
                self.secrets[field.name] = value
            elif not field.is_secret:
                self.settings[field.name] = field.default if value is None else value
        stored = Source.objects.filter(pk=source.pk).values("kind", "settings", "secrets").first()
        source.settings = dict(self.settings)
        source.secrets = dict(self.secrets) if stored is None else secrets_after(source, stored, self.secrets)
        source_check(source)


# A field for each setting of every kind, declared at once, so that the admin knows them.
SETTING_FIELDS = {
    name_of(name, field.name): setting_field(field) for name, kind in KINDS.items() for field in kind.fields
}
SourceRowForm.base_fields.update(SETTING_FIELDS)
SourceRowForm.declared_fields.update(SETTING_FIELDS)


LABELS = {
    Source.Status.NEVER: "info",
    Source.Status.WAITING: "info",
    Source.Status.RUNNING: "info",
    Source.Status.DONE: "success",
    Source.Status.CANCELLED: "warning",
    Source.Status.FAILED: "danger",
}
COUNTED = {
    "added": gettext_lazy("new: %(count)d"),
    "changed": gettext_lazy("changed: %(count)d"),
    "unchanged": gettext_lazy("unchanged: %(count)d"),
    "duplicate": gettext_lazy("same as another document: %(count)d"),
    "refused": gettext_lazy("refused by robots.txt: %(count)d"),
    "failed": gettext_lazy("failed: %(count)d"),
    "moved": gettext_lazy("moved: %(count)d"),
    "gone": gettext_lazy("gone: %(count)d"),
    "vanished": gettext_lazy("gone before they were read: %(count)d"),
    "moving": gettext_lazy("changed while they were read: %(count)d"),
    "misversioned": gettext_lazy("changed without another version: %(count)d"),
    "deleted": gettext_lazy("deleted: %(count)d"),
}


STAGES = {
    "listing": gettext_lazy("Listing: %(done)d so far"),
    "reading": gettext_lazy("Reading: %(done)d of %(total)s"),
    "deleting": gettext_lazy("Deleting: %(done)d of %(total)s"),
}


def counted(counts: Mapping[str, int]) -> list[str]:
    """What a run has done, in the reader's language."""
    return [text % {"count": counts[name]} for name, text in COUNTED.items() if counts.get(name)]


def state_cell(source: Source, *, swap: bool = False) -> SafeString:
    """Status, counts and error of a source; `swap` makes HTMX put it in the place of the one on the page."""
    label = LABELS[Source.Status(source.status)]
    if label == "success" and (source.counts.get("failed") or source.counts.get("gone")):
        label = "warning"  # it came to its end and could not read something
    progress = source.progress if source.status == Source.Status.RUNNING else {}
    stage = STAGES.get(progress.get("stage", ""))
    context = {
        "source": source,
        "label": label,
        "counts": counted(source.counts),
        "progress": stage % {"done": progress["done"], "total": progress["total"] or "?"} if stage else "",
        "error": error_text(source.error, source.error_code, source.error_params),
        "swap": swap,
    }
    return render_to_string("sources/state.html", context)


KEEP = "keep"
RUNS_SHOWN: Final = 10
# What the buttons above the form do, and what is said then.
ACTS: Final[dict[str, tuple[Callable[[Source], Any], Promise, int]]] = {
    "run": (source_request, gettext_lazy("The source is read now."), messages.SUCCESS),
    "cancel": (
        source_cancel,
        gettext_lazy("The run ends with the item at hand; what it has read stays."),
        messages.INFO,
    ),
    "pause": (
        source_pause,
        gettext_lazy("The source is paused: nothing reads it until you resume it."),
        messages.INFO,
    ),
    "resume": (source_resume, gettext_lazy("The source is read again by its schedule."), messages.SUCCESS),
    "accept": (
        source_accept,
        gettext_lazy("The source is read now, and what was held back is done where the place still shows the same."),
        messages.SUCCESS,
    ),
}


@admin.register(Source)
class SourceRowAdmin(SourceAdmin):
    empty = Empty(
        gettext_lazy(
            "A source keeps the files of a folder, a bucket, a WebDAV share or a Git repository, or pages and feeds of the web, "
            "as documents, and up to date."
        ),
        gettext_lazy("For example the help pages of a website, read again every night."),
        "sync",
    )
    form = SourceRowForm
    unfinished = UNFINISHED
    list_display = ("title", "kind", "knowledge_base", "state", "item_link", "schedule", "next_run_at")
    list_filter: ClassVar[Any] = (
        ("knowledge_base", ScopedRelatedFilter),
        ("kind", ChoicesDropdownFilter),
        ("status", ChoicesDropdownFilter),
    )
    search_fields = ("name", "url")
    search_help_text = gettext_lazy("Search by name or address")
    actions = ("run_now",)
    list_after_template = "sources/poll.html"
    change_form_outer_before_template = "sources/panel.html"
    change_form_after_template = "sources/test.html"
    delete_confirmation_template = "sources/delete_confirmation.html"
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("knowledge_base", "name", "kind")}),
        (gettext_lazy("Where it is"), {"fields": ("url", *SETTING_FIELDS)}),
        (gettext_lazy("Scope"), {"fields": ("live", "max_pages", "max_depth", "include", "exclude")}),
        (gettext_lazy("When and how"), {"fields": ("every_minutes", "enabled", "hides_gone", "max_share", "tags")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Source]:
        rows: QuerySet[Source] = (
            super().get_queryset(request).annotate(item_count=count_of(SourceItem.objects, "source"))
        )
        return rows

    # -- Pages of its own ------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("progress/", require_GET(self.progress_view), "progress"),
            *(
                self.page(f"<int:object_id>/{name}/", require_POST(partial(self.act_view, name=name)), name)
                for name in ACTS
            ),
            self.row_page("delete-gone", self.delete_gone_view, "GET", "POST", name="delete_gone"),
            *super().get_urls(),
        ]

    def progress_view(self, request: HttpRequest) -> HttpResponse:
        """The states of sources that were unfinished, for a page that polls; it asks again while one still is."""
        asked = row_ids(request.GET.get("ids", "").split(","))[: self.list_per_page]
        sources = list(self.get_queryset(request).filter(pk__in=asked))
        cells = [state_cell(each, swap=True) for each in sources]
        context: dict[str, Any] = {"cells": cells, "unfinished_ids": self.unfinished_ids(sources)}
        if "form" in request.GET:
            context |= {"on_form": True, "panels": [self._panel(request, each) for each in sources]}
        return render(request, "sources/progress.html", context)

    def _panel(self, request: HttpRequest, source: Source) -> dict[str, Any]:
        return {
            "source": source,
            "is_unfinished": source.status in UNFINISHED,
            "may_change": self.has_change_permission(request, source),
            "items_url": items_url(source),
            "held_back": held_back(source).count(),
            "gone": gone_documents(source).count(),
            "runs": [
                {
                    "run": run,
                    "counts": counted(run.counts),
                    "error": error_text(run.error, run.error_code, run.error_params),
                }
                for run in source.runs.all()[:RUNS_SHOWN]
            ],
        }

    def test_view(self, request: HttpRequest, object_id: int | None = None) -> HttpResponse:
        form = self.tested_form(request, object_id, name=uuid.uuid4().hex)
        context: dict[str, Any] = {"form": form}
        if form.is_valid():
            with waiting_outside(request.user.pk):
                preview = source_preview(form.instance)
            text_of = partial(error_of, for_superuser=signed_in(request).is_superuser)
            context = {
                "preview": preview,
                "error": text_of(preview.error),
                "rows": [{"item": item, "error": text_of(item.error)} for item in preview.items],
            }
        return render(request, "sources/preview.html", context)

    def act_view(self, request: HttpRequest, object_id: int, name: str) -> HttpResponse:
        """Does what a button above the form asks for; the service returns False where there was nothing to do."""
        source = self.get_object_or_404(request, str(object_id), to_change=True)
        act, message, level = ACTS[name]
        if act(source) is not False:
            self.message_user(request, message, level)
        return HttpResponseRedirect(reverse("admin:kb_source_change", args=[source.pk]))

    def delete_gone_view(self, request: HttpRequest, source: Source) -> HttpResponse:
        """Asks, and then deletes the documents of what the source has no longer."""
        if request.method == "POST":
            count = gone_delete(source)
            self.report(request, ngettext("%(count)d document deleted.", "%(count)d documents deleted.", count), count)
            return HttpResponseRedirect(reverse("admin:kb_source_change", args=[source.pk]))
        context = {**self.admin_site.each_context(request), "opts": self.opts, "source": source, "title": str(source)}
        return render(request, "sources/delete_gone.html", context | {"documents": gone_documents(source)})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        source = kwargs.get("obj")
        if source is not None:
            context |= self._panel(request, source) | {
                "state": state_cell(source),
                "unfinished_ids": self.unfinished_ids([source]),
                "show_save_and_add_another": False,
                "delete_after_hours": int(settings.WEB_DELETE_AFTER_HOURS),
                "is_web": source.kind in Source.WEB,
                "max_share": source.max_share,
            }
        return super().render_change_form(request, context, **kwargs)

    # -- Writes ----------------------------------------------------------------------------------------------------------
    def save_model(self, request: HttpRequest, obj: Source, form: Any, change: Any) -> None:
        values = {name: form.cleaned_data[name] for name in OF_MODEL if name in form.cleaned_data}
        if change:
            changed = {name: values[name] for name in form.changed_data if name in values}
            source_update(Source.objects.get(pk=obj.pk), settings=form.settings, secrets=form.secrets, **changed)
            return
        made = source_create(user=signed_in(request), settings=form.settings, secrets=form.secrets, **values)
        obj.pk, obj._state.adding = made.pk, False

    def delete_model(self, request: HttpRequest, obj: Source) -> None:
        source_delete(obj, keep_documents=request.POST.get("documents", KEEP) == KEEP)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        documents = Document.objects.filter(source_item__source__in=row_ids([object_id]))
        context = {"document_count": documents.count(), **(extra_context or {})}
        return super().delete_view(request, object_id, context)

    @admin.action(description=gettext_lazy("Read now"), permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Source]) -> None:
        begun = sum(source_request(source) for source in self.only_granted(request, queryset, "editable_by"))
        self.report(request, ngettext("%(count)d source is read now.", "%(count)d sources are read now.", begun), begun)

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("name"), ordering="name")
    def title(self, source: Source) -> str:
        text = '<span class="kb-name">{}</span><small class="kb-block kb-mono">{}</small>'
        return format_html(text, source.name, shortened(place_of(source)))

    @column(gettext_lazy("status"), ordering="status")
    def state(self, source: Source) -> SafeString:
        return state_cell(source)

    @column(gettext_lazy("items"), ordering="item_count")
    def item_link(self, source: Any) -> str:
        return format_html('<a href="{}" class="kb-link">{}</a>', items_url(source), source.item_count)

    @column(gettext_lazy("schedule"), ordering="every_minutes")
    def schedule(self, source: Source) -> str:
        minutes = source.every_minutes
        if source.paused:
            return _("paused")
        if minutes is None or not source.enabled:
            return _("only when asked for")
        if minutes % 1_440 == 0:
            return _("every %(count)d days") % {"count": minutes // 1_440} if minutes > 1_440 else _("every day")
        if minutes % 60 == 0:
            return _("every %(count)d hours") % {"count": minutes // 60} if minutes > 60 else _("every hour")
        return _("every %(count)d minutes") % {"count": minutes}


@admin.register(SourceItem)
class SourceItemAdmin(ReadOnlyAdmin):
    list_display = ("address", "state_label", "kept_as", "fetch_outcome", "fetched_at", "source")
    fields = ("address", "state", "kept_as", "fetch_outcome", "fetched_at", "source")
    list_display_links = None
    list_filter = (("source", ScopedRelatedFilter), ("state", ChoicesDropdownFilter))
    list_select_related = ("source", "document")
    search_fields = ("key", "url", "title")
    search_help_text = gettext_lazy("Search by path, address or title")
    show_full_result_count = False
    actions = ()

    @column(gettext_lazy("item"), ordering="key")
    def address(self, item: SourceItem) -> str:
        name = shortened(item.key or item.url)
        if not item.url:
            return format_html(
                '<span class="kb-name">{}</span><span class="kb-block kb-mono">{}</span>', item.title, name
            )
        text = '<span class="kb-name">{}</span><a class="kb-link kb-block kb-mono" href="{}" rel="noreferrer">{}</a>'
        return format_html(text, item.title, item.url, name)

    @column(
        gettext_lazy("state"),
        ordering="state",
        label={
            SourceItem.State.KEPT.value: "success",
            SourceItem.State.UNCHANGED.value: "success",
            SourceItem.State.REFUSED.value: "warning",
            SourceItem.State.DUPLICATE.value: "warning",
            SourceItem.State.GONE.value: "warning",
            SourceItem.State.FAILED.value: "danger",
        },
    )
    def state_label(self, page: SourceItem) -> tuple[str, str]:
        return page.state, page.get_state_display()

    @column(gettext_lazy("document"))
    def kept_as(self, page: SourceItem) -> str:
        if page.document is None:
            return "–"
        url = reverse("admin:kb_document_change", args=[page.document.pk])
        return format_html('<a href="{}" class="kb-link">{}</a>', url, page.document)

    @column(gettext_lazy("what happened"))
    def fetch_outcome(self, page: SourceItem) -> str:
        message = error_text(page.error, page.error_code, page.error_params)
        if page.state == SourceItem.State.GONE and page.document_id is not None:
            next_time = _("Its document is deleted if the next run does not find it either.")
            if page.source.kind in Source.WEB:
                hours = int(settings.WEB_DELETE_AFTER_HOURS)
                next_time = _("Its document is deleted if a run %(hours)d hours later does not find it either.") % {
                    "hours": hours
                }
            message = f"{message} {next_time}".strip()
        return format_html('<span class="kb-excerpt">{}</span>', message)


def items_url(source: Source) -> str:
    return f"{reverse('admin:kb_sourceitem_changelist')}?source__id__exact={source.pk}"


def place_of(source: Source) -> str:
    """Where a source is, for those who read the list of them."""
    first = [str(value) for value in source.settings.values() if value]
    return source.url or " ".join(first[:2])


def shortened(url: str) -> str:
    return url if len(url) <= 90 else f"{url[:60]}…{url[-28:]}"


add_hub_tab("sources", gettext_lazy("Sources"), order=20, model=Source, covers=("kb_sourceitem_",))
