"""Several commands of manage.py one after the other in one process, for tests that need no process for each of them."""

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass

from tests.serving import ROOT, SECONDS


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit code."""

    stdout: str
    stderr: str
    returncode: int


def run_in_turn(*commands, environment=None):
    """Runs the commands; returns the result of each.

    Args:
        commands: the arguments of each; a dictionary among them is what changes in the environment from there on.
        environment: of the process; None for that of this one.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "tests.config.commands"],
        cwd=ROOT,
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=SECONDS * len(commands),
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [Result(*each) for each in json.loads(ran.stdout)]


def _run(arguments):
    from config.__main__ import main

    sys.argv = ["manage.py", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        code = 0
        try:
            main()
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
            code = 1 if isinstance(end.code, str) else end.code or 0
        except Exception:  # noqa: BLE001 - it would end a process of its own
            traceback.print_exc()
            code = 1
    return stdout.getvalue(), stderr.getvalue(), code


def _run_all(commands):
    for each in commands:
        if isinstance(each, dict):
            os.environ |= each
        else:
            yield _run(each)


if __name__ == "__main__":
    sys.stdout.write(json.dumps([*_run_all(json.load(sys.stdin))]))
