import pytest
from django.utils import translation

from kb.search.admin.labels import stage_explanation, stage_label
from retrieval.types import STAGES
from tests.factories import make_document, make_kb, make_user
from tests.kb.quality.debug.admin.debug_page import outcome_of


@pytest.mark.parametrize("stage", [*STAGES, "web", "external"])
def test_every_score_has_a_label_and_an_explanation_in_both_languages(stage):
    said = {}
    for language in ("en", "zh-hans"):
        with translation.override(language):
            said[language] = stage_label(stage), stage_explanation(stage)

    assert said["en"][0] != stage
    assert said["en"][1].endswith(".")
    assert said["zh-hans"][1].endswith("。")


@pytest.mark.django_db
@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
def test_a_search_gives_no_other_ranks_and_scores(fusion):
    owner = make_user()
    kb = make_kb(owner)
    make_document(kb, "保修期限为两年。", "Employees rebook flights.")

    found = outcome_of(owner, kb, q="保修期限 flight", fusion=fusion).candidates

    assert {"characters", "order"} <= {name for each in found for name in each.scores} <= set(STAGES)
    assert {name for each in found for name in each.ranks} <= set(STAGES) - {"order"}
