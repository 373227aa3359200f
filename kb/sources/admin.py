"""What the pages of web sources and of external sources share, and those of external sources."""

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
from django.utils.translation import gettext as _, gettext_lazy
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from kb.base.errors import Rejected
from kb.sources.external.providers.fields import Field
from kb.sources.external.services import (
    KINDS,
    external_source_check,
    external_source_test,
    external_source_update,
    state_text,
)
from kb.sources.models import SearchProvider
from kb.web.admin.scoped import KnowledgeBaseRowAdmin, column

PREFIX: Final = "setting_"
_capitalised: Any = lazy(capfirst, str)  # in the language of whoever reads it
OF_MODEL: Final = ("knowledge_base", "name", "kind", "enabled", "weight", "timeout_ms")


class SourceForm(forms.ModelForm):  # type: ignore[type-arg]
    def check(self) -> None:
        """Raises Rejected, whose code begins with the name of a field or setting, where the source cannot be stored."""
        raise NotImplementedError

    def validate_unique(self) -> None:
        """Asks the service, which looks at the name too, before Django does."""
        if self.errors:
            return
        try:
            self.check()
        except Rejected as error:
            name = error.code.rpartition("_")[0]
            self.add_error(next((each for each in (PREFIX + name, name) if each in self.fields), None), str(error))


class SourceAdmin(KnowledgeBaseRowAdmin):
    """A source belongs to one knowledge base from its creation on."""

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("test/", require_POST(self.test_view), "test"),
            self.page("<int:object_id>/test/", require_POST(self.test_view), "test_again"),
            *super().get_urls(),
        ]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        source = kwargs.get("obj")
        name, of_source = ("test", []) if source is None else ("test_again", [source.pk])
        if source is None or self.has_change_permission(request, source):
            context["test_url"] = reverse(f"admin:kb_{self.opts.model_name}_{name}", args=of_source)
        return super().render_change_form(request, context, **kwargs)

    def test_view(self, request: HttpRequest, object_id: int | None = None) -> HttpResponse:
        """What the form's source would give; nothing is saved."""
        raise NotImplementedError

    def tested_form(self, request: HttpRequest, object_id: int | None, name: str) -> Any:
        """The form as it was sent, of a stored source or a new one, which may be named later: `name` until then."""
        stored = self.get_object_or_404(request, str(object_id), to_change=True) if object_id else None
        values = request.POST.copy()
        values["name"] = values.get("name") or name
        return self.get_form(request, stored, change=stored is not None)(values, instance=stored)


# -- External sources -----------------------------------------------------------------------------------------------------
def setting_field(field: Field) -> forms.Field:
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
