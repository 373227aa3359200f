import threading
from pathlib import Path

import pytest

from retrieval.embedders.hashing import HashingEmbedder
from retrieval.embedders.registry import MAX_EMBEDDERS, get_embedder, normalize_model_id
from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Hashing ", "hashing"),
        (" BAAI/bge-m3/ ", "BAAI/bge-m3"),
        ("OpenAI: text-embedding-3-small", "openai:text-embedding-3-small"),
        ("Model: bge-m3-1f2e3d4c", "model:bge-m3-1f2e3d4c"),
        ("/models/../models/x/", "/models/x"),
        ("./x", str(Path("x").resolve())),
        ("~/x", str(Path.home().resolve() / "x")),
    ],
)
def test_one_model_has_one_spelling(given, expected):
    assert normalize_model_id(given) == expected


@pytest.mark.parametrize("empty", ["", "  ", "openai:", "openai: ", "model:"])
def test_an_empty_id_is_refused(empty):
    with pytest.raises(ValueError, match="names no embedding model: give"):
        normalize_model_id(empty)


@pytest.mark.parametrize(
    ("model_id", "kind"),
    [("hashing", HashingEmbedder), ("org/name", SentenceTransformerEmbedder)],
)
def test_the_id_chooses_the_kind(model_id, kind):
    embedder = get_embedder(model_id)

    assert isinstance(embedder, kind)
    assert embedder.model_id == model_id


def test_the_same_model_and_options_share_an_instance():
    assert get_embedder("org/name") is get_embedder(" org/name/")


def test_the_least_recently_used_embedder_is_dropped():
    first = get_embedder("org/first")
    second = get_embedder("org/second")
    for number in range(MAX_EMBEDDERS - 2):
        get_embedder(f"org/{number}")
    get_embedder("org/first")
    get_embedder("org/last")

    assert get_embedder("org/first") is first
    assert get_embedder("org/second") is not second


def test_threads_get_one_instance():
    barrier = threading.Barrier(8)
    found = []

    def ask():
        barrier.wait()
        found.append(get_embedder("org/threads"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(map(id, found))) == 1
