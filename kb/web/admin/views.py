"""What pages have in common that stand beside the lists and forms of the admin."""

from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.functional import cached_property
from django.views.generic import FormView
from unfold.views import UnfoldModelAdminViewMixin

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.web.admin.rows import row_id
from kb.web.admin.scoped import filtered_knowledge_base, principal


class KnowledgeBasePage(UnfoldModelAdminViewMixin):  # type: ignore[misc]
    """A page of the knowledge base that its address names as `object_id`; 404 where the user may not see it."""

    permission_required = ()

    @cached_property
    def kb(self) -> Any:
        return self.model_admin.get_object_or_404(self.request, str(self.kwargs["object_id"]))

    @cached_property
    def may_edit(self) -> bool:
        return bool(self.model_admin.has_change_permission(self.request, self.kb))


class IntoKnowledgeBaseForm(forms.Form):
    """Has a field `knowledge_base`, which offers those that the user may change."""

    def __init__(self, *args: Any, writable: "QuerySet[KnowledgeBase]", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["knowledge_base"].queryset = writable  # type: ignore[attr-defined]


class IntoKnowledgeBaseView(UnfoldModelAdminViewMixin, FormView):  # type: ignore[misc,type-arg]
    """A page that brings something into a knowledge base; a link may choose it by `kb`."""

    permission_required = ()
    rate_limit_kind = UPLOAD

    @cached_property
    def writable(self) -> "QuerySet[KnowledgeBase]":
        rows: QuerySet[KnowledgeBase] = KnowledgeBase.objects.editable_by(principal(self.request))
        return rows

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "writable": self.writable}

    def get_initial(self) -> dict[str, Any]:
        """The knowledge base that a link names, else the only one there is."""
        chosen = self.request.GET.get("kb", self.request.GET.get("knowledge_base", ""))
        if (kb_id := row_id(chosen) or filtered_knowledge_base(self.request)) is not None:
            return {"knowledge_base": kb_id}
        writable = list(self.writable[:2])
        return {"knowledge_base": writable[0].pk} if len(writable) == 1 else {}
