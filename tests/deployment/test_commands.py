"""Every command of compose.yaml, run as it stands in production settings: DEBUG off, PostgreSQL, Redis, no container."""

import json
import signal

import pytest

from tests.deployment.stack import METRICS_TOKEN

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "智能温控器的保修期是两年，请保留发票。"


@pytest.fixture(scope="module")
def running(servers):
    servers.start_web()
    servers.start_worker()
    servers.start_beat()
    servers.start_mcp()
    servers.headers = {"Authorization": f"Bearer {servers.key}"}
    return servers


def call(stack, method, path, **more):
    headers = stack.headers | more.pop("headers", {})
    return stack.request(method, f"/api/v1/{path}", headers=headers, **more)


def add_document(stack, kb_id, text, name="faq.txt"):
    files = {"file": (name, text.encode())}
    answer = call(stack, "POST", f"knowledge-bases/{kb_id}/documents/", files=files)
    assert answer.status_code in (201, 202), answer.text
    return answer


def until_ready(stack, document_id):
    def is_ready():
        found = call(stack, "GET", f"documents/{document_id}/").json()
        assert found["status"] != "failed", found
        return found["status"] == "ready" and found

    return stack.until(is_ready, "worker")


def test_the_checks_of_a_deployment_pass(servers):
    done = servers.manage("check", "--deploy", "--fail-level", "WARNING")
    assert "no issues" in done.stdout + done.stderr


def test_probes_say_what_is_not_there(servers):
    done = servers.run([*servers.command("migrate")[:1], "-m", "kb.base.probe", "web", "--port", "1"], check=False)
    assert done.returncode == 1
    assert "does not answer" in done.stderr


def test_a_document_is_uploaded_read_and_found_by_the_processes_of_compose(running):
    kb = call(running, "POST", "knowledge-bases/", json={"name": "handbook", "language": "zh"}).json()
    sent = {"X-Request-ID": "upload-of-the-test-1"}
    files = {"file": ("faq.txt", TEXT.encode())}
    answer = call(running, "POST", f"knowledge-bases/{kb['id']}/documents/", files=files, headers=sent)
    assert answer.headers["X-Request-ID"] == "upload-of-the-test-1"
    document_id = answer.json()["id"]
    until_ready(running, document_id)
    found = call(
        running, "POST", "search/", json={"query": "保修期", "knowledge_base_ids": [kb["id"]], "score_threshold": 0}
    )
    assert found.json()["results"][0]["document_id"] == document_id

    # The line of the upload, that of the task and that of the document carry one id.
    web = [json.loads(line) for line in running.log("web").splitlines() if line.startswith("{")]
    access = [
        line for line in web if line["logger"] == "zhiku.access" and line.get("request_id") == sent["X-Request-ID"]
    ]
    assert (access[0]["status"], access[0]["method"]) == (answer.status_code, "POST")
    assert access[0]["key"]
    assert str(running.key.split(".")[1]) not in running.log("web")

    def is_told():  # which a worker does once the document is ready
        worker = [json.loads(line) for line in running.log("worker").splitlines() if line.startswith("{")]
        of_upload = [line["message"] for line in worker if line.get("request_id") == sent["X-Request-ID"]]
        return any(str(document_id) in message for message in of_upload)

    running.until(is_told, "worker")
    searched = [line for line in web if line.get("search") == found.json()["trace_id"]]
    assert searched
    assert "保修期" not in running.log("web")


def test_admin_static_files_and_metrics_are_served(running):
    page = running.request("GET", "/admin/login/")
    assert page.status_code == 200
    style = page.text.split('<link href="/static/')[1].split('"')[0]
    assert running.request("GET", f"/static/{style}").status_code == 200
    metrics = running.request("GET", "/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"}).text
    for path in ("/metrics", "/metrics/", "/api/v1/metrics", "/api/v1/metrics/"):
        assert running.request("GET", path).status_code == 401
    assert 'zhiku_http_requests_total{method="GET",route=' in metrics


def test_plain_http_is_sent_to_https_except_for_probes(running):
    plain = {"X-Forwarded-Proto": "http"}
    assert running.request("GET", "/admin/login/", headers=plain, allow_redirects=False).status_code == 301
    assert running.request("GET", "/api/v1/ready/", headers=plain, allow_redirects=False).status_code == 200


def test_a_signal_ends_each_and_loses_nothing(running):
    for service in ("beat", "worker", "mcp", "web"):
        process = running.processes[service]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, running.log(service)
        assert "Traceback" not in running.log(service)
