"""Searches a server of one's own for a while and prints throughput, latency, statuses and degradations.

    python -m tests.load --key KEY --kb 1 --questions queries.txt --clients 8 --seconds 30

Only addresses of the loopback are taken, at most 64 clients and ten minutes.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from tests.load.client import MOST_CLIENTS, MOST_SECONDS, NotLoopback, Target, searches, under_load
from tests.load.report import Figures


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 where every answer was of status 200."""
    options = _parser().parse_args(arguments)
    questions = _questions(options.questions)
    if not questions:
        print("There is no question: give one a line, or queries.jsonl of an evaluation set.", file=sys.stderr)
        return 2
    fields = {"top_k": options.top_k} | ({"score_threshold": 0} if options.ungated else {})
    try:
        target = Target(options.url, options.key, options.kb, fields)
    except NotLoopback as error:
        print(error, file=sys.stderr)
        return 2
    answers = under_load(searches(target), questions, clients=options.clients, seconds=options.seconds)
    print(Figures.of(answers))
    return int(any(answer.status != 200 for answer in answers))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    parser.add_argument(
        "--key",
        default=os.environ.get("ZHIKU_API_KEY", ""),
        help="an API key; read from ZHIKU_API_KEY where it is not given",
    )
    parser.add_argument("--kb", type=int, nargs="+", required=True, help="ids of the knowledge bases")
    parser.add_argument("--questions", type=Path, required=True, help="one question a line, or JSON lines with a text")
    parser.add_argument("--clients", type=_up_to(MOST_CLIENTS), default=8, help="at a time (default: %(default)s)")
    parser.add_argument("--seconds", type=_up_to(MOST_SECONDS), default=30, help="how long (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=5, help="results (default: %(default)s)")
    parser.add_argument("--ungated", action="store_true", help="without the relevance gate")
    return parser


def _up_to(most: float):
    def number(text: str) -> int:
        value = int(text)
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"from 1 to {most:.0f}")
        return value

    return number


def _questions(path: Path) -> list[str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [json.loads(line)["text"] if line.startswith("{") else line for line in lines]


if __name__ == "__main__":
    sys.exit(main())
