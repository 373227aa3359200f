"""Knowledge bases in the admin: their list, the form of a new one, the first section of the settings, renaming and deletion."""

from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.translation import get_language, gettext as _, gettext_lazy
from unfold.decorators import action
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
)

from kb.access.models import KnowledgeBase, notes_only
from kb.base.errors import Rejected
from kb.base.models import count_of
from kb.content.admin import LeaveView, SharingView, invitation_notice
from kb.content.hub import documents_page, edits_current, failed_documents_page, owns_current
from kb.content.models import Document
from kb.content.services import knowledge_base_delete, knowledge_base_update, may_rename, prepare_knowledge_base
from kb.index.admin import (
    StoresView,
    TokenizerView,
    cancel_view,
    progress_view,
    stores_progress_view,
)
from kb.ingest.admin.chunking import ChunkPreviewView, recut_view
from kb.ingest.remote_parsers.registry import offered_parsers
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import choosable_profiles
from kb.providers.embedding_models import default_embedding_model, embedding_choices, label_of, require_embedding_model
from kb.providers.widgets import EmbeddingModelSelect
from kb.web.admin.navigation import add_hub_tab
from kb.web.admin.scoped import (
    ScopedChangeList,
    ScopedModelAdmin,
    back_from,
    column,
    principal,
    reporting,
    signed_in,
    visible,
)
from retrieval.embedders.hashing import HASHING_MODEL_ID


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
            model.initial, model.widget = default_embedding_model(), EmbeddingModelSelect(embedding_choices(used))
            model.help_text = _("What compares meanings. It can be changed later: the vectors are made again beside.")
        if is_new and (get_language() or "").startswith(KnowledgeBase.Language.ENGLISH):
            self.initial["language"] = KnowledgeBase.Language.ENGLISH
        if description := self.fields.get("description"):
            description.widget.attrs["rows"] = 3
        profile = cast(ProfileField, self.fields["profile"])
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


class KnowledgeBaseList(ScopedChangeList):
    def url_for_result(self, result: KnowledgeBase) -> str:
        """A knowledge base opens at its documents."""
        return documents_page(result.pk)


@admin.register(KnowledgeBase)
class KnowledgeBaseAdmin(ScopedModelAdmin):
    form = KnowledgeBaseForm
    delete_grant = "owned_by"
    delete_confirmation_template = "content/knowledge_bases/delete.html"
    list_display = ("title", "documents", "failed", "language", "embedder", "owner", "changed")
    list_select_related = ("owner",)
    search_fields = ("name", "description")
    search_help_text = gettext_lazy("Search by name or description")
    change_list_template = "content/knowledge_bases/list.html"
    change_form_template = "content/knowledge_bases/form.html"
    change_form_outer_before_template = "ingest/knowledge_base_notes.html"
    warn_unsaved_form = True
    actions: ClassVar[Any] = None  # each is deleted on a page of its own, which asks for its name
    actions_list: ClassVar[Any] = ["import_archive"]
    new_fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name", "language", "embedding_model")}),
        (gettext_lazy("More"), {"fields": ("description", "profile"), "classes": ("collapse",)}),
    )
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name", "description", "language")}),
        (gettext_lazy("Search and answers"), {"fields": ("profile", "no_answer")}),
        (
            gettext_lazy("Advanced"),
            {
                "fields": ("keyword_vectors", "keyword_method", "ask_questions", "extract_graph", "word_parts"),
                "classes": ("collapse",),
                "description": gettext_lazy("Applies to documents that are uploaded or processed again from now on."),
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[KnowledgeBase]:
        return cast(
            "QuerySet[KnowledgeBase]",
            super().get_queryset(request).select_related("owner", "version_row", "profile"),
        )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The choice of a parser is shown where there is one, and where one was chosen that is not set up any more."""
        if obj is None:
            return self.new_fieldsets
        fieldsets = super().get_fieldsets(request, obj)
        if len(offered_parsers()) == 1 and not obj.parser:
            return fieldsets
        *others, (title, options) = fieldsets
        return (*others, (title, {**options, "fields": (*options["fields"], "parser")}))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None or may_rename(obj, principal(request)) else ("name",)

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
        return HttpResponseRedirect(f"{documents_page(obj.pk)}#upload")

    def response_post_save_change(self, request: HttpRequest, obj: KnowledgeBase) -> HttpResponse:  # noqa: ARG002
        """A section of the settings is saved by itself, and stays open."""
        return HttpResponseRedirect(reverse("admin:kb_knowledgebase_change", args=[obj.pk]))

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        is_new = kwargs.get("obj") is None
        buttons = {"show_save_and_add_another": False, "show_save_and_continue": False, "show_delete": False}
        title = _("New knowledge base") if is_new else _("Basics")
        context |= buttons | {"title": title, "subtitle": None}
        return super().render_change_form(request, context, **kwargs)

    def form_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {**super().form_context(request, row), "kb": row}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"invitation_notice": invitation_notice(request), **(extra_context or {})}
        response: HttpResponse = super().changelist_view(request, context)
        return response

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ScopedChangeList]:  # noqa: ARG002
        return KnowledgeBaseList

    def completed(self, request: HttpRequest, rows: Any) -> Any:  # noqa: ARG002
        """With how many documents each has, and how many failed: counted for those of the page, not for all."""
        documents = Document.objects.filter(knowledge_base=OuterRef("pk"))
        counted = KnowledgeBase.objects.filter(pk__in=[kb.pk for kb in rows]).annotate(
            document_count=count_of(Document.objects, "knowledge_base"),
            failed_count=count_of(Document.objects.filter(status=Document.Status.FAILED), "knowledge_base"),
            changed_at=Subquery(documents.order_by("-updated_at").values("updated_at")[:1]),
        )
        by_id = {kb.pk: kb for kb in counted}
        for kb in rows:
            for name in ("document_count", "failed_count", "changed_at"):
                setattr(kb, name, getattr(by_id[kb.pk], name))
        return rows

    # -- Pages of its own ------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("<int:object_id>/tokenizer/", TokenizerView.as_view(model_admin=self), "tokenizer"),
            self.row_page("tokenizer/progress", progress_view, "GET"),
            self.row_page("tokenizer/cancel", cancel_view, "POST"),
            self.page("<int:object_id>/chunk-preview/", ChunkPreviewView.as_view(model_admin=self), "chunk_preview"),
            self.row_page("recut", recut_view, "GET", "POST"),
            self.row_page("rename", self.rename_view, "POST"),
            self.page("<int:object_id>/sharing/", SharingView.as_view(model_admin=self), "sharing"),
            self.page("<int:object_id>/leave/", LeaveView.as_view(model_admin=self), "leave"),
            self.page("<int:object_id>/store/", StoresView.as_view(model_admin=self), "stores"),
            self.row_page("store/progress", stores_progress_view, "GET", name="stores_progress"),
            *super().get_urls(),
        ]

    @action(description=gettext_lazy("Import an archive"), icon="upload_file", url_path="import-archive")  # type: ignore[untyped-decorator]
    def import_archive(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the framework's interface
        return HttpResponseRedirect(reverse("admin:kb_knowledgebase_import"))

    def rename_view(self, request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
        """From the head of its pages, and back to the page that it was renamed on."""
        name = request.POST.get("name", "").strip()
        form = forms.modelform_factory(KnowledgeBase, fields=["name"])({"name": name})
        with reporting(request):
            if form.is_valid():
                knowledge_base_update(kb, by=principal(request), name=name)
            else:
                messages.error(request, " ".join(str(each) for each in form.errors["name"]))
        return HttpResponseRedirect(back_from(request) or documents_page(kb.pk))

    # -- Deletion ------------------------------------------------------------------------------------------------------
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST":
            kb = self.get_object_or_404(request, object_id)
            if not self.has_delete_permission(request, kb):
                raise PermissionDenied
            if request.POST.get("name", "").strip() != kb.name.strip():
                messages.error(request, _("Type the name of the knowledge base as it stands here to delete it."))
                return HttpResponseRedirect(reverse("admin:kb_knowledgebase_delete", args=[kb.pk]))
        return super().delete_view(request, object_id, extra_context)

    def delete_model(self, request: HttpRequest, obj: KnowledgeBase) -> None:  # noqa: ARG002
        knowledge_base_delete(obj)

    # -- Columns -------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("name"), ordering="name")
    def title(self, kb: KnowledgeBase) -> str:
        return format_html('<strong class="kb-name">{}</strong><small class="kb-about">{}</small>', kb, kb.description)

    @column(gettext_lazy("documents"))
    def documents(self, kb: Any) -> int:
        return int(kb.document_count)

    @column(gettext_lazy("failed"))
    def failed(self, kb: Any) -> str:
        url = failed_documents_page(kb.pk)
        return format_html('<a href="{}" class="kb-bad">{}</a>', url, kb.failed_count) if kb.failed_count else "0"

    @column(gettext_lazy("searched by"), ordering="embedding_model")
    def embedder(self, kb: KnowledgeBase) -> str:
        return _("words") if kb.embedding_model == HASHING_MODEL_ID else label_of(kb.embedding_model)

    @column(gettext_lazy("last change"), empty_value="–")
    def changed(self, kb: Any) -> Any:
        return kb.changed_at


add_hub_tab("settings", gettext_lazy("Settings"), order=60)
add_hub_tab("change", gettext_lazy("Basics"), order=10, under="settings")
add_hub_tab("sharing", gettext_lazy("Members"), order=60, under="settings", shown=owns_current)
add_hub_tab("usage", gettext_lazy("Use of models"), order=70, under="settings", shown=edits_current)
