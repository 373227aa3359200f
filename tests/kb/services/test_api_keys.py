from datetime import timedelta

import pytest
from django.utils import timezone, translation

from kb.models import ApiKey
from kb.services.api_keys import api_key_create, api_key_revoke
from kb.services.errors import NotVisible, Rejected
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
