"""The form of an external source: the settings of its kind as fields of their own."""

from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils.functional import lazy
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.sources.external.providers.fields import Field
from kb.sources.external.providers.kinds import KINDS
from kb.sources.external.services import (
    external_source_check,
    external_source_create,
    external_source_delete,
    external_source_test,
    external_source_update,
    state_text,
)
from kb.sources.models import SearchProvider
from kb.web.admin.scoped import ScopedModelAdmin, ScopedRelatedFilter, column, principal

PREFIX: Final = "setting_"
_capitalised: Any = lazy(capfirst, str)  # in the language of whoever reads it
OF_MODEL: Final = ("knowledge_base", "name", "kind", "enabled", "weight", "timeout_ms")


def setting_fields() -> dict[str, forms.Field]:
    """A field for each setting of every kind, by its name in the form; kinds share those of one name."""
    return {PREFIX + field.name: _field(field) for kind in KINDS.values() for field in kind.fields}


def _field(field: Field) -> forms.Field:
    about: dict[str, Any] = {
        "label": _capitalised(field.label),
        "help_text": field.hint,
        "required": False,
        "initial": field.default,
    }
    if field.is_flag:
        return forms.BooleanField(widget=UnfoldBooleanSwitchWidget, **about)
    if field.choices:
        widget = UnfoldAdminSelectWidget
        return forms.ChoiceField(choices=[(each, each) for each in field.choices], widget=widget, **about)
    widget = UnfoldAdminTextInputWidget({"autocomplete": "off", "spellcheck": "false"})
    return forms.CharField(widget=widget, max_length=300, **about)


class SearchProviderForm(forms.ModelForm):  # type: ignore[type-arg]
    request: HttpRequest
    kind = forms.ChoiceField(label=gettext_lazy("Kind"), widget=UnfoldAdminSelectWidget)

    class Meta:
        model = SearchProvider
        fields = OF_MODEL

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "knowledge_base" in self.fields:
            offered: Any = self.fields["knowledge_base"]
            offered.queryset = KnowledgeBase.objects.editable_by(principal(self.request))
        if "kind" in self.fields:
            kind: Any = self.fields["kind"]
            kind.choices = [(name, str(each.label)) for name, each in KINDS.items()]
            if not set(KINDS) & set(settings.EXTERNAL_PROVIDERS):
                kind.help_text = _("None is allowed on this server yet: see the note above.")
        stored = self.instance.settings if isinstance(self.instance.settings, dict) else {}
        for name, value in stored.items():
            if PREFIX + name in self.fields:
                self.initial[PREFIX + name] = value

    def settings_given(self) -> dict[str, Any]:
        """The settings of the kind that is chosen; those left blank have their defaults."""
        kind = KINDS[self.cleaned_data.get("kind") or self.instance.kind]
        given = {field.name: self.cleaned_data.get(PREFIX + field.name) for field in kind.fields}
        return {name: value for name, value in given.items() if value not in ("", None)}

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if self.errors:
            return values
        known = {name: values[name] for name in OF_MODEL if name in values}
        if "knowledge_base" not in known and self.instance.knowledge_base_id:
            known["knowledge_base"] = self.instance.knowledge_base
        source = SearchProvider(pk=self.instance.pk, settings=self.settings_given(), **known)
        try:
            external_source_check(source)
        except Rejected as error:
            self._refuse(error)
        else:
            values["settings"] = source.settings
        return values

    def _refuse(self, error: Rejected) -> None:
        name = "name" if error.code == "name_taken" else error.code.removesuffix("_invalid")
        self.add_error(next((each for each in (PREFIX + name, name) if each in self.fields), None), str(error))


# Declared at once, so that the admin knows them as fields of the form.
SearchProviderForm.base_fields.update(setting_fields())
SearchProviderForm.declared_fields.update(setting_fields())


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
        problem = state_text(source)
        if problem:
            return format_html('<span class="kb-error kb-block">{}</span>', problem)
        return format_html("<span>{}</span>", _("yes"))

    @column(gettext_lazy("weight"), ordering="weight")
    def share(self, source: SearchProvider) -> str:
        return _("the profile’s") if source.weight is None else f"{source.weight:g}"


def _allowed() -> list[str]:
    return [str(kind.label) for name, kind in KINDS.items() if name in settings.EXTERNAL_PROVIDERS]
