"""Chunks in the admin: list and form, splitting and merging, and the near-duplicates of a knowledge base."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, ClassVar, Literal, cast

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import URLPattern, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected, ServiceError
from kb.base.text import hash_content
from kb.content.models import Chunk, Document
from kb.ingest.services.chunks import (
    as_stored,
    chunk_split,
    chunk_update,
    chunks_change,
    chunks_delete,
    chunks_merge,
    chunks_set_enabled,
    has_text_of,
    neighbours_of,
    sentence_starts,
)
from kb.ingest.services.duplicates import (
    DuplicateGroup,
    Found,
    duplicate_scan_request,
    duplicates_of,
    near_duplicates,
    similarities_within,
)
from kb.ingest.services.pictures import pictures_of_chunks
from kb.web.admin.scoped import (
    ConditionFilter,
    LinesField,
    ModelPage,
    ScopedAutocompleteFilter,
    ScopedModelAdmin,
    ScopedRelatedFilter,
    column,
    principal,
    reason,
    reporting,
    reporting_in,
    row_id,
    row_ids,
    visible,
)
from retrieval.highlight import without_rules

GROUPS_A_PAGE = 10
MEMBERS_SHOWN = 12
COMPARED_CHARACTERS = 2_000
_WORD = re.compile(r"[^\W\u2e80-\U0003ffff]+|\s+|.", re.DOTALL)

CHANGED = {
    "enable": ngettext_lazy(
        "%(count)d chunk is found by searches again.", "%(count)d chunks are found by searches again.", "count"
    ),
    "disable": ngettext_lazy(
        "%(count)d chunk is found by no search now.", "%(count)d chunks are found by no search now.", "count"
    ),
    "delete": ngettext_lazy("%(count)d chunk was deleted.", "%(count)d chunks were deleted.", "count"),
}

Run = tuple[bool, str]  # Whether a piece of a text is only in this one, and the piece


class NearDuplicatesView(ModelPage, TemplateView):
    template_name = "ingest/chunk_duplicates.html"

    @property
    def title(self) -> str:
        return _("Near-duplicates in “%(name)s”") % {"name": self.kb.name} if self.kb else _("Near-duplicates")

    @cached_property
    def bases(self) -> list[KnowledgeBase]:
        return list(visible(KnowledgeBase, self.request).order_by("name"))

    @cached_property
    def kb(self) -> KnowledgeBase | None:
        """The chosen one, or the only one there is; None: none is chosen yet. Http404: the user may not see it."""
        chosen = self.request.GET.get("kb")
        if not chosen:
            return self.bases[0] if len(self.bases) == 1 else None
        for kb in self.bases:
            if kb.pk == row_id(chosen):
                return kb
        raise Http404

    @cached_property
    def may_edit(self) -> bool:
        return self.kb is not None and (
            KnowledgeBase.objects.editable_by(principal(self.request)).filter(pk=self.kb.pk).exists()
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        found = near_duplicates(self.kb) if self.kb else Found()
        page = Paginator(found.groups, GROUPS_A_PAGE).get_page(self.request.GET.get("page"))
        return super().get_context_data(
            **kwargs,
            bases=self.bases,
            kb=self.kb,
            found=found,
            unkept=found.group_count - len(found.groups),
            page=page,
            groups=_shown(self.kb, list(page.object_list)) if self.kb else [],
            may_edit=self.may_edit,
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if self.kb is None or not self.may_edit:
            raise PermissionDenied
        if request.POST.get("action") == "look":
            duplicate_scan_request(self.kb)
            messages.info(request, _("A worker is looking for near-duplicates: open this page again in a moment."))
        else:
            self._change(self.kb, row_ids(request.POST.getlist("chunk")), request.POST.get("action", ""))
        page = request.GET.get("page", "")
        url = f"{reverse('admin:kb_chunk_duplicates')}?kb={self.kb.pk}"
        return HttpResponseRedirect(url + (f"&page={page}" if page.isdecimal() else ""))

    def _change(self, kb: KnowledgeBase, chunk_ids: Sequence[int], action: str) -> None:
        if action not in CHANGED or not chunk_ids:
            messages.error(self.request, _("Choose the chunks first, then what becomes of them."))
            return
        with reporting(self.request):
            count = chunks_change(knowledge_base=kb, chunk_ids=chunk_ids, action=action)  # type: ignore[arg-type]
            messages.success(self.request, CHANGED[action] % {"count": count})


def _shown(kb: KnowledgeBase, groups: Sequence[DuplicateGroup]) -> list[dict[str, Any]]:
    """Groups with their first chunks as they are now; one of which fewer than two are left enabled is left out."""
    ids = [chunk_id for group in groups for chunk_id in group.chunk_ids[:MEMBERS_SHOWN]]
    rows = Chunk.objects.filter(knowledge_base=kb, enabled=True).select_related("document").in_bulk(ids)
    there = [[rows[each] for each in group.chunk_ids[:MEMBERS_SHOWN] if each in rows] for group in groups]
    kept = [(group, members) for group, members in zip(groups, there, strict=True) if len(members) > 1]
    alike = similarities_within(kb, [members for _, members in kept])
    return [
        {
            "first": members[0],
            "others": [
                {"chunk": other, "percent": percent(alike[other.pk]), "runs": marked(members[0].text, other.text)}
                for other in members[1:]
            ],
            "unshown": max(0, len(group.chunk_ids) - MEMBERS_SHOWN),
        }
        for group, members in kept
    ]


def marked(first: str, second: str) -> list[Run]:
    """The second text in pieces, those marked that the first does not have at their place."""
    words, others = (_WORD.findall(text[:COMPARED_CHARACTERS]) for text in (first, second))
    runs: list[Run] = []
    for tag, start, end, other_start, other_end in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        if piece := "".join(others[other_start:other_end]):
            runs.append((tag != "equal", piece))
        elif start < end:
            runs.append((True, ""))
    return [*runs, (False, second[COMPARED_CHARACTERS:])]


NEIGHBOUR_CHARACTERS = 300


def percent(similarity: float) -> int:
    """Whole per cent, rounded down: only the same is 100 %."""
    return int(similarity * 100 + 1e-9)


class ChunkSplitView(ModelPage, TemplateView):
    """Each boundary between two sentences is a box to tick; a cursor's place may be given in `?at=`."""

    template_name = "ingest/chunk_split.html"

    @property
    def title(self) -> str:
        return _("Split chunk %(number)d of “%(title)s”") % {
            "number": self.chunk.position + 1,
            "title": self.chunk.document,
        }

    @cached_property
    def chunk(self) -> Any:
        return self.model_admin.get_object_or_404(self.request, str(self.kwargs["object_id"]), to_change=True)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        text = self.chunk.text
        chosen = kwargs.get("chosen", offsets_in(text, self.request.GET.getlist("at")))
        return super().get_context_data(**kwargs, chunk=self.chunk, pieces=pieces_of(text, chosen))

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        chosen = offsets_in(self.chunk.text, request.POST.getlist("at"))
        if not chosen:
            error = _("Choose at least one place at which a new chunk begins.")
        elif request.POST.get("hash") != self.chunk.content_hash:
            error, chosen = _("The text has changed meanwhile, and nothing was done: choose the places again."), []
        else:
            try:
                parts = chunk_split(chunk=self.chunk, at=chosen)
            except ServiceError as refused:
                error = reason(refused)
            else:
                messages.success(request, _("The chunk has become %(count)d.") % {"count": len(parts)})
                return redirect("admin:kb_chunk_change", parts[0].pk)
        return self.render_to_response(self.get_context_data(error=error, chosen=chosen))


def pieces_of(text: str, chosen: Sequence[int] = ()) -> list[dict[str, Any]]:
    """A text in sentences and lines, at whose beginnings it may be split, and where it is to be."""
    bounds = pairwise([0, *sorted({*sentence_starts(text), *chosen}), len(text)])
    return [{"start": start, "text": text[start:end], "chosen": start in chosen} for start, end in bounds]


def offsets_in(text: str, given: Sequence[str]) -> list[int]:
    """The offsets among what was given that lie within the text."""
    numbers = [int(each) for each in given if each.isascii() and each.isdecimal() and len(each) < 10]
    return [place for place in numbers if text[:place].strip() and text[place:].strip()]


EXCERPT_CHARACTERS = 120


class ChunkForm(forms.ModelForm):  # type: ignore[type-arg]
    """Validating a change writes it to the indexes, so that what they refuse is said beside the field."""

    keywords = LinesField(
        label=gettext_lazy("Keywords"),
        help_text=gettext_lazy(
            "Keywords that this chunk is found by, one a line. Empty: they are extracted from its text, where the knowledge "
            "base has keyword vectors."
        ),
    )
    questions = LinesField(
        label=gettext_lazy("Questions"),
        help_text=gettext_lazy("Questions that this chunk answers, one a line: similar questions will find it."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "text" in self.fields:  # who may only look has no fields
            self.fields["text"].show_hidden_initial = True  # what was changed is told by the text that was shown

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if self.errors or not self.has_changed():
            return values
        chunk = Chunk.objects.select_related("document", "knowledge_base").get(pk=self.instance.pk)
        is_other, shown = "text" in self.changed_data, self.data.get(self.add_initial_prefix("text"), "")
        with reporting_in(self), reporting_in(self, "text", Rejected):
            chunk_update(
                chunk,
                text=values["text"] if is_other else chunk.text,
                enabled=values["enabled"],
                questions=values["questions"] if "questions" in self.changed_data else None,
                keywords=values["keywords"] if "keywords" in self.changed_data else None,
                require=has_text_of(hash_content(as_stored(shown)) if is_other else chunk.content_hash),
            )
        return values


class EditedFilter(ConditionFilter):
    title = gettext_lazy("changed by hand")
    parameter_name = "changed"
    conditions = {
        "text": (gettext_lazy("text edited"), ~Q(cut_text="")),
        "cut": (gettext_lazy("merged or split"), Q(own_cut=True)),
        "keywords": (gettext_lazy("keywords given"), Q(own_keywords=True)),
        "questions": (gettext_lazy("questions given"), Q(own_questions=True)),
    }


class QuestionsFilter(ConditionFilter):
    title = gettext_lazy("questions")
    parameter_name = "questions"
    conditions = {
        "yes": (gettext_lazy("has questions"), ~Q(questions=[])),
        "no": (gettext_lazy("has no questions"), Q(questions=[])),
    }


@admin.register(Chunk)
class ChunkAdmin(ScopedModelAdmin):
    form = ChunkForm
    list_display = ("excerpt", "document_link", "number", "page", "headings", "token_count", "enabled")
    list_select_related = ("document", "knowledge_base")
    list_filter = (
        ("knowledge_base", ScopedRelatedFilter),
        ("document", ScopedAutocompleteFilter),
        "enabled",
        EditedFilter,
        QuestionsFilter,
    )
    actions = ("enable", "disable", "merge", "delete_selected")
    search_fields = ("text",)
    search_help_text = gettext_lazy("Search in the text")
    ordering = ("document_id", "position")
    list_before_template = "ingest/chunk_list.html"
    change_form_outer_before_template = "ingest/chunk_panel.html"
    change_form_outer_after_template = "quality/debug/chunk_neighbours.html"
    delete_confirmation_template = "ingest/chunk_delete.html"
    delete_selected_confirmation_template = "ingest/chunk_delete_selected.html"
    warn_unsaved_form = True
    readonly_fields: ClassVar[Any] = ("document_link", "number", "page", "headings", "token_count", "former_text")
    fields = ("text", "keywords", "questions", "enabled", *readonly_fields)

    class Media:
        css: ClassVar = {"all": ("kb/chunks.css",)}

    # -- Pages -----------------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("duplicates/", NearDuplicatesView.as_view(model_admin=self), "duplicates"),
            self.page("<int:object_id>/split/", ChunkSplitView.as_view(model_admin=self), "split"),
            self.row_page("merge", self.merge_view, "POST"),
            self.row_page("alike", self.alike_view, "GET"),
            *super().get_urls(),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - chunks come from documents
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Chunk]:
        return super().get_queryset(request).select_related("document", "knowledge_base")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        kb_id = row_id(request.GET.get("knowledge_base__id__exact", ""))
        url = reverse("admin:kb_chunk_duplicates") + (f"?kb={kb_id}" if kb_id is not None else "")
        context = {"duplicates_url": url, **(extra_context or {})}
        return cast(HttpResponse, super().changelist_view(request, context))

    def form_context(self, request: HttpRequest, row: Chunk) -> dict[str, Any]:
        previous, following = neighbours_of(row)
        own = {
            "chunk": row,
            "previous_chunk": next(iter(previous), None),
            "pictures": pictures_of_chunks([row.pk]).get(row.pk, ()) if row.pictures else (),
            "next_chunk": next(iter(following), None),
            "neighbour_characters": NEIGHBOUR_CHARACTERS,
        }
        return {**super().form_context(request, row), **own}

    def alike_view(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        """The near-duplicates of a chunk; its page asks for them when it is there, since they take a search."""
        duplicates = [(other, percent(similarity)) for other, similarity in duplicates_of(chunk)]
        context = {"chunk": chunk, "neighbour_characters": NEIGHBOUR_CHARACTERS, "duplicates": duplicates}
        return render(request, "ingest/chunk_alike.html", context)

    def merge_view(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        previous, following = neighbours_of(chunk)
        others = previous if request.POST.get("with") == "previous" else following
        merged = self._merged(request, chunk.document, [chunk.pk, *(other.pk for other in others)])
        return redirect("admin:kb_chunk_change", (merged or chunk).pk)

    # -- Writes ----------------------------------------------------------------------------------------------------------
    def save_model(self, request: HttpRequest, obj: Chunk, form: Any, change: Any) -> None:
        """The form has written the change already."""

    def delete_model(self, request: HttpRequest, obj: Chunk) -> None:  # noqa: ARG002 - Django's interface
        chunks_delete(chunk_ids=[obj.pk])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:  # noqa: ARG002 - Django's interface
        chunks_delete(chunk_ids=list(queryset.values_list("pk", flat=True)))

    @admin.action(description=gettext_lazy("Enable"), permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:
        self._switch(request, queryset, "enable")

    @admin.action(description=gettext_lazy("Disable"), permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:
        self._switch(request, queryset, "disable")

    @admin.action(description=gettext_lazy("Merge neighbours into one"), permissions=["change"])
    def merge(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:
        editable = self.only_granted(request, queryset, "editable_by")
        if chunks := list(editable.select_related("document__knowledge_base")):
            self._merged(request, chunks[0].document, [chunk.pk for chunk in chunks])

    def _switch(self, request: HttpRequest, queryset: QuerySet[Chunk], change: Literal["enable", "disable"]) -> None:
        ids = list(self.only_granted(request, queryset, "editable_by").values_list("pk", flat=True))
        self.report(request, CHANGED[change], chunks_set_enabled(chunk_ids=ids, enabled=change == "enable"))

    def _merged(self, request: HttpRequest, document: Document, chunk_ids: list[int]) -> Chunk | None:
        with reporting(request):
            merged = chunks_merge(document=document, chunk_ids=chunk_ids)
            message = _("%(count)d chunks have become one.") % {"count": len(chunk_ids)}
            self.message_user(request, message, messages.SUCCESS)
            return merged
        return None

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("text"))
    def excerpt(self, chunk: Chunk) -> str:
        return format_html(
            '<span class="kb-excerpt">{}</span>', Truncator(without_rules(chunk.text)).chars(EXCERPT_CHARACTERS)
        )

    @column(gettext_lazy("document"), ordering="document__title")
    def document_link(self, chunk: Chunk) -> str:
        url = reverse("admin:kb_chunk_place", args=[chunk.pk])
        return format_html('<a href="{}" class="kb-name kb-link">{}</a>', url, chunk.document)

    @column(gettext_lazy("position"), ordering="position")
    def number(self, chunk: Chunk) -> int:
        return chunk.position + 1

    @column(gettext_lazy("as it was cut"))
    def former_text(self, chunk: Chunk) -> str:
        return format_html('<span class="kb-text">{}</span>', chunk.cut_text) if chunk.cut_text else "-"

    @column(gettext_lazy("headings"))
    def headings(self, chunk: Chunk) -> str:
        return " > ".join(chunk.heading_path) or "-"
