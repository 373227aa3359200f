"""The page that makes a failed query one of an evaluation set."""

from typing import Any, cast

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.generic import FormView
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import Rejected
from kb.quality.eval_sets.services.queries import DEFAULT_SET, NAME_CHARACTERS
from kb.quality.failed_queries.services import NewEvalSet, to_eval_query
from kb.quality.models import EvalSet, FailedQuery
from kb.web.admin.scoped import principal


class ToEvalSetForm(forms.Form):
    """Which set, or a new one of which knowledge base; and whether there is anything to be found."""

    target = forms.ChoiceField(label=gettext_lazy("Evaluation set"), widget=UnfoldAdminSelectWidget)
    name = forms.CharField(
        label=gettext_lazy("Name of the new set"),
        max_length=NAME_CHARACTERS,
        required=False,
        widget=UnfoldAdminTextInputWidget({"placeholder": DEFAULT_SET}),
    )
    unanswerable = forms.BooleanField(
        label=gettext_lazy("The knowledge base has no answer to it, and finding nothing is right"),
        required=False,
        widget=UnfoldBooleanSwitchWidget,
    )

    def __init__(self, caller: Principal, failed: FailedQuery, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        bases = list(KnowledgeBase.objects.editable_by(caller).filter(pk__in=failed.knowledge_base_ids))
        sets = list(EvalSet.objects.filter(knowledge_base__in=bases).select_related("knowledge_base"))
        self._targets: dict[str, EvalSet | KnowledgeBase] = {f"set-{each.pk}": each for each in sets}
        self._targets |= {f"new-{kb.pk}": kb for kb in bases}
        cast(forms.ChoiceField, self.fields["target"]).choices = [
            (_("There are already"), [(f"set-{each.pk}", f"{each.knowledge_base} / {each}") for each in sets]),
            (_("A new one"), [(f"new-{kb.pk}", _("A new one of “%(kb)s”") % {"kb": kb}) for kb in bases]),
        ][0 if sets else 1 :]

    def chosen(self) -> EvalSet | NewEvalSet:
        chosen = self._targets[self.cleaned_data["target"]]
        return chosen if isinstance(chosen, EvalSet) else NewEvalSet(chosen, self.cleaned_data["name"])


class ToEvalSetView(FormView):  # type: ignore[type-arg]
    template_name = "quality/failed_queries/to_set.html"
    form_class = ToEvalSetForm
    model_admin: Any = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Opens the page.

        Raises:
            Http404: the failed query does not exist for this user.
            PermissionDenied: the user may see but not edit it.
        """
        self.failed = self.model_admin.get_object_or_404(request, str(kwargs["object_id"]), to_change=True)
        return super().dispatch(request, *args, **kwargs)

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "caller": principal(self.request), "failed": self.failed}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            **self.model_admin.admin_site.each_context(self.request),
            title=_("To an evaluation set"),
            failed=self.failed,
            inbox_url=reverse("admin:kb_failedquery_changelist"),
        )

    def form_valid(self, form: ToEvalSetForm) -> HttpResponse:
        answerable = not form.cleaned_data["unanswerable"]
        try:
            query = to_eval_query(principal(self.request), self.failed, form.chosen(), answerable=answerable)
        except Rejected as error:
            form.add_error(None, str(error))
            return self.form_invalid(form)
        sentence = _("“%(query)s” is in the evaluation set “%(set)s” now; it stays in the inbox until you resolve it.")
        messages.success(self.request, sentence % {"query": query.text, "set": query.eval_set})
        return HttpResponseRedirect(reverse("admin:kb_failedquery_changelist"))
