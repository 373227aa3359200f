import pytest

from kb.base.encryption import decrypted
from kb.models import AuditEntry, Document, Source
from kb.sources.services.working import run_source
from tests.factories import make_api_key, make_kb, make_member, make_user
from tests.kb.sources.services.places import opened, text
from tests.web_server import Page, WebServer, article

pytestmark = pytest.mark.django_db


@pytest.fixture
def web(settings):
    settings.WEB_ALLOWED_HOSTS, settings.WEB_DELAY_SECONDS = ["127.0.0.1"], 0.0
    with WebServer() as server:
        server.pages["/"] = Page(article("Hours"))
        yield server


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def asking(client, kb):
    """Calls the API as the owner of the knowledge base."""
    _, secret = make_api_key(kb.owner, kb, scope="write")

    def ask(method, path, data=None, secret=secret):
        call = getattr(client, method)
        return call(
            f"/api/v1/{path}", data, content_type="application/json", headers={"authorization": f"Bearer {secret}"}
        )

    return ask


def create(asking, kb, web, **fields):
    values = (
        {"knowledge_base_id": kb.pk, "name": "site", "kind": "page"} | ({"url": web.url("/")} if web else {}) | fields
    )
    return asking("post", "sources/", values)


def test_a_source_is_created_and_waits_for_its_first_run(asking, kb, web):
    answer = create(asking, kb, web, every_minutes=60, tags=["archive"])
    assert answer.status_code == 201
    assert answer.json()["status"] == "waiting"
    assert Source.objects.get().created_by == kb.owner


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": "http://user@example.org/"}, "url"),
        ({"kind": "book"}, "kind"),
        ({"include": ["("]}, "include"),
        ({"every_minutes": 1}, "every_minutes"),
        ({"depth": 3}, "depth"),
    ],
)
def test_a_field_that_cannot_be_is_named(asking, kb, web, fields, field):
    answer = create(asking, kb, web, **fields)
    assert answer.status_code == 400
    assert list(answer.json()["fields"]) == [field]


def test_a_run_its_pages_and_their_states_are_read(asking, kb, web):
    pk = create(asking, kb, web).json()["id"]
    run_source(pk)
    source = asking("get", f"sources/{pk}/").json()
    assert (source["status"], source["counts"]) == ("done", {"added": 1})
    assert (source["item_count"], source["document_count"]) == (1, 1)
    [page] = asking("get", f"sources/{pk}/items/?state=kept").json()["results"]
    assert (page["url"], page["document_id"]) == (web.url("/"), Document.objects.get().pk)
    assert asking("get", f"sources/{pk}/items/?state=gone").json()["results"] == []


def test_the_error_of_a_page_says_what_to_do(asking, kb, web):
    web.pages["/"] = Page(status=500)
    pk = create(asking, kb, web).json()["id"]
    run_source(pk)
    [page] = asking("get", f"sources/{pk}/items/").json()["results"]
    assert page["error"]["code"] == "bad_status"


def test_a_run_is_asked_for_and_cancelled(asking, kb, web):
    pk = create(asking, kb, web).json()["id"]
    assert asking("post", f"sources/{pk}/cancel/").json()["status"] == "cancelled"
    answer = asking("post", f"sources/{pk}/run/")
    assert (answer.status_code, answer.json()["status"]) == (202, "waiting")


def test_a_source_is_changed(asking, kb, web):
    pk = create(asking, kb, web).json()["id"]
    assert asking("patch", f"sources/{pk}/", {"every_minutes": 30}).json()["next_run_at"]
    assert asking("patch", f"sources/{pk}/", {"url": "ftp://example.org"}).status_code == 400


@pytest.mark.parametrize(("query", "kept"), [("", 1), ("?keep_documents=false", 0)])
def test_a_source_is_deleted_with_its_documents_or_without(asking, kb, web, query, kept):
    pk = create(asking, kb, web).json()["id"]
    run_source(pk)
    assert asking("delete", f"sources/{pk}/{query}").status_code == 204
    assert Document.objects.count() == kept


def test_a_test_shows_what_would_be_taken(asking, kb, web):
    fields = {"knowledge_base_id": kb.pk, "name": "site", "kind": "page", "url": web.url("/")}
    answer = asking("post", "sources/test/", fields).json()
    assert (answer["error"], answer["items"][0]["title"]) == (None, "Hours")
    assert not Source.objects.exists()


def test_a_stranger_does_not_see_it_and_a_viewer_does_not_change_it(asking, kb, web):
    pk = create(asking, kb, web).json()["id"]
    _, stranger = make_api_key(make_user(), scope="write")
    _, viewer = make_api_key(make_member(kb), scope="write")
    for method, path in [("get", ""), ("get", "items/"), ("post", "run/"), ("delete", "")]:
        assert asking(method, f"sources/{pk}/{path}", secret=stranger).status_code == 404
    assert asking("get", f"sources/{pk}/", secret=viewer).status_code == 200
    for method, path in [("post", "run/"), ("post", "cancel/"), ("patch", ""), ("delete", "")]:
        assert asking(method, f"sources/{pk}/{path}", {}, secret=viewer).status_code == 403
    assert asking("get", "sources/", secret=stranger).json()["results"] == []


class TestADocumentByItsAddress:
    def test_it_is_read_at_once(self, asking, kb, web):
        fields = {"url": web.url("/"), "tags": ["a"], "metadata": {"shelf": 3}}
        answer = asking("post", f"knowledge-bases/{kb.pk}/documents/", fields)
        assert answer.status_code == 201
        document = answer.json()
        assert (document["title"], document["source_type"], document["tags"]) == ("Hours", "web", ["a"])
        assert (document["metadata"]["url"], document["metadata"]["shelf"]) == (web.url("/"), 3)

    def test_one_that_must_not_be_read_is_refused(self, asking, kb, web):
        web.pages["/"] = Page(location="http://169.254.169.254/latest/")
        answer = asking("post", f"knowledge-bases/{kb.pk}/documents/", {"url": web.url("/")})
        assert (answer.status_code, list(answer.json()["fields"])) == (400, ["url"])
        assert not Document.objects.exists()

    def test_the_same_page_is_not_taken_twice(self, asking, kb, web):
        for status in (201, 409):
            answer = asking("post", f"knowledge-bases/{kb.pk}/documents/", {"url": web.url("/")})
            assert answer.status_code == status


def test_what_a_run_held_back_is_accepted(asking, kb, web):
    source = create(asking, kb, web).json()["id"]
    run_source(source)
    del web.pages["/"]
    asking("post", f"sources/{source}/run/")
    run_source(source)
    assert Document.objects.count() == 1
    answer = asking("post", f"sources/{source}/accept/")
    assert (answer.status_code, answer.json()["status"]) == (202, "waiting")
    run_source(source)
    assert Document.objects.count() == 0


def test_a_viewer_accepts_nothing(asking, kb, web):
    source = create(asking, kb, web).json()["id"]
    _, secret = make_api_key(make_member(kb, "viewer"), scope="write")
    assert asking("post", f"sources/{source}/accept/", secret=secret).status_code == 403


class TestAPlaceWithSecrets:
    @pytest.fixture
    def place(self, monkeypatch):
        with opened(monkeypatch) as place:
            place.files = {"a.md": text(1), "b.md": text(2)}
            yield place

    @pytest.fixture
    def pk(self, asking, kb, place):
        settings, secrets = {"root": "https://files.example"}, {"password": "correct horse"}
        answer = create(asking, kb, None, kind="git", settings=settings, secrets=secrets)
        assert answer.status_code == 201
        return answer.json()["id"]

    def test_a_secret_is_used_and_never_shown(self, asking, pk, place):
        run_source(pk)
        assert place.values == {"root": "https://files.example", "password": "correct horse", "glob": ""}
        answer = asking("get", f"sources/{pk}/")
        assert answer.json()["secrets_set"] == ["password"]
        assert "correct horse" not in answer.content.decode()
        assert "correct horse" not in str(list(Source.objects.values()) + list(AuditEntry.objects.values()))

    def test_what_is_read_may_change_without_the_secret_and_the_place_may_not(self, asking, pk):
        assert asking("patch", f"sources/{pk}/", {"settings": {"glob": "*.md"}}).status_code == 200
        assert decrypted(Source.objects.get().secrets) == {"password": "correct horse"}
        elsewhere = {"settings": {"root": "https://elsewhere.example"}}
        refused = asking("patch", f"sources/{pk}/", elsewhere)
        assert refused.status_code == 400
        assert "would else be sent there" in refused.content.decode()
        answer = asking("patch", f"sources/{pk}/", elsewhere | {"secrets": {"password": "another"}})
        assert answer.status_code == 200
        assert decrypted(Source.objects.get().secrets) == {"password": "another"}

    def test_a_setting_that_is_missing_or_unknown_is_named(self, asking, pk):
        for settings in ({"root": ""}, {"roof": "x"}):
            assert asking("patch", f"sources/{pk}/", {"settings": settings}).status_code == 400

    def test_its_items_runs_and_progress_are_read(self, asking, pk, place):
        run_source(pk)
        items = asking("get", f"sources/{pk}/items/?q=a.md").json()["results"]
        assert [(item["path"], item["state"]) for item in items] == [("a.md", "kept")]
        [run] = asking("get", f"sources/{pk}/runs/").json()["results"]
        assert (run["status"], run["counts"], run["error"]) == ("done", {"added": 2}, None)
        assert asking("get", f"sources/{pk}/").json()["progress"] is None

    def test_it_is_paused_and_resumed(self, asking, pk):
        assert asking("post", f"sources/{pk}/pause/").json()["paused"] is True
        assert not run_source(pk)
        answer = asking("post", f"sources/{pk}/resume/").json()
        assert (answer["paused"], answer["status"]) == (False, "waiting")

    def test_a_test_lists_its_first_files(self, asking, kb, place):
        fields = {"knowledge_base_id": kb.pk, "name": "x", "kind": "git", "settings": {"root": "r"}}
        answer = asking("post", "sources/test/", fields).json()
        assert [item["key"] for item in answer["items"]] == ["a.md", "b.md"]
        assert place.fetched == []

    def test_secrets_of_another_key_are_asked_for_again(self, asking, pk, settings):
        settings.SECRET_KEY = "another"
        run_source(pk)
        assert "encrypted with another SECRET_KEY" in asking("get", f"sources/{pk}/").json()["error"]["message"]
        settings.SECRET_KEY_FALLBACKS = []
        assert asking("patch", f"sources/{pk}/", {"secrets": {"password": "new"}}).status_code == 200


def test_a_test_waits_for_its_server_only_where_requests_may(asking, kb, web, crowded):
    answer = asking(
        "post", "sources/test/", {"knowledge_base_id": kb.pk, "name": "s", "kind": "page", "url": web.url("/")}
    )
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_waits")
    assert answer.headers["Retry-After"] == "10"
    assert answer.json()["detail"]
    assert answer.json()["remedy"]


def test_what_a_source_no_longer_has_is_deleted_on_request(asking, kb, monkeypatch):
    with opened(monkeypatch) as place:
        place.files = {f"{number}.md": text(number) for number in range(4)}
        pk = create(asking, kb, None, kind="git", settings={"root": "r"}, hides_gone=True).json()["id"]
        run_source(pk)
        del place.files["2.md"]
        asking("post", f"sources/{pk}/run/")
        run_source(pk)
    documents = asking("get", f"knowledge-bases/{kb.pk}/documents/").json()["results"]
    assert [each["metadata"]["path"] for each in documents if "gone_since" in each["metadata"]] == ["2.md"]
    answer = asking("post", f"sources/{pk}/delete-gone/")
    assert (answer.status_code, answer.json()["document_count"], answer.json()["hides_gone"]) == (200, 3, True)
