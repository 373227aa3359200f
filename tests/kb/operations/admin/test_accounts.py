import re
from datetime import timedelta

import lxml.html
import pytest
from django.urls import reverse
from django.utils import timezone

from kb.models import ApiKey, User
from tests.factories import make_api_key, make_kb, make_user

LIST = "admin:kb_apikey_changelist"
ADD = "admin:kb_apikey_add"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def form(*knowledge_bases, **values):
    return {"name": "app", "scope": "read", "knowledge_bases": [kb.pk for kb in knowledge_bases], **values}


def secret_in(page):
    return re.search(r'id="api-key-secret"[^>]*>([^<]+)<', page.content.decode()).group(1)


def test_a_new_key_s_secret_is_shown_once_and_works(client, curator, kb):
    page = client.post(reverse(ADD), form(kb, scope="write"))

    secret = secret_in(page)
    key = ApiKey.objects.get_from_key(secret)
    assert (key.user, key.scope, key.bound, list(key.knowledge_bases.all())) == (curator, "write", True, [kb])
    assert "no-store" in page.headers["Cache-Control"]
    for url in (reverse(LIST), reverse("admin:kb_apikey_change", args=[key.pk])):
        assert secret.partition(".")[2] not in client.get(url).content.decode()


def test_a_key_without_knowledge_bases_is_not_bound(client):
    client.post(reverse(ADD), form())

    assert not ApiKey.objects.get().bound


def test_a_key_cannot_be_bound_to_what_its_user_does_not_see(client, foreign):
    page = client.post(reverse(ADD), form(foreign.knowledge_base))

    assert page.status_code == 200
    assert not ApiKey.objects.exists()
    assert "stranger" not in client.get(reverse(ADD)).content.decode()


def test_a_key_that_is_expired_from_the_start_is_refused(client):
    yesterday = timezone.localtime() - timedelta(days=1)

    page = client.post(
        reverse(ADD), form(expiry_date_0=yesterday.date().isoformat(), expiry_date_1=yesterday.strftime("%H:%M:%S"))
    )

    assert "expired from the start" in page.content.decode()


def test_users_see_their_own_keys_only(client, curator):
    make_api_key(curator)
    stranger_key, _ = make_api_key(make_user("stranger"))

    assert stranger_key.prefix not in client.get(reverse(LIST)).content.decode()
    assert client.get(reverse("admin:kb_apikey_change", args=[stranger_key.pk])).status_code == 404
    assert client.post(reverse("admin:kb_apikey_revoke", args=[stranger_key.pk])).status_code == 404


def test_a_superuser_sees_all_keys(client):
    stranger_key, _ = make_api_key(make_user("stranger"))
    client.force_login(make_user(superuser=True))

    assert stranger_key.prefix in client.get(reverse(LIST)).content.decode()


def test_what_is_revoked_with_a_key_is_told_before(client, curator):
    root, _ = make_api_key(curator)
    child, _ = make_api_key(curator, made_with=root)
    selected = {"action": "revoke", "_selected_action": [root.pk]}

    page = client.get(reverse("admin:kb_apikey_change", args=[root.pk])).content.decode()
    asked = client.post(reverse("admin:kb_apikey_changelist"), selected).content.decode()
    assert "revoked with it" in page
    assert "revoked with them" in asked
    assert child.prefix in page
    assert child.prefix in asked

    client.post(reverse("admin:kb_apikey_changelist"), {**selected, "post": "yes"})
    assert not ApiKey.objects.filter(revoked=False).exists()
    assert root.prefix in client.get(reverse("admin:kb_apikey_change", args=[child.pk])).content.decode()


def test_a_key_is_revoked_from_its_page(client, curator):
    key, secret = make_api_key(curator)

    client.post(reverse("admin:kb_apikey_revoke", args=[key.pk]))

    assert not ApiKey.objects.is_valid(secret)


def test_revoking_several_touches_own_keys_only(client, curator):
    own, _ = make_api_key(curator)
    foreign, _ = make_api_key(make_user())
    chosen = {"action": "revoke", "_selected_action": [own.pk, foreign.pk]}

    page = client.post(reverse(LIST), chosen).content.decode()

    assert own.prefix in page
    assert foreign.prefix not in page
    assert not ApiKey.objects.filter(revoked=True).exists()
    client.post(reverse(LIST), {**chosen, "post": "yes"})
    assert list(ApiKey.objects.filter(revoked=True)) == [own]


def test_a_key_is_never_edited_or_deleted_by_its_user(client, curator):
    key, _ = make_api_key(curator)

    assert client.post(reverse("admin:kb_apikey_change", args=[key.pk]), form(name="other")).status_code == 403
    assert client.post(reverse("admin:kb_apikey_delete", args=[key.pk]), {"post": "yes"}).status_code == 403


def test_deleting_a_key_leads_back_to_the_list_of_keys(client, curator):
    key, _ = make_api_key(curator)
    client.force_login(make_user(superuser=True))

    answer = client.post(reverse("admin:kb_apikey_delete", args=[key.pk]), {"post": "yes"})

    assert answer.url == reverse(LIST)
    assert not ApiKey.objects.exists()


def test_the_list_tells_what_keys_open_and_their_state(client, curator, kb):
    make_api_key(curator, kb)
    make_api_key(curator, revoked=True)
    make_api_key(curator, expiry_date=timezone.now() - timedelta(days=1))
    orphan = make_kb(curator)
    make_api_key(curator, orphan)
    orphan.delete()

    page = client.get(reverse(LIST)).content.decode()

    for words in ("legal", "all that the user may see", "none: they were deleted", "revoked", "expired", "valid"):
        assert words in page, words


@pytest.mark.parametrize("page", ["changelist", "add"])
def test_accounts_are_for_superusers(client, page):
    url = reverse(f"admin:kb_user_{page}")

    assert client.get(url).status_code == 403
    client.force_login(make_user(superuser=True))
    assert client.get(url).status_code == 200


def test_a_superuser_makes_a_curator(client):
    client.force_login(make_user(superuser=True))
    data = {"username": "new", "usable_password": "true", "password1": "long enough 7", "password2": "long enough 7"}

    client.post(reverse("admin:kb_user_add"), {**data, "is_staff": "on"})

    user = User.objects.get(username="new")
    assert user.is_staff
    assert user.check_password("long enough 7")


def test_a_user_who_owns_a_knowledge_base_is_kept(client, kb):
    client.force_login(make_user(superuser=True))
    url = reverse("admin:kb_user_delete", args=[kb.owner_id])

    page = client.post(url, {"post": "yes"}).content.decode()

    assert "make the account inactive instead" in page
    assert kb.name in page
    assert User.objects.filter(pk=kb.owner_id).exists()


def test_deleting_a_user_takes_the_keys_along(client):
    user = make_user()
    make_api_key(user)
    client.force_login(make_user(superuser=True))

    client.post(reverse("admin:kb_user_delete", args=[user.pk]), {"post": "yes"})

    assert not ApiKey.objects.exists()


def test_a_key_gets_a_rate_limit_of_its_own_within_the_server_s(client, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "general": "600/minute"}

    refused = [client.post(reverse(ADD), form(rate_limit=limit)).content.decode() for limit in ("often", "601/minute")]
    client.post(reverse(ADD), form(rate_limit="60/minute"))

    assert "is no rate limit" in refused[0]
    assert "600/minute at most" in refused[1]
    assert ApiKey.objects.get().rate_limit == "60/minute"


def test_a_key_is_bound_by_boxes_and_its_end_says_its_time_zone(client, kb):
    client.force_login(kb.owner)
    shown = client.get(reverse("admin:kb_apikey_add"), headers={"accept-language": "zh-hans"})
    tree = lxml.html.fromstring(shown.content.decode())
    assert tree.xpath("//input[@type='checkbox' and @name='knowledge_bases']/@value") == [str(kb.pk)]
    assert "时区：Asia/Shanghai。" in " ".join(tree.xpath("//*[contains(@class, 'field-expiry_date')]//text()"))
    assert tree.xpath("string(//h1)").strip() == "新建 API 密钥"

    client.post(reverse("admin:kb_apikey_add"), {"name": "one", "scope": "read", "knowledge_bases": [kb.pk]})
    assert list(ApiKey.objects.get().knowledge_bases.all()) == [kb]
