import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import numpy as np
import pytest

from retrieval.errors import DegradationCode, RerankerUnavailable
from retrieval.rerankers.cross_encoder import PACE_KEPT_S, CrossEncoderReranker, get_cross_encoder
from tests.retrieval.rerankers.jobs import candidate, job, of_texts, soon
from tests.retrieval.rerankers.tiny import save_tiny_model, save_tiny_modular_reranker

pytestmark = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs the 'models' extra")

QUERY = "which cat sleeps"
TEXTS = [letter * length for length, letter in enumerate("the quick brown fox jumps".replace(" ", ""), start=1)]


class Clock:
    """The time at which a test began and what it adds to that: it stands still while the machine is busy."""

    ahead = 0.0

    def __init__(self):
        self._began = time.monotonic()

    def __call__(self):
        return self._began + self.ahead


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def at_forward():
    """Calls a function before each forward pass of a cross-encoder, in the thread that predicts."""
    from sentence_transformers import CrossEncoder
    from torch.nn.modules.module import register_module_forward_pre_hook

    handles = []

    def install(function):
        def hook(module, _inputs):
            if isinstance(module, CrossEncoder):
                function()

        handles.append(register_module_forward_pre_hook(hook))

    yield install
    for handle in handles:
        handle.remove()


def loaded(path, **options):
    reranker = CrossEncoderReranker(str(path), "cpu", **options)
    reranker.load(soon())
    return reranker


def directly(path, pairs, **options):
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(path), device="cpu", local_files_only=True, **options).predict(pairs)


def code_of(reranker, a_job, deadline=None):
    with pytest.raises(RerankerUnavailable) as raised:
        reranker.scores(a_job, soon() if deadline is None else deadline)
    return raised.value.code


def test_construction_imports_and_loads_nothing():
    code = (
        "import sys;"
        "from retrieval.rerankers.cross_encoder import get_cross_encoder;"
        "get_cross_encoder('BAAI/bge-reranker-base');"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & sys.modules.keys()"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scores_are_those_of_the_model_in_the_order_of_the_candidates(tiny):
    scores = CrossEncoderReranker(str(tiny), "cpu", batch_size=4).scores(of_texts(QUERY, TEXTS), soon())

    expected = directly(tiny, [(QUERY, text) for text in TEXTS])
    assert scores == pytest.approx(expected, abs=1e-5)
    assert scores.argsort().tolist() == expected.argsort().tolist()
    assert len(set(scores.round(3))) > len(TEXTS) / 2


def test_a_model_stored_with_raw_logits_scores_from_0_to_1_all_the_same(tiny, tmp_path):
    from sentence_transformers import CrossEncoder
    from torch.nn import Identity

    CrossEncoder(str(tiny), device="cpu", activation_fn=Identity()).save_pretrained(str(tmp_path / "raw"))
    logits = directly(tmp_path / "raw", [(QUERY, text) for text in TEXTS])
    assert logits.min() < 0

    scores = CrossEncoderReranker(str(tmp_path / "raw"), "cpu").scores(of_texts(QUERY, TEXTS), soon())

    assert scores == pytest.approx(1 / (1 + np.exp(-logits.astype(np.float64))), abs=1e-5)


def test_a_model_of_modules_is_a_cross_encoder_like_any_other(tmp_path):
    folder = save_tiny_modular_reranker(tmp_path / "modular")

    scores = loaded(folder).scores(of_texts(QUERY, TEXTS), soon())

    assert scores == pytest.approx(directly(folder, [(QUERY, text) for text in TEXTS]), abs=1e-5)
    assert scores.max() > scores.min()


def test_high_logits_are_told_apart(tmp_path):
    folder = save_tiny_modular_reranker(tmp_path / "certain", bias=22.0)
    assert set(directly(folder, [(QUERY, text) for text in TEXTS])) == {1.0}

    assert len(set(loaded(folder).scores(of_texts(QUERY, TEXTS), soon()))) > len(TEXTS) / 2


def test_a_passage_is_read_in_its_context(tiny):
    in_context = candidate(1, text="abc", title="cats", headings=("care", "sleep"))

    scores = CrossEncoderReranker(str(tiny), "cpu").scores(job(QUERY, [in_context]), soon())

    assert scores == pytest.approx(directly(tiny, [(QUERY, "cats\ncare > sleep\nabc")]), abs=1e-5)


def test_a_passage_is_read_after_the_question_that_is_closest_to_the_query(tiny):
    asked = candidate(1, text="abc", questions=("who pays?", f"{QUERY} here"), ranks={"question_bm25": 3})
    others = candidate(2, text="abc", questions=("0123", "4567"), ranks={"question": 1})

    scores = CrossEncoderReranker(str(tiny), "cpu").scores(job(QUERY, [asked, others]), soon())

    expected = directly(tiny, [(QUERY, f"{QUERY} here\nabc"), (QUERY, "abc")])
    assert scores == pytest.approx(expected, abs=1e-5)


def test_no_candidates_need_no_model(tmp_path):
    assert CrossEncoderReranker(str(tmp_path / "none")).scores(job(QUERY, []), soon()).shape == (0,)


def test_the_first_job_loads_the_model(tiny):
    reranker = CrossEncoderReranker(str(tiny), "cpu")
    assert not reranker.is_loaded

    reranker.scores(of_texts(QUERY, TEXTS[:1]), soon())

    assert reranker.is_loaded


def test_a_process_has_one_reranker_a_model(tiny):
    assert get_cross_encoder(str(tiny)) is get_cross_encoder(str(tiny))


def test_a_model_that_is_not_here_names_the_remedy(tmp_path):
    with pytest.raises(RerankerUnavailable, match=r"manage\.py download_model .*RERANKER_MODEL=") as raised:
        CrossEncoderReranker(str(tmp_path / "none")).scores(of_texts(QUERY, ["a"]), soon())

    assert raised.value.code == DegradationCode.RERANKER_UNAVAILABLE


def test_a_failed_load_is_remembered_until_the_interval_has_passed(tmp_path):
    clock = Clock()
    reranker = CrossEncoderReranker(str(tmp_path / "late"), "cpu", retry_after_s=1_000, clock=clock)
    assert code_of(reranker, of_texts(QUERY, ["a"])) == DegradationCode.RERANKER_UNAVAILABLE
    save_tiny_model(tmp_path / "late")

    clock.ahead = 900
    assert code_of(reranker, of_texts(QUERY, ["a"]), soon() + 900) == DegradationCode.RERANKER_UNAVAILABLE
    assert not reranker.is_loaded
    clock.ahead = 1_001
    assert reranker.scores(of_texts(QUERY, ["a"]), soon() + 1_001).shape == (1,)


def test_a_remembered_failure_answers_also_who_would_load_the_model(tmp_path):
    reranker = CrossEncoderReranker(str(tmp_path / "none"), "cpu")
    code_of(reranker, of_texts(QUERY, ["a"]))

    with pytest.raises(RerankerUnavailable, match="tried again after 300 s"):
        reranker.load(soon())


def test_failed_loads_do_not_open_the_breaker(tmp_path):
    reranker = CrossEncoderReranker(str(tmp_path / "none"), "cpu", retry_after_s=0)

    codes = {code_of(reranker, of_texts(QUERY, ["a"])) for _ in range(5)}

    assert codes == {DegradationCode.RERANKER_UNAVAILABLE}


@pytest.mark.parametrize("kind", [{"head": False}, {"labels": 3}])
def test_a_model_that_is_no_cross_encoder_is_refused(tmp_path, kind):
    save_tiny_model(tmp_path / "other", **kind)

    with pytest.raises(RerankerUnavailable, match="no cross-encoder with one label") as raised:
        CrossEncoderReranker(str(tmp_path / "other"), "cpu").scores(of_texts(QUERY, ["a"]), soon())

    assert raised.value.code == DegradationCode.RERANKER_UNAVAILABLE


def test_damaged_files_are_a_failed_load(tmp_path):
    (save_tiny_model(tmp_path / "damaged") / "model.safetensors").write_bytes(b"not weights")

    assert (
        code_of(CrossEncoderReranker(str(tmp_path / "damaged"), "cpu"), of_texts(QUERY, ["a"]))
        == DegradationCode.RERANKER_UNAVAILABLE
    )


def test_scores_that_are_not_finite_are_a_failure(tmp_path):
    save_tiny_model(tmp_path / "nan", weights=float("nan"))

    assert (
        code_of(CrossEncoderReranker(str(tmp_path / "nan"), "cpu"), of_texts(QUERY, ["a"]))
        == DegradationCode.RERANKER_FAILED
    )


def test_an_error_of_the_device_is_a_failure(tiny, at_forward):
    def out_of_memory():
        raise RuntimeError("out of memory")

    at_forward(out_of_memory)

    assert code_of(loaded(tiny), of_texts(QUERY, ["a"])) == DegradationCode.RERANKER_FAILED


def test_a_hang_is_a_timeout_and_opens_the_breaker(tiny, at_forward):
    released = threading.Event()
    at_forward(released.wait)
    reranker = loaded(tiny, patience_s=0)
    try:
        codes = [code_of(reranker, of_texts(QUERY, ["a"]), time.monotonic() + 0.05) for _ in range(4)]
    finally:
        released.set()

    assert codes == [DegradationCode.RERANKER_TIMEOUT] * 3 + [DegradationCode.MODEL_CIRCUIT_OPEN]


def test_searches_with_little_time_do_not_open_the_breaker(tiny, at_forward):
    released = threading.Event()
    at_forward(released.wait)
    reranker = loaded(tiny)
    try:
        codes = {code_of(reranker, of_texts(QUERY, ["a"]), time.monotonic() + 0.02) for _ in range(4)}
    finally:
        released.set()

    assert codes == {DegradationCode.RERANKER_TIMEOUT}
    assert reranker.scores(of_texts(QUERY, ["a"]), soon()).shape == (1,)


@pytest.fixture
def slow(tiny, at_forward):
    """A reranker of 2 pairs a batch whose passes take 10 s each, by its clock; and how many there were."""
    clock, passes = Clock(), []

    def take_ten_seconds():
        passes.append(1)
        clock.ahead += 10

    at_forward(take_ten_seconds)
    return loaded(tiny, batch_size=2, clock=clock), clock, passes


def test_no_batch_begins_after_the_deadline(slow):
    reranker, clock, passes = slow

    assert code_of(reranker, of_texts(QUERY, TEXTS), clock() + 15) == DegradationCode.RERANKER_TIMEOUT
    assert len(passes) == 2


def test_a_job_that_the_pace_cannot_finish_is_not_begun_and_no_failure_of_the_model(slow):
    reranker, clock, passes = slow
    reranker.scores(of_texts(QUERY, TEXTS[:2]), clock() + 30)

    hopeless = {code_of(reranker, of_texts(QUERY, TEXTS[:8]), clock() + 15) for _ in range(5)}

    assert hopeless == {DegradationCode.RERANKER_TIMEOUT}
    assert len(passes) == 1
    assert reranker.scores(of_texts(QUERY, TEXTS[:2]), clock() + 30).shape == (2,)


def test_a_pace_is_forgotten_after_a_while(slow):
    reranker, clock, passes = slow
    reranker.scores(of_texts(QUERY, TEXTS[:2]), clock() + 30)

    clock.ahead += PACE_KEPT_S
    code_of(reranker, of_texts(QUERY, TEXTS[:8]), clock() + 15)

    assert len(passes) == 3


def test_the_best_pace_of_late_counts(slow):
    reranker, clock, _ = slow
    reranker.scores(of_texts(QUERY, TEXTS[:2]), clock() + 30)
    reranker.scores(of_texts(QUERY, TEXTS[:1]), clock() + 30)

    # 5 s a pair in the first pass, 10 s in the second.
    assert reranker.scores(of_texts(QUERY, TEXTS[:2]), clock() + 12).shape == (2,)


def test_loading_again_changes_nothing(tiny):
    reranker = loaded(tiny)
    reranker.load(time.monotonic() - 1)
    assert reranker.is_loaded
