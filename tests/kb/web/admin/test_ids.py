import pytest

from kb.web.admin.scoped import row_id, row_ids


@pytest.mark.parametrize("text", ["", "²", "٣", "-1", "1.0", "9" * 19, "9" * 5_000])
def test_what_is_no_id_of_a_row_is_none(text):
    assert row_id(text) is None


def test_ids_are_found_among_other_texts():
    assert row_ids(["7", " 8 ", "x", "²"]) == [7, 8]
