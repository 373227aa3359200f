import numpy as np

from retrieval.clusters import clusters


def words(*texts):
    return [text.split() for text in texts]


def test_texts_of_nearly_the_same_words_are_one_group():
    texts = words("warranty heater years", "heater warranty years long", "return goods days", "goods return days")
    assert clusters(texts, [1, 5, 1, 1]) == [[1, 0], [2, 3]]


def test_the_heaviest_group_comes_first_and_its_heaviest_text_leads():
    texts = words("a b c", "x y z", "x y z w")
    assert clusters(texts, [3, 1, 4]) == [[2, 1], [0]]


def test_a_word_that_all_texts_have_binds_none():
    texts = words("heater warranty", "heater return", "heater price", "heater colour")
    assert len(clusters(texts, [1, 1, 1, 1])) == 4


def test_texts_without_terms_stay_by_themselves():
    assert clusters([[], [], ["a"]], [1, 1, 1]) == [[0], [1], [2]]
    assert clusters([], []) == []


def test_vectors_bring_together_what_shares_no_word():
    texts = words("car insurance", "motor cover", "bicycle")
    one, other = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    near = np.array([0.95, 0.3122], np.float32)
    assert clusters(texts, [2, 1, 1], [one, near, other]) == [[0, 1], [2]]
    assert clusters(texts, [2, 1, 1], [one, None, other]) == [[0], [1], [2]]
    assert clusters(texts, [2, 1, 1], [one, np.ones(3, np.float32), other]) == [[0], [1], [2]]


def test_the_order_of_texts_of_one_weight_changes_no_group():
    texts = words("a b c d", "a b c", "a b", "q r s", "q r")
    found = clusters(texts, [1] * 5)
    again = clusters(texts[::-1], [1] * 5)
    sets = {frozenset(group) for group in found}
    assert sets == {frozenset(4 - place for place in group) for group in again} or len(found) == len(again)
