import re

import lxml.html
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from kb.content.folders.services import Tree, folder_create
from kb.models import Document, Folder, Membership
from tests.factories import make_document, make_kb, make_member, make_user


@pytest.fixture
def laws(kb):
    return folder_create(kb=kb, name="laws")


@pytest.fixture
def labour(kb, laws):
    return folder_create(kb=kb, name="labour", parent=laws)


@pytest.fixture
def listed(client, kb):
    def open_list(**query):
        return client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]), query)

    return open_list


def page_of(kb, folder):
    return reverse("admin:kb_knowledgebase_folder", args=[kb.pk, folder.pk])


def titles(page):
    return {row.title for row in page.context["cl"].result_list}


def test_a_folder_lists_what_lies_in_it_and_below(listed, kb, laws, labour):
    make_document(kb, "a", title="top", folder=laws)
    make_document(kb, "b", title="inner", folder=labour)
    make_document(kb, "c", title="outside")

    assert titles(listed()) == {"top", "inner", "outside"}
    page = listed(in_folder=laws.pk)
    assert titles(page) == {"top", "inner"}
    assert [(each.text, each.count) for each in page.context["folders_here"]] == [("labour", 1)]
    assert [choice.count for choice in page.context["filters"][0]][:2] == [2, 2]
    assert titles(listed(in_folder=labour.pk, status__exact="failed")) == set()


def test_a_row_names_the_folder_that_it_lies_in(listed, kb, laws, labour):
    make_document(kb, "b", title="inner", folder=labour)

    assert "laws / labour" in listed().content.decode()
    assert "laws / labour" not in listed(in_folder=labour.pk).content.decode()


def test_a_folder_of_another_knowledge_base_is_not_there(listed, curator):
    elsewhere = folder_create(kb=make_kb(curator, "other"), name="elsewhere")

    assert listed(in_folder=elsewhere.pk).status_code == 404


def test_an_editor_makes_a_folder_in_another(client, kb, laws):
    url = reverse("admin:kb_knowledgebase_folder_add", args=[kb.pk])

    answer = client.post(url, {"name": "labour", "parent": laws.pk})

    made = Folder.objects.get(name="labour")
    assert made.parent == laws
    assert answer.url.endswith(f"?in_folder={made.pk}")


def test_a_name_that_is_taken_is_said_to_be(client, kb, laws):
    answer = client.post(reverse("admin:kb_knowledgebase_folder_add", args=[kb.pk]), {"name": "laws"}, follow=True)

    assert "laws" in str(next(iter(answer.context["messages"])))
    assert Folder.objects.count() == 1


def test_a_viewer_makes_and_changes_none(client, kb, laws):
    client.force_login(make_member(kb, Membership.Role.VIEWER, make_user("viewer")))

    made = client.post(reverse("admin:kb_knowledgebase_folder_add", args=[kb.pk]), {"name": "more"})
    opened = client.get(page_of(kb, laws))
    changed = client.post(page_of(kb, laws), {"name": "mine", "parent": ""})

    assert (made.status_code, opened.status_code, changed.status_code) == (403, 403, 403)
    assert Folder.objects.get().name == "laws"


def test_a_folder_is_renamed_and_moved(client, kb, laws, labour):
    other = folder_create(kb=kb, name="other")

    client.post(page_of(kb, labour), {"name": "work", "parent": other.pk})

    assert Tree(kb.pk).names(labour.pk) == ("other", "work")


def test_a_folder_is_not_offered_a_place_in_itself(client, kb, laws, labour):
    page = client.get(page_of(kb, laws))

    assert [value for value, _label in page.context["form"].fields["parent"].choices] == [""]


def test_a_folder_is_deleted_and_its_documents_stay_or_go(client, kb, laws, labour):
    document = make_document(kb, "b", folder=labour)
    client.post(page_of(kb, labour), {"action": "delete", "documents": "move"})
    assert Document.objects.get(pk=document.pk).folder == laws

    client.post(page_of(kb, laws), {"action": "delete", "documents": "delete"})
    assert not Document.objects.exists()


def test_documents_are_moved_by_an_action_that_asks_where(client, kb, laws):
    document = make_document(kb, "b")
    url = reverse("admin:kb_knowledgebase_documents", args=[kb.pk])
    chosen = {"action": "move_to_folder", "_selected_action": [document.pk]}

    asked = client.post(url, chosen)
    moved = client.post(url, {**chosen, "apply": "1", "folder": laws.pk})

    assert "laws" in asked.content.decode()
    assert moved.url.endswith(f"?in_folder={laws.pk}")
    assert Document.objects.get(pk=document.pk).folder == laws


def test_all_that_a_list_matches_are_moved_however_many(client, kb, laws, settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 8
    for number in range(9):
        make_document(kb, f"text {number}", title="match")
    other = make_document(kb, "other", title="another")
    url = reverse("admin:kb_knowledgebase_documents", args=[kb.pk]) + "?q=match"
    row = Document.objects.filter(title="match").first()
    chosen = {"action": "move_to_folder", "_selected_action": [row.pk], "select_across": "1"}

    asked = client.post(url, {**chosen, "index": "0"})
    fields = re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', asked.content.decode().partition("kb-card")[2])
    client.post(url, {**dict(fields), "folder": laws.pk})

    assert asked.context["count"] == 9
    assert Document.objects.filter(folder=laws).count() == 9
    assert Document.objects.get(pk=other.pk).folder is None


def test_documents_and_folders_of_others_are_not_moved(client, kb, curator, laws):
    """By an address that is the curator's own, with ids that are not, and by one of a knowledge base that is only read."""
    theirs, theirs_too = make_kb(name="theirs"), make_kb(name="read")
    make_member(theirs_too, user=curator)
    inside = folder_create(kb=theirs, name="inside")
    mine, secret, read = make_document(kb, "a"), make_document(theirs, "b"), make_document(theirs_too, "c")
    move = {"action": "move_to_folder", "apply": "1"}
    hub = reverse("admin:kb_knowledgebase_documents", args=[kb.pk])
    for url in (hub, reverse("admin:kb_document_changelist")):
        client.post(url, {**move, "_selected_action": [secret.pk, read.pk], "folder": laws.pk})
        client.post(url, {**move, "_selected_action": [mine.pk], "folder": inside.pk})
    client.post(hub, {**move, "_selected_action": [secret.pk], "select_across": "1", "folder": inside.pk})

    assert not Document.objects.exclude(folder=None).exists()


def test_files_are_uploaded_into_the_folder_with_their_tree(client, kb, laws):
    begun = client.post(
        reverse("admin:kb_ingestbatch_begin"), {"knowledge_base": kb.pk, "name": "2 files", "folder": laws.pk}
    ).json()
    client.post(begun["file"], {"file": SimpleUploadedFile("a.txt", b"words"), "path": "labour/a.txt"})

    assert Tree(kb.pk).names(Document.objects.get().folder_id) == ("laws", "labour")
    assert f"in_folder={laws.pk}" in begun["documents"]


def test_an_upload_into_a_folder_of_another_knowledge_base_is_refused(client, kb, curator):
    elsewhere = folder_create(kb=make_kb(curator, "other"), name="elsewhere")
    url = reverse("admin:kb_ingestbatch_begin")

    assert client.post(url, {"knowledge_base": kb.pk, "name": "a", "folder": elsewhere.pk}).status_code == 404


def test_a_document_is_moved_by_its_form_among_the_folders_of_its_knowledge_base(client, kb, curator, labour):
    document = make_document(kb, "b", title="b")
    elsewhere = folder_create(kb=make_kb(curator, "other"), name="elsewhere")
    url = reverse("admin:kb_document_change", args=[document.pk])
    data = {"title": "b", "source_type": "book", "tags": "", "metadata": "{}"}

    assert "laws / labour" in client.get(url).content.decode()
    client.post(url, {**data, "folder": elsewhere.pk})
    assert Document.objects.get(pk=document.pk).folder is None
    client.post(url, {**data, "folder": labour.pk})
    assert Document.objects.get(pk=document.pk).folder == labour


# -- Many folders ------------------------------------------------------------------------------------------------------------
def folders_made(kb, laws, count):
    """Folders at the top, and two hundred in one of them; the first of those and the last of these hold a document."""
    rows = [Folder(knowledge_base=kb, name=f"f{number:05}") for number in range(count)]
    rows += [Folder(knowledge_base=kb, name=f"inner {number:03}", parent=laws) for number in range(200)]
    made = Folder.objects.bulk_create(rows)
    make_document(kb, "a", title="last", folder=made[-1])
    make_document(kb, "b", title="first", folder=made[0])
    return made


@pytest.fixture
def many(kb, laws):
    return folders_made(kb, laws, 150)


@pytest.fixture
def in_english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def texts(page):
    return [(each.text, each.count) for each in page.context["folders_here"]]


@pytest.mark.usefixtures("in_english")
def test_ten_thousand_folders_make_a_small_page_with_few_queries(listed, kb, laws, django_assert_max_num_queries):
    folders_made(kb, laws, 9_700)
    listed()
    with django_assert_max_num_queries(11):
        page = listed()
    assert len(page.content) < 300_000
    assert texts(page)[:2] == [("f00000", 1), ("f00001", 0)]
    assert len(texts(page)) == 50
    assert "1 to 50 of 9701 folders" in page.content.decode()

    with django_assert_max_num_queries(11):
        inside = listed(in_folder=laws.pk)
    assert len(inside.content) < 300_000
    assert titles(inside) == {"last"}
    assert "1 to 50 of 200 folders" in inside.content.decode()


@pytest.fixture
def folder_list(client, kb):
    return lambda **query: client.get(reverse("admin:kb_knowledgebase_folder_list", args=[kb.pk]), query)


def test_further_folders_are_paged_through(folder_list, many, laws):
    assert texts(folder_list(page=2))[0] == ("f00050", 0)
    last = folder_list(in_folder=laws.pk, page=4)
    assert texts(last)[-1] == ("inner 199", 1)
    links = re.findall(r'hx-get="[^"?]*\?([^"]*)"', last.content.decode())
    assert [link.replace("&amp;", "&") for link in links] == [f"in_folder={laws.pk}&page=3&q="]
    assert texts(folder_list(page=99_999)) == texts(folder_list(page=4)), "the last page stands for those after it"


@pytest.mark.usefixtures("in_english")
def test_folders_are_found_by_a_part_of_their_names_at_any_depth_below(folder_list, many, laws):
    assert texts(folder_list(q="INNER 19"))[0] == ("laws / inner 190", 0)
    assert texts(folder_list(q="inner 199", in_folder=laws.pk)) == [("inner 199", 1)]
    assert texts(folder_list(q="f00000", in_folder=laws.pk)) == []
    assert "No folder has this in its name." in folder_list(q="nowhere").content.decode()


def test_a_list_of_few_folders_has_no_search_and_no_pages(listed, laws, labour):
    page = listed().content.decode()

    assert "folder_list" not in page
    assert 'type="search" name="q" class="kb-select"' not in page


def test_many_folders_are_searched_by_the_field_for_moving_documents(client, kb, many, laws):
    document = Document.objects.get(title="last")
    url = reverse("admin:kb_knowledgebase_documents", args=[kb.pk])
    chosen = {"action": "move_to_folder", "_selected_action": [document.pk]}

    asked = client.post(url, chosen)
    client.post(url, {**chosen, "apply": "1", "folder": many[7].pk})
    document.refresh_from_db()
    assert document.folder == many[7]
    forms = [
        asked,
        client.get(page_of(kb, many[-2])),
        client.get(reverse("admin:kb_document_change", args=[document.pk])),
    ]

    options = reverse("admin:kb_knowledgebase_folder_options", args=[kb.pk])
    for form in forms:
        assert len(form.content) < 300_000
        assert f'data-ajax--url="{options}' in form.content.decode()
        assert "select2.full" in form.content.decode()
    offered = [lxml.html.fromstring(each.content.decode()).xpath("//select[@data-ajax--url]/option") for each in forms]
    chosen = [[option.get("value") for option in options] for options in offered]
    assert chosen == [[""], [str(laws.pk)], [str(many[7].pk)]]


def test_a_field_finds_folders_a_page_at_a_time_but_not_those_left_out(client, kb, many, laws):
    url = reverse("admin:kb_knowledgebase_folder_options", args=[kb.pk])

    first = client.get(url, {"q": "inner"}).json()
    assert first["results"][0] == {"id": many[-200].pk, "text": "laws / inner 000"}
    assert (len(first["results"]), first["pagination"]) == (50, {"more": True})
    assert client.get(url, {"q": "inner", "page": 4}).json()["pagination"] == {"more": False}
    assert client.get(url, {"q": "inner", "without": laws.pk}).json()["results"] == []


def test_folders_of_a_knowledge_base_are_listed_to_those_who_see_it(client, kb, laws):
    client.force_login(make_user("stranger"))
    names = ("folder_list", "folder_options")
    assert [client.get(reverse(f"admin:kb_knowledgebase_{name}", args=[kb.pk])).status_code for name in names] == [
        404
    ] * 2
    client.force_login(make_member(kb))
    assert [client.get(reverse(f"admin:kb_knowledgebase_{name}", args=[kb.pk])).status_code for name in names] == [
        200
    ] * 2
