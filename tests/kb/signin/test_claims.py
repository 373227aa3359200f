"""From claims to groups and rights."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from kb.access.services.groups import LONGEST_NAME
from kb.signin.claims import MOST_GROUPS, account_key, groups_of, identity_of, rights_of
from kb.signin.provider import Provider

PROVIDER = Provider(
    issuer="https://id.example.org",
    client_id="zhiku",
    secret="x",
    name="Example ID",
    scopes="openid",
    groups_claim="groups",
    allowed_groups=frozenset(),
    staff_groups=frozenset(),
    admin_groups=frozenset(),
    links_email=False,
    hours=12,
)


@pytest.mark.parametrize(
    ("claims", "claim", "groups"),
    [
        ({"groups": ["a", "b"]}, "groups", {"a", "b"}),
        ({"groups": "a"}, "groups", {"a"}),
        ({"groups": []}, "groups", set()),
        ({}, "groups", None),
        ({"groups": None}, "groups", None),
        ({"groups": {"a": 1}}, "groups", None),
        ({"groups": [" a ", "", 7, None, {"name": "b"}, "a"]}, "groups", {"a"}),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", {"a"}),
        ({"realm_access": {}}, "realm_access.roles", None),
        ({"realm_access": "x"}, "realm_access.roles", None),
        ({"https://example.org/groups": ["a"]}, "https://example.org/groups", {"a"}),
        ({"groups": ["x" * LONGEST_NAME, "y" * (LONGEST_NAME + 1)]}, "groups", {"x" * LONGEST_NAME}),
        ({"groups": ["研发部"]}, "groups", {"研发部"}),
    ],
)
def test_groups(claims, claim, groups):
    assert groups_of(claims, claim) == groups


def test_there_is_a_most_of_groups():
    assert len(groups_of({"groups": [f"group {n}" for n in range(MOST_GROUPS + 5)]}, "groups")) == MOST_GROUPS


@given(
    st.recursive(st.none() | st.text() | st.integers(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_whatever_a_claim_holds_the_groups_can_be_stored(value):
    groups = groups_of({"groups": value}, "groups")

    assert groups is None or all(0 < len(each) <= LONGEST_NAME and "\0" not in each for each in groups)


@pytest.mark.parametrize(
    ("allowed", "staff", "admins", "groups", "rights"),
    [
        ((), (), (), {"a"}, (True, None, None)),
        ((), (), (), None, (True, None, None)),
        (("a",), (), (), {"a"}, (True, None, None)),
        (("a",), (), (), {"b"}, (False, None, None)),
        (("a",), (), (), None, (False, None, None)),
        ((), ("a",), (), {"b"}, (True, False, None)),
        ((), ("a",), (), {"a"}, (True, True, None)),
        ((), (), ("a",), {"b"}, (True, None, False)),
        (("b",), ("c",), ("a",), {"a"}, (True, True, True)),
        ((), ("c",), ("a",), None, (True, False, False)),
    ],
)
def test_rights(allowed, staff, admins, groups, rights):
    provider = replace(
        PROVIDER,
        allowed_groups=frozenset(allowed),
        staff_groups=frozenset(staff),
        admin_groups=frozenset(admins),
    )
    found = rights_of(None if groups is None else frozenset(groups), provider)

    assert (found.is_admitted, found.is_staff, found.is_superuser) == rights


@pytest.mark.parametrize(
    ("claims", "username", "names"),
    [
        ({"preferred_username": "mei", "given_name": "Mei", "family_name": "Lin"}, "mei", ("Mei", "Lin")),
        ({"email": "mei@example.org", "name": "Mei Lin Wang"}, "mei@example.org", ("Mei", "Lin Wang")),
        ({"name": "林梅"}, "林梅", ("林梅", "")),
        ({}, "7", ("", "")),
        ({"preferred_username": 5, "name": ["x"], "email": "no address"}, "no address", ("", "")),
    ],
)
def test_names(claims, username, names):
    found = identity_of({"sub": "7", **claims}, PROVIDER)

    assert (found.username, (found.first_name, found.last_name)) == (username, names)


def test_a_long_subject_has_a_key_of_its_own_that_fits():
    first, second = (account_key("x" * 250 + end) for end in "ab")

    assert account_key("short") == "short"
    assert first != second
    assert len(first) <= 191
