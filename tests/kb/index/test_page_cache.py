"""What is read from disk after a start, and that one process does it once."""

import ctypes
import mmap
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.core.cache import caches
from django.db import connection
from django.utils import timezone

from kb.base.db.transactions import Purpose, try_lock
from kb.index.vector_index import knowledge_bases_by_use, maintain_vector_indexes, note_key, read_in, vector_spaces
from kb.models import ChunkEmbedding, KnowledgeBase, SearchLog
from kb.search import wiring as conf
from tests.factories import make_document, make_kb
from tests.kb.index.searching import new_process, tier
from tests.kb.index.vectors import add_chunks, add_vectors, clustered

pytestmark = pytest.mark.django_db(transaction=True)
ROWS, DIMENSION = 400, 64
GIGABYTE = 1024**3


@pytest.fixture(autouse=True)
def _ample(settings):
    settings.VECTOR_INDEX_MIN_ROWS, settings.WARM_UP_BYTES = 100, GIGABYTE
    caches["bm25"].delete(note_key())
    yield
    KnowledgeBase.objects.all().delete()
    ChunkEmbedding.objects.all().delete()
    maintain_vector_indexes()


def filled(rows=ROWS):
    kb = make_kb()
    add_vectors(kb, add_chunks(kb, rows), clustered(rows, dimension=DIMENSION))
    return kb


def indexed():
    """The name of the finished index of a knowledge base."""
    kb = filled()
    maintain_vector_indexes(kb.pk)
    [space] = vector_spaces(kb.pk)
    assert space.has_index
    return space.index_name


def fetch(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()[0][0]


def file_of(relation):
    return Path(fetch("SHOW data_directory"), fetch("SELECT pg_relation_filepath(%s::regclass)", relation))


@contextmanager
def mapped(path):
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        yield file, pages


def cached_share(path):
    """The share of a file's pages that are in the page cache."""
    with mapped(path) as (_, pages):
        count = -(-len(pages) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * count)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        assert (
            ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(pages)), found) == 0
        )
        return sum(each & 1 for each in found) / count


def evict(path):
    """Has the system forget a file, as after a start; some file systems do not."""
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_whole_index_of_vectors_is_read_from_a_cold_disk():
    name = indexed()
    path = file_of(name)
    evict(path)
    if cached_share(path) > 0.5:
        pytest.skip("this file system keeps its pages")

    _parts, size, left_out = read_in()

    assert cached_share(path) == 1.0
    assert left_out == 0
    assert size > path.stat().st_size


def test_one_process_reads_and_once_after_a_start():
    filled()
    with try_lock(Purpose.PAGE_CACHE, 0):
        assert read_in() is None
    assert read_in()[0]
    assert read_in() is None


def test_it_stays_within_its_bound_and_says_what_it_left_out(settings):
    name = indexed()
    settings.WARM_UP_BYTES = file_of(name).stat().st_size - 1
    _parts, size, left_out = read_in()
    assert size <= settings.WARM_UP_BYTES
    assert left_out


def test_it_can_be_switched_off(settings):
    filled()
    settings.WARM_UP_BYTES = 0
    assert read_in() is None


def test_what_was_searched_lately_comes_first_and_the_largest_of_it():
    unused, small, large = (make_kb() for _ in range(3))
    for kb, count in ((unused, 9), (small, 1), (large, 5)):
        make_document(kb, *(f"第 {number} 条" for number in range(count)))
        tier(kb)  # builds the stored index, which knows how many chunks there are
    new_process()
    for kb in (small, large):
        SearchLog.objects.create(
            knowledge_base_ids=[kb.pk],
            query="条",
            profile_version=1,
            configuration={},
            trace={},
            result_count=1,
            duration_ms=1.0,
            created_at=timezone.now(),
        )

    assert knowledge_bases_by_use() == [large.pk, small.pk, unused.pk]


def test_a_process_that_has_warmed_up_holds_the_keyword_indexes_in_memory():
    kb = make_kb()
    make_document(kb, "保修 24 个月")
    tier(kb)
    new_process()

    conf.warm_up()

    assert tier(kb) == "process"
