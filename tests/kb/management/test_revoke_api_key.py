from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.models import ApiKey
from tests.factories import make_api_key, make_user

pytestmark = pytest.mark.django_db


def revoke(*arguments):
    stdout = StringIO()
    call_command("revoke_api_key", *arguments, stdout=stdout)
    return stdout.getvalue()


def test_revokes_the_keys_that_it_is_told():
    user = make_user("ann")
    one, _ = make_api_key(user)
    make_api_key(user)

    assert one.prefix in revoke(one.prefix)
    assert list(ApiKey.objects.filter(revoked=True)) == [one]


def test_names_the_keys_that_go_with_one():
    root, _ = make_api_key(make_user())
    child, _ = make_api_key(root.user, made_with=root)

    assert f"Revoked with them, which they were made with: {child.prefix}" in revoke(root.prefix)
    assert not ApiKey.objects.filter(revoked=False).exists()


def test_revokes_all_keys_of_a_user():
    mine, _ = make_api_key(make_user("ann"))
    make_api_key(make_user("bob"))

    revoke("--user", "ann")

    assert list(ApiKey.objects.filter(revoked=True)) == [mine]
    assert "no key in use" in revoke("--user", "ann")


def test_a_misspelt_prefix_revokes_nothing():
    key, _ = make_api_key(make_user("ann"))

    with pytest.raises(CommandError, match="nothing was revoked"):
        revoke(key.prefix, "misspelt")

    assert not ApiKey.objects.filter(revoked=True).exists()


def test_nothing_named_is_an_error():
    with pytest.raises(CommandError, match="--user"):
        revoke()
