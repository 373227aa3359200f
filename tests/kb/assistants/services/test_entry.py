import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from kb.assistants.services.assistants import assistant_close, assistant_update, link_create, link_revoke
from kb.assistants.services.entry import Requirement, Visit, enter, link_token, visit_of
from kb.models import Membership, ShareLink, Visitor
from tests.factories import make_user, principal
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db

NOBODY = AnonymousUser()


@pytest.fixture
def make(owner, kb):
    return lambda **fields: make_assistant(owner, kb, **fields)


def let_in(assistant, user=NOBODY, **given):
    visit = enter(assistant, user, **given)
    assert isinstance(visit, Visit)
    return visit


@pytest.mark.parametrize(
    ("access", "stranger", "signed_in"),
    [
        ("private", Requirement.SIGN_IN, Requirement.CLOSED),
        ("signed_in", Requirement.SIGN_IN, None),
        ("link", Requirement.LINK, Requirement.LINK),
        ("public", None, None),
    ],
)
def test_who_may_come_in(make, owner, kb, access, stranger, signed_in):
    assistant, other, member = make(access=access), make_user(), make_user()
    Membership.objects.create(user=member, knowledge_base=kb, role="viewer")
    for user, expected in ((NOBODY, stranger), (other, signed_in), (member, None), (owner, None)):
        result = enter(assistant, user)
        assert (None if isinstance(result, Visit) else result) == expected


def test_a_draft_is_closed_to_all(make, owner):
    assistant = make(access="public", published=False)
    assert {enter(assistant, user) for user in (NOBODY, owner)} == {Requirement.CLOSED}


def test_a_link_lets_in_until_it_is_revoked(make, owner):
    assistant = make(access="link")
    link = link_create(principal(owner), assistant)
    visit = let_in(assistant, link=link_token(link))
    assert visit_of(assistant, NOBODY, visit.token()) == visit
    link_revoke(link)
    assert enter(assistant, NOBODY, link=link_token(link)) is Requirement.LINK
    assert visit_of(assistant, NOBODY, visit.token()) is None


def test_a_link_that_expires_lets_nobody_in_any_more(make, owner):
    assistant = make(access="link")
    link = link_create(principal(owner), assistant, expires_at=timezone.now() + timedelta(hours=1))
    visit = let_in(assistant, link=link_token(link))
    ShareLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert visit_of(assistant, NOBODY, visit.token()) is None


@pytest.mark.parametrize("forged", ["", "0" * 32, "0" * 32 + ":x", "x"])
def test_a_link_cannot_be_guessed(make, forged):
    assert enter(make(access="link"), NOBODY, link=forged) is Requirement.LINK


def test_a_link_of_one_assistant_opens_no_other(make, owner):
    assistant, other = make(access="link"), make(access="link", name="Other")
    assert enter(other, NOBODY, link=link_token(link_create(principal(owner), assistant))) is Requirement.LINK


def test_a_password_is_asked_for_and_a_new_one_ends_visits(make, owner):
    assistant = make(access="public", password="correct horse")
    assert enter(assistant, NOBODY) is Requirement.PASSWORD
    assert enter(assistant, NOBODY, password="wrong") is Requirement.PASSWORD
    visit = let_in(assistant, password="correct horse")
    token = visit.token()
    assert visit_of(assistant, NOBODY, token) == visit
    assistant_update(principal(owner), assistant, password="battery staple")
    assert visit_of(assistant, NOBODY, token) is None


def test_a_member_who_is_put_out_needs_the_password_like_everybody(make, owner, kb):
    assistant, member = make(access="public", password="correct horse"), make_user()
    Membership.objects.create(user=member, knowledge_base=kb, role="viewer")
    token = let_in(assistant, member).token()
    assert visit_of(assistant, member, token)
    Membership.objects.filter(user=member).delete()
    assert visit_of(assistant, member, token) is None
    assert enter(assistant, member) is Requirement.PASSWORD
    assert visit_of(assistant, member, let_in(assistant, member, password="correct horse").token())


def test_who_has_deleted_everything_is_a_new_visitor_in_every_browser(make):
    assistant, user = make(access="signed_in"), make_user()
    token = let_in(assistant, user).token()
    first = visit_of(assistant, user, token).visitor_id
    Visitor.objects.all().delete()
    again = visit_of(assistant, user, token).visitor_id
    assert again != first
    assert let_in(assistant, user).visitor_id == visit_of(assistant, user, token).visitor_id == again


def test_a_password_alone_does_not_replace_a_link(make):
    assert enter(make(access="link", password="correct horse"), NOBODY, password="correct horse") is Requirement.LINK


def test_who_is_signed_in_is_the_same_visitor_everywhere(make):
    assistant, user = make(access="signed_in"), make_user()
    visit = let_in(assistant, user)
    assert let_in(assistant, user) == visit
    assert Visitor.objects.get().user == user
    assert visit_of(assistant, user, visit.token()) == visit
    for other in (NOBODY, make_user()):
        assert visit_of(assistant, other, visit.token()) is None


def test_a_browser_stays_the_same_visitor(make):
    assistant = make(access="public")
    first = let_in(assistant)
    assert let_in(assistant, known_as=first.visitor_id).visitor_id == first.visitor_id
    assert let_in(assistant).visitor_id != first.visitor_id


def test_what_is_taken_back_holds_at_once(make, owner):
    assistant = make(access="public")
    visit = let_in(assistant)
    assistant_update(principal(owner), assistant, access="private")
    assert visit_of(assistant, NOBODY, visit.token()) is None
    assistant_update(principal(owner), assistant, access="public")
    assert visit_of(assistant, NOBODY, visit.token()) == visit
    assistant_close(assistant)
    assistant.refresh_from_db()
    assert visit_of(assistant, NOBODY, visit.token()) is None


def test_a_visit_of_one_assistant_is_none_of_another(make):
    one, other = make(access="public"), make(access="public", name="Other")
    assert visit_of(other, NOBODY, let_in(one).token()) is None
    assert visit_of(one, NOBODY, f"{uuid.uuid4()}") is None
