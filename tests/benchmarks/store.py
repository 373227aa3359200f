"""The keyword index with its real tiers: PostgreSQL and Redis of its own, over stard-law, in one run.

Run by `make bench`, or alone as `python -m tests.benchmarks.store`.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

from retrieval.postings import hash_terms
from tests.benchmarks.corpora import Corpus, read_beir
from tests.benchmarks.engines import RankBM25
from tests.benchmarks.table import Row, compare, median_time, note, print_table, timed, tokenizing_seconds

STARD = "stard-law"
CHANGED_CHUNKS = 50
ROUNDS = 5


def start_servers() -> Path:
    """PostgreSQL and Redis in a folder of their own, with an empty database; returns the folder."""
    folder = Path(tempfile.mkdtemp(prefix="zhiku-benchmark-"))
    os.environ |= {"ZHIKU_DATA_DIR": str(folder), "DJANGO_SETTINGS_MODULE": "config.settings"}
    from config import embedded

    embedded.ensure(durable=False)
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    return folder


def store_corpus(corpus: Corpus):
    """The corpus as a knowledge base of one document, with postings and without vectors."""
    from kb.base.text import hash_content
    from kb.index.services.writing import write_postings
    from kb.models import Chunk, Document
    from retrieval.postings import count_postings
    from tests.factories import make_kb

    kb = make_kb(name=corpus.name)
    document = Document.objects.create(knowledge_base=kb, sha256="0" * 64, status=Document.Status.READY)
    chunks = [
        Chunk(knowledge_base=kb, document=document, position=position, text=text, content_hash=hash_content(text))
        for position, text in enumerate(corpus.passages)
    ]
    chunks = Chunk.objects.bulk_create(chunks, batch_size=5_000)
    counted = ({kb.tokenizer_id: count_postings(tokens)} for tokens in corpus.chunks)
    write_postings(zip(chunks, counted, strict=True))
    return kb


class Store:
    """What a search does to get at the index, the version included."""

    def __init__(self, kb) -> None:
        from kb.index.bm25 import BM25Store
        from kb.models import KnowledgeBaseVersion

        self._kb = kb
        self._versions = KnowledgeBaseVersion.objects.filter(pk=kb.pk).values_list("version", flat=True)
        self.store = BM25Store()

    def load(self):
        """The index of the present version."""
        from kb.index.bm25 import BM25Store

        requested = BM25Store().request(self._kb.pk, self._versions.get(), self._kb.tokenizer_id)
        return requested.wait(time.monotonic() + 600)


def measure(corpus: Corpus) -> list[Row]:
    """All rows."""
    from django.core.cache import caches

    from kb.models import Document
    from tests.factories import make_document
    from tests.kb.index.searching import new_process

    note(f"{corpus.name}: writing {len(corpus.chunks):,} chunks with their postings to PostgreSQL ...")
    kb = store_corpus(corpus)
    store = Store(kb)
    terms = hash_terms(corpus.queries[0])

    def answered_by(tier: str, *preparations) -> float:
        """Median seconds until a process that holds nothing has searched."""

        def once():
            for prepare in preparations:
                prepare()
            new_process()
            seconds, loaded = timed(store.load)
            assert loaded.detail["cache_tier"] == tier, loaded.detail
            new_process()
            return seconds

        return sorted(once() for _ in range(ROUNDS))[ROUNDS // 2]

    def changed() -> float:
        document = make_document(kb, *corpus.passages[:CHANGED_CHUNKS])
        seconds, loaded = timed(lambda: store.load().index.search(terms, 60))
        assert loaded[0].size
        Document.objects.filter(pk=document.pk).delete()
        store.load()
        return seconds

    rebuild = answered_by("build", lambda: store.store.invalidate(kb.pk))
    from_redis = answered_by("redis")
    from_database = answered_by("database", caches["bm25"].clear)
    store.load()
    change = sorted(changed() for _ in range(ROUNDS))[ROUNDS // 2]
    note("jieba + BM25Okapi ...")
    other = tokenizing_seconds(corpus) + median_time(lambda: RankBM25(corpus.chunks), 1)
    return [
        compare("rebuild from PostgreSQL, against jieba + BM25Okapi", corpus, rebuild, other),
        compare("load from Redis, against jieba + BM25Okapi", corpus, from_redis, other),
        compare("load from PostgreSQL, against jieba + BM25Okapi", corpus, from_database, other),
        compare(f"search after {CHANGED_CHUNKS} chunks were added, against a rebuild", corpus, change, rebuild),
    ]


def main() -> None:
    """Measure and print."""
    directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
    if not (directory / "corpus.jsonl").is_file():
        note(f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl.")
        return
    corpus = read_beir(directory, Path(tempfile.gettempdir(), "zhiku-benchmarks"))
    folder = start_servers()
    from config import embedded

    try:
        print_table(measure(corpus))
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
