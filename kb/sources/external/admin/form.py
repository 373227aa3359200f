"""The form of an external source: the settings of its kind as fields of their own."""

from typing import Any, Final

from django import forms
from django.conf import settings
from django.http import HttpRequest
from django.utils.functional import lazy
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import Rejected
from kb.sources.external.providers.fields import Field
from kb.sources.external.providers.kinds import KINDS
from kb.sources.external.services import external_source_check
from kb.sources.models import SearchProvider
from kb.web.admin.scoped import principal

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
