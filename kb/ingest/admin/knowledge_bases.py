"""Knowledge bases in the admin: list, form with its panel, preview of chunk settings, and re-chunking."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import URLPattern, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext as _, gettext_lazy
from django.views.generic import FormView
from unfold.decorators import action
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from kb.access.models import KnowledgeBase, Membership, notes_only
from kb.base.errors import Rejected
from kb.base.models import count_of
from kb.content.admin import LeaveView, SharingView, invitation_notice
from kb.content.models import Chunk, Document
from kb.content.services import knowledge_base_delete, knowledge_base_update, may_rename, prepare_knowledge_base
from kb.index.admin import (
    INDEX_LABELS,
    StoresView,
    TokenizerView,
    cancel_view,
    index_state_text,
    progress_view,
    stores_progress_view,
    stores_url,
    tokenizer_text,
    tokenizer_url,
)
from kb.index.models import ChunkEmbedding, VectorIndex
from kb.index.services.reindex import index_state, with_base
from kb.index.vector_index import SHARE_TO_KEEP, builds_under_way, spaces_without_index
from kb.ingest.admin.documents import RECHUNKED, documents_url
from kb.ingest.remote_parsers.registry import offered_parsers
from kb.ingest.services.chunk_preview import CHUNKING, MOST_CHARACTERS, preview_document, preview_text
from kb.ingest.services.documents import cuttable, documents_recut
from kb.ingest.services.indexing import outdated_documents
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import KEYWORD_LED, choosable_profiles, reference
from kb.providers.embedding_models import (
    default_embedding_model,
    offered_embedding_models,
    recommended_embedding_models,
    require_embedding_model,
)
from kb.web.admin.scoped import (
    KnowledgeBasePage,
    ScopedModelAdmin,
    column,
    principal,
    row_id,
    signed_in,
    visible,
)
from retrieval.embedders.hashing import HASHING_MODEL_ID

MOST_OFFERED = 50  # The newest documents; any other is chosen by its id in the address


class ChunkPreviewForm(forms.ModelForm):  # type: ignore[type-arg]
    document = forms.ChoiceField(label=gettext_lazy("Document to try"), required=False, widget=UnfoldAdminSelectWidget)
    text = forms.CharField(
        label=gettext_lazy("Or a text to try"),
        required=False,
        max_length=MOST_CHARACTERS,
        help_text=gettext_lazy("Where there is one, it is tried and not the document."),
        widget=UnfoldAdminTextareaWidget({"rows": 4, "class": "kb-sample"}),
    )

    class Meta:
        model = KnowledgeBase
        fields = CHUNKING
        widgets = {
            "chunk_strategy": UnfoldAdminSelectWidget,
            "chunk_unit": UnfoldAdminSelectWidget,
            **dict.fromkeys(("chunk_size", "chunk_overlap", "parent_size"), UnfoldAdminIntegerFieldWidget),
        }

    def __init__(self, *args: Any, documents: list[Document], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.documents = {str(document.pk): document for document in documents}
        choices = [(pk, str(document) or _("untitled")) for pk, document in self.documents.items()]
        self.fields["document"].choices = choices or [("", _("no document yet"))]  # type: ignore[attr-defined]

    @property
    def chunking(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in CHUNKING}


class ChunkPreviewView(KnowledgeBasePage, FormView):  # type: ignore[type-arg]
    template_name = "ingest/chunk_preview/page.html"
    form_class = ChunkPreviewForm

    @property
    def title(self) -> str:
        return _("Chunks of “%(name)s”: preview") % {"name": self.kb.name}

    def get_form_kwargs(self) -> dict[str, Any]:
        rows = cuttable(Document.objects.filter(knowledge_base=self.kb)).order_by("-pk")
        asked = row_id(self.request.POST.get("document") or self.request.GET.get("document", ""))
        named = [] if asked is None else rows.filter(pk=asked)
        documents = list({document.pk: document for document in [*named, *rows[:MOST_OFFERED]]}.values())
        # The form writes what was sent into its object: the page goes on with the saved one.
        instance = KnowledgeBase.objects.get(pk=self.kb.pk)
        return {**super().get_form_kwargs(), "instance": instance, "documents": documents}

    def get_initial(self) -> dict[str, Any]:
        return {"document": self.request.GET.get("document", "")}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, outdated=outdated_documents(self.kb).count())

    def form_valid(self, form: ChunkPreviewForm) -> HttpResponse:
        if self.request.POST.get("action") == "save":
            return self._save(form)
        text, document = form.cleaned_data["text"], form.documents.get(form.cleaned_data["document"])
        try:
            if text.strip() or document is None:
                preview = preview_text(self.kb, text, form.chunking)
            else:
                preview = preview_document(self.kb, document, form.chunking)
        except Rejected as error:
            form.add_error(None, str(error))
            return self.form_invalid(form)
        return self.render_to_response(self.get_context_data(form=form, preview=preview))

    def _save(self, form: ChunkPreviewForm) -> HttpResponse:
        if not self.may_edit:
            raise PermissionDenied
        knowledge_base_update(self.kb, by=principal(self.request), **form.chunking)
        messages.success(
            self.request,
            _("The settings were saved. Documents that are there keep their chunks until they are re-chunked."),
        )
        return redirect("admin:kb_knowledgebase_chunk_preview", self.kb.pk)


def _vector_indexes(kb: Any) -> dict[str, Any]:
    """What the index over the vectors of the content finds, and what is missing; few vectors need none."""
    if kb.chunk_count <= SHARE_TO_KEEP * settings.VECTOR_INDEX_MIN_ROWS:
        return {}
    measured = VectorIndex.objects.filter(knowledge_base=kb.pk, model=kb.embedding_model)
    row = measured.filter(kind=ChunkEmbedding.Kind.CONTENT).first()
    due = spaces_without_index(kb.pk)
    under_way = builds_under_way() if due else {}
    return {
        "vector_index": row
        and {
            "row": row,
            "recall": f"{row.recall:.3f}",
            "target": settings.VECTOR_RECALL_TARGET,
            "is_low": row.is_used and row.recall < settings.VECTOR_RECALL_TARGET,
            "is_exact": not row.is_used,
        },
        "due_index": due
        and {
            "vectors": sum(space.vectors for space in due),
            "done": sum(min(under_way.get(space.index_name, 0), space.vectors) for space in due),
            "is_being_built": any(space.index_name in under_way for space in due),
        },
    }


class ModelIdWidget(UnfoldAdminTextInputWidget):  # type: ignore[misc]
    suggestions: Sequence[str] = ()

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:
        list_id = f"{name}_suggestions"
        field = super().render(name, value, {**(attrs or {}), "list": list_id}, renderer)
        options = format_html_join("", '<option value="{}"></option>', ((each,) for each in self.suggestions))
        return format_html('{}<datalist id="{}">{}</datalist>', field, list_id, options)


class ProfileField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """A profile by its name, which stands for its published version also where that changes while the form is open."""

    def label_from_instance(self, profile: RetrievalProfile) -> str:
        own, shared = _("%(name)s, its own (version %(version)d)"), _("%(name)s (version %(version)d)")
        return (own if profile.knowledge_base_id else shared) % {"name": profile.name, "version": profile.version}


class KnowledgeBaseForm(forms.ModelForm):  # type: ignore[type-arg]
    request: HttpRequest
    word_parts = forms.MultipleChoiceField(
        label=gettext_lazy("Read in Word documents"),
        choices=KnowledgeBase.WordPart.choices,
        initial=notes_only,
        required=False,
        help_text=gettext_lazy("Beside their body. Notes follow the paragraph that refers to them, comments too."),
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )
    profile = ProfileField(
        RetrievalProfile.objects.none(),
        to_field_name="name",
        label=gettext_lazy("Retrieval profile"),
        empty_label=gettext_lazy("the one that suits the model"),
        widget=UnfoldAdminSelectWidget,
        error_messages={
            "invalid_choice": gettext_lazy("There is no such published profile any more: choose another one.")
        },
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_new = self.instance.pk is None
        if model := self.fields.get("embedding_model"):
            used = visible(KnowledgeBase, self.request).order_by().values_list("embedding_model", flat=True).distinct()
            model.initial, model.widget = default_embedding_model(), ModelIdWidget()
            model.widget.suggestions = offered_embedding_models(used)
        if is_new and (get_language() or "").startswith(KnowledgeBase.Language.ENGLISH):
            self.initial["language"] = KnowledgeBase.Language.ENGLISH
        if description := self.fields.get("description"):
            description.widget.attrs["rows"] = 3
        if profile := cast(ProfileField | None, self.fields.get("profile")):
            profile.queryset, profile.required = choosable_profiles(None if is_new else self.instance), not is_new
            if not is_new:
                profile.empty_label = None
                self.initial["profile"] = self.instance.profile

    def clean_embedding_model(self) -> str:
        try:
            return require_embedding_model(self.cleaned_data["embedding_model"])
        except Rejected as error:
            raise ValidationError(str(error)) from error

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        owner = self.instance.owner if self.instance.pk else signed_in(self.request)
        if KnowledgeBase.objects.filter(owner=owner, name=values.get("name")).exclude(pk=self.instance.pk).exists():
            message = _("You have a knowledge base named “%(name)s” already: choose another name.")
            self.add_error("name", message % {"name": values["name"]})
        return values


@admin.register(KnowledgeBase)
class KnowledgeBaseAdmin(ScopedModelAdmin):
    form = KnowledgeBaseForm
    delete_grant = "owned_by"
    list_display = ("name", "index_state", "documents", "chunks", "failed", "embedder", "owner", "created_at")
    list_select_related = ("owner", "version_row")
    search_fields = ("name", "description")
    search_help_text = gettext_lazy("Search by name or description")
    list_filter = ("language",)
    list_filter_sheet = True
    list_filter_submit = False
    list_before_template = "content/sharing/notice.html"
    change_form_outer_before_template = "ingest/knowledge_base_panel.html"
    warn_unsaved_form = True
    actions_list: ClassVar[Any] = ["import_archive"]
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name", "description", "language")}),
        (
            gettext_lazy("Search"),
            {
                "fields": ("embedding_model", "profile"),
                "description": gettext_lazy(
                    "The embedding model turns texts into vectors. Later it is changed on the page “Embedding model”, since "
                    "every chunk has to be embedded again. Without a profile of your choice the knowledge base starts with "
                    "the one that suits its model."
                ),
            },
        ),
        (
            gettext_lazy("Keywords, questions and graph"),
            {"fields": ("keyword_vectors", "keyword_method", "ask_questions", "extract_graph")},
        ),
        (gettext_lazy("Answers"), {"fields": ("no_answer",)}),
        (
            gettext_lazy("Chunking"),
            {
                "fields": (
                    "chunk_strategy",
                    ("chunk_size", "chunk_overlap"),
                    "chunk_unit",
                    "parent_size",
                    "word_parts",
                ),
                "description": gettext_lazy(
                    "Applies to documents that are uploaded or processed again from now on. “Preview chunks” on the page of "
                    "a knowledge base shows what other settings would do."
                ),
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[KnowledgeBase]:
        rows: QuerySet[KnowledgeBase] = (
            super()
            .get_queryset(request)
            .select_related("owner", "version_row", "profile")
            .annotate(
                document_count=count_of(Document.objects, "knowledge_base"),
                failed_count=count_of(Document.objects.filter(status=Document.Status.FAILED), "knowledge_base"),
                chunk_count=count_of(Chunk.objects, "knowledge_base"),
            )
        )
        return with_base(rows)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The choice of a parser is shown where there is one, and where one was chosen that is not set up any more."""
        fieldsets = super().get_fieldsets(request, obj)
        if len(offered_parsers()) == 1 and not (obj and obj.parser):
            return fieldsets
        return (*fieldsets, (gettext_lazy("Reading"), {"fields": ("parser",)}))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        return ("embedding_model",) if may_rename(obj, principal(request)) else ("embedding_model", "name")

    def save_model(self, request: HttpRequest, obj: KnowledgeBase, form: Any, change: Any) -> None:
        if change:
            knowledge_base_update(
                obj, by=principal(request), **{name: form.cleaned_data[name] for name in form.changed_data}
            )
            return
        obj.owner = signed_in(request)
        prepare_knowledge_base(obj)
        super().save_model(request, obj, form, change)

    def response_post_save_add(self, request: HttpRequest, obj: KnowledgeBase) -> HttpResponse:  # noqa: ARG002
        """The next step with a new knowledge base is to fill it."""
        return HttpResponseRedirect(f"{reverse('admin:kb_document_upload')}?kb={obj.pk}")

    def form_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        own = {
            "kb": row,
            "index_state": self.index_state(row)[1],
            "tokenizer": tokenizer_text(row.tokenizer_id),
            "tokenizer_url": tokenizer_url(row),
            "stores_url": stores_url(row),
            "outdated": outdated_documents(row).count(),
            "is_hashing": row.embedding_model == HASHING_MODEL_ID,
            "is_keyword_led": reference(row.profile) == KEYWORD_LED,
            "profile_description": _(row.profile.description) if row.profile.description else "",
            **_vector_indexes(row),
            "recommended_model": recommended_embedding_models(row.language)[0],
            "may_share": self.is_granted(request, row, "owned_by"),
            "may_leave": row.owner_id != request.user.pk
            and Membership.objects.filter(knowledge_base=row, user=signed_in(request)).exists(),
        }
        return {**super().form_context(request, row), **own}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"invitation_notice": invitation_notice(request), **(extra_context or {})}
        return cast(HttpResponse, super().changelist_view(request, context))

    # -- Pages of its own ------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("<int:object_id>/tokenizer/", TokenizerView.as_view(model_admin=self), "tokenizer"),
            self.row_page("tokenizer/progress", progress_view, "GET"),
            self.row_page("tokenizer/cancel", cancel_view, "POST"),
            self.page("<int:object_id>/chunk-preview/", ChunkPreviewView.as_view(model_admin=self), "chunk_preview"),
            self.row_page("recut", self.recut_view, "GET", "POST"),
            self.page("<int:object_id>/sharing/", SharingView.as_view(model_admin=self), "sharing"),
            self.page("<int:object_id>/leave/", LeaveView.as_view(model_admin=self), "leave"),
            self.page("<int:object_id>/store/", StoresView.as_view(model_admin=self), "stores"),
            self.row_page("store/progress", stores_progress_view, "GET", name="stores_progress"),
            *super().get_urls(),
        ]

    @action(description=gettext_lazy("Import an archive"), icon="upload_file", url_path="import-archive")  # type: ignore[untyped-decorator]
    def import_archive(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the framework's interface
        return HttpResponseRedirect(reverse("admin:kb_knowledgebase_import"))

    def recut_view(self, request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
        """Asks, and then puts all documents into the queue, or only those that were cut under other settings."""
        documents, outdated = Document.objects.filter(knowledge_base=kb), outdated_documents(kb)
        if request.method == "POST":
            count = documents_recut(outdated if request.POST.get("which") == "outdated" else documents)
            messages.success(request, RECHUNKED % {"count": count})
            return HttpResponseRedirect(documents_url(kb))
        chunks = Chunk.objects.filter(knowledge_base=kb)
        context = {
            **self.admin_site.each_context(request),
            "kb": kb,
            "title": _("Re-chunk the documents of “%(name)s”") % {"name": kb.name},
            "documents": cuttable(documents).count(),
            "outdated": outdated.count(),
            "edited": chunks.exclude(cut_text="").count(),
            "disabled": chunks.filter(enabled=False).count(),
        }
        return render(request, "ingest/chunk_preview/recut.html", context)

    # -- Deletion ------------------------------------------------------------------------------------------------------
    def delete_model(self, request: HttpRequest, obj: KnowledgeBase) -> None:  # noqa: ARG002
        knowledge_base_delete(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[KnowledgeBase]) -> None:  # noqa: ARG002
        for kb in queryset:
            knowledge_base_delete(kb)

    # -- Columns -------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("index"), label=INDEX_LABELS)
    def index_state(self, kb: Any) -> tuple[str, str]:
        state = index_state(kb, has_chunks=bool(kb.chunk_count))
        return state, index_state_text(state, kb.changes)

    @column(gettext_lazy("documents"), ordering="document_count")
    def documents(self, kb: Any) -> str:
        return _list_link("document", kb, kb.document_count)

    @column(gettext_lazy("chunks"), ordering="chunk_count")
    def chunks(self, kb: Any) -> str:
        return _list_link("chunk", kb, kb.chunk_count)

    @column(gettext_lazy("failed"), ordering="failed_count")
    def failed(self, kb: Any) -> str:
        if not kb.failed_count:
            return "0"
        return format_html(
            '<a href="{}&amp;status__exact=failed" class="kb-bad">{}</a>', documents_url(kb), kb.failed_count
        )

    @column(gettext_lazy("embedding model"), ordering="embedding_model", label={HASHING_MODEL_ID: "warning"})
    def embedder(self, kb: KnowledgeBase) -> tuple[str, str]:
        is_hashing = kb.embedding_model == HASHING_MODEL_ID
        return kb.embedding_model, _("hashing: degraded") if is_hashing else kb.embedding_model


def _list_link(model: str, kb: KnowledgeBase, count: int) -> str:
    url = reverse(f"admin:kb_{model}_changelist")
    return format_html('<a href="{}?knowledge_base__id__exact={}" class="kb-link">{}</a>', url, kb.pk, count)
