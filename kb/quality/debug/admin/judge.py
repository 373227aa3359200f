"""Judging passages where they are shown: the state of the buttons, and what they write."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.generic import View

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotAllowed, NotVisible, Rejected, ServiceError, found_in
from kb.content.models import Chunk
from kb.quality.debug.admin.form import search_parameters
from kb.quality.eval_sets.services.sets import (
    IRRELEVANT,
    PARTLY,
    RELEVANT,
    eval_set_named,
    judge,
    judgments_in,
    mark_unanswerable,
    set_name,
    spellings,
    unjudge,
)
from kb.quality.models import DEFAULT_SET, MAX_GRADE, EvalQuery, EvalSet, set_label
from kb.web.admin.fields import select, text_input
from kb.web.admin.scoped import principal, row_id
from kb.web.admin.site import admin_page

SESSION_KEY = "judge_eval_set"
TAKEN_BACK = "none"
STATUS: Mapping[type[ServiceError], int] = {Rejected: 400, NotAllowed: 403, NotVisible: 404}


class ChosenSetForm(forms.Form):
    """The set that judgments go to: one that is there, or a new one."""

    eval_set = forms.ChoiceField(label=gettext_lazy("Judgments go to"), widget=select())
    new_eval_set = forms.CharField(
        label=gettext_lazy("or to a new set"),
        required=False,
        widget=text_input(maxlength=120, placeholder=gettext_lazy("its name")),
    )

    def __init__(self, name: str, names: Iterable[str]) -> None:
        super().__init__(initial={"eval_set": name}, auto_id="judge_%s")
        cast(forms.ChoiceField, self.fields["eval_set"]).choices = [(each, set_label(each)) for each in names]


def judging(
    caller: Principal,
    name: str,
    query: str,
    kb_ids: Iterable[int],
    chunk_ids: Iterable[int],
    *,
    editable: frozenset[int] | None = None,
) -> dict[str, Any]:
    """The state of the buttons of a page that shows chunks found for a query; at most five queries.

    The name is that of the chosen set, of each knowledge base its own; one that is not there yet is made by the first
    judgment. `editable` are the knowledge bases that the caller may change, where the page has read them already.

    In what is returned, `kb_ids` are where the caller may judge: the buttons are left out elsewhere. `grades` are by
    chunk id, of those that are judged.
    """
    if editable is None:
        bases = KnowledgeBase.objects.editable_by(caller).filter(pk__in=list(kb_ids))
        editable = frozenset(bases.order_by().values_list("pk", flat=True))
    sets = list(EvalSet.objects.filter(knowledge_base__in=editable))
    chosen = [each for each in sets if each.name == name]
    queries = EvalQuery.objects.filter(eval_set__in=chosen, text__in=spellings(query)).annotate(
        judged=Count("judgments")
    )
    judged = sum(each.judged for each in queries)
    grades: Mapping[int, int] = {}
    description = _("Nothing is judged for this query yet.")
    if judged:
        chunks = Chunk.objects.filter(knowledge_base__in=editable, pk__in=list(chunk_ids))
        grades = judgments_in(caller, chosen, query, list(chunks.select_related("document")))
        description = ngettext(
            "%(count)d passage is judged for this query.", "%(count)d passages are judged for this query.", judged
        ) % {"count": judged}
    return {
        "query": query,
        "kb_ids": editable,
        "eval_set": set_label(name),
        "set_form": ChosenSetForm(name, sorted({each.name for each in sets} | {name, DEFAULT_SET})),
        "grades": grades,
        "relevant": {chunk_id for chunk_id, grade in grades.items() if grade >= RELEVANT},
        "partly": {chunk_id for chunk_id, grade in grades.items() if grade == PARTLY},
        "irrelevant": {chunk_id for chunk_id, grade in grades.items() if grade == IRRELEVANT},
        "is_unanswerable": any(not each.answerable for each in queries),
        "description": description,
    }


class IdsField(forms.TypedMultipleChoiceField):
    def valid_value(self, value: str) -> bool:
        return row_id(value) is not None


class JudgeForm(forms.Form):
    """One click: `judgment` is "CHUNK:GRADE", as one button says it; otherwise there are `chunk` and `grade`.

    `shown` are the chunks on the page, whose grades are returned.
    """

    query = forms.CharField(max_length=2_000)
    kb = IdsField(coerce=int, required=False)
    eval_set = forms.CharField(required=False)
    new_eval_set = forms.CharField(required=False)
    judgment = forms.RegexField(r"^\d{1,18}:(\d|none)$", required=False)
    chunk = forms.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    grade = forms.ChoiceField(choices=[(each, each) for each in (*range(MAX_GRADE + 1), TAKEN_BACK)], required=False)
    unanswerable = forms.NullBooleanField(required=False)
    shown = IdsField(coerce=int, required=False)

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if values.get("judgment"):
            chunk, _colon, values["grade"] = values["judgment"].partition(":")
            values["chunk"] = int(chunk)
        if (values.get("chunk") is None) == bool(values.get("grade")):
            raise forms.ValidationError(_("Name a passage and a grade: both, or neither."))
        return values


@admin_page("judge/", name="judge")
class JudgeView(View):
    """Writes a click: answers a script in JSON, and a plain form with the page that it came from."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponse:
        is_script = request.accepts("application/json") and not request.accepts("text/html")
        try:
            form = JudgeForm(_data(request))
            if not form.is_valid():
                raise Rejected("invalid", " ".join(str(text) for texts in form.errors.values() for text in texts))
            click = form.cleaned_data
            name = set_name(click["new_eval_set"] or click["eval_set"])
            grade = _write(principal(request), name, click)
        except ServiceError as error:
            if is_script:
                return JsonResponse({"detail": str(error)}, status=STATUS.get(type(error), 400))
            messages.error(request, str(error))
        else:
            request.session[SESSION_KEY] = name
            if is_script:
                state = judging(principal(request), name, click["query"], click["kb"], click["shown"])
                answer = {"eval_set": name, "grade": grade, "grades": state["grades"], "judged": state["description"]}
                return JsonResponse({**answer, "unanswerable": state["is_unanswerable"]})
        there = request.POST.get("next", "")
        is_own = url_has_allowed_host_and_scheme(there, {request.get_host()}, require_https=request.is_secure())
        return HttpResponseRedirect(there if is_own else reverse("admin:search_debug"))


def _data(request: HttpRequest) -> Any:
    """What was posted, as a form or as JSON; raises Rejected where that is no object."""
    if request.content_type != "application/json":
        return request.POST
    try:
        given = json.loads(request.body)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise Rejected("invalid", _("The body is no JSON: send an object."))
    return given


def _write(caller: Principal, name: str, click: Mapping[str, Any]) -> int | None:
    """Writes what was clicked; returns the passage's grade now."""
    query = click["query"]
    if click["unanswerable"] is not None:
        bases = KnowledgeBase.objects.visible_to(caller).filter(pk__in=click["kb"])
        if not bases:
            raise NotVisible(_("Choose a knowledge base to which the query has no answer."))
        for kb in bases:
            mark_unanswerable(caller, eval_set_named(caller, kb, name), query, click["unanswerable"])
    if click["chunk"] is None:
        return None
    rows: QuerySet[Chunk] = Chunk.objects.visible_to(caller).select_related("document", "knowledge_base")
    chunk = found_in(rows.filter(pk=click["chunk"]), _("This passage is no longer there: search again."))
    eval_set = eval_set_named(caller, chunk.knowledge_base, name)
    if click["grade"] == TAKEN_BACK:
        unjudge(caller, eval_set, query, chunk)
        return None
    return judge(caller, eval_set, query, chunk, int(click["grade"])).grade


def debug_url(kb_ids: Iterable[int], query: str, asked: Mapping[str, Any] | None) -> str:
    """The retrieval test, with a search that was logged and the settings that it asked for, where these were kept."""
    return f"{reverse('admin:search_debug')}?{urlencode(search_parameters(kb_ids, query, asked or {}))}"
