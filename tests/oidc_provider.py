"""A real OpenID Connect provider, django-oauth-toolkit, as a process on loopback.

It asks for a name and a password, which is the name, and has RS256, PKCE, the claims of a profile, groups and logout. Commands come
in by its standard input, a line of JSON each, and are answered by a line. Use it as a context manager::

    with OidcProvider("http://testserver/admin/oidc/callback/") as provider:
        provider.person("mei", groups=["editors"])
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

CLIENT_ID, CLIENT_SECRET = "zhiku", "a-secret-of-the-client-that-is-long-enough"
ROOT = Path(__file__).parents[1]


class OidcProvider:
    """See the module's description."""

    def __init__(self, redirect_uri: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._redirect_uri = redirect_uri

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}/o"

    def __enter__(self) -> "OidcProvider":
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.port), self._redirect_uri],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()  # which ends it
        self._process.stdout.close()
        self._process.wait()

    def person(self, name: str, **claims: object) -> None:
        """Makes a user of the provider, or gives one other claims: groups, email, email_verified."""
        self._ask({"person": name, "claims": claims})

    def application(self, **fields: object) -> None:
        """Changes what the provider knows of its client, such as `skip_authorization` (on), which leaves out its consent page."""
        self._ask({"application": fields})

    def settings(self, **fields: object) -> None:
        """Changes settings of the toolkit, such as ID_TOKEN_EXPIRE_SECONDS."""
        self._ask({"settings": fields})

    def _ask(self, command: dict[str, object]) -> None:
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


LOGIN_PAGE = """<!DOCTYPE html><html lang="en"><head><title>Provider</title></head><body><main><h1>Provider</h1>
<form method="post">{% csrf_token %}{{ form.as_p }}<button type="submit">Log in at the provider</button></form>
</main></body></html>"""
FIRST_PAGE = "<!DOCTYPE html><html lang='en'><head><title>Provider</title></head><body><h1>Out of the provider</h1></body></html>"


def main(port: int, redirect_uri: str, folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from django.conf import settings

    (folder / "registration").mkdir()
    (folder / "registration/login.html").write_text(LOGIN_PAGE)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # The folder of this file stands first in sys.path, as of every script.
    settings.configure(
        SECRET_KEY="of tests",
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF="oidc_provider_urls",
        USE_TZ=True,
        SESSION_COOKIE_NAME="provider_session",
        CSRF_COOKIE_NAME="provider_csrf",  # cookies know no ports
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "DIRS": [folder],
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
            }
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db.sqlite3"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        LOGIN_URL="/login/",
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_RSA_PRIVATE_KEY": pem.decode(),
            "OIDC_RP_INITIATED_LOGOUT_ENABLED": True,
            "OIDC_RP_INITIATED_LOGOUT_ALWAYS_PROMPT": False,
            "PKCE_REQUIRED": True,
            "SCOPES": {"openid": "You", "profile": "Your profile", "email": "Your address"},
            "OAUTH2_VALIDATOR_CLASS": "oidc_provider_urls.Validator",
        },
    )
    import django

    django.setup()
    from types import ModuleType

    from django.contrib.auth.models import User
    from django.contrib.auth.views import LoginView
    from django.core.management import call_command
    from django.http import HttpResponse
    from django.urls import include, path
    from oauth2_provider.models import Application
    from oauth2_provider.oauth2_validators import OAuth2Validator
    from oauth2_provider.settings import oauth2_settings

    claims: dict[str, dict[str, object]] = {}

    class Validator(OAuth2Validator):
        oidc_claim_scope = None  # every claim for every client

        def get_additional_claims(self, request):
            return {"preferred_username": request.user.username, **claims[request.user.username]}

    urls = ModuleType("oidc_provider_urls")
    urls.Validator = Validator
    urls.urlpatterns = [
        path("", lambda _request: HttpResponse(FIRST_PAGE)),
        path("login/", LoginView.as_view()),
        path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
    ]
    sys.modules["oidc_provider_urls"] = urls
    call_command("migrate", verbosity=0)
    Application.objects.create(
        name="Zhiku",
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=redirect_uri,
        post_logout_redirect_uris=redirect_uri.replace("oidc/callback/", "login/"),
        algorithm=Application.RS256_ALGORITHM,
        skip_authorization=True,
    )

    from cheroot.wsgi import Server
    from django.core.wsgi import get_wsgi_application

    server = Server(("127.0.0.1", port), get_wsgi_application(), numthreads=4)
    server.prepare()
    threading.Thread(target=server.serve, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if name := command.get("person"):
            if not User.objects.filter(username=name).exists():
                User.objects.create_user(name, password=name)
            claims[name] = command["claims"]
        for name, value in command.get("settings", {}).items():
            setattr(oauth2_settings, name, value)
        if fields := command.get("application"):
            application = Application.objects.get()
            for name, value in fields.items():
                setattr(application, name, value)
            application.save()
        print("done", flush=True)
    server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(int(sys.argv[1]), sys.argv[2], Path(made))
