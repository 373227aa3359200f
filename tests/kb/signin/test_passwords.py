"""Passwords switched off, and the ways in that are left."""

import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from kb.models import User
from kb.signin.services import LINK_MINUTES, link_token
from tests.factories import make_api_key, make_user
from tests.kb.signin.conftest import sign_in

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse"


@pytest.fixture
def no_passwords(settings):
    """As PASSWORD_LOGIN=false sets it, see the test of the settings below."""
    settings.PASSWORD_LOGIN = False
    settings.AUTHENTICATION_BACKENDS = [each for each in settings.AUTHENTICATION_BACKENDS if "ModelBackend" not in each]


def test_the_environment_takes_the_backend_of_passwords_away():
    script = "import json; from config import settings; print(json.dumps([settings.PASSWORD_LOGIN, settings.AUTHENTICATION_BACKENDS]))"
    environment = os.environ | {"PASSWORD_LOGIN": "false"}
    root = Path(__file__).parents[3]
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=True
    )

    assert "false" in told.stdout
    assert "ModelBackend" not in told.stdout
    assert "SignInBackend" in told.stdout


def test_the_login_page_shows_the_button_alone(provider, no_passwords, client):
    page = client.get(reverse("admin:login"), headers={"accept-language": "en"}).content.decode()

    assert "Sign in with Example ID" in page
    assert "password" not in page.lower().replace("password_login", "")


def test_without_a_provider_the_login_page_says_what_to_do(no_passwords, client):
    page = client.get(reverse("admin:login")).content.decode()

    assert 'data-testid="no-login"' in page
    assert "OIDC_ISSUER" in page


def test_a_password_logs_nobody_in(provider, no_passwords, client, rf):
    make_user("li")

    answer = client.post(reverse("admin:login"), {"username": "li", "password": PASSWORD})

    assert answer.status_code == 403
    assert "_auth_user_id" not in client.session
    assert authenticate(rf.post("/"), username="li", password=PASSWORD) is None
    basic = {"authorization": "Basic bGk6Y29ycmVjdCBob3JzZQ=="}
    assert client.get("/api/v1/knowledge-bases/", headers=basic).status_code == 401


def test_nobody_changes_a_password_and_none_is_reset(provider, no_passwords):
    client = Client()
    client.force_login(make_user("li"), backend="kb.signin.backends.SignInBackend")

    assert client.get(reverse("admin:password_change")).status_code == 403
    assert client.get("/admin/password_reset/").status_code == 404
    assert reverse("admin:password_change") not in client.get(reverse("admin:index")).content.decode()


def test_sessions_that_a_password_began_end_and_those_of_the_provider_go_on(provider, settings):
    by_password = Client()
    make_user("li")
    by_password.post(reverse("admin:login"), {"username": "li", "password": PASSWORD})
    provider.person("mei")
    by_provider = sign_in("mei").browser
    assert by_password.get(reverse("admin:index")).status_code == 200

    settings.AUTHENTICATION_BACKENDS = [each for each in settings.AUTHENTICATION_BACKENDS if "ModelBackend" not in each]

    assert by_password.get(reverse("admin:index")).status_code == 302
    assert by_provider.get(reverse("admin:index")).status_code == 200


def test_api_keys_go_on(no_passwords, client):
    _key, secret = make_api_key(make_user("li"))

    assert client.get("/api/v1/knowledge-bases/", headers={"authorization": f"Bearer {secret}"}).status_code == 200


# -- The link of the command line -----------------------------------------------------------------------------------------
def test_a_link_of_the_command_line_signs_in_once(no_passwords, client, capsys):
    user = make_user("li")
    call_command("login_link", "li", url="https://zhiku.example.org/")
    address = capsys.readouterr().out.strip()
    assert address.startswith("https://zhiku.example.org/admin/login/link/?token=")
    path = address.removeprefix("https://zhiku.example.org")

    assert client.get(path).status_code == 200  # a program that only looks uses nothing up
    assert client.get(reverse("admin:index")).status_code == 302
    assert client.post(path)["Location"] == reverse("admin:index")
    assert client.get(reverse("admin:index")).status_code == 200
    again = Client(headers={"accept-language": "en"}).post(path)
    assert again.status_code == 403
    assert "manage.py login_link" in again.content.decode()
    assert client.session["_auth_user_id"] == str(user.pk)


def test_a_link_ends_with_a_login_in_between_and_with_the_account(client):
    user = make_user("li")
    path = f"{reverse('signin_link')}?token={link_token(user)}"
    User.objects.update(last_login=timezone.now())
    assert client.get(path).status_code == 403

    path = f"{reverse('signin_link')}?token={link_token(User.objects.get())}"
    assert client.get(path).status_code == 200
    User.objects.update(is_active=False)
    assert client.get(path).status_code == 403


def test_a_link_ends_after_minutes_and_a_changed_one_is_none(client, monkeypatch):
    token = link_token(make_user("li"))
    assert client.get(reverse("signin_link"), {"token": f"{token}x"}).status_code == 403
    assert client.get(reverse("signin_link")).status_code == 403
    later = (timezone.now() + timedelta(minutes=LINK_MINUTES, seconds=5)).timestamp()
    monkeypatch.setattr("django.core.signing.time.time", lambda: later)

    assert client.get(reverse("signin_link"), {"token": token}).status_code == 403


@pytest.mark.parametrize("fields", [{"is_active": False}, {"is_staff": False}])
def test_the_command_makes_no_link_that_would_lead_nowhere(fields):
    make_user("li")
    User.objects.update(**fields)

    with pytest.raises(CommandError):
        call_command("login_link", "li")


# -- Logins that lead elsewhere than to the admin -------------------------------------------------------------------------
def test_who_is_no_staff_logs_in_where_it_leads_to_another_page(client):
    make_user("reader", staff=False)
    form = {"username": "reader", "password": PASSWORD}

    assert client.post(reverse("admin:login"), form).status_code == 200
    assert client.post(f"{reverse('admin:login')}?next=/admin/x/", form).status_code == 200
    assert client.post(f"{reverse('admin:login')}?next=https://evil.example/", form).status_code == 200
    answer = client.post(f"{reverse('admin:login')}?next=/chat/help/", {**form, "next": "/chat/help/"})
    assert (answer.status_code, answer["Location"]) == (302, "/chat/help/")
    assert client.get(reverse("admin:login"), {"next": "/chat/help/"})["Location"] == "/chat/help/"
    page = client.get(reverse("admin:login"), {"next": "/admin/"}).content.decode()
    assert re.search(r'data-testid="no-staff"', page)


def test_who_has_signed_in_tries_the_api_out_in_its_documentation(provider):
    provider.person("mei")
    answer = sign_in("mei", next_url="/api/v1/docs/")

    assert answer["Location"] == "/api/v1/docs/"
    assert answer.browser.get("/api/v1/docs/").status_code == 200
    assert answer.browser.get("/api/v1/knowledge-bases/").status_code == 200
