"""What a local installation shows, and to whom: real processes, as their user starts them, with DEBUG off unless it is set."""

import contextlib
import http.client
import os
import re
import subprocess
import sys
import time
from urllib.parse import urlencode, urlsplit

import pytest

from kb.base.loopback import is_loopback
from tests.config.commands import run_in_turn
from tests.serving import (
    NAMED_SERVERS,
    NOT_INHERITED,
    ROOT,
    SECONDS,
    collected_static,
    free_port,
    interruptible,
    servers_run,
    serving,
)

ELSEWHERE = "203.0.113.5:8000"
REBOUND = "rebound.example:8000"  # a name that its owner leads to 127.0.0.1 once the page is open


@pytest.fixture(autouse=True)
def _interruptible():
    with interruptible():
        yield


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


def run(*command, environment=None, **variables):
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=(environment or os.environ) | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@contextlib.contextmanager
def web_server(port, environment):
    """The one that `serve` starts, alone."""
    command = [sys.executable, *GUNICORN, f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        deadline = time.monotonic() + SECONDS
        while not answers(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(SECONDS)


def answers(port):
    with contextlib.suppress(OSError):
        return ask(port, "/api/v1/health/")[0]


def redis_password():
    return urlsplit(os.environ["REDIS_URL"]).password


def test_a_local_installation_works_in_clear_text_and_shows_a_foreign_host_nothing(started_before, port, first_start):
    with serving(port, started_before):
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
    assert servers_run(), "they ran before"


def test_pages_of_debug_show_no_secret(started_before, port):
    with web_server(port, started_before | {"DEBUG": "true", "LLM_API_KEY": "sk-of-nobody-4711"}):
        status, _headers, page = ask(port, "/admin/login/", Host=ELSEWHERE)
    assert status == 400
    assert "CELERY_BROKER_URL" in page, "the page that shows settings"
    assert redis_password() not in page
    assert "sk-of-nobody-4711" not in page
    assert not re.search(r"redis://[^*\s]*:[^*\s]+@", page)


GUNICORN = ["-m", "gunicorn", "--config", "python:config.gunicorn", "--bind"]
REFUSED = {
    "local": ({**NAMED_SERVERS, "ZHIKU_LOCAL": "true"}, "put a TLS proxy in front"),
    "debug": ({**NAMED_SERVERS, "DEBUG": "true"}, "Leave DEBUG out"),
}


@pytest.fixture(scope="module", params=REFUSED)
def refused(request, tmp_path_factory):
    """What becomes of each command that would listen to others, and the remedy that it is to name."""
    variables, remedy = REFUSED[request.param]
    where = ["--host", "0.0.0.0", "--port", str(free_port())]
    bare = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    bare |= {**variables, "ZHIKU_DATA_DIR": str(tmp_path_factory.mktemp("refused"))}
    serve, mcp = run_in_turn(["serve", *where], ["mcp", "--http", *where], environment=bare)
    gunicorn = run(*GUNICORN, f"0.0.0.0:{free_port()}", environment=bare)
    return {"serve": serve, "mcp --http": mcp, "gunicorn": gunicorn}, remedy


@pytest.mark.parametrize("command", ["serve", "mcp --http", "gunicorn"])
def test_nothing_listens_for_others_in_a_local_installation_or_with_debug(refused, command):
    done, remedy = refused[0][command], refused[1]
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
    done = run(*words, **NAMED_SERVERS, ALLOWED_HOSTS="localhost,zhiku.example", **variables)
    assert done.returncode != 0
    assert "ALLOWED_HOSTS names zhiku.example, and" in done.stderr
    assert "zhiku.E007" in done.stderr


def test_named_servers_are_served_with_tls_and_the_start_says_how_to_do_without(started_before, port, run_folder):
    del started_before["ZHIKU_EMBEDDED"]
    static = str(collected_static(run_folder))
    with serving(port, started_before | {"STATIC_ROOT": static}, "--no-mcp") as (_process, printed):
        assert ask(port, "/admin/login/")[0] == 301
    assert "ZHIKU_LOCAL=true" in printed


def test_named_servers_of_a_local_installation_need_no_tls(started_before, port, first_start):
    del started_before["ZHIKU_EMBEDDED"]
    with web_server(port, started_before | {"ZHIKU_LOCAL": "true"}):
        assert log_in(port, first_start.password)[0] == 200


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
