"""What models were asked of late: in all, for the page of models, and of one knowledge base, for its own page."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.utils import formats
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase
from kb.providers.admin.forms import ROLES
from kb.providers.endpoints import endpoint_of
from kb.providers.models import ProviderModel
from kb.providers.usage.figures import DAYS, Used, days, tokens_by_day, used_since
from kb.web.admin.charts import Chart, Series
from kb.web.admin.scoped import KnowledgeBasePage
from kb.web.admin.site import add_part

COLOURS: Final = ("primary-600", "green-500", "orange-500", "blue-500", "red-500", "base-500")
MOST_SERIES: Final = len(COLOURS)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens a day of the models that took most, and the sums of each: its name, its role, and what it took."""

    chart: Chart
    rows: Sequence[tuple[str, str | Promise, Used]]

    @property
    def requests(self) -> int:
        return sum(used.requests for *_named, used in self.rows)

    @property
    def input_tokens(self) -> int:
        return sum(used.input_tokens for *_named, used in self.rows)

    @property
    def output_tokens(self) -> int:
        return sum(used.output_tokens for *_named, used in self.rows)


def usage(kb_id: int | None = None) -> Usage:
    """Of the last days, today among them; of one knowledge base, or of all and what was asked for none."""
    shown_days = days()
    names = {endpoint_of(row).id: row.name for row in ProviderModel.objects.all()}
    labels = {role.value: label for role, label in ROLES.items()}
    used = used_since(shown_days[0], kb_id)
    by_day = tokens_by_day(shown_days[0], kb_id) if used else {}
    totals: dict[str, int] = defaultdict(int)
    for each in used:
        totals[each.model] += each.tokens
    models, total = sorted(totals, key=lambda model: -totals[model])[:MOST_SERIES], sum(totals.values())
    said = _("%(count)s tokens in %(days)d days") % {"count": f"{total:,}", "days": DAYS}
    chart = Chart(
        "tokens",
        _("Tokens per day"),
        said if used else _("No model was asked yet."),
        labels=[formats.date_format(day, "MONTH_DAY_FORMAT") for day in shown_days] if used else [],
        series=[
            Series(names.get(model, model), [by_day.get((day, model), 0) for day in shown_days], colour)
            for model, colour in zip(models, COLOURS, strict=False)
        ],
        is_stacked=True,
    )
    return Usage(chart, [(names.get(each.model, each.model), labels.get(each.role, each.role), each) for each in used])


class KnowledgeBaseUsageView(KnowledgeBasePage, TemplateView):
    """For those who may change the knowledge base."""

    title = gettext_lazy("Use of models")
    template_name = "providers/usage.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        if not self.may_edit:
            raise PermissionDenied
        return super().get_context_data(**kwargs, usage=usage(self.kb.pk))


add_part(
    KnowledgeBase,
    pages=lambda of: [of.page("<int:object_id>/usage/", KnowledgeBaseUsageView.as_view(model_admin=of), "usage")],
)
