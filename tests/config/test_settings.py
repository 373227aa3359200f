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


def test_a_key_and_a_proxy_of_the_environment_are_those_of_the_settings(tmp_path):
    program = (
        "from django.conf import settings as s; print(s.SECRET_KEY, *s.SECURE_PROXY_SSL_HEADER, s.TRUSTED_PROXIES)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "ZHIKU_DATA_DIR": str(tmp_path),
            "SECRET_KEY": "entered",
            "BEHIND_TLS_PROXY": "true",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["entered", "HTTP_X_FORWARDED_PROTO", "https", "1"]
    assert not (tmp_path / "secret_key").exists()
