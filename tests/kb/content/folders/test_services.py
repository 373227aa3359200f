import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kb.base.errors import NotVisible, Rejected
from kb.content.folders import services
from kb.content.folders.services import (
    MOST_DEPTH,
    Tree,
    documents_in,
    documents_move,
    folder_create,
    folder_delete,
    folder_update,
    folders_of,
)
from kb.content.services import knowledge_base_delete
from kb.index.filters import Filters, chunk_ids
from kb.ingest.services.documents import documents_delete
from kb.models import AuditEntry, Document, Folder, KnowledgeBaseVersion
from tests.factories import make_document, make_kb, principal


@pytest.fixture
def laws(kb):
    return folder_create(kb=kb, name="laws")


@pytest.fixture
def labour(kb, laws):
    return folder_create(kb=kb, name="labour", parent=laws)


def passing(kb, *folders):
    found = chunk_ids(kb.pk, principal(kb.owner), Filters.parse({"folder_ids": [each.pk for each in folders]}))
    return set(Document.objects.filter(chunks__in=found.tolist()))


def versions(kb):
    return KnowledgeBaseVersion.objects.get(knowledge_base=kb).content_version


def test_a_tree_knows_paths_and_what_lies_below(kb, laws, labour):
    tree = Tree(kb.pk)

    assert [path.names for path in tree.paths()] == [("laws",), ("laws", "labour")]
    assert tree.names(labour.pk) == ("laws", "labour")
    assert tree.below(laws.pk) == [laws.pk, labour.pk]


@pytest.mark.parametrize("name", ["", "  ", "a/b", "a\\b"])
def test_a_name_is_visible_and_no_path(kb, name):
    with pytest.raises(Rejected) as caught:
        folder_create(kb=kb, name=name)

    assert caught.value.code == "bad_name"


def test_a_name_is_there_once_in_a_folder(kb, laws, labour):
    folder_create(kb=kb, name="labour")
    with pytest.raises(Rejected) as caught:
        folder_create(kb=kb, name=" labour ", parent=laws)

    assert caught.value.code == "name_taken"


def test_the_same_name_at_the_top_is_refused_by_the_database_too(kb, laws):
    with pytest.raises(Rejected):
        folder_create(kb=kb, name="laws")
    assert Folder.objects.count() == 1


def test_a_folder_cannot_lie_in_itself(laws, labour):
    with pytest.raises(Rejected) as caught:
        folder_update(laws, parent=labour)

    assert caught.value.code == "within_itself"


def test_folders_lie_only_so_deep(kb, laws):
    place = laws
    for level in range(1, MOST_DEPTH):
        place = folder_create(kb=kb, name=str(level), parent=place)

    with pytest.raises(Rejected) as caught:
        folder_create(kb=kb, name="one more", parent=place)
    assert caught.value.code == "too_deep"
    with pytest.raises(Rejected) as caught:
        folder_update(laws, parent=folder_create(kb=kb, name="around"))
    assert caught.value.code == "too_deep"


def test_a_folder_of_another_knowledge_base_holds_none(kb):
    with pytest.raises(NotVisible):
        folder_create(kb=kb, name="a", parent=folder_create(kb=make_kb(), name="b"))


def test_documents_of_a_deleted_folder_go_to_the_one_around_it(kb, laws, labour):
    document = make_document(kb, "text", folder=labour)

    folder_delete(labour)

    assert Document.objects.get(pk=document.pk).folder == laws


def test_documents_go_with_a_folder_where_that_is_asked(kb, laws, labour):
    make_document(kb, "text", folder=labour)
    other = make_document(kb, "other")

    folder_delete(laws, delete_documents=documents_delete)

    assert list(Document.objects.all()) == [other]
    assert not Folder.objects.exists()


def test_documents_are_moved_within_their_knowledge_base_only(kb, laws):
    mine, theirs = make_document(kb, "mine"), make_document(make_kb(), "theirs")

    moved = documents_move(Document.objects.all(), laws)

    assert moved == 1
    assert list(documents_in(Document.objects.all(), laws)) == [mine]
    assert Document.objects.get(pk=theirs.pk).folder is None


def test_paths_of_files_make_the_folders_that_are_missing(kb, laws):
    found = folders_of(kb.pk, None, ["laws/labour/a.txt", "laws/b.txt", "c.txt", "../x/./d.txt", "new\\e.txt"])

    assert {path: Tree(kb.pk).names(folder) for path, folder in found.items()} == {
        "laws/labour/a.txt": ("laws", "labour"),
        "laws/b.txt": ("laws",),
        "c.txt": (),
        "../x/./d.txt": ("x",),
        "new\\e.txt": ("new",),
    }


def test_a_path_that_is_too_deep_ends_in_the_last_folder(kb, laws):
    path = "/".join(map(str, range(100))) + "/a.txt"

    found = folders_of(kb.pk, laws.pk, [path])[path]

    assert len(Tree(kb.pk).chain(found)) == MOST_DEPTH


def test_a_knowledge_base_has_only_so_many_folders(kb, laws, labour, monkeypatch):
    monkeypatch.setattr(services, "MOST_FOLDERS", 2)

    with pytest.raises(Rejected) as caught:
        folder_create(kb=kb, name="one more")

    assert caught.value.code == "too_many_folders"
    found = folders_of(kb.pk, None, ["laws/labour/a.txt", "laws/civil/b.txt", "new/c.txt"])
    assert found == {"laws/labour/a.txt": labour.pk, "laws/civil/b.txt": laws.pk, "new/c.txt": None}
    assert Folder.objects.count() == 2


def test_documents_are_not_moved_into_a_folder_that_was_deleted_meanwhile(kb, laws, labour):
    document = make_document(kb, "text", folder=laws)
    Folder.objects.filter(pk=labour.pk).delete()

    with pytest.raises(NotVisible):
        documents_move(Document.objects.all(), labour)

    assert Document.objects.get(pk=document.pk).folder == laws


def test_a_filter_finds_what_lies_in_a_folder_and_below(kb, laws, labour):
    top, inner, _outside = (
        make_document(kb, "a", folder=laws),
        make_document(kb, "b", folder=labour),
        make_document(kb, "c"),
    )

    assert passing(kb, laws) == {top, inner}
    assert passing(kb, labour) == {inner}
    assert passing(kb, folder_create(kb=kb, name="empty")) == set()
    assert passing(kb, folder_create(kb=make_kb(), name="elsewhere")) == set()


def test_filters_by_folder_and_concept_go_together(kb, laws):
    both, _other = make_document(kb, "a", folder=laws), make_document(kb, "b", folder=laws)
    both.concepts.add(kb.concepts.create(name="idea"))

    found = chunk_ids(kb.pk, principal(kb.owner), Filters.parse({"folder_ids": [laws.pk], "concepts": ["idea"]}))

    assert found.tolist() == [both.chunks.get().pk]


def test_what_a_filter_may_find_takes_a_new_content_version(kb, laws, labour):
    document = make_document(kb, "text")
    seen = [versions(kb)]
    for change in (
        lambda: documents_move(Document.objects.filter(pk=document.pk), labour),
        lambda: folder_update(labour, parent=None),
        lambda: folder_delete(labour),
    ):
        change()
        seen.append(versions(kb))
    folder_update(laws, name="statutes")

    assert seen == sorted(set(seen))
    assert versions(kb) == seen[-1]


def test_changes_are_in_the_audit_log(kb, laws, labour):
    folder_update(labour, name="work", parent=None)

    entry = AuditEntry.objects.filter(object_type="folder", action="update").get()
    assert entry.changes == {"name": ["labour", "work"], "parent": ["laws", None]}


def test_folders_go_with_their_knowledge_base_in_a_fixed_number_of_queries(kb, laws, labour):
    make_document(kb, "text", folder=labour)
    for number in range(20):
        folder_create(kb=kb, name=str(number), parent=labour)

    with CaptureQueriesContext(connection) as queries:
        knowledge_base_delete(kb)

    assert not Folder.objects.exists()
    assert len(queries) < 60


def test_a_name_is_stored_without_what_no_database_takes_and_not_cut_off(kb):
    assert folder_create(kb=kb, name="a\0b").name == "ab"
    with pytest.raises(Rejected) as caught:
        folder_create(kb=kb, name="x" * 201)
    assert caught.value.code == "bad_name"
    (found,) = folders_of(kb.pk, None, ["c\0d/a.txt"]).values()
    assert Tree(kb.pk).names(found) == ("cd",)


def test_a_folder_that_was_deleted_meanwhile_is_not_there(kb, laws, labour):
    folder_delete(laws)

    with pytest.raises(NotVisible):
        folder_delete(labour)
