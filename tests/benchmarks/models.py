"""Relevance on the public sets with the recommended models: `python -m tests.benchmarks.models` downloads and measures them.

The figures and pages are those of `python -m tests.benchmarks.quality`. An embedding model is measured with the lexical
reranker, a reranker over the small embedding model of each language that it knows. All of them are 16 GB, and
large ones take days on a CPU: `--sets` and `--models` choose.
"""

from collections.abc import Collection, Iterator

from tests.benchmarks.quality import LANGUAGES, Models, measure_and_write, parser
from tests.benchmarks.table import note


def combinations() -> Iterator[Models]:
    """What is measured, the small models first."""
    from kb.providers.recommended import MANY, MODELS, Role, Size, models_of

    for size in Size:
        for each in MODELS:
            languages = LANGUAGES if MANY in each.languages else frozenset(each.languages)
            if each.size != size:
                continue
            if each.role == Role.EMBEDDING:
                yield Models(each.model_id, languages=languages)
                continue
            for language in sorted(languages):
                below = models_of(Role.EMBEDDING, language, Size.SMALL)[0]
                yield Models(below.model_id, each.model_id, languages=frozenset({language}))


def downloaded(chosen: Collection[str]) -> Iterator[Models]:
    """Those of chosen models (none: all), each downloaded when its turn comes; what cannot be is said, and left out."""
    from django.core.management import CommandError, call_command

    for models in combinations():
        if chosen and (models.reranker or models.embedding) not in chosen:
            continue
        try:
            for model in filter(None, (models.embedding, models.reranker)):
                call_command("download_model", model)
        except CommandError as error:
            note(f"Left out: {error}")
        else:
            yield models


def main() -> None:
    """Download, measure, and write the pages."""
    made = parser(__doc__)
    made.add_argument("--models", nargs="+", metavar="ID", default=[], help="only these of the recommended models")
    arguments = made.parse_args()
    measure_and_write(downloaded(arguments.models), arguments)


if __name__ == "__main__":
    main()
