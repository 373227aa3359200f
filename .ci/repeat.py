"""Runs `make test` or `make coverage`, then once more, alone, what failed in REPEATED: repeat.py TARGET REPORT.

Tests in these folders start processes or a browser, and may fail because the machine is busy. A test that passes alone is
added to REPORT and does not fail the run. A second failure fails it, as does any other failure.

pytest loads this module as a plugin, which writes the outcome of its run to the file that OUTCOME names.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("REPEAT_ROOT") or Path(__file__).resolve().parents[1])
REPEATED = ("tests/browser/", "tests/live/", "tests/load/", "tests/deployment/")
TESTS_FAILED = 1
MOST_FAILURES = 5  # the second run ends early: it has failed
COVERAGE = ("--cov", "--cov-append", "--cov-report=term")


@dataclass(frozen=True)
class Outcome:
    """The exit status of pytest, and the ids of the tests that passed and failed."""

    status: int
    passed: frozenset[str] = frozenset()
    failed: tuple[str, ...] = ()


def passed_alone(first: Outcome, run_again: Callable[[list[str]], Outcome]) -> tuple[int, list[str]]:
    """The exit status of the whole, and the tests that failed at first and passed alone.

    Args:
        first: the run of all tests.
        run_again: runs the tests with these ids one after another.
    """
    again = [name for name in first.failed if name.startswith(REPEATED)]
    if first.status != TESTS_FAILED or not again:
        return first.status, []
    second = run_again(again)
    passed = [name for name in again if name in second.passed]
    return second.status or (0 if passed == list(first.failed) else TESTS_FAILED), passed


def main(target: str, report: Path) -> int:
    def run_again(names: list[str]) -> Outcome:
        sys.stdout.write(f"\n== {len(names)} of the failed tests run once more, alone\n")
        sys.stdout.flush()
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
            ids.write("\n".join(names))
            ids.flush()
            options = ["-n", "0", f"--maxfail={MOST_FAILURES}", *(COVERAGE if target == "coverage" else ())]
            return _run([sys.executable, "-m", "pytest", *options, f"@{ids.name}"])

    status, passed = passed_alone(_run(["make", target]), run_again)
    with report.open("a") as lines:
        lines.writelines(f"{name}\n" for name in passed)
    return status


def _run(command: list[str]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "outcome.json"
        path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        options = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p {Path(__file__).stem}"
        environment = os.environ | {"OUTCOME": str(written), "PYTHONPATH": path, "PYTEST_ADDOPTS": options}
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if not written.exists():
            return Outcome(status)  # pytest did not start, or did not end
        outcome = json.loads(written.read_text())
    return Outcome(outcome["status"] or status, frozenset(outcome["passed"]), tuple(outcome["failed"]))


_failed: dict[str, None] = {}
_passed: set[str] = set()


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _failed[report.nodeid] = None
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _failed[report.nodeid] = None


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Writes the outcome, in the process that began the run: those of xdist send it their reports."""
    if not hasattr(session.config, "workerinput"):
        outcome = {"status": int(exitstatus), "passed": sorted(_passed - _failed.keys()), "failed": list(_failed)}
        Path(os.environ["OUTCOME"]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
