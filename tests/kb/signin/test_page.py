"""The provider that a superuser enters under System."""

import pytest
from django.test import Client
from django.urls import reverse

from kb.models import AuditEntry, SignInProvider
from kb.operations.services.secrets import unreadable_secrets
from kb.signin.provider import provider_of
from tests.factories import make_user
from tests.kb.signin.conftest import sign_in
from tests.kb.signin.test_sign_in import refused
from tests.oidc_provider import CLIENT_ID, CLIENT_SECRET

pytestmark = pytest.mark.django_db


@pytest.fixture
def root():
    client = Client(headers={"accept-language": "en"})
    client.force_login(make_user("root", superuser=True))
    return client


@pytest.fixture
def form(running_provider):
    return {
        "issuer": running_provider.issuer,
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "name": "Example ID",
        "scopes": "openid profile email",
        "groups_claim": "groups",
        "allowed_groups": "staff, chiefs",
        "admin_groups": "chiefs",
        "hours": "8",
        "allows_private": "on",
    }


def save(client, form, **changed):
    return client.post(reverse("admin:sign_in"), {**form, **changed}, follow=True).content.decode()


def test_people_sign_in_with_a_provider_that_was_entered(root, form, running_provider):
    page = save(root, form)

    assert "The login page has the button now" in page
    assert CLIENT_SECRET not in page
    row = SignInProvider.objects.get()
    assert CLIENT_SECRET not in row.secrets
    running_provider.person("mei", groups=["chiefs"])
    user = sign_in("mei").wsgi_request.user
    assert (user.username, user.is_superuser) == ("mei", True)
    running_provider.person("eve", groups=["visitors"])
    assert refused(sign_in("eve"))


def test_a_blank_secret_is_kept_for_the_same_issuer_and_sent_to_no_other(root, form, running_provider):
    save(root, form)
    kept = SignInProvider.objects.get().secrets

    save(root, form, client_secret="", name="Other name")
    assert (SignInProvider.objects.get().secrets, SignInProvider.objects.get().name) == (kept, "Other name")

    other = running_provider.issuer.replace("127.0.0.1", "localhost")
    assert "Enter the secret that the provider has given" in save(root, form, client_secret="", issuer=other)
    assert SignInProvider.objects.get().issuer == running_provider.issuer


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"issuer": "http://127.0.0.1:1"}, "cannot be reached"),
        ({"issuer": "http://169.254.169.254"}, "where no provider can be"),
        ({"issuer": "nonsense"}, "is not a web address"),
        ({"allows_private": ""}, "is a private address"),
        ({"scopes": "profile"}, "Without the scope openid"),
        ({"client_secret": ""}, "Enter the secret"),
        ({"hours": "0"}, "greater than or equal to 0.25"),
    ],
)
def test_what_cannot_work_is_not_put_in_force(root, form, changed, words):
    page = save(root, form, **changed)

    assert words in page.replace("&#x27;", "'")
    assert CLIENT_SECRET not in page
    assert not SignInProvider.objects.exists()


@pytest.mark.parametrize(("issuer", "name"), [("https://id.example.org/o", "id.example.org"), ("nonsense", "nonsense")])
def test_a_provider_without_a_name_is_called_by_its_host_or_by_what_was_entered_for_it(issuer, name):
    assert provider_of(SignInProvider(issuer=issuer, secrets={})).name == name


def test_it_is_removed_after_a_question_and_the_button_goes(root, form):
    save(root, form)
    assert 'data-testid="confirm"' in root.get(reverse("admin:sign_in"), {"remove": ""}).content.decode()

    root.post(reverse("admin:sign_in"), {"action": "remove"})

    assert not SignInProvider.objects.exists()
    assert Client().get(reverse("signin_begin")).status_code == 404


def test_where_the_environment_names_one_it_is_in_force_and_the_page_changes_nothing(root, form, provider):
    page = root.get(reverse("admin:sign_in")).content.decode()

    assert 'data-testid="of-environment"' in page
    assert 'data-testid="provider-form"' not in page
    assert "http://testserver/admin/oidc/callback/" in page
    assert root.post(reverse("admin:sign_in"), form).status_code == 403
    assert not SignInProvider.objects.exists()


def test_others_than_superusers_neither_see_nor_change_it(form):
    client = Client()
    client.force_login(make_user())

    assert client.get(reverse("admin:sign_in")).status_code == 403
    assert client.post(reverse("admin:sign_in"), form).status_code == 403
    assert not SignInProvider.objects.exists()


def test_changes_are_in_the_audit_log_without_the_secret(root, form):
    save(root, form)
    save(root, form, client_secret="another one of the client", hours="9")

    created, changed = AuditEntry.objects.filter(object_type="sign_in_provider").order_by("pk")
    assert (created.action, created.username, changed.changes) == (
        "create",
        "root",
        {"hours": [8, 9], "secrets": [None, None]},
    )
    assert CLIENT_SECRET not in str(created.changes)


def test_a_secret_that_no_key_opens_is_reported_and_asked_for_again(root, form, settings):
    save(root, form)
    settings.SECRET_KEY = "another"
    client = Client(headers={"accept-language": "en"})
    client.force_login(make_user("boss", superuser=True))

    assert [each.kind for each in unreadable_secrets()] == ["sign_in_provider"]
    assert "Enter the secret" in save(client, form, client_secret="")
