"""Whoever meets a code finds it in the documentation, in either language."""

import re
from pathlib import Path

import pytest
from django.conf import settings

from retrieval.errors import DegradationCode

PAGES = ("docs/degradations.md", "docs/degradations.zh-CN.md")
ROW = re.compile(r"^\| `([a-z0-9_]+)` \| (.+?) \|.*\|.*\| .+ \|$", re.MULTILINE)


def table(name):
    """Stages by code, in the order of the rows."""
    return {code: re.split(", |、", stages) for code, stages in ROW.findall(Path(settings.BASE_DIR, name).read_text())}


@pytest.mark.parametrize("name", PAGES)
def test_every_code_has_a_row(name):
    assert set(table(name)) == set(DegradationCode)


def test_both_languages_have_the_same_rows():
    english, chinese = map(table, PAGES)
    english["channel_failed"] = chinese["channel_failed"]  # any channel, in words
    assert list(english.items()) == list(chinese.items())
