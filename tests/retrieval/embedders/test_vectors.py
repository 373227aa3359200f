import numpy as np
import pytest

from retrieval.embedders.sentence_transformer import unit_vectors
from retrieval.errors import ModelUnavailable


def test_rows_come_out_at_length_one():
    vectors = unit_vectors(np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32), model_id="m")

    assert vectors == pytest.approx(np.array([[0.6, 0.8], [0.0, 1.0]]))
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("bad", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0], [3e38, 3e38]])
def test_a_row_without_direction_is_refused(bad):
    with pytest.raises(ModelUnavailable, match=r"model 'm' returned 1 of 2 vectors .* choose another model"):
        unit_vectors(np.array([[1.0, 0.0], bad], dtype=np.float32), model_id="m")
