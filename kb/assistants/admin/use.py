"""What was asked of an assistant, and how much may be."""

from collections.abc import Mapping
from datetime import date
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import formats
from django.utils.translation import gettext as _

from kb.assistants.admin.forms import LIMITS, LimitsForm
from kb.assistants.admin.frame import AssistantPage, page_url
from kb.assistants.models import Assistant
from kb.assistants.selectors import DAYS_SHOWN, days_of_use, most_of_today, outcomes_of
from kb.assistants.services.assistants import assistant_update
from kb.web.admin.charts import Chart, Series
from kb.web.admin.scoped import principal, reporting_in
from kb.web.admin.site import admin_page


@admin_page("assistants/<int:pk>/use/", name="kb_assistant_use")
class UseView(AssistantPage):
    template_name = "assistants/admin/use.html"
    tab = "use"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        form = LimitsForm(self.assistant, request.POST)
        if form.is_valid():
            with reporting_in(form):
                assistant_update(principal(request), Assistant.objects.get(pk=self.assistant.pk), **form.cleaned_data)
                messages.success(request, _("Saved: it holds at once."))
                return HttpResponseRedirect(page_url(self.assistant, "use"))
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        form = kwargs.pop("form", None) or LimitsForm(self.assistant)
        days = days_of_use(self.assistant)
        questions, tokens = {day.day: day.questions for day in days}, {day.day: day.tokens for day in days}
        used = most_of_today(self.assistant)
        return super().get_context_data(
            **kwargs,
            form=form,
            limits=[
                {
                    "title": title,
                    "is_most": bool(kind),
                    "questions": form[f"{whose}_questions"],
                    "tokens": form[f"{whose}_tokens"],
                    "used_questions": used[kind][0],
                    "used_tokens": used[kind][1],
                    "is_reached": _is_reached(self.assistant, whose, *used[kind]),
                }
                for kind, title, whose in LIMITS
            ],
            charts=[
                _per_day("questions", _("Questions per day"), _("Questions"), questions),
                _per_day("tokens", _("Tokens per day"), _("Model tokens"), tokens),
            ],
            days_shown=DAYS_SHOWN,
            questions=sum(questions.values()),
            tokens=sum(tokens.values()),
            outcomes=outcomes_of(self.assistant),
        )


def _per_day(name: str, title: str, label: str, values: Mapping[date, int]) -> Chart:
    most = _("At most %(most)s on one day.") % {"most": f"{max(values.values()):,}"}
    labels = [formats.date_format(day, "MONTH_DAY_FORMAT") for day in values]
    return Chart(name, title, most, labels=labels, series=[Series(label, list(values.values()), "primary-600")])


def _is_reached(assistant: Assistant, whose: str, questions: int, tokens: int) -> bool:
    most = [(questions, getattr(assistant, f"{whose}_questions")), (tokens, getattr(assistant, f"{whose}_tokens"))]
    return any(limit is not None and used >= limit for used, limit in most)
