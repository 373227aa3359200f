"""Signing in with a real provider: who gets in, with which account, and what the page says to whom it does not let in."""

import socket
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.test import Client
from django.urls import reverse

from kb.models import User
from kb.signin import services
from kb.signin.claims import account_key, identity_of
from kb.signin.provider import current_provider
from kb.signin.views import SESSION_KEY
from tests.factories import make_user
from tests.interleaving import Gate, Running
from tests.kb.signin.conftest import at_provider, begin, sign_in
from tests.oidc_provider import CLIENT_SECRET

pytestmark = pytest.mark.django_db


def refused(answer, *words):
    page = answer.content.decode()
    assert answer.status_code in {403, 502}, page
    assert 'data-testid="not-signed-in"' in page
    for each in words:
        assert each in page
    assert "sessionid" not in answer.cookies or not answer.wsgi_request.user.is_authenticated
    return True


def test_a_new_person_gets_an_account_and_is_signed_in(provider):
    provider.person("mei", email="mei@example.org", email_verified=True, given_name="Mei", family_name="Lin")

    answer = sign_in("mei")

    assert (answer.status_code, answer["Location"]) == (302, reverse("admin:index"))
    user = User.objects.get(username="mei")
    assert (user.email, user.get_full_name(), user.is_staff, user.is_superuser) == (
        "mei@example.org",
        "Mei Lin",
        True,
        False,
    )
    assert not user.has_usable_password()
    assert answer.browser.get(reverse("admin:index")).status_code == 200
    assert answer.browser.get("/api/v1/knowledge-bases/").status_code == 200


def test_the_second_time_it_is_the_same_account_and_nothing_of_the_person_is_kept_with_it(provider):
    provider.person("mei", email="mei@example.org")
    sign_in("mei")
    provider.person("mei", email="lin@example.org", preferred_username="lin")

    sign_in("mei")

    user = User.objects.get()
    assert (user.username, user.email) == ("mei", "lin@example.org")
    account = SocialAccount.objects.get()
    assert (account.user, account.provider, account.extra_data) == (user, provider.issuer, {})
    assert not SocialToken.objects.exists()


def test_the_request_to_the_provider_has_state_nonce_and_pkce(provider):
    asked = parse_qs(urlsplit(begin(Client())).query)

    assert asked["response_type"] == ["code"]
    assert asked["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= asked.keys()
    assert asked["redirect_uri"] == ["http://testserver/admin/oidc/callback/"]
    assert set(asked["scope"][0].split()) == {"openid", "profile", "email"}


def test_an_answer_for_another_browser_signs_nobody_in(provider):
    provider.person("mei")
    stolen = at_provider(begin(Client()), "mei")

    answer = Client().get(stolen, headers={"accept-language": "en"})

    assert refused(answer, "not begun in this browser")
    assert not User.objects.exists()


def test_where_cookies_do_not_come_along_from_the_provider_a_page_asks_again_and_signs_nobody_in(provider, settings):
    settings.SESSION_COOKIE_SAMESITE = "Strict"
    provider.person("mei")
    client = Client()
    back = at_provider(begin(client), "mei")

    without_cookies = Client()
    answer = without_cookies.get(back)

    assert answer.status_code == 200
    assert "_redir" in answer.content.decode()
    assert SESSION_KEY not in without_cookies.session
    assert not User.objects.exists()
    assert client.get(f"{back}&_redir=").status_code == 302
    assert User.objects.get().username == "mei"


def test_an_answer_works_once(provider):
    provider.person("mei")
    client = Client()
    back = at_provider(begin(client), "mei")
    assert client.get(back).status_code == 302
    client.logout()

    assert refused(client.get(back))


def test_a_token_for_another_sign_in_is_not_believed(provider):
    """The nonce of the token is not that which this browser stored."""
    provider.person("mei")
    client = Client()
    url = httpx.URL(begin(client))

    answer = client.get(at_provider(str(url.copy_set_param("nonce", "of somebody else")), "mei"))

    assert refused(answer, "nonce")
    assert not User.objects.exists()


@pytest.mark.parametrize(
    ("asked", "leads_to"),
    [
        ("/chat/help/?x=1", "/chat/help/?x=1"),
        ("/api/v1/docs/", "/api/v1/docs/"),
        ("https://evil.example/", "/admin/"),
        ("//evil.example/", "/admin/"),
        ("javascript:alert(1)", "/admin/"),
        ("/\\evil.example", "/admin/"),
        ("", "/admin/"),
    ],
)
def test_it_leads_to_addresses_of_this_site_only(provider, asked, leads_to):
    provider.person("mei")

    assert sign_in("mei", next_url=asked)["Location"] == leads_to


def test_the_login_page_has_the_button_with_the_address_that_was_asked_for(provider, client):
    page = client.get(
        reverse("admin:login"), {"next": "/chat/help/"}, headers={"accept-language": "en"}
    ).content.decode()

    assert "Sign in with Example ID" in page
    assert f'href="{reverse("signin_begin")}?next=%2Fchat%2Fhelp%2F"' in page
    assert 'name="password"' in page


def test_without_a_provider_there_is_no_button_and_no_address(client):
    assert "signin" not in client.get(reverse("admin:login")).content.decode()
    assert client.get(reverse("signin_begin")).status_code == 404
    assert client.get(reverse("signin_callback")).status_code == 404


@pytest.mark.parametrize(
    "address",
    [
        "/accounts/login/",
        "/accounts/signup/",
        "/accounts/email/",
        "/accounts/password/reset/",
        "/accounts/social/signup/",
    ],
)
def test_pages_of_the_library_have_no_address(provider, client, address):
    assert client.get(address).status_code == 404


# -- Accounts that are here already ---------------------------------------------------------------------------------------
def local_user(name="mei.lin", email="mei@example.org", **fields):
    user = make_user(name, **fields)
    user.email = email
    user.save()
    return user


def test_an_account_with_the_same_address_is_not_opened_unless_the_operator_says_so(provider):
    local_user()
    provider.person("mei", email="MEI@example.org", email_verified=True)

    assert refused(sign_in("mei"), "OIDC_LINK_EMAIL")
    assert not SocialAccount.objects.exists()
    assert User.objects.count() == 1


def test_a_verified_address_opens_it_where_the_operator_says_so(provider, settings):
    settings.OIDC_LINK_EMAIL = True
    user = local_user()
    provider.person("mei", email="MEI@example.org", email_verified=True)

    answer = sign_in("mei")

    assert answer.wsgi_request.user == user
    assert User.objects.get().has_usable_password()


@pytest.mark.parametrize("verified", [{}, {"email_verified": "no"}])
def test_an_address_that_is_not_verified_opens_nothing(provider, settings, verified):
    settings.OIDC_LINK_EMAIL = True
    local_user()
    provider.person("mei", email="mei@example.org", **verified)

    assert refused(sign_in("mei"))
    assert not SocialAccount.objects.exists()


@pytest.mark.parametrize("verified", [False, "false"])
def test_whether_an_account_has_an_address_is_not_said_to_whom_the_provider_does_not_vouch_for(provider, verified):
    local_user()
    for name in ("mei", "eve"):
        provider.person(name, email=f"{name}@example.org", email_verified=verified)
        assert sign_in(name).status_code == 302
    assert not User.objects.exclude(email="").exclude(email="mei@example.org").exists()
    assert User.objects.filter(email="mei@example.org").count() == 1


def test_an_address_of_two_accounts_opens_neither(provider, settings):
    settings.OIDC_LINK_EMAIL = True
    local_user()
    local_user("another")
    provider.person("mei", email="mei@example.org", email_verified=True)

    assert refused(sign_in("mei"))


def test_whoever_writes_the_address_of_somebody_else_at_the_provider_gets_an_account_of_their_own(provider, settings):
    settings.OIDC_LINK_EMAIL = True
    provider.person("mei", email="mei@example.org", email_verified=True)
    provider.person("eve", email="mei@example.org", email_verified=False)
    sign_in("eve")

    answer = sign_in("mei")

    assert answer.wsgi_request.user.username == "mei"
    assert User.objects.count() == 2


def test_a_name_that_somebody_has_here_gets_that_of_the_provider(provider):
    make_user("Mei")
    make_user("mei@127.0.0.1")
    provider.person("mei")

    sign_in("mei")

    assert sorted(User.objects.values_list("username", flat=True)) == ["Mei", "mei@127.0.0.1", "mei@127.0.0.1-2"]


@pytest.mark.django_db(transaction=True)
def test_two_people_of_one_name_who_come_at_once_get_an_account_each(provider, monkeypatch):
    gate = Gate(monkeypatch, services, "_free_name", after=True)  # which finds the name free
    here = current_provider()
    first, second = (identity_of({"sub": sub, "preferred_username": "mei"}, here) for sub in ("first", "second"))
    late = Running(services.account_for, first, here)
    gate.wait()
    services.account_for(second, here)
    gate.open()

    assert late.outcome() is None
    assert list(User.objects.order_by("pk").values_list("username", flat=True)) == ["mei", "mei@127.0.0.1"]
    assert SocialAccount.objects.get(user__username="mei").uid == account_key("second")


def test_an_account_that_is_switched_off_stays_out(provider):
    provider.person("mei")
    sign_in("mei")
    User.objects.update(is_active=False)

    assert refused(sign_in("mei"))


def test_a_subject_of_another_issuer_is_somebody_else(provider, settings):
    other = make_user("other")
    provider.person("mei")
    sign_in("mei")
    SocialAccount.objects.update(provider="https://former.example.org", user=other)
    User.objects.get(username="mei").delete()

    sign_in("mei")

    assert SocialAccount.objects.get(provider=provider.issuer).user.username == "mei"


# -- What the page says when it does not work -----------------------------------------------------------------------------
@pytest.mark.parametrize(("language", "words"), [("en", "did not sign you in"), ("zh-hans", "Example ID")])
def test_somebody_whom_the_provider_refuses_learns_it(provider, language, words):
    client = Client()
    state = parse_qs(urlsplit(begin(client)).query)["state"][0]

    answer = client.get(
        reverse("signin_callback"), {"error": "access_denied", "state": state}, headers={"accept-language": language}
    )

    assert refused(answer, words)


def test_another_error_of_the_provider_is_named_with_the_redirect_address(provider):
    client = Client(headers={"accept-language": "en"})
    state = parse_qs(urlsplit(begin(client)).query)["state"][0]

    answer = client.get(reverse("signin_callback"), {"error": "invalid_scope", "state": state})

    assert refused(answer, "invalid_scope", "http://testserver/admin/oidc/callback/")


def test_a_provider_that_is_down_is_named_with_a_remedy(provider, settings):
    settings.OIDC_ISSUER = "http://127.0.0.1:1/"

    answer = Client(headers={"accept-language": "en"}).get(reverse("signin_begin"))

    assert answer.status_code == 502
    assert refused(answer, "Example ID cannot be reached", "127.0.0.1 does not answer")


def test_the_metadata_of_a_cloud_is_never_asked(provider, settings):
    settings.OIDC_ISSUER = "http://169.254.169.254/"

    assert refused(Client(headers={"accept-language": "en"}).get(reverse("signin_begin")), "169.254.169.254")


def test_an_address_that_is_no_provider_is_named(provider, settings):
    settings.OIDC_ISSUER = provider.issuer.removesuffix("/o")

    assert refused(Client(headers={"accept-language": "en"}).get(reverse("signin_begin")), "is no OpenID Connect")


def test_a_provider_that_calls_itself_otherwise_is_not_believed(provider, settings):
    settings.OIDC_ISSUER = provider.issuer.replace("127.0.0.1", "localhost")

    answer = Client(headers={"accept-language": "en"}).get(reverse("signin_begin"))

    assert refused(answer)


def test_a_wrong_client_secret_is_named(provider, settings):
    settings.OIDC_CLIENT_SECRET = "another"
    provider.person("mei")

    assert refused(
        sign_in("mei", client=Client(headers={"accept-language": "en"})), "OIDC_CLIENT_SECRET", "invalid_client"
    )


def test_a_clock_that_is_wrong_is_named(provider):
    provider.person("mei")
    provider.settings(ID_TOKEN_EXPIRE_SECONDS=-600)
    try:
        assert refused(sign_in("mei", client=Client(headers={"accept-language": "en"})), "NTP")
    finally:
        provider.settings(ID_TOKEN_EXPIRE_SECONDS=36_000)


def test_a_token_with_a_shared_key_is_not_believed(provider):
    provider.person("mei")
    provider.application(algorithm="HS256", client_secret=CLIENT_SECRET, hash_client_secret=False)
    try:
        assert refused(sign_in("mei", client=Client(headers={"accept-language": "en"})), "cannot be verified")
    finally:
        provider.application(algorithm="RS256")


# -- Limits and the end of a session --------------------------------------------------------------------------------------
def test_the_limit_of_logins_of_an_address_holds(provider, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "login": "3/hour"}
    client = Client(REMOTE_ADDR="192.0.2.77")

    codes = [client.get(reverse("signin_begin")).status_code for _ in range(4)]

    assert codes == [302, 302, 302, 429]


def test_a_session_ends_after_its_hours_however_it_is_used(provider, settings):
    settings.OIDC_SESSION_HOURS = 2
    provider.person("mei")
    client = sign_in("mei").browser
    ends = client.session.get_expiry_date()

    client.get(reverse("admin:index"))
    session = client.session
    session["used"] = True
    session.save()

    assert client.session.get_expiry_date() == ends
    assert 7_100 < client.session.get_expiry_age() <= 7_200


def test_logging_out_ends_the_session_here_and_leads_to_the_end_of_that_of_the_provider(provider):
    provider.person("mei")
    client = Client(headers={"accept-language": "en"})
    with httpx.Client() as browser:
        client.get(at_provider(begin(client), "mei", browser))

        page = client.post(reverse("admin:logout")).content.decode()

        assert client.get(reverse("admin:index")).status_code == 302
        assert "Log out of Example ID too" in page
        link = page.split('href="')
        address = next(each.split('"')[0] for each in link if each.startswith(provider.issuer)).replace("&amp;", "&")
        answer = browser.get(address)
        assert answer.headers["location"] == "http://testserver/admin/login/"
        assert "/login/" in browser.get(begin(Client())).headers["location"]  # it asks for the password again


def test_a_logout_after_a_password_login_names_no_provider(provider):
    client = Client()
    client.force_login(make_user("li"))

    page = client.post(reverse("admin:logout")).content.decode()

    assert 'data-testid="logged-out"' in page
    assert provider.issuer not in page


def test_a_silent_provider_is_asked_once_and_then_said_to_be_out_of_reach_at_once(client, settings, monkeypatch):
    from kb.signin import http

    monkeypatch.setattr(http, "SECONDS", 0.2)
    settings.OIDC_CLIENT_ID, settings.OIDC_CLIENT_SECRET = "c", "s"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.OIDC_ISSUER = f"http://127.0.0.1:{silent.getsockname()[1]}"
        answers = [client.get(reverse("signin_begin")) for _ in range(3)]
        assert [each.status_code for each in answers] == [502] * 3
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # the others asked nobody
            silent.accept()


def test_where_too_many_requests_wait_for_other_servers_a_page_says_when_to_come_back(provider, client, crowded):
    answer = client.get(reverse("signin_begin"), headers={"accept-language": "en"})
    assert (answer.status_code, answer["Retry-After"]) == (503, "10")
    assert "wait for other servers" in answer.content.decode()


def test_a_new_key_of_the_provider_is_asked_for(provider, monkeypatch):
    from kb.signin import metadata

    provider.person("rui")
    sign_in("rui")
    (url,) = [key for key in metadata.METADATA._kept if "keys" in str(key) or "jwks" in str(key)]
    read_at, published = metadata.METADATA._kept[url]
    metadata.METADATA._kept[url] = read_at, {"keys": [{**published["keys"][0], "kid": "of-last-year"}]}
    monkeypatch.setattr(metadata, "REFRESH_SECONDS", 0.0)
    assert sign_in("rui").status_code == 302
