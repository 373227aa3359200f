import pytest
from django.urls import reverse

from kb.access.services.sharing import member_add
from kb.models import GroupMembership, Invitation, KnowledgeBase, Membership
from tests.factories import make_group, make_kb, make_member, make_user, principal


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def url(kb):
    return reverse("admin:kb_knowledgebase_sharing", args=[kb.pk])


def members(kb):
    return list(Membership.objects.filter(knowledge_base=kb).values_list("user__username", "role"))


def invited(kb):
    return list(Invitation.objects.open().filter(knowledge_base=kb).values_list("user__username", "role", "transfers"))


def post(client, kb, action, member=None, **fields):
    chosen = {"member": member.pk} if member else {}
    return client.post(url(kb), {"action": action, **chosen, **fields}, follow=True)


def test_an_owner_invites_a_user_by_name_and_withdraws_it(client, kb):
    reader = make_user("reader")

    page = post(client, kb, "add", username="reader", role="editor").content.decode()

    assert (members(kb), invited(kb)) == ([], [("reader", "editor", False)])
    assert "reader is invited" in page
    assert "has not accepted yet" in page
    assert "The invitation is withdrawn" in post(client, kb, "remove", reader).content.decode()
    assert invited(kb) == []


def test_whom_a_superuser_adds_is_a_member_at_once(client, kb):
    client.force_login(make_user(superuser=True))
    make_user("reader")

    assert "reader may use it from now on" in post(client, kb, "add", username="reader", role="editor").content.decode()
    assert members(kb) == [("reader", "editor")]


def test_sharing_with_nobody_of_that_name_is_refused_with_a_remedy(client, kb):
    page = post(client, kb, "add", username="nobody", role="viewer")

    assert "ask the person for the exact user name" in page.content.decode()
    assert members(kb) == []


def test_the_page_shows_members_and_no_other_user(client, kb):
    make_user("uninvolved")
    make_member(kb, user=make_user("reader"))

    page = client.get(url(kb)).content.decode()

    assert "reader" in page
    assert "uninvolved" not in page


def test_it_says_where_it_is_shared_with_nobody(client, kb):
    assert "shared with nobody yet" in client.get(url(kb)).content.decode()


def test_a_role_is_changed(client, kb):
    reader = make_member(kb, user=make_user("reader"))

    post(client, kb, "change", reader, role="owner")

    assert members(kb) == [("reader", "owner")]


def test_removing_is_asked_first(client, kb):
    reader = make_member(kb, user=make_user("reader"))

    page = client.get(f"{url(kb)}?action=remove&member={reader.pk}").content.decode()

    assert "Remove reader from this knowledge base?" in page
    assert members(kb) == [("reader", "viewer")]
    post(client, kb, "remove", reader)
    assert members(kb) == []


def test_handing_over_is_asked_first(client, kb, curator):
    reader = make_member(kb, user=make_user("reader"))

    page = client.get(f"{url(kb)}?action=transfer&member={reader.pk}").content.decode()
    assert "Hand this knowledge base over to reader?" in page
    page = post(client, kb, "transfer", reader).content.decode()

    assert "It belongs to reader once they accept" in page
    assert KnowledgeBase.objects.get(pk=kb.pk).owner == curator
    assert invited(kb) == [("reader", "owner", True)]
    post(client, kb, "withdraw", reader)
    assert (members(kb), invited(kb)) == ([("reader", "viewer")], [])


def test_an_invitation_is_easy_to_find_and_accepted_with_a_button(client, curator):
    kb = make_kb(make_user("host"), "shared-base")
    member_add(kb=kb, by=principal(kb.owner), username="curator")
    invitation = Invitation.objects.get()

    for page in ("admin:index", "admin:kb_knowledgebase_changelist"):
        text = client.get(reverse(page)).content.decode()
        assert "You have 1 invitation." in text
        assert f'href="{reverse("admin:invitations")}"' in text
        assert "shared-base" not in text
    page = client.get(reverse("admin:invitations")).content.decode()
    assert "shared-base" in page
    assert "host invites you as viewer." in page
    accept = reverse("admin:invitation_accept", args=[invitation.pk])
    assert accept in page
    assert client.get(accept).status_code == 405
    assert "is among your knowledge bases now" in client.post(accept, follow=True).content.decode()
    assert members(kb) == [("curator", "viewer")]
    assert client.post(accept).status_code == 404


def test_an_invitation_is_declined(client, curator):
    kb = make_kb(make_user("host"))
    member_add(kb=kb, by=principal(kb.owner), username="curator")
    decline = reverse("admin:invitation_decline", args=[Invitation.objects.get().pk])

    assert client.get(decline).status_code == 405
    assert "There is no invitation to you" in client.post(decline, follow=True).content.decode()
    assert (members(kb), invited(kb)) == ([], [])


def test_a_member_leaves_and_is_asked_first(client, curator):
    kb = make_kb(name="shared-base")
    make_member(kb, user=curator)
    leave = reverse("admin:kb_knowledgebase_leave", args=[kb.pk])

    assert leave in client.get(reverse("admin:kb_knowledgebase_change", args=[kb.pk])).content.decode()
    assert "Leave “shared-base”?" in client.get(leave).content.decode()
    page = client.post(leave, follow=True)
    assert "You have left" in page.content.decode()
    assert page.redirect_chain[-1][0] == reverse("admin:kb_knowledgebase_changelist")
    assert members(kb) == []


def test_the_owner_is_told_why_they_cannot_leave(client, kb):
    page = client.post(reverse("admin:kb_knowledgebase_leave", args=[kb.pk]), follow=True).content.decode()

    assert "hand the knowledge base over" in page


def test_who_removes_themself_is_led_to_the_list(client, curator):
    kb = make_kb()
    make_member(kb, Membership.Role.OWNER, curator)

    page = post(client, kb, "remove", curator)

    assert page.redirect_chain[-1][0] == reverse("admin:kb_knowledgebase_changelist")
    assert members(kb) == []


def test_the_owner_it_belongs_to_cannot_be_removed(client, kb, curator):
    page = post(client, kb, "remove", curator)

    assert "hand the knowledge base over" in page.content.decode()


@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.EDITOR])
def test_who_is_no_owner_cannot_share(client, curator, role):
    kb = make_kb()
    make_member(kb, role, curator)
    make_user("friend")

    assert client.get(url(kb)).status_code == 403
    assert post(client, kb, "add", username="friend", role="owner").status_code == 403
    assert members(kb) == [("curator", role)]
    assert url(kb) not in client.get(reverse("admin:kb_knowledgebase_change", args=[kb.pk])).content.decode()


def test_a_stranger_finds_no_page(client, foreign):
    assert client.get(url(foreign.knowledge_base)).status_code == 404
    assert post(client, foreign.knowledge_base, "add", username="curator", role="owner").status_code == 404


@pytest.mark.parametrize("fields", [{"action": "change", "role": "king"}, {"action": "dance"}])
def test_a_forged_change_is_refused(client, kb, fields):
    reader = make_member(kb)

    assert client.post(url(kb), {"member": reader.pk, **fields}).status_code == 403
    assert [role for _, role in members(kb)] == ["viewer"]


def test_a_member_who_is_not_there_is_told_of(client, kb):
    assert "no such member" in post(client, kb, "remove", make_user()).content.decode()


def test_the_page_of_a_knowledge_base_leads_its_owner_there(client, kb):
    page = client.get(reverse("admin:kb_knowledgebase_change", args=[kb.pk])).content.decode()

    assert url(kb) in page
    assert f"{reverse('admin:kb_auditentry_changelist')}?knowledge_base__id__exact={kb.pk}" in page


# -- Groups ----------------------------------------------------------------------------------------------------------------
def groups(kb):
    return list(GroupMembership.objects.filter(knowledge_base=kb).values_list("group__name", "role"))


def test_a_superuser_adds_a_group_gives_it_another_role_and_removes_it(client, kb):
    client.force_login(make_user(superuser=True))

    page = post(client, kb, "add_group", **{"group-name": "engineering", "group-role": "viewer"}).content.decode()
    assert "Who is in the group engineering may use it from now on" in page
    assert groups(kb) == [("oidc:engineering", "viewer")]
    group = GroupMembership.objects.get().group_id
    assert "has the role “editor”" in post(client, kb, "change_group", group=group, role="editor").content.decode()
    assert 'data-testid="confirm-group"' in client.get(url(kb), {"group": group}).content.decode()
    post(client, kb, "remove_group", group=group)
    assert groups(kb) == []


def test_a_group_is_not_added_twice_and_the_field_says_why(client, kb):
    client.force_login(make_user(superuser=True))
    make_group(kb, "viewer", name="engineering")

    page = post(client, kb, "add_group", **{"group-name": "engineering", "group-role": "owner"}).content.decode()

    assert "has a role already" in page
    assert groups(kb) == [("oidc:engineering", "viewer")]


def test_an_owner_sees_groups_and_cannot_add_one(client, kb):
    make_group(kb, "viewer", name="engineering")

    page = client.get(url(kb)).content.decode()
    answer = post(client, kb, "add_group", **{"group-name": "sales", "group-role": "viewer"})

    assert "engineering" in page
    assert "Add the group" not in page
    assert "Only a superuser gives a role to a group" in answer.content.decode()
    assert groups(kb) == [("oidc:engineering", "viewer")]


def test_without_groups_and_a_provider_nobody_reads_anything_of_them(client, kb, settings):
    assert 'id="groups"' not in client.get(url(kb)).content.decode()
    client.force_login(make_user(superuser=True))
    assert 'id="groups"' not in client.get(url(kb)).content.decode()
    settings.OIDC_ISSUER = "https://id.example.org"
    assert "Add the group" in client.get(url(kb)).content.decode()
