"""Pages of external sources."""

from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy
from unfold.widgets import UnfoldAdminSelectWidget

from kb.base.waits import waiting_outside
from kb.sources.admin.base import PREFIX, SourceAdmin, SourceForm, setting_field
from kb.sources.external.services import (
    KINDS,
    external_source_check,
    external_source_test,
    external_source_update,
    state_text,
)
from kb.sources.models import SearchProvider
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import Empty, column

OF_MODEL: Final = ("knowledge_base", "name", "kind", "enabled", "weight", "timeout_ms")


class SearchProviderForm(SourceForm):
    kind = forms.ChoiceField(label=gettext_lazy("Kind"), widget=UnfoldAdminSelectWidget)

    class Meta:
        model = SearchProvider
        fields = OF_MODEL

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:
            kind: Any = self.fields["kind"]
            kind.choices = [(name, str(each.label)) for name, each in KINDS.items()]
            if not set(KINDS) & set(settings.EXTERNAL_PROVIDERS):
                kind.help_text = _("None is allowed on this server yet: see the note above.")
        if isinstance(self.instance.settings, dict):
            self.initial.update({PREFIX + name: value for name, value in self.instance.settings.items()})

    def check(self) -> None:
        given = {field.name: self.cleaned_data.get(PREFIX + field.name) for field in KINDS[self.instance.kind].fields}
        # Those left blank have their defaults.
        self.instance.settings = {name: value for name, value in given.items() if value not in ("", None)}
        external_source_check(self.instance)


# A field for each setting of every kind, declared at once, so that the admin knows them; kinds share those of one name.
SETTING_FIELDS = {PREFIX + field.name: setting_field(field) for kind in KINDS.values() for field in kind.fields}
SearchProviderForm.base_fields.update(SETTING_FIELDS)
SearchProviderForm.declared_fields.update(SETTING_FIELDS)


@admin.register(SearchProvider)
class SearchProviderAdmin(SourceAdmin):
    empty = Empty(
        gettext_lazy(
            "An external source sends the queries of a knowledge base to a search service and has its results among its own."
        ),
        gettext_lazy("For example Vertex AI Search over the documents of another department."),
        "travel_explore",
    )
    form = SearchProviderForm
    list_display = ("title", "knowledge_base", "is_asked", "share", "timeout_ms")
    search_fields = ("name",)
    search_help_text = gettext_lazy("Search by name")
    list_before_template = "sources/external/before_list.html"
    change_form_before_template = "sources/external/before_form.html"
    change_form_after_template = "sources/external/test.html"
    fieldsets: ClassVar[Any] = (
        (None, {"fields": OF_MODEL}),
        (gettext_lazy("Where it is"), {"fields": tuple(SETTING_FIELDS)}),
    )

    @property
    def allowed_kinds(self) -> set[str]:
        return set(KINDS) & set(settings.EXTERNAL_PROVIDERS)

    def test_view(self, request: HttpRequest, object_id: int | None = None) -> HttpResponse:
        form = self.tested_form(request, object_id, name="?")
        context: dict[str, Any] = {"form": form}
        if form.is_valid():
            query = request.POST.get("test_query", "").strip()[:500]
            with waiting_outside(request.user.pk):
                tested = external_source_test(form.instance, query) if query else None
            context = {"tested": tested, "refusal": "" if query else _("Give a query to test with.")}
        return render(request, "sources/external/tested.html", context)

    def save_model(self, request: HttpRequest, obj: SearchProvider, form: Any, change: Any) -> None:  # noqa: ARG002
        external_source_update(source=obj, **{name: getattr(obj, name) for name in (*OF_MODEL[1:], "settings")})

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("name"), ordering="name")
    def title(self, source: SearchProvider) -> str:
        kind = KINDS[source.kind].label if source.kind in KINDS else source.kind
        return format_html('<span class="kb-name">{}</span><small class="kb-block">{}</small>', source.name, kind)

    @column(gettext_lazy("asked"), ordering="enabled")
    def is_asked(self, source: SearchProvider) -> SafeString:
        if not source.enabled:
            return format_html("<span>{}</span>", _("switched off"))
        if problem := state_text(source):
            return format_html('<span class="kb-error kb-block">{}</span>', problem)
        return format_html("<span>{}</span>", _("yes"))

    @column(gettext_lazy("weight"), ordering="weight")
    def share(self, source: SearchProvider) -> str:
        return _("the profile’s") if source.weight is None else f"{source.weight:g}"


add_tab(Section.SYSTEM, gettext_lazy("External sources"), "kb_searchprovider_changelist", order=50)
