"""What the pages of sources and of external sources share."""

from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils.functional import lazy
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from kb.base.errors import Rejected
from kb.sources.fields import MOST_CHARACTERS, MOST_CHARACTERS_OF_LONG, Field
from kb.web.admin.scoped import KnowledgeBaseRowAdmin

PREFIX: Final = "setting_"
_capitalised: Any = lazy(capfirst, str)  # in the language of whoever reads it


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
            shown = (each for each in (self.name_of_setting(name), name) if each in self.fields)
            self.add_error(next(shown, None), str(error))

    def name_of_setting(self, name: str) -> str:
        """What the form calls a setting of the chosen kind."""
        return PREFIX + name


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


def setting_field(field: Field, *, is_set: bool = False) -> forms.Field:
    """A field of a form; a secret that is set says so, and shows nothing of it."""
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
    attributes = {"autocomplete": "off", "spellcheck": "false"}
    if field.is_secret:
        attributes |= {
            "autocomplete": "new-password",
            "placeholder": _("set; leave blank to keep it") if is_set else "",
        }
    if field.is_long:
        attributes["rows"] = "4"
    most = MOST_CHARACTERS_OF_LONG if field.is_long else MOST_CHARACTERS
    if field.is_secret and field.is_long:
        return forms.CharField(widget=SecretTextarea(attributes), max_length=most, **about)
    kind = UnfoldAdminPasswordWidget if field.is_secret else UnfoldAdminTextareaWidget if field.is_long else None
    return forms.CharField(widget=(kind or UnfoldAdminTextInputWidget)(attributes), max_length=most, **about)


class SecretTextarea(UnfoldAdminTextareaWidget):  # type: ignore[misc]
    """A text of several lines that is never sent back to the browser."""

    def format_value(self, value: Any) -> None:  # noqa: ARG002 - its interface
        return None
