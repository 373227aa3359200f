"""Every endpoint for each kind of caller; what another tenant may do with it is in tests/isolation."""

import itertools
import re

import pytest
from django.core.files.base import ContentFile
from django.utils import timezone
from rest_framework.test import APIClient

from kb.api import urlpatterns
from kb.models import (
    AuditEntry,
    Concept,
    Conversation,
    EvalQuery,
    EvalRun,
    EvalSet,
    GraphFact,
    IngestBatch,
    Judgment,
    Membership,
    RetrievalProfile,
    SearchLog,
    SearchProvider,
)
from tests import factories

pytestmark = pytest.mark.django_db

METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
PUBLIC = {"health/", "ready/", "schema/", "docs/", "^metrics/?$", ""}
ROUTES = [str(each.pattern) for each in urlpatterns if str(each.pattern) not in PUBLIC]
READS = {
    "knowledge-bases/<int:pk>/",
    "knowledge-bases/<int:kb_id>/documents/",
    "knowledge-bases/<int:kb_id>/batches/",
    "batches/<int:pk>/",
    "knowledge-bases/<int:pk>/tokenizer/",
    "documents/<int:pk>/",
    "documents/<int:pk>/chunks/",
    "documents/<int:pk>/file/",
    "chunks/<int:pk>/",
    "chunks/<int:pk>/neighbours/",
    "chunks/<int:pk>/queries/",
    "chunks/<int:pk>/duplicates/",
    "knowledge-bases/<int:pk>/near-duplicates/",
    "traces/<uuid:trace_id>/",
    "knowledge-bases/<int:kb_id>/concepts/",
    "concepts/<int:pk>/",
    "facts/<int:pk>/",
    "eval-sets/<int:pk>/",
    "eval-sets/<int:pk>/export/",
    "eval-sets/<int:pk>/queries/",
    "eval-sets/<int:pk>/queries/<int:query_id>/",
    "eval-sets/<int:pk>/judgments/",
    "eval-runs/<int:pk>/",
    "eval-runs/<int:pk>/queries/",
    "profiles/<path:name>/versions/",
    "profiles/<path:name>/versions/<int:version>/",
    "profiles/<path:name>/versions/<int:version>/diff/",
}
OWNERS_READ = ["audit/<int:pk>/"]
OWNERS_ONLY = [
    ("get", "knowledge-bases/<int:kb_id>/members/"),
    ("get", "knowledge-bases/<int:kb_id>/members/<int:user_id>/"),
    ("get", "knowledge-bases/<int:kb_id>/groups/"),
    ("get", "knowledge-bases/<int:kb_id>/groups/<int:group_id>/"),
]
OWNERS_WRITE = [
    ("post", "knowledge-bases/<int:kb_id>/members/"),
    ("patch", "knowledge-bases/<int:kb_id>/members/<int:user_id>/"),
    ("delete", "knowledge-bases/<int:kb_id>/members/<int:user_id>/"),
    ("put", "knowledge-bases/<int:kb_id>/owner/"),
    ("post", "knowledge-bases/<int:kb_id>/groups/"),
    ("patch", "knowledge-bases/<int:kb_id>/groups/<int:group_id>/"),
    ("delete", "knowledge-bases/<int:kb_id>/groups/<int:group_id>/"),
]
WRITES = [
    *OWNERS_WRITE,
    ("patch", "knowledge-bases/<int:pk>/"),
    ("delete", "knowledge-bases/<int:pk>/"),
    ("post", "knowledge-bases/<int:kb_id>/documents/"),
    ("post", "knowledge-bases/<int:kb_id>/batches/"),
    *(("post", f"batches/<int:pk>/{each}/") for each in ("files", "pause", "resume", "cancel", "retry")),
    ("put", "knowledge-bases/<int:pk>/tokenizer/"),
    ("delete", "knowledge-bases/<int:pk>/tokenizer/"),
    ("post", "knowledge-bases/<int:kb_id>/external-sources/"),
    ("patch", "knowledge-bases/<int:kb_id>/external-sources/<int:source_id>/"),
    ("delete", "knowledge-bases/<int:kb_id>/external-sources/<int:source_id>/"),
    ("post", "knowledge-bases/<int:kb_id>/external-sources/<int:source_id>/test/"),
    ("patch", "documents/<int:pk>/"),
    ("put", "documents/<int:pk>/"),
    ("put", "documents/<int:pk>/file/"),
    ("delete", "documents/<int:pk>/"),
    ("post", "documents/<int:pk>/retry/"),
    ("post", "knowledge-bases/<int:kb_id>/concepts/"),
    ("patch", "concepts/<int:pk>/"),
    ("delete", "concepts/<int:pk>/"),
    ("patch", "facts/<int:pk>/"),
    ("delete", "facts/<int:pk>/"),
    ("patch", "chunks/<int:pk>/"),
    ("delete", "chunks/<int:pk>/"),
    ("post", "chunks/<int:pk>/split/"),
    ("post", "documents/<int:pk>/chunks/merge/"),
    ("post", "knowledge-bases/<int:pk>/chunks/bulk/"),
    ("post", "knowledge-bases/<int:pk>/near-duplicates/"),
    ("patch", "eval-sets/<int:pk>/"),
    ("delete", "eval-sets/<int:pk>/"),
    ("post", "eval-sets/<int:pk>/queries/"),
    ("patch", "eval-sets/<int:pk>/queries/<int:query_id>/"),
    ("delete", "eval-sets/<int:pk>/queries/<int:query_id>/"),
    ("put", "eval-sets/<int:pk>/judgments/"),
    ("delete", "eval-sets/<int:pk>/judgments/<int:judgment_id>/"),
    ("post", "eval-runs/<int:pk>/cancel/"),
    ("delete", "profiles/<path:name>/versions/<int:version>/"),
    ("post", "profiles/<path:name>/versions/<int:version>/publish/"),
]


@pytest.fixture
def url_of(kb, document, chunk, owner):
    """The URL of a route with the ids of real objects of the knowledge base."""
    document.file.save("notes.txt", ContentFile(b"text"))
    entry = SearchLog.objects.create(
        user=owner,
        knowledge_base_ids=[kb.pk],
        query="年假",
        profile="default",
        profile_version=1,
        configuration={},
        trace={},
        result_count=0,
        duration_ms=1.0,
        created_at=timezone.now(),
    )

    conversation = Conversation.objects.create(user=owner, knowledge_base_ids=[kb.pk])
    RetrievalProfile.objects.create(name="tuned", knowledge_base=kb)

    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    query = EvalQuery.objects.create(eval_set=eval_set, external_id="1", text="年假")
    judgment = Judgment.objects.create(query=query, document=document, source="notes.txt", grade=1)
    run, other = (EvalRun.objects.create(eval_set=eval_set, profile=kb.profile) for _ in range(2))
    external = SearchProvider.objects.create(knowledge_base=kb, name="site search")
    member = factories.make_member(kb)
    key, _ = factories.make_api_key(owner)
    rows = {
        "knowledge-bases": kb.pk,
        "documents": document.pk,
        "batches": IngestBatch.objects.create(knowledge_base=kb, name="upload").pk,
        "chunks": chunk.pk,
        "eval-sets": eval_set.pk,
        "eval-runs": run.pk,
        "audit": AuditEntry.objects.filter(knowledge_base=kb).latest("pk").pk,
        "concepts": Concept.objects.create(knowledge_base=kb, name="leave").pk,
        "facts": GraphFact.objects.create(knowledge_base=kb, subject="a", predicate="b", object="c").pk,
    }

    def make(route):
        return _filled(
            route,
            kb_id=kb.pk,
            pk=conversation.pk if "<uuid:pk>" in route else rows.get(route.split("/")[0], 0),
            trace_id=entry.pk,
            name="tuned",
            version=1,
            page=1,
            query_id=query.pk,
            judgment_id=judgment.pk,
            source_id=external.pk,
            other=other.pk,
            user_id=member.pk,
            group_id=factories.make_group(kb, Membership.Role.VIEWER).pk,
            prefix=key.prefix,
        )

    return make


def _filled(route, **values):
    return "/api/v1/" + re.sub(r"<\w+:(\w+)>", lambda match: str(values[match[1]]), route)


def _call(client, method, url):
    body = {} if method in {"get", "head"} else {"data": {}, "format": "json"}
    response = getattr(client, method)(url, **body)
    if response.streaming:
        list(response)  # which closes the file
    return response


def unexpected(client, calls, url_of, status):
    """The calls that are answered otherwise: "method route": status."""
    told = {f"{method} {route}": _call(client, method, url_of(route)).status_code for method, route in calls}
    return {call: found for call, found in told.items() if found != status}


GETS = [("get", route) for route in sorted(READS)]


def test_without_credentials_every_method_of_every_endpoint_is_401(anonymous, url_of):
    assert unexpected(anonymous, itertools.product(METHODS, ROUTES), url_of, 401) == {}


def test_a_viewer_may_read(client_of, kb, url_of):
    assert unexpected(client_of(factories.make_member(kb)), GETS, url_of, 200) == {}


def test_a_viewer_may_not_write(client_of, kb, url_of):
    viewer = client_of(factories.make_member(kb))

    answers = {(method, route): _call(viewer, method, url_of(route)) for method, route in WRITES}
    told = {call: (answer.status_code, answer.json()["code"]) for call, answer in answers.items()}

    assert {call: answer for call, answer in told.items() if answer != (403, "permission_denied")} == {}


def test_a_key_with_the_scope_read_may_not_write(client_with, owner, url_of):
    _, secret = factories.make_api_key(owner, scope="read")

    assert unexpected(client_with(secret), WRITES, url_of, 403) == {}


def test_a_key_with_the_scope_read_may_read(client_with, owner, url_of):
    _, secret = factories.make_api_key(owner, scope="read")

    assert unexpected(client_with(secret), GETS, url_of, 200) == {}


def test_a_key_bound_to_another_knowledge_base_sees_nothing_of_this_one(client_with, owner, url_of):
    _, secret = factories.make_api_key(owner, factories.make_kb(owner, "other"), scope="write")

    assert unexpected(client_with(secret), GETS, url_of, 404) == {}


def test_a_superuser_may_read_everything(client_of, url_of):
    assert unexpected(client_of(factories.make_user(superuser=True)), GETS, url_of, 200) == {}


def test_an_id_beyond_the_range_of_the_database_is_404(client):
    assert client.get(f"/api/v1/documents/{10**30}/").status_code == 404


def test_an_editor_may_change_but_not_delete_a_knowledge_base(client_of, kb):
    editor = client_of(factories.make_member(kb, Membership.Role.EDITOR))
    url = f"/api/v1/knowledge-bases/{kb.pk}/"

    assert editor.patch(url, {"description": "new"}, format="json").status_code == 200
    assert editor.delete(url).status_code == 403


def test_a_bound_key_lists_only_its_knowledge_bases(client_with, kb, owner):
    factories.make_kb(owner, "other")
    _, secret = factories.make_api_key(owner, kb)

    rows = client_with(secret).get("/api/v1/knowledge-bases/").json()["results"]

    assert [row["name"] for row in rows] == ["handbook"]


def test_a_bound_key_cannot_create_a_knowledge_base(client_with, kb, owner):
    _, secret = factories.make_api_key(owner, kb, scope="write")

    response = client_with(secret).post("/api/v1/knowledge-bases/", {"name": "new"}, format="json")

    assert response.status_code == 403


def test_a_key_bound_to_a_deleted_knowledge_base_sees_nothing(client_with, kb, owner):
    factories.make_kb(owner, "other")
    _, secret = factories.make_api_key(owner, kb)
    kb.delete()

    assert len(client_with(secret).get("/api/v1/knowledge-bases/").json()["results"]) == 0


def test_a_key_cannot_do_more_than_its_user(client_with, kb):
    viewer = factories.make_member(kb)
    _, secret = factories.make_api_key(viewer, scope="write")

    response = client_with(secret).patch(f"/api/v1/knowledge-bases/{kb.pk}/", {"name": "mine"}, format="json")

    assert response.status_code == 403


def test_a_revoked_membership_takes_effect_at_once(kb):
    viewer = factories.make_member(kb)
    client = APIClient()
    client.force_login(viewer)
    url = f"/api/v1/knowledge-bases/{kb.pk}/"
    assert client.get(url).status_code == 200

    Membership.objects.filter(user=viewer).delete()

    assert client.get(url).status_code == 404


@pytest.mark.parametrize(("method", "route"), OWNERS_ONLY + OWNERS_WRITE)
def test_an_editor_may_not_do_what_is_for_owners(client_of, kb, url_of, method, route):
    editor = client_of(factories.make_member(kb, Membership.Role.EDITOR))

    assert _call(editor, method, url_of(route)).status_code == 403


@pytest.mark.parametrize("route", OWNERS_READ)
@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.EDITOR])
def test_what_only_owners_see_does_not_exist_for_others(client_of, kb, url_of, role, route):
    assert _call(client_of(factories.make_member(kb, role)), "get", url_of(route)).status_code == 404


@pytest.mark.parametrize("route", [*OWNERS_READ, *(route for _, route in OWNERS_ONLY)])
def test_another_owner_reads_what_is_for_owners(client_of, kb, url_of, route):
    owner = client_of(factories.make_member(kb, Membership.Role.OWNER))

    assert _call(owner, "get", url_of(route)).status_code == 200
