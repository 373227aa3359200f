import pytest

from kb.index import vector_index
from kb.index.vector_index import VectorSpace, available_bytes, build_options

GIGABYTE = 1024**3


@pytest.fixture(autouse=True)
def _ample(settings):
    settings.INDEX_BUILD_MEMORY_BYTES, settings.INDEX_BUILD_WORKERS = 100 * GIGABYTE, None


def space(vectors):
    return VectorSpace(1, "model", "content", vectors, 1_024)


def test_it_grows_with_the_vectors_and_holds_pgvectors_graph_of_each():
    measured = 2_048 + 750
    for vectors in (50_000, 215_616, 1_000_000):
        assert vectors * measured < space(vectors).build_bytes < 1.3 * vectors * measured
        assert space(vectors).build_remedy == ""


def test_it_stays_within_the_setting_and_says_what_would_be_enough(settings):
    settings.INDEX_BUILD_MEMORY_BYTES = 256 * 1024**2

    remedy = space(215_616).build_remedy

    assert vector_index.most_build_bytes() == 256 * 1024**2
    wanted = int(remedy.removeprefix("INDEX_BUILD_MEMORY_MB="))
    settings.INDEX_BUILD_MEMORY_BYTES = wanted * 1024**2
    assert space(215_616).build_remedy == ""


def test_beside_a_server_of_ones_own_it_takes_half_of_what_is_free(settings):
    settings.INDEX_BUILD_MEMORY_BYTES, settings.EMBEDDED = None, True
    assert vector_index.most_build_bytes() <= available_bytes()
    assert vector_index.most_build_bytes() > 64 * 1024**2


def test_of_a_server_elsewhere_nothing_is_known(settings):
    settings.INDEX_BUILD_MEMORY_BYTES, settings.EMBEDDED = None, False
    assert vector_index.most_build_bytes() == GIGABYTE


def test_the_limit_of_a_control_group_counts(settings, tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{GIGABYTE}\n")
    (tmp_path / "memory.stat").write_text(f"anon {GIGABYTE // 4}\nfile {GIGABYTE // 2}\n")
    monkeypatch.setattr(vector_index, "CGROUP", tmp_path)
    assert available_bytes() <= 3 * GIGABYTE // 4
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() > 3 * GIGABYTE // 4


def test_workers_are_those_of_the_server_unless_they_are_set(settings):
    settings.EMBEDDED = False
    assert build_options(GIGABYTE) == {"maintenance_work_mem": 1024**2}
    settings.INDEX_BUILD_WORKERS = 3
    assert build_options(GIGABYTE) == {"maintenance_work_mem": 1024**2, "max_parallel_maintenance_workers": 3}
