"""The parser in this process, for tests of what is done with a parsed file: a child takes a third of a second to start.

Tests of the child, its limits and its confinement have the mark `sandbox`.
"""

import subprocess
import warnings
from contextlib import nullcontext

from kb.ingest.parser import sandbox
from kb.ingest.parser.sandbox import WarmParser

_child_process, _communicate = sandbox._child_process, sandbox._communicate


def run_in_process(monkeypatch):
    """Jobs of the sandbox are called, and answer what an unconfined child would."""
    monkeypatch.setattr(sandbox, "_child_process", _order)
    monkeypatch.setattr(sandbox, "_communicate", _answered)
    monkeypatch.setattr(WarmParser, "_ask", _ask)


def _order(path, order):
    return _child_process(path, order) if order["job"] == "probe" else nullcontext((path, order))


def _answered(process, limits):
    if isinstance(process, subprocess.Popen):
        return _communicate(process, limits)
    path, order = process
    return _answer(order["job"], path, order["arguments"]), b"", 0


def _ask(parser, job, path, arguments):
    parser._files += 1
    return _answer(job, path, arguments)


def _answer(job, path, arguments):
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in the child, where a library's warning is no error
        return sandbox.answer(job, file, arguments)
