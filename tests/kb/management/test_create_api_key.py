import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from kb.models import ApiKey
from tests.factories import make_kb, make_member, make_user

pytestmark = pytest.mark.django_db


def create(*arguments):
    stdout, stderr = StringIO(), StringIO()
    call_command("create_api_key", *arguments, stdout=stdout, stderr=stderr)
    return stdout.getvalue()


def test_prints_a_secret_that_opens_and_is_not_stored():
    user = make_user("ann")
    secret = create("--user", "ann").strip()
    key = ApiKey.objects.get_from_key(secret)
    assert key.user == user
    assert secret not in str(ApiKey.objects.values().get())


def test_reads_only_unless_told_otherwise():
    make_user("ann")
    create("--user", "ann")
    create("--user", "ann", "--scope", "write")
    assert sorted(ApiKey.objects.values_list("scope", flat=True)) == ["read", "write"]


def test_without_a_knowledge_base_opens_all_that_the_user_may_see():
    make_user("ann")
    create("--user", "ann")
    assert ApiKey.objects.get().principal().kb_ids is None


def test_is_bound_to_the_knowledge_bases_named():
    owner = make_user("ann")
    one, two, _ = (make_kb(owner, name) for name in ("one", "two", "three"))
    create("--user", "ann", "--kb", "one", "--kb", "two")
    assert ApiKey.objects.get().principal().kb_ids == {one.pk, two.pk}


def test_a_member_may_have_a_key_to_what_is_shared_with_them():
    kb = make_kb(make_user("ann"), "shared")
    make_member(kb, user=make_user("bob"))
    create("--user", "bob", "--kb", "shared")
    assert ApiKey.objects.get().principal().kb_ids == {kb.pk}


def test_refuses_a_knowledge_base_that_the_user_may_not_see():
    make_kb(make_user("ann"), "hers")
    make_user("bob")
    with pytest.raises(CommandError, match="may not see"):
        create("--user", "bob", "--kb", "hers")
    assert not ApiKey.objects.exists()


def test_expires_when_told():
    make_user("ann")
    create("--user", "ann", "--expires-in-days", "30")
    left = ApiKey.objects.get().expiry_date - timezone.now()
    assert timedelta(days=29) < left <= timedelta(days=30)


def test_refuses_a_key_that_is_expired_from_the_start():
    make_user("ann")
    with pytest.raises(CommandError, match="expired"):
        create("--user", "ann", "--expires-in-days", "0")


def test_prints_nothing_but_json_when_asked():
    kb = make_kb(make_user("ann"), "faq")
    printed = json.loads(create("--user", "ann", "--kb", "faq", "--name", "shop", "--json"))
    key = ApiKey.objects.get_from_key(printed.pop("key"))
    assert printed == {
        "prefix": key.prefix,
        "name": "shop",
        "user": "ann",
        "scope": "read",
        "knowledge_bases": [{"id": kb.pk, "name": "faq"}],
        "expires": None,
        "rate_limit": "",
    }


def test_an_unknown_user_is_an_error_that_says_what_to_do():
    with pytest.raises(CommandError, match=r"no user named 'nobody'.*createsuperuser") as caught:
        create("--user", "nobody")
    assert caught.value.returncode == 1


def test_an_operator_gives_a_key_any_rate_limit():
    make_user("ann")
    create("--user", "ann", "--rate-limit", "90000/minute")
    assert ApiKey.objects.get().rate_limit == "90000/minute"


def test_refuses_what_is_no_rate_limit():
    make_user("ann")
    with pytest.raises(CommandError, match="60/minute"):
        create("--user", "ann", "--rate-limit", "often")
