import pytest
from django.contrib.auth.models import AnonymousUser

from kb.access.models import visible_knowledge_bases
from kb.base.db.transactions import fetch_all
from kb.content.services import knowledge_base_overview
from kb.models import Chunk, Document, KnowledgeBase, Membership
from tests.factories import make_document, make_group, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


def visible(model, who):
    return set(model.objects.visible_to(who).values_list("pk", flat=True))


def test_an_owner_sees_the_base_its_documents_and_chunks_and_nobody_elses():
    mine, other = make_kb(), make_kb()
    document = make_document(mine, "text")
    make_document(other, "text")
    owner = principal(mine.owner)
    assert visible(KnowledgeBase, owner) == {mine.pk}
    assert visible(Document, owner) == {document.pk}
    assert visible(Chunk, owner) == set(document.chunks.values_list("pk", flat=True))


@pytest.mark.parametrize(
    ("role", "sees", "edits", "owns"),
    [("viewer", True, False, False), ("editor", True, True, False), ("owner", True, True, True)],
)
def test_roles(role, sees, edits, owns):
    kb = make_kb()
    member = principal(make_member(kb, role))
    assert KnowledgeBase.objects.visible_to(member).exists() is sees
    assert KnowledgeBase.objects.editable_by(member).exists() is edits
    assert KnowledgeBase.objects.owned_by(member).exists() is owns


def test_a_superuser_sees_all_and_a_narrowed_one_only_the_bases_of_the_key():
    first, second = make_kb(), make_kb()
    root = make_user(superuser=True)
    assert visible(KnowledgeBase, principal(root)) == {first.pk, second.pk}
    assert visible(KnowledgeBase, principal(root, kb_ids=frozenset({second.pk}))) == {second.pk}


def test_a_key_opens_no_base_that_its_user_may_not_see():
    kb = make_kb()
    assert visible(KnowledgeBase, principal(make_user(), kb_ids=frozenset({kb.pk}))) == set()


def test_a_reading_key_edits_nothing():
    kb = make_kb()
    reader = principal(kb.owner, can_write=False)
    assert visible(KnowledgeBase, reader) == {kb.pk}
    assert not KnowledgeBase.objects.editable_by(reader).exists()
    assert not KnowledgeBase.objects.owned_by(reader).exists()


def test_nobody_and_inactive_users_see_nothing():
    kb = make_kb()
    kb.owner.is_active = False
    assert visible(KnowledgeBase, principal(AnonymousUser())) == set()
    assert visible(KnowledgeBase, principal(kb.owner)) == set()


def test_memberships_give_no_duplicates():
    kb = make_kb()
    make_member(kb, Membership.Role.EDITOR)
    Membership.objects.create(knowledge_base=kb, user=kb.owner, role=Membership.Role.OWNER)
    assert KnowledgeBase.objects.visible_to(principal(kb.owner)).count() == 1


# -- By a group ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("role", "edits", "owns"), [("viewer", False, False), ("editor", True, False), ("owner", True, True)]
)
def test_who_is_in_a_group_has_its_role(role, edits, owns):
    kb, other, user = make_kb(), make_kb(), make_user()
    make_group(kb, role, user)
    make_group(other, role, make_user())
    member = principal(user)

    assert visible(KnowledgeBase, member) == {kb.pk}
    assert set(KnowledgeBase.objects.joined_by(member)) == {kb}
    assert KnowledgeBase.objects.editable_by(member).exists() is edits
    assert KnowledgeBase.objects.owned_by(member).exists() is owns
    assert KnowledgeBase.objects.owned_by(principal(user, can_write=False)).exists() is False


def test_who_leaves_the_group_loses_what_it_gave():
    kb, user = make_kb(), make_user()
    group = make_group(kb, "viewer", user)
    statement = visible_knowledge_bases(principal(user))
    user.groups.remove(group)

    assert visible(KnowledgeBase, principal(user)) == set()
    assert fetch_all(*statement) == []  # a process keeps it


@pytest.mark.parametrize(
    ("own", "by_groups", "role"),
    [
        (None, ["viewer"], "viewer"),
        ("viewer", ["editor"], "editor"),
        ("editor", ["viewer"], "editor"),
        (None, ["viewer", "owner", "editor"], "owner"),
        ("viewer", [], "viewer"),
    ],
)
def test_of_several_roles_the_highest_counts(own, by_groups, role, django_assert_num_queries):
    kb, user = make_kb(), make_user()
    if own:
        make_member(kb, own, user)
    for each in by_groups:
        make_group(kb, each, user)

    with django_assert_num_queries(1):
        (found,) = knowledge_base_overview(principal(user))

    assert found.role == role


def test_a_superuser_has_the_role_of_an_owner_unless_given_another():
    root, given, others = make_user(superuser=True), make_kb(), make_kb()
    make_group(given, "viewer", root)

    roles = {kb.pk: kb.role for kb in knowledge_base_overview(principal(root))}

    assert roles == {given.pk: "viewer", others.pk: "owner"}
