"""The audit log as the database's triggers write it."""

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from kb import tasks
from kb.access.services.api_keys import api_key_create
from kb.access.services.attribution import acting
from kb.content.services import knowledge_base_delete
from kb.models import (
    ApiKey,
    AuditEntry,
    Chunk,
    Concept,
    Document,
    EvalSet,
    GraphFact,
    GroupMembership,
    KnowledgeBase,
    Membership,
    RetrievalProfile,
    SearchProvider,
    Source,
    User,
)
from kb.operations.services import retention
from tests import factories

pytestmark = pytest.mark.django_db

NOTHING = {}


@pytest.fixture
def owner():
    return factories.make_user("owner")


@pytest.fixture
def kb(owner):
    return factories.make_kb(owner, "handbook")


@pytest.fixture
def document(kb):
    document = factories.make_document(kb, "one", "two", "three", title="Notes")
    AuditEntry.objects.all().delete()
    return document


@pytest.fixture
def by(owner):
    """Writes as the owner does through the API."""
    return lambda: acting("api", user=owner, via="PATCH api/v1/x/", address="10.0.0.9", request_id="r1")


def entries(**conditions):
    return list(AuditEntry.objects.filter(**conditions).order_by("pk"))


def only(**conditions):
    (entry,) = entries(**conditions)
    return entry


def test_a_change_says_who_when_what_and_from_what_to_what(by, owner, kb, document):
    before = timezone.now()

    with by():
        Document.objects.filter(pk=document.pk).update(title="New", tags=["a"])

    entry = only()
    assert (entry.user, entry.username, entry.how, entry.via) == (owner, "owner", "api", "PATCH api/v1/x/")
    assert (entry.address, entry.request_id, entry.at >= before - timedelta(minutes=5)) == ("10.0.0.9", "r1", True)
    assert (entry.action, entry.object_type, entry.object_id, entry.object_name) == (
        "update",
        "document",
        str(document.pk),
        "New",
    )
    assert (entry.knowledge_base, entry.knowledge_base_name) == (kb, "handbook")
    assert entry.changes == {"title": ["Notes", "New"], "tags": [[], ["a"]]}


def test_progress_is_no_change(document):
    Document.objects.filter(pk=document.pk).update(
        status="processing", progress=40, error="x", updated_at=timezone.now()
    )

    assert entries() == []


def test_a_title_that_ingestion_finds_is_no_change_and_one_that_a_person_gives_is(by, document):
    Document.objects.update(title="", status="processing")
    AuditEntry.objects.all().delete()

    Document.objects.update(title="Found", mime="text/plain")
    assert entries() == []
    Document.objects.update(title="")
    with by():
        Document.objects.update(title="Given")

    assert [entry.changes["title"] for entry in entries()] == [["Found", ""], ["", "Given"]]


def test_raw_sql_is_told_as_of_another_program(document):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE kb_document SET title = 'by hand'")

    assert (only().how, only().user) == ("other", None)


def test_a_process_may_say_what_it_is_without_a_word_before_each_statement(document):
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('zhiku.how', 'task', true)")

    Document.objects.update(title="New")

    assert only().how == "task"


def test_a_bulk_update_leaves_an_entry_a_row(by, kb, document):
    factories.make_document(kb, "four", title="Other")
    AuditEntry.objects.all().delete()

    with by():
        Document.objects.update(tags=["x"])

    assert [entry.object_name for entry in entries()] == ["Notes", "Other"]


def test_entries_of_what_is_deleted_stay_readable(by, kb, document):
    with by():
        document.delete()

    entry = only(object_type="document")
    assert (entry.action, entry.object_name, entry.changes["title"]) == ("delete", "Notes", ["Notes", None])


def test_a_deleted_knowledge_base_keeps_its_name(by, kb, document):
    kb_id = kb.pk
    with by():
        knowledge_base_delete(kb)

    entry = only(object_type="knowledge_base")
    assert (entry.action, entry.object_name, entry.knowledge_base_name) == ("delete", "handbook", "handbook")
    assert {each.knowledge_base_id for each in entries()} == {kb_id}


def test_rows_by_the_hundred_get_one_entry(by, kb):
    concepts = [Concept(knowledge_base=kb, name=f"c{number}") for number in range(501)]
    with by():
        Concept.objects.bulk_create(concepts)

    entry = only(object_type="concept")
    assert (entry.action, entry.amount, entry.object_name, entry.knowledge_base) == ("create", 501, "", kb)


def test_ingestion_leaves_no_entry_about_chunks(kb, document):
    Chunk.objects.filter(document=document).delete()

    assert entries(object_type="chunk") == []


def test_a_chunk_that_a_person_edits_keeps_what_it_was(by, document):
    with by():
        Chunk.objects.filter(position=1).update(text="second")

    entry = only()
    assert (entry.object_name, entry.changes) == ("Notes #2", {"text": ["two", "second"]})


def test_switching_many_chunks_off_leaves_one_entry(by, kb):
    factories.make_document(kb, *[f"text {number}" for number in range(25)])
    AuditEntry.objects.all().delete()

    with by():
        Chunk.objects.update(enabled=False)

    assert (only().amount, only().changes) == (25, {"enabled": [None, False]})


def test_deleting_many_chunks_leaves_one_entry(by, kb):
    factories.make_document(kb, *[f"text {number}" for number in range(25)])
    AuditEntry.objects.all().delete()

    with by():
        Chunk.objects.all().delete()

    assert [(entry.action, entry.amount) for entry in entries()] == [("delete", 25)]


def test_moving_chunks_is_no_change_of_them(by, document):
    with by(), connection.cursor() as cursor:
        cursor.execute("UPDATE kb_chunk SET position = position + 10")

    assert entries() == []


def test_a_password_is_told_of_and_not_kept(by, owner):
    with by():
        owner.set_password("another one")
        owner.save()

    entry = only(object_type="user", action="update")
    assert entry.changes == {"password": [None, None]}


def test_a_login_is_no_change(owner):
    AuditEntry.objects.all().delete()

    User.objects.update(last_login=timezone.now())

    assert entries() == []


def test_a_key_is_told_of_without_its_hash(by, owner, kb):
    with by():
        key, secret = api_key_create(user=owner, name="shop", knowledge_bases=[kb])

    made, bound = entries(object_type="api_key")
    assert (made.action, made.object_id, made.object_name) == ("create", key.prefix, "shop")
    assert (bound.action, bound.object_id, bound.knowledge_base) == ("bind", key.prefix, kb)
    for each in AuditEntry.objects.values():
        assert key.hashed_key not in str(each)
        assert secret.partition(".")[2] not in str(each)


def test_the_use_of_a_key_is_no_change(owner):
    factories.make_api_key(owner)
    AuditEntry.objects.all().delete()

    ApiKey.objects.update(last_used_at=timezone.now())

    assert entries() == []


def test_long_values_are_cut(by, document):
    with by():
        Document.objects.update(metadata={"text": "x" * 10_000})

    assert len(only().changes["metadata"][1]) == 2_001


def test_a_language_model_s_facts_are_told_of_only_where_a_person_changes_them(by, kb):
    def fact(**fields):
        names = {"predicate": "is", "subject_key": "a", "object_key": "b", **fields}
        return GraphFact(knowledge_base=kb, subject="a", object="b", **names)

    GraphFact.objects.bulk_create([fact(origin="llm"), fact(predicate="was", origin="hand")])
    assert [entry.object_name for entry in entries(object_type="fact")] == ["a · was · b"]

    with by():
        GraphFact.objects.filter(origin="llm").update(predicate="became")

    assert entries(object_type="fact")[-1].changes == {"predicate": ["is", "became"]}


def test_every_kind_of_object_that_people_change_is_told_of(by, owner, kb, document):
    with by():
        member = factories.make_member(kb)
        Membership.objects.filter(user=member).update(role="editor")
        Concept.objects.create(knowledge_base=kb, name="concept")
        EvalSet.objects.create(knowledge_base=kb, name="set")
        SearchProvider.objects.create(knowledge_base=kb, name="elsewhere")
        Source.objects.create(knowledge_base=kb, name="site", url="https://test/")
        RetrievalProfile.objects.create(name="own", knowledge_base=kb)
        KnowledgeBase.objects.update(description="new")

    assert {entry.object_type for entry in entries(user=owner)} == {
        "user",
        "membership",
        "concept",
        "concept_term",
        "eval_set",
        "external_source",
        "source",
        "retrieval_profile",
        "knowledge_base",
    }
    assert only(object_type="membership", action="update").changes == {"role": ["viewer", "editor"]}


def test_a_request_of_the_api_is_told_with_its_key(kb, owner, document):
    key, secret = factories.make_api_key(owner, scope="write")
    AuditEntry.objects.all().delete()
    client = APIClient(headers={"Authorization": f"Bearer {secret}", "X-Request-ID": "of-the-app-7"})

    client.patch(f"/api/v1/documents/{document.pk}/", {"title": "New"}, format="json")

    entry = only(object_type="document")
    assert (entry.username, entry.api_key, entry.how, entry.request_id) == ("owner", key.prefix, "api", "of-the-app-7")
    assert entry.via == "PATCH api/v1/documents/<int:pk>/"
    assert entry.address == "127.0.0.1"


def test_a_page_of_the_admin_is_told_with_its_user(client, owner, document):
    client.force_login(owner)

    client.post(reverse("admin:kb_document_delete", args=[document.pk]), {"post": "yes"})

    entry = only(object_type="document")
    assert (entry.username, entry.api_key, entry.how, entry.action) == ("owner", "", "admin", "delete")


def test_a_command_is_told_by_its_name():
    factories.make_user("ann")

    call_command("create_api_key", "--user", "ann")

    assert [(entry.how, entry.via) for entry in entries(object_type="api_key")] == [("command", "create_api_key")]


@pytest.mark.parametrize("call", ["search/", "ask/"])
def test_a_request_that_reads_sends_nothing_more_to_the_database(kb, owner, document, call, django_assert_num_queries):
    client = APIClient()
    client.force_login(owner)
    seen = []

    def watch(execute, sql, params, many, context):
        seen.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        client.post(f"/api/v1/{call}", {"query": "one", "knowledge_base_ids": [kb.pk]}, format="json")
        client.get(f"/api/v1/documents/{document.pk}/")

    assert seen
    assert not any("pghistory" in str(sql) for sql in seen)


def test_owners_see_what_happened_to_what_they_own_and_nobody_else_does(by, kb, owner, document):
    stranger, viewer, editor = factories.make_user(), factories.make_member(kb), factories.make_member(kb, "editor")
    with by():
        Document.objects.update(title="New")

    def seen_by(user, **scope):
        return AuditEntry.objects.visible_to(factories.principal(user, **scope)).filter(object_type="document").exists()

    assert seen_by(owner)
    assert seen_by(factories.make_user(superuser=True))
    assert seen_by(factories.make_member(kb, "owner"))
    assert seen_by(owner, can_write=False)
    assert [seen_by(each) for each in (stranger, viewer, editor)] == [False] * 3
    assert not seen_by(owner, kb_ids=frozenset({factories.make_kb(owner).pk}))


def test_a_user_sees_what_they_did_to_what_is_gone_or_belongs_to_no_knowledge_base(by, owner, kb):
    with by():
        api_key_create(user=owner, name="shop")
        knowledge_base_delete(kb)

    seen = AuditEntry.objects.visible_to(factories.principal(owner)).values_list("object_type", flat=True)
    others = AuditEntry.objects.visible_to(factories.principal(factories.make_user()))
    bound = AuditEntry.objects.visible_to(factories.principal(owner, kb_ids=frozenset({kb.pk})))
    assert {"api_key", "knowledge_base"} <= set(seen)
    assert not others.exists()
    assert not bound.exists()


def test_an_inactive_user_sees_nothing(by, owner, kb, document):
    with by():
        Document.objects.update(title="New")
    owner.is_active = False

    assert not AuditEntry.objects.visible_to(factories.principal(owner)).exists()


def test_entries_past_their_time_go(document, settings, monkeypatch):
    settings.AUDIT_RETENTION_DAYS = 30
    monkeypatch.setattr("kb.base.db.transactions.BATCH", 2)
    for _ in range(5):
        Document.objects.update(title=f"{_}")
    Document.objects.update(title="kept")
    kept = AuditEntry.objects.latest("pk")
    AuditEntry.objects.exclude(pk=kept.pk).update(at=timezone.now() - timedelta(days=31))
    AuditEntry.objects.filter(pk=kept.pk).update(at=timezone.now() - timedelta(days=2))  # else the clock is doubted

    tasks.purge_search_log()

    assert entries() == [kept]


def test_no_days_keep_entries_for_ever(document, settings):
    settings.AUDIT_RETENTION_DAYS = 0
    Document.objects.update(title="New")
    AuditEntry.objects.update(at=timezone.now() - timedelta(days=9_000))

    assert retention.purge_audit_log() == 0


def test_groups_and_who_is_in_them_are_in_the_log(kb, owner, by):
    ann = factories.make_user("ann")
    AuditEntry.objects.all().delete()
    with by():
        group = factories.make_group(kb, "viewer", ann, name="engineering")
        GroupMembership.objects.update(role="editor")
        ann.groups.remove(group)
        GroupMembership.objects.all().delete()

    entries = AuditEntry.objects.order_by("pk").values_list(
        "action", "object_type", "object_name", "changes", "knowledge_base"
    )
    assert list(entries) == [
        ("bind", "user", "ann", {"group": [None, "oidc:engineering"]}, None),
        ("create", "group_membership", "oidc:engineering", {"role": [None, "viewer"]}, kb.pk),
        ("update", "group_membership", "oidc:engineering", {"role": ["viewer", "editor"]}, kb.pk),
        ("unbind", "user", "ann", {"group": ["oidc:engineering", None]}, None),
        ("delete", "group_membership", "oidc:engineering", {"role": ["editor", None]}, kb.pk),
    ]
    assert set(AuditEntry.objects.values_list("username", flat=True)) == {"owner"}
