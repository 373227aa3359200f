from hypothesis import given, strategies as st

from kb.sources.push.plan import plan_of

NAMES = st.sampled_from("abcdef")
DIGESTS = st.sampled_from("12345")
FOLDERS = st.dictionaries(NAMES, DIGESTS)


def plan(wanted, held, settled=(), kept=()):
    found = plan_of(wanted, held, dict(settled), frozenset(kept))
    return list(found.unchanged), list(found.moved), list(found.send), list(found.delete)


def test_new_changed_unchanged_and_gone_files():
    wanted, held = {"a": "1", "b": "3", "d": "4"}, {"a": "1", "b": "2", "c": "9"}

    assert plan(wanted, held) == (["a"], [], ["b", "d"], ["c"])


def test_renamed_files_are_moved():
    assert plan({"b": "1"}, {"a": "1"}) == ([], [("a", "b")], [], [])


def test_files_that_change_places_are_moved_both():
    assert plan({"a": "2", "b": "1"}, {"a": "1", "b": "2"}) == (["b"], [("b", "a")], [], [])


def test_names_that_all_move_on_by_one_are_moved():
    held = {"a": "1", "b": "2", "c": "3"}

    assert plan({"b": "1", "c": "2", "d": "3"}, held) == ([], [("a", "b"), ("a", "c"), ("a", "d")], [], [])


def test_a_copy_is_sent_while_the_first_is_there():
    assert plan({"a": "1", "b": "1"}, {"a": "1"}) == (["a"], [], ["b"], [])


def test_a_copy_that_was_sent_is_not_sent_again_until_its_twin_has_gone():
    assert plan({"a": "1", "b": "1"}, {"a": "1"}, settled={"b": "1"}) == (["a", "b"], [], [], [])
    assert plan({"b": "1"}, {"a": "1"}, settled={"b": "1"}) == ([], [("a", "b")], [], [])


def test_a_file_whose_content_is_anothers_now_loses_what_it_had():
    assert plan({"a": "1", "b": "1"}, {"a": "1", "b": "2"}, settled={"b": "1"}) == (["a", "b"], [], [], ["b"])


def test_a_file_that_cannot_be_taken_keeps_its_document():
    assert plan({"b": "1"}, {"a": "1"}, kept="a") == ([], [], ["b"], [])


@given(FOLDERS, FOLDERS)
def test_every_plan_ends_with_what_the_folder_has(wanted, held):
    found = plan_of(wanted, held, {}, frozenset())
    documents = {path: (path, digest) for path, digest in held.items()}  # by who held them first
    for source, target in found.moved:
        mine = documents.pop(target, None)
        documents[target] = documents.pop(source)
        if mine is not None:
            documents[source] = mine
    for path in found.delete:
        del documents[path]
    for path in found.send:
        documents[path] = (documents.get(path, ("new",))[0], wanted[path])

    assert {path: digest for path, (_, digest) in documents.items()} == wanted
    assert set(found.unchanged) == {path for path, digest in wanted.items() if path not in found.send} - {
        target for _, target in found.moved
    }


@given(FOLDERS, FOLDERS)
def test_no_content_is_sent_or_deleted_that_moving_would_save(wanted, held):
    found = plan_of(wanted, held, {}, frozenset())
    needed, there = list(wanted.values()), list(held.values())

    for digest in set(needed):
        sent = sum(wanted[path] == digest for path in found.send)
        assert sent == max(0, needed.count(digest) - there.count(digest))
