"""The query string of a list is no way to ask about rows that the caller may not see."""

import pytest
from django.contrib import admin
from django.urls import reverse

from kb.models import ApiKey
from kb.web.admin.scoped import ScopedModelAdmin
from tests.factories import make_api_key, make_kb, make_member, make_user

pytestmark = pytest.mark.django_db

ADMINS = {model.__name__: each for model, each in admin.site._registry.items() if isinstance(each, ScopedModelAdmin)}
TAILS = ("", "__exact", "__startswith", "__gt", "__regex", "__in", "__isnull")


def names(model):
    return {getattr(field, "attname", None) or field.name for field in model._meta.get_fields()} | {
        field.name for field in model._meta.get_fields()
    }


def over_relations(model):
    """Lookups of fields of other rows, one and two relations away, and of columns of the row itself."""
    for tail in TAILS:
        yield from (f"{name}{tail}" for name in names(model))
    for field in model._meta.get_fields():
        if field.is_relation and field.related_model:
            for name in names(field.related_model):
                yield from (f"{field.name}__{name}{tail}" for tail in TAILS)
            for further in field.related_model._meta.get_fields():
                if further.is_relation and further.related_model:
                    yield from (f"{field.name}__{further.name}__{name}" for name in names(further.related_model))


@pytest.fixture
def request_of(rf):
    from django.contrib.auth.models import AnonymousUser

    def make(user=None):
        request = rf.get("/")
        request.user = user or AnonymousUser()
        return request

    return make


@pytest.mark.parametrize("name", sorted(ADMINS))
def test_only_what_filters_and_links_ask_is_allowed(name, request_of):
    model_admin = ADMINS[name]
    request = request_of(make_user("viewer"))
    filters = model_admin.get_list_filter(request)
    paths = {each[0] if isinstance(each, tuple) else each for each in filters if not isinstance(each, type)}
    known = paths | set(model_admin.linked_lookups) | {getattr(each, "parameter_name", "") for each in filters}
    of_the_key = ("__exact", "__isnull", "__id__exact", "__id__isnull", "__id")
    for lookup in over_relations(model_admin.model):
        if model_admin.lookup_allowed(lookup, "a", request):
            path = next(each for each in sorted(known, key=len, reverse=True) if each and lookup.startswith(each))
            rest = lookup.removeprefix(path)
            is_own = not rest.strip("_") or rest in of_the_key or (rest in TAILS and "__" not in path)
            assert is_own, f"{name} answers {lookup}"


@pytest.mark.parametrize(
    ("model", "lookup"),
    [
        ("knowledgebase", "api_keys__id__startswith"),
        ("knowledgebase", "api_keys__hashed_key__startswith"),
        ("knowledgebase", "memberships__id"),
        ("knowledgebase", "memberships__user__password__startswith"),
        ("knowledgebase", "owner__id"),
        ("knowledgebase", "owner__password__startswith"),
        ("knowledgebase", "owner__email__startswith"),
        ("document", "created_by__password__startswith"),
        ("document", "knowledge_base__owner__password__startswith"),
        ("document", "knowledge_base__id__gt"),
        ("chunk", "document__created_by__id"),
        ("evalrun", "profile__settings__startswith"),
        ("searchlog", "user__password__startswith"),
        ("searchlog", "trace__startswith"),
        ("apikey", "id__startswith"),
        ("apikey", "pk__startswith"),
        ("apikey", "hashed_key__startswith"),
        ("auditentry", "changes__startswith"),
    ],
)
def test_a_viewer_s_look_up_is_refused(client, curator, model, lookup):
    kb = make_kb(make_user("alice"), "shared")
    make_member(kb, user=curator)
    make_api_key(kb.owner, kb)
    answer = client.get(reverse(f"admin:kb_{model}_changelist"), {lookup: "a"})
    assert answer.status_code == 400


def test_the_hash_of_a_key_cannot_be_found_sign_by_sign(client, curator):
    kb = make_kb(make_user("alice"), "shared")
    make_member(kb, user=curator)
    make_api_key(kb.owner, kb)
    key = ApiKey.objects.get()
    pages = [
        client.get(reverse("admin:kb_knowledgebase_changelist"), {"api_keys__id__startswith": start})
        for start in (key.pk[:12], "no such beginning")
    ]
    assert len({page.content for page in pages}) == 1
    assert b"shared" not in pages[0].content


@pytest.mark.parametrize(
    ("page", "lookup"),
    [
        ("document", "knowledge_base__id__exact"),
        ("document", "batch__id__exact"),
        ("chunk", "document__id__exact"),
        ("sourceitem", "source__id__exact"),
        ("evalrun", "eval_set__id__exact"),
        ("graphextraction", "document__knowledge_base__id__exact"),
    ],
)
def test_links_of_the_project_lead_to_filtered_lists(client, kb, page, lookup):
    answer = client.get(reverse(f"admin:kb_{page}_changelist"), {lookup: "0"})
    assert answer.status_code == 200
