"""The page of a knowledge base's embedding model: another one beside it, how both compare, the swap and the way back."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import URLPattern, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET
from django.views.generic import TemplateView
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import ServiceError
from kb.index.services.reembedding import (
    reembedding_cancel,
    reembedding_drop,
    reembedding_rollback,
    reembedding_start,
    reembedding_swap,
)
from kb.providers.embedding_models import offered_embedding_models, require_embedding_model
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.admin.pages import compare_url
from kb.quality.runs.admin.report import three_decimals
from kb.quality.runs.services.reembedding import evaluate_both, reembedding_state
from kb.web.admin.scoped import KnowledgeBasePage, principal, visible
from kb.web.admin.site import add_part

RUNS_SHOWN = 6
METRICS = ("recall@5", "ndcg@10")


class ChangeForm(forms.Form):
    model = forms.CharField(
        label=gettext_lazy("New embedding model"),
        help_text=gettext_lazy(
            "The id or package of a sentence-transformers model on the server, such as BAAI/bge-large-zh-v1.5, "
            "or openai:MODEL for an OpenAI-compatible server."
        ),
        max_length=255,
        widget=UnfoldAdminTextInputWidget({"list": "models"}),
    )
    swaps = forms.BooleanField(
        label=gettext_lazy("Change searches over as soon as it is ready"),
        required=False,
        widget=UnfoldBooleanSwitchWidget,
    )


class SetForm(forms.Form):
    eval_set = forms.ModelChoiceField(
        EvalSet.objects.none(),
        label=gettext_lazy("Evaluation set"),
        empty_label=None,
        widget=UnfoldAdminSelectWidget,
    )

    def __init__(self, *args: Any, kb: KnowledgeBase, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["eval_set"]
        field.queryset = EvalSet.objects.filter(knowledge_base=kb).select_related("knowledge_base__profile")
        field.choices = [(each.pk, str(each)) for each in field.queryset]  # read once, however often the page asks
        self.has_any = bool(field.choices)


USED = gettext_lazy("Searches use “%(model)s” now.")
BEHIND = gettext_lazy("Chunks were written since: a worker embeds them first, then searches change over by themselves.")
# By action: what it does, and the message once it is done, or once a worker has to do it.
ACTIONS: dict[str, tuple[Callable[[KnowledgeBase], int | None], Promise, Promise]] = {
    "swap": (reembedding_swap, USED, BEHIND),
    "rollback": (reembedding_rollback, USED, BEHIND),
    "drop": (reembedding_drop, gettext_lazy("The former vectors are gone."), BEHIND),
    "cancel": (reembedding_cancel, gettext_lazy("The change was cancelled: the present model stays."), BEHIND),
}


class ReembeddingView(KnowledgeBasePage, TemplateView):
    template_name = "quality/reembedding/page.html"

    @property
    def title(self) -> str:
        return _("Embedding model of “%(name)s”") % {"name": self.kb.name}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        used = visible(KnowledgeBase, self.request).order_by().values_list("embedding_model", flat=True).distinct()
        return super().get_context_data(
            **{"form": ChangeForm(), "sets": SetForm(kb=self.kb), **kwargs},
            opts=self.model_admin.opts,
            original=self.kb,
            kb=self.kb,
            may_edit=self.may_edit,
            state=reembedding_state(self.kb),
            suggestions=[name for name in offered_embedding_models(used) if name != self.kb.embedding_model],
            figures=_figures(self.request, self.kb),
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if not self.may_edit:
            raise PermissionDenied
        asked = request.POST.get("action", "")
        try:
            if asked == "evaluate":
                return self._evaluate()
            if asked not in ACTIONS:
                return self._start()
            act, done, begun = ACTIONS[asked]
            # A swap and a return give False where chunks were written since
            level, message = (messages.INFO, begun) if act(self.kb) is False else (messages.SUCCESS, done)
            messages.add_message(request, level, str(message) % {"model": self.kb.embedding_model})
        except ServiceError as error:
            messages.error(request, str(error))
        return self._back()

    def _start(self) -> HttpResponse:
        form = ChangeForm(self.request.POST)
        if not form.is_valid():
            return self.render_to_response(self.get_context_data(form=form))
        try:
            reembedding_start(
                self.kb, require_embedding_model(form.cleaned_data["model"]), swaps=form.cleaned_data["swaps"]
            )
        except ServiceError as error:
            form.add_error("model", str(error))
            return self.render_to_response(self.get_context_data(form=form))
        return self._back()  # the page itself says how far it is

    def _evaluate(self) -> HttpResponse:
        sets = SetForm(self.request.POST, kb=self.kb)
        if not sets.is_valid():
            return self.render_to_response(self.get_context_data(sets=sets))
        return HttpResponseRedirect(compare_url(*evaluate_both(principal(self.request), sets.cleaned_data["eval_set"])))

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(reembedding_url(self.kb))


def reembedding_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_reembedding", args=[kb.pk])


def progress_view(model_admin: Any, request: HttpRequest, object_id: int) -> HttpResponse:
    """How far the change is, for a page that polls; once nothing goes on any more, the page is loaded again."""
    kb = model_admin.get_object_or_404(request, str(object_id))
    state = reembedding_state(kb)
    html = render_to_string("quality/reembedding/progress.html", {"kb": kb, "state": state}, request)
    return HttpResponse(html, headers=None if state.is_unfinished else {"HX-Refresh": "true"})


def _figures(request: HttpRequest, kb: KnowledgeBase) -> list[dict[str, Any]]:
    runs = visible(EvalRun, request).filter(eval_set__knowledge_base=kb).exclude(embedding_model="")
    rows = []
    for run in runs.select_related("eval_set", "profile").order_by("-pk")[:RUNS_SHOWN]:
        figures = run.report.get("stages", {})
        cells = [
            three_decimals(figures.get(stage, {}).get(metric))
            for stage in ("vector", run.report.get("final_stage", "reranked"))
            for metric in METRICS
        ]
        rows.append({"run": run, "cells": cells})
    return rows


def reembedding_pages(model_admin: Any) -> list[URLPattern]:
    route = "<int:object_id>/embedding-model/"
    progress = require_GET(partial(progress_view, model_admin))
    return [
        model_admin.page(route, ReembeddingView.as_view(model_admin=model_admin), "reembedding"),
        model_admin.page(f"{route}progress/", progress, "reembedding_progress"),
    ]


add_part(KnowledgeBase, pages=reembedding_pages, context=lambda _request, kb: {"reembedding_url": reembedding_url(kb)})
