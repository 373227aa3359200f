"""What the pages of web sources and of external sources share: the form's base, and a test of what is in the form."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.views.decorators.http import require_POST

from kb.web.admin.scoped import KnowledgeBaseRowAdmin


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
