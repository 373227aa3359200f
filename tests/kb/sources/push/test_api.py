"""Syncs of a folder through the API."""

import dataclasses
import hashlib

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.access.models import Membership
from kb.models import Document, Source, SourceItem
from kb.sources.push import services
from kb.sources.services.sources import source_create, source_pause
from tests import factories

FOLDER = {"a.md": "The archive opens at nine.", "b/c.txt": "Readers register at the desk.", "说明.md": "保修两年。"}


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def manifest(folder, **more):
    files = [{"path": path, "sha256": sha(text), "size": len(text.encode())} for path, text in folder.items()]
    return {"source": "docs", "files": files, **more}


def sync(client, kb, folder, status=200, **more):
    response = client.post(f"/api/v1/knowledge-bases/{kb.pk}/sync/", manifest(folder, **more), format="json")
    assert response.status_code == status, response.json()
    return response.json()


def send(client, kb, path, text, status=200, **more):
    response = client.put(
        f"/api/v1/knowledge-bases/{kb.pk}/sync/file/",
        {
            "source": "docs",
            "path": path,
            "sha256": sha(text),
            "file": SimpleUploadedFile(path.rpartition("/")[2], text.encode()),
            **more,
        },
        format="multipart",
    )
    assert response.status_code == status, response.json()
    return response.json()


def push(client, kb, folder, **more):
    answer = sync(client, kb, folder, **more)
    for path in answer["send"]:
        send(client, kb, path, folder[path])
    return answer


def documents(kb):
    return dict(SourceItem.objects.filter(document__knowledge_base=kb).values_list("key", "document_id"))


def test_a_first_sync_asks_for_all_files_and_the_next_for_none(client, kb):
    dry = sync(client, kb, FOLDER, dry_run=True)
    assert (dry["send"], dry["dry_run"]) == (list(FOLDER), True)
    assert not Source.objects.exists()

    push(client, kb, FOLDER)
    again = sync(client, kb, FOLDER, delete=True)

    assert (again["send"], again["unchanged"], again["delete"], again["more"]) == ([], 3, [], False)
    assert set(documents(kb)) == set(FOLDER)
    document = Document.objects.get(source="c.txt")
    assert (document.sha256, document.metadata) == (sha(FOLDER["b/c.txt"]), {"path": "b/c.txt"})
    source = Source.objects.get()
    assert (source.kind, source.status, source.counts["added"], source.counts["unchanged"]) == ("push", "done", 3, 3)
    assert source.runs.count() == 1


def test_a_sync_that_was_cut_off_asks_for_what_is_missing(client, kb):
    first = sync(client, kb, FOLDER)
    send(client, kb, first["send"][0], FOLDER[first["send"][0]])

    again = sync(client, kb, FOLDER)

    assert again["send"] == first["send"][1:]
    assert again["unchanged"] == 1


def test_a_file_sent_twice_is_one_document(client, kb):
    sync(client, kb, FOLDER)

    first = send(client, kb, "a.md", FOLDER["a.md"])
    second = send(client, kb, "a.md", FOLDER["a.md"])

    assert (first["outcome"], second["outcome"]) == ("added", "unchanged")
    assert first["document_id"] == second["document_id"]
    assert Document.objects.count() == 1


def test_only_what_has_changed_is_asked_for_and_its_document_stays(client, kb):
    push(client, kb, FOLDER)
    before = documents(kb)
    changed = FOLDER | {"a.md": "The archive opens at ten."}

    assert push(client, kb, changed)["send"] == ["a.md"]
    assert documents(kb) == before
    assert Document.objects.get(pk=before["a.md"]).sha256 == sha("The archive opens at ten.")


def test_renamed_files_keep_their_documents(client, kb):
    push(client, kb, FOLDER)
    before = documents(kb)
    renamed = {"archive/hours.md": FOLDER["a.md"], "b/c.txt": FOLDER["b/c.txt"], "说明.md": FOLDER["说明.md"]}

    dry = sync(client, kb, renamed, dry_run=True, delete=True)
    done = sync(client, kb, renamed, delete=True)

    for answer in (dry, done):
        assert (answer["send"], answer["delete"]) == ([], [])
        assert answer["moved"] == [{"from_path": "a.md", "to_path": "archive/hours.md"}]
    before["archive/hours.md"] = before.pop("a.md")
    assert documents(kb) == before
    document = Document.objects.get(pk=before["archive/hours.md"])
    assert (document.source, document.metadata["path"]) == ("hours.md", "archive/hours.md")


def test_files_that_change_names_in_a_ring_keep_their_documents(client, kb):
    push(client, kb, FOLDER)
    before = documents(kb)
    ring = {"b/c.txt": FOLDER["a.md"], "说明.md": FOLDER["b/c.txt"], "a.md": FOLDER["说明.md"]}

    answer = sync(client, kb, ring, delete=True)

    assert (answer["send"], answer["delete"], answer["deleted"]) == ([], [], 0)
    assert documents(kb) == {"b/c.txt": before["a.md"], "说明.md": before["b/c.txt"], "a.md": before["说明.md"]}
    assert sync(client, kb, ring, delete=True)["unchanged"] == 3


MANY = {f"{number}.md": f"Page {number} of the handbook." for number in range(8)}


def without(folder, count):
    return dict(list(folder.items())[count:])


def test_files_that_have_gone_are_deleted_only_where_it_is_asked_for(client, kb):
    push(client, kb, MANY)
    fewer = without(MANY, 1)

    kept = sync(client, kb, fewer)
    assert (kept["delete"], kept["deleted"], len(documents(kb))) == (["0.md"], 0, 8)

    gone = sync(client, kb, fewer, delete=True)
    assert (gone["delete"], gone["deleted"], gone["asks"], len(documents(kb))) == (["0.md"], 1, None, 7)
    assert Document.objects.count() == 7


def test_a_large_share_is_deleted_only_with_consent_to_so_many(client, kb):
    push(client, kb, MANY)
    half = without(MANY, 4)

    for more in ({}, {"accept": 3}, {"dry_run": True}):
        refused = sync(client, kb, half, delete=True, **more)
        assert refused["asks"] == {"count": 4, "known": 8, "max_share": 25}
        assert (refused["deleted"], Document.objects.count()) == (0, 8)

    accepted = sync(client, kb, half, delete=True, accept=4)
    assert (accepted["asks"], accepted["deleted"], Document.objects.count()) == (None, 4, 4)


def test_an_empty_folder_deletes_nothing_unasked(client, kb):
    push(client, kb, {"a.md": "one"})

    assert sync(client, kb, {}, delete=True)["asks"] == {"count": 1, "known": 1, "max_share": 25}
    assert Document.objects.count() == 1


def test_two_files_of_one_content_share_a_document_which_the_second_inherits(client, kb):
    twins = {"a.md": "the same", "b.md": "the same"}
    answer = push(client, kb, twins)
    assert answer["send"] == ["a.md", "b.md"]
    before = documents(kb)

    assert sync(client, kb, twins)["unchanged"] == 2
    left = sync(client, kb, {"b.md": "the same"}, delete=True)

    assert (left["send"], left["deleted"]) == ([], 0)
    assert documents(kb) == {"b.md": before["a.md"]}


def test_a_document_that_somebody_deleted_is_asked_for_again(client, kb):
    push(client, kb, FOLDER)
    Document.objects.get(source="a.md").delete()

    assert push(client, kb, FOLDER)["send"] == ["a.md"]
    assert sync(client, kb, FOLDER)["unchanged"] == 3


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../a.md", "bad_path"),
        ("/etc/a.md", "bad_path"),
        ("a//b.md", "bad_path"),
        ("a/./b.md", "bad_path"),
        ("x" * 1_001 + ".md", "bad_path"),
        ("a.exe", "unsupported_type"),
        ("README", "unsupported_type"),
        ("a.zip", "unsupported_type"),
    ],
)
def test_files_that_need_not_be_sent_are_named_with_a_reason(client, kb, path, code):
    answer = sync(client, kb, {path: "x", "fine.md": "y"})

    assert answer["send"] == ["fine.md"]
    assert [(each["path"], each["code"]) for each in answer["refused"]] == [(path, code)]
    assert send(client, kb, path, "x", status=415 if code == "unsupported_type" else 400)["code"] == code


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(client, kb, settings):
    settings.MAX_UPLOAD_BYTES = 10

    answer = sync(client, kb, {"a.md": "x" * 11, "b.md": "x" * 10})

    assert (answer["send"], answer["refused"][0]["code"]) == (["b.md"], "too_large")


def test_bytes_that_cannot_be_read_are_refused_once_and_not_asked_for_again(client, kb):
    broken = {"a.pdf": "MZ\x00 no program"}
    sync(client, kb, broken)
    send(client, kb, "a.pdf", broken["a.pdf"], status=415)

    answer = sync(client, kb, broken)

    assert (answer["send"], answer["refused"][0]["path"]) == ([], "a.pdf")
    assert sync(client, kb, {"a.pdf": "other"})["send"] == ["a.pdf"]


def test_a_file_of_another_sha256_is_not_taken(client, kb):
    sync(client, kb, FOLDER)

    assert send(client, kb, "a.md", "something else", status=400, sha256=sha("a"))["code"] == "sha256_mismatch"
    assert Document.objects.count() == 0


def test_metadata_reach_new_and_unchanged_documents(client, kb):
    push(client, kb, {"a.md": "one"})
    body = manifest({"a.md": "one"})
    body["files"][0]["metadata"] = {"author": "Li"}

    response = client.post(f"/api/v1/knowledge-bases/{kb.pk}/sync/", body, format="json")
    assert response.json()["unchanged"] == 1
    send(client, kb, "b.md", "two", metadata='{"author": "Wu"}')

    assert Document.objects.get(source="a.md").metadata == {"path": "a.md", "author": "Li"}
    assert Document.objects.get(source="b.md").metadata == {"path": "b.md", "author": "Wu"}


def test_moves_and_deletions_beyond_the_time_of_one_request_are_left_for_the_next(client, kb, owner):
    push(client, kb, MANY)
    moved = {f"new/{path}": text for path, text in MANY.items()}
    files = [services.PushedFile(**each) for each in manifest(moved)["files"]]

    def step():
        return services.push_sync(knowledge_base=kb, user=owner, name="docs", files=files, delete=True, budget_s=0)

    first = step()
    assert (first.more, first.moved) == (True, [])
    assert set(documents(kb)) == set(MANY)
    rest = sync(client, kb, moved, delete=True)
    assert (rest["more"], len(rest["moved"])) == (False, 8)
    assert set(documents(kb)) == set(moved)


def test_deletions_and_metadata_beyond_the_time_of_one_request_are_left_for_the_next(client, kb, owner):
    push(client, kb, MANY)
    files = [services.PushedFile(**each) for each in manifest(without(MANY, 1))["files"]]
    files[0] = dataclasses.replace(files[0], metadata={"author": "Li"})

    def step(budget_s):
        return services.push_sync(
            knowledge_base=kb, user=owner, name="docs", files=files, delete=True, budget_s=budget_s
        )

    def authors():
        return [each.metadata.get("author") for each in Document.objects.order_by("pk")]

    first = step(0)
    assert (first.more, first.deleted, authors()) == (True, 0, [None] * 8)
    rest = step(services.BUDGET_S)
    assert (rest.more, rest.deleted, authors()) == (False, 1, ["Li", *[None] * 6])


def test_metadata_that_a_document_has_already_change_nothing(client, kb):
    sync(client, kb, {"a.md": "one"})
    send(client, kb, "a.md", "one", metadata='{"author": "Li"}')
    before = Document.objects.values().get()
    body = manifest({"a.md": "one"})
    body["files"][0]["metadata"] = {"author": "Li"}

    assert client.post(f"/api/v1/knowledge-bases/{kb.pk}/sync/", body, format="json").json()["unchanged"] == 1

    assert Document.objects.values().get() == before


def test_a_path_that_comes_twice_is_refused(client, kb):
    body = manifest({"a.md": "one"})
    body["files"] *= 2

    response = client.post(f"/api/v1/knowledge-bases/{kb.pk}/sync/", body, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "path_twice")


def test_the_name_of_another_kind_of_source_and_a_paused_one_are_refused(client, kb, owner):
    source_create(knowledge_base=kb, user=owner, name="docs", kind="page", url="https://example.org/", enabled=False)
    assert sync(client, kb, FOLDER, status=400)["code"] == "source_invalid"

    Source.objects.all().delete()
    sync(client, kb, FOLDER)
    source_pause(Source.objects.get())
    assert sync(client, kb, FOLDER, status=400)["code"] == "paused"


def test_a_file_without_a_manifest_before_it_is_refused(client, kb):
    assert send(client, kb, "a.md", "one", status=404)["code"] == "not_found"


def test_who_may_sync(client_of, client_with, anonymous, kb, owner):
    viewer = factories.make_user("viewer")
    Membership.objects.create(knowledge_base=kb, user=viewer, role=Membership.Role.VIEWER)
    stranger = factories.make_user("stranger")

    assert sync(client_of(viewer), kb, FOLDER, status=403, dry_run=True)
    assert sync(client_of(stranger), kb, FOLDER, status=404)
    assert sync(anonymous, kb, FOLDER, status=401)
    assert send(client_of(viewer), kb, "a.md", "x", status=403)
    assert send(client_of(stranger), kb, "a.md", "x", status=404)
    assert not Source.objects.exists()


def test_another_knowledge_base_has_sources_of_its_own(client, kb, owner):
    push(client, kb, FOLDER)
    other = factories.make_kb(owner, "other")

    assert sync(client, other, FOLDER)["send"] == list(FOLDER)


def test_ten_thousand_paths_go_in_one_request(client, kb):
    folder = {f"部门/{number % 100:03}/第{number}号操作手册.md": str(number) for number in range(10_000)}

    answer = sync(client, kb, folder, dry_run=True)

    assert len(answer["send"]) == 10_000
    assert sync(client, kb, folder | {"one-more.md": "x"}, status=400)["fields"]
