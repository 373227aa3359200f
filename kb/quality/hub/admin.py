"""The tab “Quality” of a knowledge base: what waits, its evaluation sets with their newest figures, its profile and threshold."""

from typing import Any

from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _, gettext_lazy
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase
from kb.quality.eval_sets.admin import last_run_text
from kb.quality.eval_sets.services.sets import eval_set_overview
from kb.quality.models import FailedQuery
from kb.quality.profiles.admin.pages import profile_of
from kb.web.admin.navigation import add_hub_tab
from kb.web.admin.scoped import KnowledgeBasePage, principal, visible
from kb.web.admin.site import add_part
from retrieval.selection import SETTING_OF_SCALE

LISTED = 5


class QualityView(KnowledgeBasePage, TemplateView):
    title = gettext_lazy("Quality")
    template_name = "quality/hub/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        kb, profile = self.kb, self.kb.profile
        failed = visible(FailedQuery, self.request).filter(knowledge_base_ids__contains=[kb.pk])
        waiting = list(failed.filter(state__in=FailedQuery.WAITING)[: LISTED + 1])
        sets = list(eval_set_overview(principal(self.request)).filter(knowledge_base=kb).order_by("name")[: LISTED + 1])
        measured = [each.last_run_id for each in sets if each.last_run_id]
        cuts = sorted({*SETTING_OF_SCALE.values(), "score_threshold"} & profile.settings.keys())
        return super().get_context_data(
            **kwargs,
            waiting=waiting[:LISTED],
            has_more_waiting=len(waiting) > LISTED,
            waiting_url=f"{reverse('admin:kb_failedquery_changelist')}?{urlencode({'kb': kb.pk})}",
            sets=[{"set": each, "figures": each.last_run_id and last_run_text(each)} for each in sets[:LISTED]],
            has_more_sets=len(sets) > LISTED,
            sets_url=f"{reverse('admin:kb_evalset_changelist')}?{urlencode({'knowledge_base__id__exact': kb.pk})}",
            new_set_url=f"{reverse('admin:kb_evalset_add')}?{urlencode({'kb': kb.pk})}",
            profile_description=_(profile.description) if profile.description else "",
            cuts=[f"{profile.settings[name]:g}" for name in cuts if profile.settings[name] is not None],
            calibration_url=f"{reverse('admin:calibration')}?{urlencode({'run': max(measured)})}" if measured else "",
            **profile_of(kb),
        )


add_part(
    KnowledgeBase,
    pages=lambda of: [of.page("<int:object_id>/quality/", QualityView.as_view(model_admin=of), "quality")],
)
add_hub_tab("quality", gettext_lazy("Quality"), order=50)
