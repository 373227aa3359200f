"""The digital documents of the bed that Chromium prints, read as they would be uploaded."""

from statistics import fmean

import pypdfium2
import pytest

from tests.quality.parsing.cases import cases
from tests.quality.parsing.measures import measure
from tests.quality.parsing.readers import ours

PRINTED = [case for case in cases() if case.program == "chromium" and not case.scan]


@pytest.fixture(scope="module")
def measured(printed):
    found = {}
    for case, file in printed(PRINTED):
        with pypdfium2.PdfDocument(file) as document:
            pages = len(document)
        found[case.name] = measure(case.document, ours(file), pages)
    return found


def values(measured, name, *tags):
    wanted = [case for case in PRINTED if not tags or case.tags & set(tags)]
    return [value for case in wanted if (value := getattr(measured[case.name], name)) is not None]


def test_text_is_whole_and_in_order(measured):
    assert fmean(values(measured, "text")) >= 0.98
    assert min(values(measured, "text")) >= 0.96


def test_cells_of_ruled_tables_stand_below_their_headers(measured):
    assert min(values(measured, "tables", "ruled", "merged", "lined", "long table", "landscape", "mixed ruled")) >= 0.95


def test_cells_of_tables_without_rules_do_too(measured):
    assert min(values(measured, "tables", "unruled", "mixed unruled")) >= 0.85


def test_headings_are_found_with_their_levels(measured):
    assert fmean(values(measured, "headings")) >= 0.9


def test_what_every_page_repeats_is_left_out(measured):
    assert max(values(measured, "boilerplate")) <= 0.01
