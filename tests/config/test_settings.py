import os
import subprocess
import sys

import pytest

from tests.serving import ROOT

PROGRAM = "from django.conf import settings; print(*settings.FUSION_VARIABLES)"


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, ""),
        ({"TOP_K": "7", "QUESTION_WEIGHT": "0.5", "HYBRID_OTHER": "1"}, ""),
        ({"HYBRID_FUSION": "rrf"}, "HYBRID_FUSION"),
        ({"RRF_K": "60", "RRF_VECTOR_WEIGHT": "0.6", "RRF_KEYWORD_WEIGHT": "0.4"}, "RRF_VECTOR_WEIGHT RRF_KEYWORD_WEIGHT RRF_K"),
        ({"HYBRID_VECTOR_WEIGHT": "0.7", "HYBRID_TEXT_WEIGHT": "0.3"}, "HYBRID_VECTOR_WEIGHT HYBRID_TEXT_WEIGHT"),
    ],
)  # fmt: skip
def test_variables_of_the_fusion_count_where_the_environment_sets_them_to_their_defaults_too(variables, found):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HYBRID_", "RRF_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == found
