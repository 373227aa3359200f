""".ci/repeat.py, by which CI runs some of the failed tests once more."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "repeat.py"
BROWSER, OTHER_BROWSER, LIVE, RULE = (
    "tests/browser/test_walk.py::test_a[x y]",
    "tests/browser/test_walk.py::test_b",
    "tests/live/test_mcp.py::test_c",
    "tests/kb/test_rules.py::test_d",
)
MAKEFILE = "test:\n\t@{python} -m pytest -n 1\n"
FAILS_ONCE = """
from pathlib import Path

import pytest

@pytest.mark.parametrize("name", ["中文 a", "b"])
def test_it(name):
    tried = Path(__file__).with_name(f"tried-{name}")
    if not tried.exists():
        tried.touch()
        assert name == "b"
"""


@pytest.fixture(scope="module")
def repeat():
    spec = importlib.util.spec_from_file_location("repeat", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["repeat"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["repeat"]


@pytest.fixture
def judge(repeat):
    """What comes of a run with such failures when these of them pass alone, and what was run again."""

    def judge(*failed, passing=(), status=1, second_status=None):
        asked = []

        def run_again(names):
            asked.extend(names)
            rest = tuple(name for name in names if name not in passing)
            ended = bool(rest) if second_status is None else second_status
            return repeat.Outcome(int(ended), frozenset(passing), rest)

        return *repeat.passed_alone(repeat.Outcome(status, failed=failed), run_again), asked

    return judge


def test_what_passes_alone_does_not_fail_the_run(judge):
    assert judge(BROWSER, LIVE, passing=(BROWSER, LIVE)) == (0, [BROWSER, LIVE], [BROWSER, LIVE])


def test_a_second_failure_fails_it(judge):
    assert judge(BROWSER, OTHER_BROWSER, passing=(BROWSER,)) == (1, [BROWSER], [BROWSER, OTHER_BROWSER])


def test_another_failure_fails_it_and_is_not_repeated(judge):
    assert judge(RULE, BROWSER, passing=(BROWSER,)) == (1, [BROWSER], [BROWSER])
    assert judge(RULE) == (1, [], [])


def test_a_test_that_was_skipped_has_not_passed(judge):
    assert judge(BROWSER, second_status=0) == (1, [], [BROWSER])


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_a_run_that_was_not_whole_is_not_mended_by_repeating(judge, status):
    assert judge(BROWSER, passing=(BROWSER,), status=status) == (status, [], [])
    assert judge(BROWSER, passing=(BROWSER,), second_status=status) == (status, [BROWSER], [BROWSER])


def test_a_failure_of_no_test_such_as_too_little_coverage_stays_one(judge):
    assert judge() == (1, [], [])


def test_a_run_is_repeated_and_what_passes_is_reported(tmp_path):
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist -p no:cacheprovider\n")
    (tmp_path / "tests" / "browser").mkdir(parents=True)
    (tmp_path / "tests" / "browser" / "test_walk.py").write_text(FAILS_ONCE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables = {"REPEAT_ROOT": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    done = subprocess.run(
        [sys.executable, str(SCRIPT), "test", str(tmp_path / "report")],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "1 of the failed tests run once more" in done.stdout
    name = "中文 a".encode("unicode_escape").decode()
    assert (tmp_path / "report").read_text() == f"tests/browser/test_walk.py::test_it[{name}]\n"
