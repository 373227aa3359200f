from datetime import timedelta
from importlib import import_module

import pytest
from django.db import connection
from django.utils import timezone, translation

from kb.access.services.api_keys import api_key_create, api_key_revoke
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.models import ApiKey, AuditEntry
from tests.factories import make_kb, make_member, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _english():
    with translation.override("en"):
        yield


def test_a_key_opens_what_it_is_bound_to():
    user = make_user()
    bound, _other = make_kb(user), make_kb(user)

    key, secret = api_key_create(user=user, name="app", knowledge_bases=[bound], scope="write")

    found = ApiKey.objects.get_from_key(secret)
    assert found == key
    assert found.principal().kb_ids == {bound.pk}
    assert found.principal().can_write


def test_a_key_that_is_not_bound_opens_what_its_user_sees():
    key, _secret = api_key_create(user=make_user(), name="app")

    assert not key.bound
    assert key.principal().kb_ids is None
    assert not key.principal().can_write


def test_the_secret_is_not_stored():
    key, secret = api_key_create(user=make_user(), name="app")

    assert secret.partition(".")[2] not in str(ApiKey.objects.filter(pk=key.pk).values().get())


def test_a_member_may_bind_a_key_to_a_shared_knowledge_base():
    kb = make_kb()

    key, _secret = api_key_create(user=make_member(kb), name="app", knowledge_bases=[kb])

    assert list(key.knowledge_bases.all()) == [kb]


def test_a_key_cannot_be_bound_to_what_its_user_may_not_see():
    with pytest.raises(NotVisible, match="share them first"):
        api_key_create(user=make_user(), name="app", knowledge_bases=[make_kb()])

    assert not ApiKey.objects.exists()


def test_an_unknown_scope_is_rejected():
    with pytest.raises(Rejected, match="choose one of read, write"):
        api_key_create(user=make_user(), name="app", scope="admin")


def test_a_key_that_would_be_expired_is_rejected():
    with pytest.raises(Rejected, match="in the future"):
        api_key_create(user=make_user(), name="app", expires=timezone.now() - timedelta(seconds=1))


def test_a_revoked_key_is_valid_no_more():
    key, secret = api_key_create(user=make_user(), name="app", expires=timezone.now() + timedelta(days=1))

    api_key_revoke(key)

    assert not ApiKey.objects.is_valid(secret)


@pytest.fixture
def family():
    """A key, one that was made with it, one that was made with that, and one beside them."""
    user = make_user()
    root, _secret = api_key_create(user=user, name="root", scope="write")
    child, _secret = api_key_create(user=user, name="child", scope="write", made_with=root)
    grandchild, _secret = api_key_create(user=user, name="grandchild", made_with=child)
    api_key_create(user=user, name="beside")
    return root, child, grandchild


def in_use():
    return list(ApiKey.objects.filter(revoked=False).order_by("created").values_list("name", flat=True))


def test_the_keys_that_were_made_with_a_key_are_revoked_with_it(family):
    root, child, grandchild = family

    assert api_key_revoke(root) == [child, grandchild]
    assert in_use() == ["beside"]


def test_the_key_that_one_was_made_with_stays(family):
    _root, child, grandchild = family

    assert api_key_revoke(child) == [grandchild]
    assert in_use() == ["root", "beside"]


def test_a_key_between_that_is_revoked_already_hides_none(family):
    root, child, grandchild = family
    ApiKey.objects.filter(pk=child.pk).update(revoked=True)

    assert api_key_revoke(root) == [grandchild]


def test_each_key_that_is_revoked_is_in_the_audit_log(family):
    api_key_revoke(family[0])

    revoked = AuditEntry.objects.filter(object_type="api_key", changes__revoked=[False, True])
    assert {entry.object_id for entry in revoked} == {key.prefix for key in family}


def test_a_key_that_is_being_revoked_makes_none(family):
    root = family[0]
    api_key_revoke(ApiKey.objects.get(pk=root.pk))

    with pytest.raises(NotAllowed, match="has been revoked"):
        api_key_create(user=root.user, name="late", made_with=root)


def test_who_made_a_key_is_taken_from_the_audit_log(family):
    root, child, grandchild = family
    ApiKey.objects.update(made_with=None)
    for made, maker in ((child, root), (grandchild, child)):
        AuditEntry.objects.filter(object_id=made.prefix, action="create").update(api_key=maker.prefix)

    with connection.cursor() as cursor:
        cursor.execute(import_module("kb.migrations.0026_api_key_made_with").FROM_THE_AUDIT_LOG)

    assert dict(ApiKey.objects.values_list("name", "made_with__name")) == {
        "root": None,
        "child": "root",
        "grandchild": "child",
        "beside": None,
    }
