"""The report on the dependencies never takes a package that was not looked up for a clean one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "audit_report.py"
CLEAN = {"name": "clean", "version": "1", "vulns": []}
WRONG = {"name": "wrong", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"], "description": ""}]}
SKIPPED = {"name": "skipped", "skip_reason": "not found"}


def read(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_text(content)
    return subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("packages", "code"),
    [([CLEAN], 0), ([CLEAN, SKIPPED], 0), ([CLEAN, WRONG], 1), ([SKIPPED, WRONG], 1), ([SKIPPED], 75)],
)
def test_the_exit_code_says_what_is_known(tmp_path, packages, code):
    assert read(tmp_path, json.dumps({"dependencies": packages})).returncode == code


def test_what_is_vulnerable_is_named_with_its_remedy(tmp_path):
    assert "wrong 1: CVE-1, fixed in 2" in read(tmp_path, json.dumps({"dependencies": [WRONG]})).stdout


@pytest.mark.parametrize("content", ["", "Traceback", "[]"])
def test_without_a_report_nothing_is_known_and_that_is_loud(tmp_path, content):
    found = read(tmp_path, content)

    assert found.returncode == 75
    assert "NOT AUDITED" in found.stderr


def test_single_packages_that_were_not_looked_up_are_named(tmp_path):
    assert "skipped" in read(tmp_path, json.dumps({"dependencies": [CLEAN, SKIPPED]})).stderr
