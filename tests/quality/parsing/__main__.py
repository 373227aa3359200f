"""Reads the test bed with Zhiku and with the other readers that are installed, and prints how near each comes to the truth.

`python -m tests.quality.parsing [--only TAG ...] [--reader NAME ...] [--files FOLDER] [--each]`
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import pypdfium2

from tests.quality.parsing.cases import cases
from tests.quality.parsing.files import ProgramMissing, make
from tests.quality.parsing.measures import Measured, measure
from tests.quality.parsing.readers import READERS, installed

MEASURES = ("text", "tables", "headings", "boilerplate")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.quality.parsing")
    arguments.add_argument("--only", nargs="*", default=[], help="tags of documents, such as: ruled scan")
    arguments.add_argument("--reader", nargs="*", default=installed(), choices=list(READERS))
    arguments.add_argument("--files", type=Path, default=Path(".data/parsing"), help="where the files are, or are made")
    arguments.add_argument("--each", action="store_true", help="every document, too")
    given = arguments.parse_args()
    wanted = [case for case in cases() if not given.only or any(word in case.name for word in given.only)]
    measured: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    try:
        for case, file in make(wanted, given.files):
            with pypdfium2.PdfDocument(file) as document:
                pages = len(document)
            kind = "scanned" if case.scan in ("clean", "noisy") else "digital"
            counts[kind] += pages
            for name in given.reader:
                started = time.perf_counter()
                try:
                    reading = READERS[name](file)
                except Exception as error:  # noqa: BLE001 - that a reader cannot read a file is a result
                    print(f"{name} cannot read {file.name}: {error}", file=sys.stderr)
                    continue
                seconds[name, kind] += time.perf_counter() - started
                one = measure(case.document, reading, pages)
                measured[name, kind].append(one)
                if given.each:
                    print(f"{case.name:32} {name:12}", *(_shown(getattr(one, each)) for each in MEASURES))
    except ProgramMissing as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"\n{len(wanted)} documents, {sum(counts.values())} pages\n\n| reader | files | {' | '.join(MEASURES)} | pages a second |"
    )
    print("|---|---|" + "---|" * (len(MEASURES) + 1))
    for (name, kind), all_of in measured.items():
        means = (_mean([getattr(one, each) for one in all_of]) for each in MEASURES)
        print(f"| {name} | {len(all_of)} {kind} | {' | '.join(means)} | {counts[kind] / seconds[name, kind]:.1f} |")
    return 0


def _mean(values) -> str:
    known = [value for value in values if value is not None]
    return _shown(statistics.fmean(known) if known else None)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
