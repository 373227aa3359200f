"""External sources: their list, their form, and a test that sends a query before anything is saved."""

from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from kb.sources.external.admin.form import PREFIX, SearchProviderForm
from kb.sources.external.providers.kinds import KINDS
from kb.sources.external.services import (
    external_source_create,
    external_source_delete,
    external_source_test,
    external_source_update,
    state_in_words,
)
from kb.sources.models import SearchProvider
from kb.web.admin.scoped import ScopedModelAdmin, ScopedRelatedFilter, column

MOST_QUERY_CHARACTERS = 500


@admin.register(SearchProvider)
class SearchProviderAdmin(ScopedModelAdmin):
    form = SearchProviderForm
    list_display = ("title", "knowledge_base", "is_asked", "share", "timeout_ms")
    list_filter = (("knowledge_base", ScopedRelatedFilter),)
    list_filter_submit = True
    list_select_related = ("knowledge_base",)
    search_fields = ("name",)
    search_help_text = gettext_lazy("Search by name")
    list_before_template = "sources/external/before_list.html"
    change_form_before_template = "sources/external/before_form.html"
    change_form_after_template = "sources/external/test.html"
    warn_unsaved_form = True
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("knowledge_base", "name", "kind", "enabled", "weight", "timeout_ms")}),
        (
            gettext_lazy("Where it is"),
            {"fields": tuple(PREFIX + field.name for kind in KINDS.values() for field in kind.fields)},
        ),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        return () if obj is None else ("knowledge_base",)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("test/", require_POST(self.test_view), "test"),
            self.page("<int:object_id>/test/", require_POST(self.test_view), "test_again"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"allowed_kinds": _allowed(), **(extra_context or {})}
        response: HttpResponse = super().changelist_view(request, context)
        return response

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        name = "admin:kb_searchprovider_test" if object_id is None else "admin:kb_searchprovider_test_again"
        may_test = object_id is None or object_id.isdecimal()
        url = reverse(name, args=[] if object_id is None else [int(object_id)]) if may_test else ""
        context = {"test_url": url, "allowed_kinds": _allowed(), **(extra_context or {})}
        response: HttpResponse = super().changeform_view(request, object_id, form_url, context)
        return response

    def test_view(self, request: HttpRequest, object_id: int | None = None) -> HttpResponse:
        """What the form's source answers; nothing is saved."""
        stored = self.get_object_or_404(request, str(object_id), to_change=True) if object_id else None
        form_class = self.get_form(request, stored, change=stored is not None)
        values = request.POST.copy()
        values["name"] = values.get("name") or "?"  # it may be named later
        form = form_class(values, instance=stored)
        query = request.POST.get("test_query", "").strip()[:MOST_QUERY_CHARACTERS]
        if not form.is_valid():
            return render(request, "sources/external/tested.html", {"form": form})
        if not query:
            message = _("Give a query to test with.")
            return render(request, "sources/external/tested.html", {"refusal": message})
        source = form.instance
        source.settings = form.cleaned_data["settings"]
        tested = external_source_test(source, query)
        return render(request, "sources/external/tested.html", {"tested": tested})

    def save_model(self, request: HttpRequest, obj: SearchProvider, form: Any, change: Any) -> None:  # noqa: ARG002
        names = ("name", "kind", "enabled", "weight", "timeout_ms", "settings")
        values = {name: form.cleaned_data[name] for name in names}
        if change:
            external_source_update(source=obj, **values)
            return
        created = external_source_create(knowledge_base=form.cleaned_data["knowledge_base"], **values)
        obj.pk, obj._state.adding = created.pk, False

    def delete_model(self, request: HttpRequest, obj: SearchProvider) -> None:  # noqa: ARG002 - Django's interface
        external_source_delete(source=obj)

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("name"), ordering="name")
    def title(self, source: SearchProvider) -> str:
        kind = KINDS[source.kind].label if source.kind in KINDS else source.kind
        return format_html('<span class="kb-name">{}</span><small class="kb-block">{}</small>', source.name, kind)

    @column(gettext_lazy("asked"), ordering="enabled")
    def is_asked(self, source: SearchProvider) -> SafeString:
        if not source.enabled:
            return format_html("<span>{}</span>", _("switched off"))
        problem = state_in_words(source)
        if problem:
            return format_html('<span class="kb-error kb-block">{}</span>', problem)
        return format_html("<span>{}</span>", _("yes"))

    @column(gettext_lazy("weight"), ordering="weight")
    def share(self, source: SearchProvider) -> str:
        return _("the profile’s") if source.weight is None else f"{source.weight:g}"


def _allowed() -> list[str]:
    return [str(kind.label) for name, kind in KINDS.items() if name in settings.EXTERNAL_PROVIDERS]
