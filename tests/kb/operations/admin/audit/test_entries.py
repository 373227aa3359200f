from datetime import UTC, datetime

import pytest
from django.urls import reverse

from kb.access.services.attribution import acting
from kb.models import ApiKey, AuditEntry, Chunk, Document, User
from tests.factories import make_api_key, make_document, make_member, make_user

LIST = "admin:kb_auditentry_changelist"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def renamed(curator, document):
    AuditEntry.objects.all().delete()
    with acting("api", via="PATCH api/v1/documents/<int:pk>/", user=curator, address="10.0.0.9"):
        Document.objects.filter(pk=document.pk).update(title="New title", tags=["a", "b"], metadata={"year": 2024})
    return AuditEntry.objects.get()


def shown(client, **query):
    return client.get(reverse(LIST), query).content.decode()


def detail(client, entry):
    return client.get(reverse("admin:kb_auditentry_change", args=[entry.pk]))


def test_the_list_says_who_changed_what(client, renamed):
    page = shown(client)

    for words in ("curator", "changed", "document", "New title", "legal", "API"):
        assert words in page, words


def test_an_entry_shows_each_field_before_and_after(client, renamed):
    page = detail(client, renamed).content.decode()

    for words in ("Contracts", "New title", "a · b", "PATCH api/v1/documents", "{&quot;year&quot;: 2024}", "10.0.0.9"):
        assert words in page, words


def test_fields_and_values_are_those_of_the_pages_in_chinese(client, kb):
    created = AuditEntry.objects.get(object_type="knowledge_base", object_id=str(kb.pk), action="create")
    response = client.get(
        reverse("admin:kb_auditentry_change", args=[created.pk]), headers={"accept-language": "zh-hans"}
    )
    rows = {row["field"]: row["after"] for row in response.context["differences"]}

    assert rows["分词器"]
    assert rows["语言"] == "中文"
    assert {"按段落和句子", "字符"} <= set(rows.values())
    assert not {"tokenizer", "profile", "owner"} & set(rows)
    assert not {"recursive", "characters", "zh"} & set(rows.values())


def test_the_history_of_a_document_is_its_audit_log(client, document):
    response = client.get(reverse("admin:kb_document_history", args=[document.pk]), follow=True)
    page = response.content.decode()

    assert response.redirect_chain
    assert [entry.object_id for entry in response.context["cl"].result_list] == [str(document.pk)]
    assert "Contracts" in page


def test_who_may_not_read_the_audit_log_sees_the_history_of_the_admin(client, document):
    client.force_login(make_member(document.knowledge_base))

    assert client.get(reverse("admin:kb_document_history", args=[document.pk])).status_code == 200


def test_a_secret_is_only_said_to_have_changed(client, curator):
    client.force_login(make_user("root", superuser=True))
    curator.set_password("another")
    curator.save()
    entry = AuditEntry.objects.filter(object_type="user", action="update").latest("pk")

    page = detail(client, entry).content.decode()

    assert "its value is not kept" in page
    assert User.objects.get(pk=curator.pk).password not in page


def test_switches_and_times_are_shown_as_pages_show_them(client, settings):
    settings.TIME_ZONE = "Asia/Shanghai"
    client.force_login(make_user("root", superuser=True))
    key, _secret = make_api_key(make_user())
    ApiKey.objects.filter(pk=key.pk).update(revoked=True, expiry_date=datetime(2030, 1, 31, 20, 30, tzinfo=UTC))
    entry = AuditEntry.objects.filter(object_type="api_key", action="update").latest("pk")

    rows = {row["field"]: (row["before"], row["after"]) for row in detail(client, entry).context["differences"]}

    assert set(rows.values()) == {("no", "yes"), ("", "2030-02-01 04:30 UTC+0800")}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"kind": "document"}, True),
        ({"kind": "chunk"}, False),
        ({"action__exact": "update"}, True),
        ({"action__exact": "delete"}, False),
        ({"username__icontains": "cura"}, True),
        ({"username__icontains": "other"}, False),
        ({"at_from": "2000-01-01"}, True),
        ({"at_to": "2000-01-01"}, False),
        ({"at_from": "nonsense"}, True),
        ({"at_to": "9999-12-31"}, True),
        ({"q": "New"}, True),
        ({"how__exact": "task"}, False),
    ],
)
def test_the_list_is_filtered(client, renamed, query, found):
    assert ("New title" in shown(client, **query)) is found


def test_many_rows_are_counted(client, kb, curator):
    make_document(kb, *[f"text {number}" for number in range(25)])
    with acting("admin", user=curator):
        Chunk.objects.update(enabled=False)

    assert "25 rows" in shown(client, kind="chunk")


@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_who_is_no_owner_sees_nothing_of_it(client, curator, foreign, role):
    make_member(foreign.knowledge_base, role, curator)
    Document.objects.filter(pk=foreign.pk).update(title="Secret title")
    entry = AuditEntry.objects.filter(object_type="document").latest("pk")

    assert "Secret title" not in shown(client)
    assert detail(client, entry).status_code == 404


def test_nobody_changes_or_deletes_an_entry(client, renamed):
    client.force_login(make_user(superuser=True))

    assert client.post(reverse("admin:kb_auditentry_delete", args=[renamed.pk]), {"post": "yes"}).status_code == 403
    assert client.get(reverse("admin:kb_auditentry_add")).status_code == 403
    assert client.post(reverse("admin:kb_auditentry_change", args=[renamed.pk]), {"username": "x"}).status_code == 403
    assert AuditEntry.objects.get(pk=renamed.pk).username == "curator"


def test_an_empty_log_says_so(client):
    AuditEntry.objects.all().delete()

    assert client.get(reverse(LIST)).status_code == 200


def test_what_a_task_has_done_is_by_nobody_unknown(client, document):
    AuditEntry.objects.all().delete()
    with acting("task", via="kb.tasks.read_web_source"):
        Document.objects.filter(pk=document.pk).update(title="Another title")
    assert "by itself" in shown(client)
    assert "unknown" not in shown(client)
