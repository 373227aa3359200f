"""Mallory shares with alice, who has not asked for it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from kb.access.models import visible_knowledge_bases
from kb.access.services.sharing import (
    MOST_INVITATIONS,
    PAUSE_AFTER_DECLINE,
    invitation_accept,
    invitation_decline,
    member_add,
    member_change,
    member_leave,
    member_of,
    member_remove,
    members_of,
    offer_withdraw,
    ownership_transfer,
)
from kb.agents.mcp.outputs import scope_of
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.content.services import knowledge_base_delete
from kb.models import AuditEntry, Invitation, KnowledgeBase, Membership
from kb.search.services.search import SearchRequest, search
from tests.factories import make_api_key, make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db

Role = Membership.Role
GRANTS = ("visible_to", "joined_by", "editable_by", "owned_by", "managed_by")


@pytest.fixture
def mallory(db):
    return make_user("mallory")


@pytest.fixture
def alice(db):
    return make_user("alice")


@pytest.fixture
def trap(mallory):
    return make_kb(mallory, "trap")


def invite(kb, user, role=Role.VIEWER):
    member_add(kb=kb, by=principal(kb.owner), username=user.username, role=role)
    return Invitation.objects.get(knowledge_base=kb, user=user, declined_at=None)


def rejected(code):
    return pytest.raises(Rejected, check=lambda error: error.code == code)


# -- What is not accepted opens nothing ------------------------------------------------------------------------------------
@pytest.mark.parametrize("role", Role.values)
@pytest.mark.parametrize("grant", GRANTS)
def test_an_invitation_grants_nothing(trap, alice, role, grant):
    invite(trap, alice, role)

    assert not getattr(KnowledgeBase.objects, grant)(principal(alice)).exists()


def test_an_invitation_opens_nothing_to_statements_written_by_hand(trap, alice):
    from django.db import connection

    invite(trap, alice, Role.OWNER)
    sql, values = visible_knowledge_bases(principal(alice))
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        assert cursor.fetchall() == []
    with pytest.raises(NotVisible):
        search(principal(alice), SearchRequest(query="x", knowledge_base_ids=[trap.pk]))


def test_the_default_scope_of_an_agent_holds_what_one_owns_or_has_accepted(trap, mallory, alice):
    own, shared = make_kb(alice), make_kb(make_user("bob"))
    invite(trap, alice)
    invitation_accept(principal=principal(alice), invitation_id=invite(shared, alice).pk)
    key, _secret = make_api_key(alice)

    assert scope_of(key.principal(), None) == [own.pk, shared.pk]


def test_twenty_unasked_knowledge_bases_do_not_stop_an_agent_that_names_none(mallory, alice):
    own = make_kb(alice)
    for _ in range(MOST_INVITATIONS):
        invite(make_kb(mallory), alice)

    assert scope_of(principal(alice), None) == [own.pk]


def test_the_agents_of_a_superuser_search_what_the_superuser_owns_or_joined(trap):
    root = make_user("root", superuser=True)
    own, shared = make_kb(root), make_kb()
    make_member(shared, user=root)

    assert scope_of(principal(root), None) == [own.pk, shared.pk]
    assert scope_of(principal(root, kb_ids=frozenset([trap.pk])), None) == [trap.pk]
    assert scope_of(principal(root), [trap.pk]) == [trap.pk]


def test_whom_a_superuser_adds_is_a_member_at_once(trap, alice):
    invite(trap, alice)

    member = member_add(kb=trap, by=principal(make_user(superuser=True)), username="alice", role=Role.EDITOR)

    assert not member.is_pending
    assert Membership.objects.get(user=alice).role == Role.EDITOR
    assert not Invitation.objects.exists()


# -- Accepting, declining, leaving -----------------------------------------------------------------------------------------
def test_who_accepts_is_a_member_with_the_role_of_the_invitation(trap, alice):
    invitation = invite(trap, alice, Role.EDITOR)

    assert invitation_accept(principal=principal(alice), invitation_id=invitation.pk) == trap
    assert KnowledgeBase.objects.editable_by(principal(alice)).get() == trap
    assert not Invitation.objects.exists()


@pytest.mark.parametrize("answer", [invitation_accept, invitation_decline])
def test_nobody_else_answers_an_invitation(trap, alice, mallory, answer):
    invitation = invite(trap, alice)

    for caller in (principal(mallory), principal(make_user(superuser=True)), principal(alice, kb_ids=frozenset())):
        with pytest.raises(NotVisible):
            answer(principal=caller, invitation_id=invitation.pk)
    with pytest.raises(NotAllowed):
        answer(principal=principal(alice, can_write=False), invitation_id=invitation.pk)
    assert Invitation.objects.open().get() == invitation


@pytest.mark.parametrize("answer", [invitation_accept, invitation_decline])
def test_a_withdrawn_invitation_cannot_be_answered(trap, alice, answer):
    invitation = invite(trap, alice)
    member_remove(kb=trap, by=principal(trap.owner), user_id=alice.pk)

    with pytest.raises(NotVisible):
        answer(principal=principal(alice), invitation_id=invitation.pk)


def test_an_invitation_lapses_with_the_rights_of_who_made_it(trap, mallory, alice):
    owner = make_member(trap, Role.OWNER)
    member_add(kb=trap, by=principal(owner), username="alice")
    invitation = Invitation.objects.get()
    member_change(kb=trap, by=principal(mallory), user_id=owner.pk, role=Role.EDITOR)

    assert not Invitation.objects.visible_to(principal(alice)).exists()
    with pytest.raises(NotVisible):
        invitation_accept(principal=principal(alice), invitation_id=invitation.pk)
    assert invite(trap, alice)  # and another owner may make one


def test_what_is_accepted_is_what_was_shown(trap, alice, mallory):
    """Who was invited to read does not accept the ownership that the invitation was turned into meanwhile."""
    shown = invite(trap, alice)
    with rejected("not_accepted"):
        member_change(kb=trap, by=principal(mallory), user_id=alice.pk, role=Role.OWNER)
    ownership_transfer(kb=trap, by=principal(mallory), username="alice")

    with pytest.raises(NotVisible):
        invitation_accept(principal=principal(alice), invitation_id=shown.pk)
    trap.refresh_from_db()
    assert trap.owner == mallory


def test_a_member_leaves_and_the_owner_does_not(trap, alice, mallory):
    make_member(trap, user=alice)

    member_leave(kb=trap, principal=principal(alice))

    assert not KnowledgeBase.objects.visible_to(principal(alice)).exists()
    with rejected("last_owner"):
        member_leave(kb=trap, principal=principal(mallory))


def test_the_last_owner_with_an_active_account_does_not_leave(trap, alice, mallory):
    make_member(trap, Role.OWNER, alice)
    mallory.is_active = False
    mallory.save()
    member_add(kb=trap, by=principal(alice), username=make_user("bob").username, role=Role.OWNER)

    with rejected("last_owner"):  # bob has not accepted
        member_leave(kb=trap, principal=principal(alice))


def test_who_is_no_member_or_may_only_read_does_not_leave(trap, alice):
    for caller, error in (
        (principal(make_user(superuser=True)), NotVisible),
        (principal(alice), NotVisible),
        (principal(make_member(trap), can_write=False), NotAllowed),
    ):
        with pytest.raises(error):
            member_leave(kb=trap, principal=caller)


def test_an_invited_superuser_who_sees_the_base_is_no_member_to_leave_it(trap):
    root = make_user("root", superuser=True)
    invitation = invite(trap, root)

    with pytest.raises(NotVisible):
        member_leave(kb=trap, principal=principal(root))
    assert Invitation.objects.open().get() == invitation


# -- Invitations are no way to pester somebody -----------------------------------------------------------------------------
def test_a_user_has_so_many_open_invitations_and_no_more(mallory, alice):
    for number in range(MOST_INVITATIONS):
        invite(make_kb(mallory), make_user(f"guest{number}"))
    trap = make_kb(mallory)

    with rejected("too_many_invitations"):
        invite(trap, alice)
    with rejected("too_many_invitations"):
        ownership_transfer(kb=trap, by=principal(mallory), username="alice")
    invitation_accept(principal=principal(Invitation.objects.first().user), invitation_id=Invitation.objects.first().pk)
    assert invite(trap, alice)


def test_who_was_declined_does_not_invite_again_not_even_from_a_new_knowledge_base(trap, mallory, alice):
    invitation_decline(principal=principal(alice), invitation_id=invite(trap, alice).pk)
    accomplice = make_member(trap, Role.OWNER)
    for kb, by in ((trap, mallory), (trap, accomplice), (make_kb(mallory), mallory)):
        with rejected("declined_lately"):
            member_add(kb=kb, by=principal(by), username="alice")
        with rejected("declined_lately"):
            ownership_transfer(kb=kb, by=principal(by), username="alice")

    knowledge_base_delete(trap)
    with rejected("declined_lately"):
        invite(make_kb(mallory), alice)
    assert invite(make_kb(make_user("bob")), alice)  # somebody else may


def test_after_the_pause_one_may_ask_again(trap, alice):
    invitation_decline(principal=principal(alice), invitation_id=invite(trap, alice).pk)
    Invitation.objects.update(declined_at=timezone.now() - PAUSE_AFTER_DECLINE - timedelta(minutes=1))

    assert invite(trap, alice)
    assert Invitation.objects.count() == 1  # the declined one is cleared away


def test_an_invitation_goes_with_its_knowledge_base(trap, alice):
    invite(trap, alice)

    knowledge_base_delete(trap)

    assert not Invitation.objects.visible_to(principal(alice)).exists()


def test_nobody_is_invited_twice(trap, alice):
    invite(trap, alice)

    with rejected("already_invited"):
        invite(trap, alice)


# -- The ownership ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_member", [False, True])
def test_nobody_becomes_the_owner_unasked(trap, mallory, alice, is_member):
    if is_member:
        make_member(trap, user=alice)

    member = ownership_transfer(kb=trap, by=principal(mallory), username="alice")

    trap.refresh_from_db()
    assert (trap.owner, member.is_offered, member.is_pending) == (mallory, True, not is_member)
    invitation_accept(principal=principal(alice), invitation_id=Invitation.objects.get().pk)
    trap.refresh_from_db()
    assert trap.owner == alice
    assert [(each.user, each.role) for each in members_of(trap)] == [(alice, "owner"), (mallory, "owner")]


def test_an_offer_is_withdrawn_and_replaced(trap, mallory, alice):
    bob = make_member(trap, user=make_user("bob"))
    ownership_transfer(kb=trap, by=principal(mallory), username="bob")
    ownership_transfer(kb=trap, by=principal(mallory), username="alice")

    assert Invitation.objects.get().user == alice
    assert not member_of(trap, bob.pk).is_offered
    offer_withdraw(kb=trap, by=principal(mallory))
    assert not Invitation.objects.exists()
    with pytest.raises(NotVisible):
        offer_withdraw(kb=trap, by=principal(mallory))


def test_a_superuser_hands_over_at_once_and_an_owner_takes_at_once(trap, alice):
    ownership_transfer(kb=trap, by=principal(make_user(superuser=True)), username="alice")
    assert trap.owner == alice
    other = make_member(trap, Role.OWNER)
    ownership_transfer(kb=trap, by=principal(other), username=other.username)
    trap.refresh_from_db()
    assert trap.owner == other


def test_the_giver_does_not_learn_the_names_of_what_the_receiver_has(mallory, alice):
    make_kb(alice, "salaries")
    answers = [
        ownership_transfer(kb=make_kb(mallory, name), by=principal(mallory), username="alice").is_offered
        for name in ("salaries", "recipes")
    ]

    assert answers == [True, True]
    taken = Invitation.objects.get(knowledge_base__name="salaries")
    with rejected("name_taken"):  # the receiver does
        invitation_accept(principal=principal(alice), invitation_id=taken.pk)
    assert Invitation.objects.open().filter(pk=taken.pk).exists()


# -- The audit log ---------------------------------------------------------------------------------------------------------
def test_the_audit_log_tells_who_was_invited_and_what_became_of_it(trap, alice):
    make_document(trap, "text")
    invitation_decline(principal=principal(alice), invitation_id=invite(trap, alice, Role.EDITOR).pk)

    entries = AuditEntry.objects.filter(object_type="invitation", knowledge_base=trap).order_by("pk")

    assert [(each.action, each.object_name) for each in entries] == [("create", "alice"), ("update", "alice")]
    assert entries[0].changes["role"] == [None, "editor"]
    assert entries[1].changes.keys() == {"declined_at"}
