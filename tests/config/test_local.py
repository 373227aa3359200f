"""What a local installation shows, and to whom: real processes, as their user starts them, with DEBUG off unless it is set."""

import http.client
import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlencode, urlsplit

import pytest

from kb.base.loopback import is_loopback
from tests.serving import READY, ROOT, SECONDS, servers_run, serving

ELSEWHERE = "203.0.113.5:8000"
REBOUND = "rebound.example:8000"  # a name that its owner leads to 127.0.0.1 once the page is open


@pytest.fixture(autouse=True)
def _interruptible():
    """As in test_serve: a shell starts what it runs in the background deaf to Ctrl-C."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def ask(port, path, *, method="GET", body=None, **headers):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        client.request(method, path, body, headers)
        answer = client.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        client.close()


def log_in(port, password):
    """The status of the admin's first page, after a login in clear text by what a browser would keep and send."""
    _status, headers, page = ask(port, "/admin/login/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[1]
    cookies = {name: kept for kept in headers.get_all("Set-Cookie") for name in [kept.split("=")[0]]}
    form = urlencode({"csrfmiddlewaretoken": token, "username": "admin", "password": password, "next": "/admin/"})
    sent = {"Cookie": cookies["csrftoken"].split(";")[0], "Content-Type": "application/x-www-form-urlencoded"}
    status, headers, _page = ask(port, "/admin/login/", method="POST", body=form, **sent)
    assert status == 302
    kept = headers.get_all("Set-Cookie")
    session = next(each for each in kept if each.startswith("sessionid="))
    return ask(port, "/admin/", Cookie=session.split(";")[0])[0], [*cookies.values(), *kept]


def run(*command, **variables):
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def redis_password():
    return urlsplit(os.environ["REDIS_URL"]).password


@pytest.mark.usefixtures("started_before")
def test_a_local_installation_works_in_clear_text_and_shows_a_foreign_host_nothing(port, first_start):
    with serving(port, os.environ):
        status, cookies = log_in(port, first_start.password)
        assert status == 200
        assert cookies
        assert not any("secure" in each.lower() for each in cookies)

        page = ask(port, "/admin/login/")[2]
        for path in (page.split('<link href="')[1].split('"')[0], "/static/kb/admin.css", "/static/admin/js/core.js"):
            assert ask(port, path)[0] == 200, path

        for host in (ELSEWHERE, REBOUND):
            for path in ("/admin/login/", "/", "/api/v1/health/", "/metrics", "/no-such-page"):
                status, _headers, page = ask(port, path, Host=host)
                assert (status, len(page) < 500) == (400, True), (path, page)
                assert not re.search("redis|setting|traceback|django", page, re.IGNORECASE), page
            assert ask(port + 1, "/mcp", Host=host)[0] == 421

        status, _headers, page = ask(port, "/api/v1/no-such-page/")
        assert status == 404
        assert "URLconf" not in page


@pytest.mark.usefixtures("started_before")
def test_pages_of_debug_show_no_secret(port):
    with serving(port, os.environ | {"DEBUG": "true", "LLM_API_KEY": "sk-of-nobody-4711"}, "--no-mcp"):
        status, _headers, page = ask(port, "/admin/login/", Host=ELSEWHERE)
    assert status == 400
    assert "CELERY_BROKER_URL" in page, "the page that shows settings"
    assert redis_password() not in page
    assert "sk-of-nobody-4711" not in page
    assert not re.search(r"redis://[^*\s]*:[^*\s]+@", page)


NAMED = {"DATABASE_URL": "postgres://zhiku@127.0.0.1:1/zhiku", "REDIS_URL": "redis://127.0.0.1:1/0"}
"""Servers that no process comes to ask, since it is refused before."""
GUNICORN = ["-m", "gunicorn", "--config", "python:config.gunicorn", "--bind"]


@pytest.mark.parametrize("command", ["serve", "mcp --http", "gunicorn"])
@pytest.mark.parametrize(
    ("variables", "remedy"),
    [
        ({**NAMED, "ZHIKU_LOCAL": "true"}, "put a TLS proxy in front"),
        ({**NAMED, "DEBUG": "true"}, "Leave DEBUG out"),
    ],
    ids=["local", "debug"],
)
@pytest.mark.usefixtures("environment")
def test_nothing_listens_for_others_in_a_local_installation_or_with_debug(port, command, variables, remedy):
    words = [*GUNICORN, f"0.0.0.0:{port}"]
    if command != "gunicorn":
        words = ["manage.py", *command.split(), "--host", "0.0.0.0", "--port", str(port)]
    done = run(*words, **variables)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Cannot listen on 0.0.0.0: " in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


def test_embedded_servers_make_an_installation_local_and_a_refusal_leaves_none_running(environment, port):
    done = run("manage.py", "serve", "--host", "::", "--port", str(port))
    assert done.returncode == 1
    assert "this installation is local" in done.stderr
    assert not servers_run()


@pytest.mark.parametrize("variables", [{"ZHIKU_LOCAL": "true"}, {"DEBUG": "true"}], ids=["local", "debug"])
@pytest.mark.parametrize("command", ["serve", "gunicorn"])
@pytest.mark.usefixtures("environment")
def test_names_of_others_are_refused_at_the_start(port, command, variables):
    words = [*GUNICORN, f"127.0.0.1:{port}"] if command == "gunicorn" else ["manage.py", "serve", "--port", str(port)]
    done = run(*words, **NAMED, ALLOWED_HOSTS="localhost,zhiku.example", **variables)
    assert done.returncode != 0
    assert "ALLOWED_HOSTS names zhiku.example, and" in done.stderr
    assert "zhiku.E007" in done.stderr


@pytest.mark.usefixtures("started_before")
def test_named_servers_are_served_with_tls_and_the_start_says_how_to_do_without(environment, port, tmp_path):
    del environment["ZHIKU_EMBEDDED"]
    static = str(tmp_path / "static")
    assert run("manage.py", "collectstatic", "--no-input", STATIC_ROOT=static).returncode == 0
    with serving(port, os.environ | {"STATIC_ROOT": static}, "--no-mcp") as (_process, printed):
        assert ask(port, "/admin/login/")[0] == 301
    assert "ZHIKU_LOCAL=true" in printed


@pytest.mark.usefixtures("started_before")
def test_named_servers_of_a_local_installation_need_no_tls(environment, port, first_start):
    del environment["ZHIKU_EMBEDDED"]
    with serving(port, os.environ | {"ZHIKU_LOCAL": "true"}, "--no-mcp") as (_process, printed):
        assert log_in(port, first_start.password)[0] == 200
    assert READY in printed


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.0.2.7", False),
        ("no-such-host.invalid", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host, expected):
    assert is_loopback(host) is expected
