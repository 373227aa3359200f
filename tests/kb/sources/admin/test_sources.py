import dataclasses

import pytest
from django.urls import reverse

from kb.base.encryption import decrypted
from kb.models import Document, Membership, Source, SourceItem
from kb.sources.connectors import registry
from kb.sources.connectors.webdav.connector import WebDav
from kb.sources.services.sources import source_create, source_request
from kb.sources.services.working import run_source
from tests.factories import make_kb, make_member, make_user
from tests.kb.sources.services.places import opened, text
from tests.web_server import Page, WebServer, article

ENGLISH = {"accept-language": "en"}


@pytest.fixture
def web(settings):
    settings.WEB_ALLOWED_HOSTS, settings.WEB_DELAY_SECONDS = ["127.0.0.1"], 0.0
    with WebServer() as server:
        server.pages["/"] = Page(article("Hours"))
        yield server


@pytest.fixture
def source(kb, curator, web):
    return source_create(knowledge_base=kb, user=curator, name="archive", kind="page", url=web.url("/"))


def values(kb, web, **fields):
    usual = {
        "knowledge_base": kb.pk,
        "name": "archive",
        "kind": "page",
        "url": web.url("/"),
        "enabled": "on",
        "max_share": 25,
        "max_pages": 200,
        "max_depth": 2,
    }
    return usual | fields


def url(name, *args):
    return reverse(f"admin:kb_source_{name}", args=args)


def get(client, address):
    return client.get(address, headers=ENGLISH).content.decode()


def test_a_source_is_added_and_waits_for_its_run(client, kb, web):
    answer = client.post(url("add"), values(kb, web, include="/docs/\n/help/", tags="a,b"))
    source = Source.objects.get()
    assert answer.status_code == 302
    assert (source.status, source.include, source.tags) == ("waiting", ["/docs/", "/help/"], ["a", "b"])
    assert source.created_by.username == "curator"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "file:///etc/passwd"}, "are not read"),
        ({"include": "("}, "is no regular expression"),
        ({"every_minutes": "1"}, "greater than or equal to 5"),
    ],
)
def test_what_cannot_be_is_told_at_its_field(client, kb, web, fields, words):
    page = client.post(url("add"), values(kb, web, **fields), headers=ENGLISH)
    assert list(page.context["adminform"].form.errors) == list(fields)
    assert words in page.content.decode()
    assert not Source.objects.exists()


def test_a_test_shows_what_would_be_taken_before_a_name_is_given(client, kb, web):
    page = client.post(url("test"), values(kb, web, name=""), headers=ENGLISH).content.decode()
    assert "Hours" in page
    assert "characters of text" in page
    assert not Source.objects.exists()


def test_a_test_shows_refusals(client, kb, web):
    web.pages["/"] = Page(location="http://169.254.169.254/")
    page = client.post(url("test"), values(kb, web), headers=ENGLISH).content.decode()
    assert "is not at a public address" in page
    assert "169.254.169.254 is at" not in page


def test_a_superuser_reads_at_which_address_a_name_is(client, kb, web):
    client.force_login(make_user("root", superuser=True))
    web.pages["/"] = Page(location="http://169.254.169.254/")
    page = client.post(url("test"), values(kb, web), headers=ENGLISH).content.decode()
    assert "169.254.169.254 is at 169.254.169.254, which is not a public address" in page


def test_a_test_that_has_to_wait_says_so_in_its_place(client, kb, web, crowded):
    answer = client.post(url("test"), values(kb, web), headers={**ENGLISH, "HX-Request": "true"})
    assert (answer.status_code, answer["Retry-After"], answer["HX-Reswap"]) == (503, "10", "innerHTML")
    assert "wait for other servers" in answer.content.decode()
    assert "<html" not in answer.content.decode()


def test_a_test_of_a_wrong_form_says_what_is_wrong(client, kb, web):
    page = client.post(url("test"), values(kb, web, url="file:///etc/passwd"), headers=ENGLISH).content.decode()
    assert "are not read" in page


def test_the_list_shows_what_became_of_the_run(client, source, web):
    web.pages["/"] = Page(status=500)
    run_source(source.pk)
    page = get(client, url("changelist"))
    assert "failed: 1" in page
    assert web.url("/") in page


def test_the_empty_list_says_what_sources_are_for(client, kb):
    assert "No sources yet" in get(client, url("changelist"))


def test_a_list_asks_again_while_a_source_is_read(client, source):
    assert f"?ids={source.pk}" in get(client, url("changelist"))
    run_source(source.pk)
    answer = get(client, f"{url('progress')}?ids={source.pk}")
    assert "new: 1" in answer
    assert "hx-get" not in answer


def test_the_buttons_change_when_the_run_ends(client, source):
    assert "Stop reading" in get(client, url("change", source.pk))
    run_source(source.pk)
    answer = get(client, f"{url('progress')}?ids={source.pk}&form=1")
    assert "Read now" in answer
    assert "Its item (1)" in answer


def test_a_source_is_read_now_and_stopped(client, source):
    client.post(url("cancel", source.pk))
    source.refresh_from_db()
    assert source.status == "cancelled"
    client.post(url("run", source.pk))
    source.refresh_from_db()
    assert source.status == "waiting"


def test_several_sources_are_read_now(client, source):
    run_source(source.pk)
    client.post(url("changelist"), {"action": "run_now", "_selected_action": [source.pk]})
    source.refresh_from_db()
    assert source.status == "waiting"


def test_a_change_of_the_schedule_begins_no_run(client, kb, source, web):
    run_source(source.pk)
    client.post(url("change", source.pk), values(kb, web, every_minutes="60"))
    source.refresh_from_db()
    assert (source.status, source.every_minutes) == ("done", 60)
    assert source.next_run_at is not None


@pytest.mark.parametrize(("choice", "left"), [("keep", 1), ("delete", 0)])
def test_a_source_is_deleted_with_its_documents_or_without(client, source, choice, left):
    run_source(source.pk)
    assert "It has 1 document" in get(client, url("delete", source.pk))
    client.post(url("delete", source.pk), {"post": "yes", "documents": choice})
    assert not Source.objects.exists()
    assert Document.objects.count() == left


def test_its_pages_are_listed_with_their_states_and_errors(client, source, web):
    run_source(source.pk)
    SourceItem.objects.update(state="gone")
    page = get(client, f"{reverse('admin:kb_sourceitem_changelist')}?source__id__exact={source.pk}")
    assert web.url("/") in page
    assert "Its document is deleted if a run 24 hours later does not find it either." in page


def test_a_foreign_source_does_not_exist(client, web):
    stranger = make_kb()
    source = source_create(knowledge_base=stranger, user=None, name="x", kind="page", url=web.url("/"))
    assert client.get(url("change", source.pk)).status_code == 404
    for name in ("run", "cancel", "test_again"):
        assert client.post(url(name, source.pk)).status_code == 404
    assert "x" not in [row.name for row in client.get(url("changelist")).context["cl"].result_list]
    assert client.post(url("add"), values(stranger, web)).status_code == 200
    assert Source.objects.count() == 1


def test_a_viewer_sees_a_source_and_changes_nothing(client, source):
    viewer = make_member(source.knowledge_base, Membership.Role.VIEWER)
    client.force_login(viewer)
    assert client.get(url("change", source.pk)).status_code == 200
    for name in ("run", "cancel", "test_again", "delete"):
        assert client.post(url(name, source.pk)).status_code == 403


@pytest.mark.parametrize("name", ["changelist", "add", "change", "delete", "pages"])
def test_a_page_takes_few_queries(client, source, name, django_assert_max_num_queries):
    run_source(source.pk)
    addresses = {
        "changelist": url("changelist"),
        "add": url("add"),
        "change": url("change", source.pk),
        "delete": url("delete", source.pk),
        "pages": f"{reverse('admin:kb_sourceitem_changelist')}?source__id__exact={source.pk}",
    }
    client.get(addresses["changelist"])  # the process learns of its installation
    with django_assert_max_num_queries(10):
        client.get(addresses[name])


def test_what_a_run_held_back_is_said_and_accepted(client, kb, curator, web):
    from tests.kb.sources.connectors.web.sources import sitemap

    for word in ("ships", "trains"):
        web.pages[f"/{word}"] = Page(article(word, f"All about {word}, their journeys and their crews. " * 8))
    web.pages["/sitemap.xml"] = sitemap(web, "/ships", "/trains")
    fields = {"name": "site", "kind": "sitemap", "url": web.url("/sitemap.xml")}
    source = source_create(knowledge_base=kb, user=curator, **fields)
    run_source(source.pk)
    for word in ("ships", "trains"):
        web.pages[f"/{word}"] = Page(article("Maintenance", "We are improving our site for you. Come back soon. " * 8))
    client.post(url("run", source.pk))
    run_source(source.pk)

    page = get(client, url("change", source.pk))
    assert "2 of 2 pages show one text now: “Maintenance We are improving our site" in page
    assert "Accept the changes of 2 items" in page
    assert "2 of 2 pages show one text now" in get(client, url("changelist"))
    chinese = client.get(url("change", source.pk), headers={"accept-language": "zh-hans"}).content.decode()
    assert "2 个网页中有 2 个现在显示同一段文本" in chinese

    client.post(url("accept", source.pk))
    source.refresh_from_db()
    assert (source.status, len(source.accepted_keys)) == ("waiting", 1)
    run_source(source.pk)
    assert Document.objects.count() == 1


def test_only_an_editor_accepts(client, curator, source):
    Source.objects.update(knowledge_base=make_kb(name="shared"))
    make_member(Source.objects.get().knowledge_base, Membership.Role.VIEWER, curator)
    assert client.post(url("accept", source.pk)).status_code == 403
    assert Source.objects.get().accepted_at is None


class TestAPlaceWithSecrets:
    SECRET = "correct horse"

    @pytest.fixture
    def place(self, monkeypatch):
        with opened(monkeypatch) as place:
            place.files = {"a.md": text(1), "b.md": text(2)}
            yield place

    @pytest.fixture
    def stored(self, kb, curator, place):
        settings = {"url": "https://files.example/a", "user": "ann"}
        return source_create(
            knowledge_base=kb,
            user=curator,
            name="files",
            kind="webdav",
            settings=settings,
            secrets={"password": self.SECRET},
        )

    def of_form(self, kb, **fields):
        usual = {
            "knowledge_base": kb.pk,
            "name": "files",
            "kind": "webdav",
            "enabled": "on",
            "max_share": 25,
            "max_pages": 200,
            "max_depth": 2,
            "setting_webdav_url": "https://files.example/a",
            "setting_webdav_user": "ann",
        }
        return usual | fields

    def test_one_is_added_with_its_secret(self, client, kb, place):
        answer = client.post(url("add"), self.of_form(kb, setting_webdav_password=self.SECRET))
        source = Source.objects.get()
        assert answer.status_code == 302
        assert (source.settings["url"], source.url) == ("https://files.example/a", "")
        assert decrypted(source.secrets) == {"password": self.SECRET}

    def test_the_form_says_that_a_secret_is_set_and_shows_nothing_of_it(self, client, stored):
        page = get(client, url("change", stored.pk))
        assert "set; leave blank to keep it" in page
        assert 'value="ann"' in page
        assert self.SECRET not in page

    def test_a_blank_secret_stays_and_another_place_asks_for_it_again(self, client, kb, stored):
        assert client.post(url("change", stored.pk), self.of_form(kb, name="renamed")).status_code == 302
        stored.refresh_from_db()
        assert (stored.name, decrypted(stored.secrets)) == ("renamed", {"password": self.SECRET})
        elsewhere = self.of_form(kb, setting_webdav_url="https://elsewhere.example/a")
        page = client.post(url("change", stored.pk), elsewhere, headers=ENGLISH)
        assert list(page.context["adminform"].form.errors) == ["setting_webdav_password"]
        assert client.post(url("change", stored.pk), elsewhere | {"setting_webdav_password": "new"}).status_code == 302
        stored.refresh_from_db()
        assert decrypted(stored.secrets) == {"password": "new"}

    def test_what_is_missing_is_said_at_its_field(self, client, kb, place):
        page = client.post(url("add"), self.of_form(kb, setting_webdav_url=""), headers=ENGLISH)
        assert list(page.context["adminform"].form.errors) == ["setting_webdav_url"]

    def test_a_test_lists_the_first_files(self, client, kb, place, monkeypatch):
        monkeypatch.setitem(registry.KINDS, "webdav", dataclasses.replace(registry.KINDS["webdav"], connector=place))
        place.fields = WebDav.fields
        page = client.post(url("test"), self.of_form(kb), headers=ENGLISH).content.decode()
        assert "a.md" in page
        assert "2 items:" in page

    def test_it_is_paused_and_resumed_and_shows_its_runs(self, client, kb, place, curator):
        source = source_create(knowledge_base=kb, user=curator, name="g", kind="git", settings={"root": "r"})
        run_source(source.pk)
        assert "new: 2" in get(client, url("change", source.pk))
        client.post(url("pause", source.pk))
        assert "Resume" in get(client, url("change", source.pk))
        client.post(url("resume", source.pk))
        assert not Source.objects.get(pk=source.pk).paused


def test_what_the_source_no_longer_has_is_deleted_after_one_question(client, kb, curator, monkeypatch):
    with opened(monkeypatch) as place:
        place.files = {f"{number}.md": text(number) for number in range(4)}
        source = source_create(
            knowledge_base=kb, user=curator, name="files", kind="git", settings={"root": "r"}, hides_gone=True
        )
        run_source(source.pk)
        del place.files["2.md"]
        source_request(source)
        run_source(source.pk)
    assert "Delete 1 missing document" in get(client, url("change", source.pk))
    assert "gone from its source" in get(client, reverse("admin:kb_document_changelist"))
    question = get(client, url("delete_gone", source.pk))
    assert "This cannot be undone" in question
    assert Document.objects.count() == 4
    assert client.post(url("delete_gone", source.pk)).status_code == 302
    assert Document.objects.count() == 3
    assert "Delete 1 document" not in get(client, url("change", source.pk))
