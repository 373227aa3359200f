"""The page of what an assistant was asked, and what leads on from a question: why, an answer, an evaluation set."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.assistants.admin.frame import TABS, AssistantPage, page_url
from kb.quality.asked.services import Cluster, questions_asked, sets_of
from kb.quality.eval_sets.admin import figures_text
from kb.quality.eval_sets.services.sets import eval_set_named, query_of
from kb.quality.models import EvalRun, EvalSet
from kb.web.admin.scoped import principal, reporting, row_id
from kb.web.admin.site import admin_page

CLUSTERS_A_PAGE = 25
DAYS = {"7": gettext_lazy("7 days"), "30": gettext_lazy("30 days"), "90": gettext_lazy("90 days")}
BAR_WIDTH, CHART_HEIGHT = 4, 16

TABS["questions"] = gettext_lazy("Questions")


@admin_page("assistants/<int:pk>/questions/", name="kb_assistant_questions")
class QuestionsView(AssistantPage):
    """Questions of nearly the same words together; a POST puts one into an evaluation set."""

    template_name = "quality/asked/page.html"
    tab = "questions"

    @cached_property
    def bases(self) -> Sequence[KnowledgeBase]:
        return list(self.assistant.knowledge_bases.all())

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        kb = next((each for each in self.bases if each.pk == row_id(request.POST.get("kb", ""))), None)
        if kb is None:
            raise Http404
        caller = principal(request)
        with reporting(request):
            eval_set = eval_set_named(caller, kb)
            query = query_of(eval_set, request.POST.get("question", ""))
            sentence = _("“%(query)s” is in the evaluation set “%(set)s” now: judge what it should find there.")
            messages.success(request, sentence % {"query": query.text, "set": eval_set})
        given = {name: request.GET[name] for name in ("days", "unanswered", "page") if name in request.GET}
        return HttpResponseRedirect(f"{page_url(self.assistant, 'questions')}?{urlencode(given)}")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        days = self.request.GET.get("days", "30")
        days = days if days in DAYS else "30"
        only_unanswered = self.request.GET.get("unanswered") == "on"
        since = timezone.now() - timedelta(days=int(days))
        asked = questions_asked(principal(self.request), self.assistant, since, only_unanswered=only_unanswered)
        page = Paginator(asked.clusters, CLUSTERS_A_PAGE).get_page(self.request.GET.get("page"))
        rows = [self._row(cluster, int(days)) for cluster in page.object_list]
        sets = sets_of(principal(self.request), self.assistant)
        return super().get_context_data(
            **kwargs,
            asked=asked,
            page=page,
            rows=rows,
            bases=self.bases,
            days=[{"value": value, "title": title, "is_chosen": value == days} for value, title in DAYS.items()],
            days_chosen=days,
            only_unanswered=only_unanswered,
            chart={"width": BAR_WIDTH * int(days), "height": CHART_HEIGHT, "bar": BAR_WIDTH - 1},
            sets=[self._set_line(eval_set, run) for eval_set, run in sets],
        )

    def _row(self, cluster: Cluster, days: int) -> dict[str, Any]:
        asked = urlencode([*(("kb", kb.pk) for kb in self.bases), ("q", cluster.question)])
        first, most = timezone.localdate() - timedelta(days=days - 1), max(cluster.by_day.values())
        heights = {(day - first).days: round(CHART_HEIGHT * count / most) for day, count in cluster.by_day.items()}
        return {
            "cluster": cluster,
            "tokens": cluster.input_tokens + cluster.output_tokens,
            "thumbs": {"helpful": cluster.helpful, "not_helpful": cluster.unhelpful},
            "answered": None if cluster.answered is None else round(100 * cluster.answered),
            "bars": [
                {"x": BAR_WIDTH * place, "y": CHART_HEIGHT - height, "height": height}
                for place, height in heights.items()
                if place >= 0
            ],
            "why_url": f"{reverse('admin:why_not')}?{asked}",
            "write_url": f"{reverse('admin:ask_write')}?{asked}",
        }

    def _set_line(self, eval_set: EvalSet, run: EvalRun | None) -> dict[str, Any]:
        """A set with the figures of its last run as the assistant searches, and where the next one is begun."""
        profile = self.assistant.published_settings.profile
        given = {"eval_set": eval_set.pk, **({"profile": profile} if profile else {})}
        return {
            "set": eval_set,
            "run": run,
            "figures": run and figures_text(run.report.get("stages", {}).get("reranked")),
            "evaluate_url": f"{reverse('admin:kb_evalrun_add')}?{urlencode(given)}",
        }
