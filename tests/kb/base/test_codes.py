"""Codes of errors, remarks and degradations: programs compare them, so they are spelt alike."""

import ast
import re
from pathlib import Path

import pytest

import kb
import retrieval
from kb.base.findings import RemarkCode
from kb.ingest.parser.parsed import MESSAGES
from kb.quality.why_not.services.places import RemedyCode
from kb.web.api.errors import BY_CODE, REJECTED_FIELD, REJECTED_STATUS
from retrieval.errors import DegradationCode

# Where the code stands among the arguments of what is made with one.
CODE_OF = {"Rejected": 0, "FetchError": 0, "ParseError": 0, "ApiError": 1, "Problem": 1, "_refuse": 0}
ROOTS = [Path(package.__path__[0]) for package in (kb, retrieval)]


def is_code(text):
    return re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", text) is not None


def codes_in(node):
    if not isinstance(node, ast.Call):
        return
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    place = CODE_OF.get(name)
    given = [*node.args[place : place + 1]] if place is not None else []
    given += [each.value for each in node.keywords if each.arg in ("code", "error_code")]
    for value in given:
        if isinstance(value, ast.Constant) and value.value:
            yield value.value
        elif isinstance(value, ast.IfExp):
            yield from (each.value for each in (value.body, value.orelse) if isinstance(each, ast.Constant))


def codes():
    for root in ROOTS:
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                for code in codes_in(node):
                    yield f"{path.relative_to(root.parent)}:{node.lineno}", code


def test_codes_that_are_raised_are_words_in_lower_case_joined_by_underscores():
    found = [(place, code) for place, code in codes() if isinstance(code, str)]
    assert len(found) > 300
    assert [each for each in found if not is_code(each[1])] == []


@pytest.mark.parametrize(
    "listed", [RemarkCode, RemedyCode, DegradationCode, MESSAGES, BY_CODE, REJECTED_FIELD, REJECTED_STATUS]
)
def test_codes_that_are_listed_are_too(listed):
    assert [code for code in map(str, listed) if not is_code(code)] == []
