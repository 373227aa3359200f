"""The form of a web source, which is checked as its service checks it."""

from typing import Any, Final

from django import forms
from django.contrib.postgres.forms import SimpleArrayField
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import Rejected
from kb.sources.connectors.listing import MOST_PATTERNS
from kb.sources.models import WebSource
from kb.sources.web.services.sources import web_source_check
from kb.web.admin.scoped import principal

FIELD_OF: Final = {
    "url_refused": "url",
    "include_invalid": "include",
    "exclude_invalid": "exclude",
    "name_taken": "name",
    "live_invalid": "live",
}


class LinesField(forms.CharField):
    """Several texts, one a line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, widget=UnfoldAdminTextareaWidget({"rows": 3, "spellcheck": "false"}), **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        lines = value if isinstance(value, list) else (value or "").splitlines()
        return [line for line in map(str.strip, lines) if line]

    def validate(self, value: Any) -> None:
        if len(value) > MOST_PATTERNS or any(len(line) > 300 for line in value):
            raise ValidationError(_("Give at most 50 lines of at most 300 characters."))

    def run_validators(self, value: Any) -> None:
        """Those of a text do not fit a list."""

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool((initial or []) != self.to_python(data))


class WebSourceForm(forms.ModelForm):  # type: ignore[type-arg]
    request: HttpRequest
    include = LinesField(
        label=gettext_lazy("Only addresses like"),
        help_text=gettext_lazy(
            "Regular expressions, one a line, such as /docs/. None: any of the same host; of a feed, any at all."
        ),
    )
    exclude = LinesField(
        label=gettext_lazy("No addresses like"), help_text=gettext_lazy("Regular expressions, one a line.")
    )
    tags = SimpleArrayField(
        forms.CharField(max_length=60),
        label=gettext_lazy("Tags"),
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("Of its documents, separated by commas."),
    )

    class Meta:
        model = WebSource
        fields = (
            "knowledge_base",
            "name",
            "kind",
            "url",
            "every_minutes",
            "enabled",
            "live",
            "tags",
            "max_pages",
            "max_depth",
            "include",
            "exclude",
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "knowledge_base" in self.fields:
            offered: Any = self.fields["knowledge_base"]
            offered.queryset = KnowledgeBase.objects.editable_by(principal(self.request))
        words = {
            "kind": _("A page, the pages that a sitemap lists, those that links lead to, or the entries of a feed."),
            "url": _("Of the page, the sitemap, the first page or the feed."),
            "enabled": _("Off: it is read only when somebody asks for it."),
            "max_depth": _("Of a crawl: how many links from the first page it goes."),
        }
        for name, help_text in words.items():
            if name in self.fields:
                self.fields[name].help_text = help_text

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if self.errors:
            return values
        known_kb = self.instance.knowledge_base if self.instance.knowledge_base_id else None
        source = WebSource(pk=self.instance.pk, **({"knowledge_base": known_kb} | values))
        try:
            web_source_check(source)
        except Rejected as error:
            self.add_error(FIELD_OF.get(error.code), str(error))
        return values
