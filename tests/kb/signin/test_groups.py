"""Groups and rights follow the provider at every sign-in."""

import pytest
from django.contrib.auth.models import Group
from django.urls import reverse

from kb.models import AuditEntry, GroupMembership, KnowledgeBase, User
from tests.factories import make_group, make_kb, make_user, principal
from tests.kb.signin.conftest import sign_in
from tests.kb.signin.test_sign_in import refused

pytestmark = pytest.mark.django_db


def groups(name="mei"):
    return sorted(User.objects.get(username=name).groups.values_list("name", flat=True))


def test_groups_come_and_go_with_the_sign_ins_and_knowledge_bases_with_them(provider):
    kb = make_kb()
    make_group(kb, "editor", name="engineering")
    provider.person("mei", groups=["engineering", "sales"])
    answer = sign_in("mei")
    mei = principal(answer.wsgi_request.user)
    assert groups() == ["oidc:engineering", "oidc:sales"]
    assert KnowledgeBase.objects.editable_by(mei).get() == kb

    provider.person("mei", groups=["sales"])
    sign_in("mei")

    assert groups() == ["oidc:sales"]
    assert not KnowledgeBase.objects.visible_to(mei).exists()
    assert GroupMembership.objects.filter(knowledge_base=kb).exists()


def test_a_provider_that_sends_no_groups_any_more_leaves_none(provider):
    provider.person("mei", groups=["sales"])
    sign_in("mei")
    provider.person("mei")

    sign_in("mei")

    assert groups() == []


def test_groups_made_by_hand_are_left_alone_and_never_given_by_a_claim(provider):
    by_hand = Group.objects.create(name="sales")
    provider.person("mei", groups=["sales", "oidc:sales"])
    sign_in("mei")
    assert groups() == ["oidc:oidc:sales", "oidc:sales"]
    User.objects.get(username="mei").groups.add(by_hand)
    provider.person("mei", groups=[])

    sign_in("mei")

    assert groups() == ["sales"]


def test_the_groups_of_administrators_and_staff_give_and_take_rights(provider, settings):
    settings.OIDC_ADMIN_GROUPS, settings.OIDC_STAFF_GROUPS = ["chiefs"], ["curators"]
    found = []
    for claim in (["chiefs"], ["curators"], ["others"], None):
        provider.person("mei", **({} if claim is None else {"groups": claim}))
        sign_in("mei", next_url="/api/v1/docs/")
        user = User.objects.get()
        found.append((user.is_staff, user.is_superuser))

    assert found == [(True, True), (True, False), (False, False), (False, False)]


def test_without_such_groups_an_administrator_decides(provider):
    provider.person("mei", groups=["x"])
    sign_in("mei")
    User.objects.update(is_staff=False, is_superuser=True)

    sign_in("mei")

    user = User.objects.get()
    assert (user.is_staff, user.is_superuser) == (False, True)


def test_only_the_allowed_groups_sign_in_and_who_has_left_them_loses_all_others(provider, settings):
    settings.OIDC_ALLOWED_GROUPS = ["staff"]
    provider.person("mei", groups=["staff", "engineering"])
    sign_in("mei")
    provider.person("mei", groups=["visitors"])

    assert refused(sign_in("mei"))
    assert groups() == ["oidc:visitors"]
    provider.person("eve", groups=["visitors"])
    assert refused(sign_in("eve"))
    assert not User.objects.filter(username="eve").exists()


def test_a_missing_claim_lets_nobody_in_where_groups_decide(provider, settings):
    settings.OIDC_ALLOWED_GROUPS = ["staff"]
    provider.person("mei")

    assert refused(sign_in("mei"), "OIDC_GROUPS_CLAIM")


def test_groups_may_be_in_a_claim_within_claims(provider, settings):
    settings.OIDC_GROUPS_CLAIM = "realm_access.roles"
    provider.person("mei", realm_access={"roles": ["engineering"]})

    sign_in("mei")

    assert groups() == ["oidc:engineering"]


def test_the_audit_log_says_who_came_into_which_group_and_by_what(provider):
    provider.person("mei", groups=["engineering"])
    sign_in("mei")
    sign_in("mei")

    entries = (
        AuditEntry.objects.filter(object_type="user").order_by("pk").values_list("action", "how", "via", "username")
    )
    assert list(entries) == [
        ("create", "admin", "GET admin/oidc/callback/", ""),
        ("bind", "admin", "GET admin/oidc/callback/", "mei"),
    ]
    assert AuditEntry.objects.get(action="bind").changes == {"group": [None, "oidc:engineering"]}


def test_a_change_of_rights_is_in_the_audit_log(provider, settings):
    settings.OIDC_ADMIN_GROUPS = ["chiefs"]
    provider.person("mei", groups=["chiefs"])
    sign_in("mei")
    provider.person("mei", groups=[])
    sign_in("mei")

    assert AuditEntry.objects.filter(action="update", object_type="user").latest("pk").changes == {
        "is_superuser": [True, False]
    }


def test_others_keep_their_groups(provider):
    make_group(make_kb(), "viewer", make_user("li"), name="sales")
    provider.person("mei", groups=["sales"])
    sign_in("mei")
    provider.person("mei", groups=[])

    sign_in("mei")

    assert groups("li") == ["oidc:sales"]


def test_a_superuser_sees_on_the_page_of_a_user_what_groups_they_have(provider, client):
    provider.person("mei", groups=["engineering", "sales"])
    user = sign_in("mei").wsgi_request.user
    client.force_login(make_user("root", superuser=True))

    page = client.get(reverse("admin:kb_user_change", args=[user.pk])).content.decode()

    assert "engineering, sales" in page
