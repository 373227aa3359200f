"""What the pages of web sources and of external sources share: the form's base, and a test of what is in the form."""

from typing import Any, ClassVar

from django import forms
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.views.decorators.http import require_POST

from kb.access.models import KnowledgeBase
from kb.web.admin.scoped import ScopedModelAdmin, ScopedRelatedFilter, principal


class SourceAdmin(ScopedModelAdmin):
    """A source belongs to one knowledge base from its creation on."""

    list_filter: ClassVar[Any] = (("knowledge_base", ScopedRelatedFilter),)
    list_filter_submit = True
    list_select_related: ClassVar[Any] = ("knowledge_base",)
    warn_unsaved_form = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        return () if obj is None else ("knowledge_base",)

    def formfield_for_foreignkey(
        self, db_field: "models.ForeignKey[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> "forms.ModelChoiceField[Any] | None":
        if db_field.name == "knowledge_base":
            kwargs["queryset"] = KnowledgeBase.objects.editable_by(principal(request))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("test/", require_POST(self.test_view), "test"),
            self.page("<int:object_id>/test/", require_POST(self.test_view), "test_again"),
            *super().get_urls(),
        ]

    def test_view(self, request: HttpRequest, object_id: int | None = None) -> HttpResponse:
        """What the form's source would give; nothing is saved."""
        raise NotImplementedError

    def tested_form(self, request: HttpRequest, object_id: int | None, name: str) -> Any:
        """The form as it was sent, of a stored source or a new one, which may be named later: `name` until then."""
        stored = self.get_object_or_404(request, str(object_id), to_change=True) if object_id else None
        values = request.POST.copy()
        values["name"] = values.get("name") or name
        return self.get_form(request, stored, change=stored is not None)(values, instance=stored)
