"""Upgrades an installation with data from an earlier version to this one, and checks that nothing is lost.

    python -m tests.upgrade --from 15ec7be
    python -m tests.upgrade --from f0b20088

The earlier version runs in a git worktree and an environment of its own, on a PostgreSQL and a Redis of its own. It is filled
with a row of every kind; tasks wait in its queue, an upload is half done, and its worker is killed in the middle of a document.
Then this version takes over its data directory.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
from redis import Redis

from tests.serving import ROOT
from tests.upgrade.rows import changed, columns, lost, rows
from tests.upgrade.sides import Failed, Side, environment_of, get, post, until

FILL = Path(__file__).with_name("fill.py")
FIRST = "15ec7be"
# Working state that a migration may empty or a worker takes away once it is done with it.
TRANSIENT = {"kb_chunkchange", "kb_storechange", "bm25_indexes", "kb_idempotencykey", "kb_webpagechange"}


class Upgrade:
    """One run; each step is a method, and `findings` holds what was not as it should be."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version
        self.findings: list[str] = []
        self.tree = folder / "tree"
        data = folder / "installation" / "data"
        data.parent.mkdir()
        data.parent.chmod(0o711)  # as root, PostgreSQL's own user goes through it
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", self.tree, version], cwd=ROOT, check=True)
        self.old = Side(self.tree, environment_of(self.tree, folder.parent / f"zhiku-environment-{version}"), data)
        self.new = Side(ROOT, Path(sys.executable), data)

    def close(self) -> None:
        self.new.manage("stop")
        subprocess.run(["git", "worktree", "remove", "--force", self.tree], cwd=ROOT, check=True)

    def check(self, holds: bool, sentence: str) -> None:
        print(f"  {'ok  ' if holds else 'FAIL'}  {sentence}", flush=True)
        if not holds:
            self.findings.append(sentence)

    def fill(self) -> None:
        self.old.start_servers()
        self.old.manage("migrate", "-v0")
        self.known = json.loads(self.old.shell(f"import runpy; runpy.run_path({str(FILL)!r}, run_name='__main__')"))
        self.check(not self.known["empty"], f"every kind of row is there (none of {self.known['empty']})")
        self.old.manage("backup", str(self.folder / "old.tar"))

    def leave_work_undone(self) -> None:
        """The worker dies while it reads a document; other tasks stay in the queue."""
        [(queue, waiting)] = self.queues()
        self.broker().rename(queue, "aside")
        self.old.shell(f"from kb.tasks import ingest_document; print(ingest_document.delay({self.known['long']}))")
        with self.old.worker(self.folder / "old-worker.log"):
            until(lambda: self.status(self.known["long"]) == "processing", "the long document to be taken up")
        self.broker().rename("aside", queue)
        self.check(self.status(self.known["long"]) == "processing", "a worker was killed in the middle of a document")
        self.check(
            waiting >= len(self.known["tasks"]), f"{waiting} tasks wait in the queue, one of each kind among them"
        )

    def migrate(self) -> None:
        with self.database() as connection:
            known = columns(connection)
            before = rows(connection, known)
        media = self.media()
        self.new.manage("migrate", "--no-input", "-v0")
        with self.database() as connection:
            present = columns(connection)
            gone = [f"{table}.{name}" for table, names in known.items() for name in names if name not in present[table]]
            self.check(not gone, f"every column is still there for a process of the version before {gone or ''}")
            after, now = rows(connection, known), rows(connection, present)
        self.check(
            not changed(before, after), f"no row changed or went with the migrations {changed(before, after) or ''}"
        )
        self.check(self.media() == media, f"{len(media)} files are what they were")
        members, asked = len(now["kb_membership"]), len(now["kb_invitation"]) - len(before.get("kb_invitation", {}))
        self.check(members > 0 and not asked, f"{members} members of before are members, {asked} were asked again")
        self.before = before

    def search_at_once(self) -> None:
        """The first search of a new process, before anything else of this version has run."""
        found = json.loads(
            self.new.manage(
                "search",
                self.known["query"],
                "--kb",
                "upgrade-handbook",
                "--score-threshold",
                "0",
                "--explain",
                "--json",
            )
        )
        codes = {note["code"] for note in found["degraded"]}
        tiers = json.dumps(found["trace"])
        self.check(bool(found["results"]), f"the first search finds {len(found['results'])} chunks")
        self.check(codes <= {"hashing_embedder"}, f"it has no note but the hashing embedder's: {sorted(codes)}")
        self.check(
            '"cache_tier": "built"' not in tiers and '"cache_tier"' in tiers, "its keyword index was stored, not built"
        )

    def go_on(self) -> None:
        log = self.folder / "new-serve.log"
        kept = self.vector_indexes()
        with self.new.serving(log) as url:
            self.status_codes(url)
            wanted = [*self.known["queued"], self.known["long"]]
            until(lambda: all(self.status(each) == "ready" for each in wanted), "documents that waited to be ready")
            until(lambda: not self.queues(), "the queue to be empty")
            self.check(True, f"{len(wanted)} documents that waited, one of a killed worker, are ready")
            until(
                lambda: self.one("SELECT status FROM kb_evalrun ORDER BY id DESC LIMIT 1") in ("done", "failed"),
                "the run",
            )
            self.check(
                self.one("SELECT status FROM kb_evalrun ORDER BY id DESC LIMIT 1") == "done",
                "the evaluation that waited is done",
            )
            paused = {self.status(each) for each in self.known["paused"]}
            self.check(paused == {"pending"}, f"the paused upload is still paused: {paused}")
        text = log.read_text()
        self.check("unregistered task" not in text, "every queued task was understood")
        self.check(
            "Traceback" not in text, f"no process failed; see {log}" if "Traceback" in text else "no process failed"
        )
        self.check(kept <= self.vector_indexes(), f"{len(kept)} vector indexes were kept")
        with self.database() as connection:
            now = rows(connection, columns(connection))
        gone = {table: keys for table, keys in lost(self.before, now).items() if table not in TRANSIENT}
        self.check(not gone, f"no row was lost {gone or ''}")

    def status_codes(self, url: str) -> None:
        api = f"{url}/api/v1"
        body = {"query": self.known["query"], "knowledge_base_ids": [self.known["kb"]], "score_threshold": 0}
        for whose in ("key", "members_key"):
            status, found = post(f"{api}/search/", body, Authorization=f"Bearer {self.known[whose]}")
            self.check(status == 200 and bool(found["results"]), f"a search with the {whose} of before: {status}")
        status, page = get(f"{url}/admin/kb/knowledgebase/", Cookie=f"sessionid={self.known['session']}")
        self.check(status == 200 and "upgrade-handbook" in page, f"the session of before opens the admin: {status}")

    def restart(self) -> None:
        """PostgreSQL and Redis too, as after a restart of the host."""
        self.new.manage("stop")
        with self.new.serving(self.folder / "restarted.log") as url:
            self.status_codes(url)

    def restore(self) -> None:
        """The backup of the version before, in a database that was empty."""
        other = Side(ROOT, Path(sys.executable), self.folder / "installation" / "restored")
        try:
            other.data.mkdir()
            shutil.copy(self.old.data / "secret_key", other.data / "secret_key")
            printed = json.loads(other.manage("restore", str(self.folder / "old.tar"), "--json"))
            found = json.loads(
                other.manage(
                    "search", self.known["query"], "--kb", "upgrade-handbook", "--score-threshold", "0", "--json"
                )
            )
        finally:
            other.manage("stop")
        with tarfile.open(self.folder / "old.tar") as archive:
            files = sum(member.isfile() for member in archive)
        self.check(
            printed["counts"]["documents"] > 0,
            f"a backup of before is restored: {printed['counts']['documents']} documents, {files} files",
        )
        self.check(bool(found["results"]), "and is searched")

    # -- looking ----------------------------------------------------------------------------------------------------------

    def database(self) -> psycopg.Connection:
        address = self.old.servers["DATABASE_URL"].removeprefix("postgres://postgres@:5432/")
        folder, _, name = address.rpartition("/")
        return psycopg.connect(host=folder, port=5432, user="postgres", dbname=name, autocommit=True)

    def one(self, statement: str, *values: object) -> object:
        with self.database() as connection:
            row = connection.execute(statement, values).fetchone()
        return row and row[0]

    def status(self, document: int) -> str:
        return str(self.one("SELECT status FROM kb_document WHERE id = %s", document))

    def vector_indexes(self) -> set[tuple[str, int]]:
        with self.database() as connection:
            return set(
                connection.execute(
                    "SELECT c.relname, c.relfilenode::bigint FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'hnsw'"
                ).fetchall()
            )

    def broker(self) -> Redis:
        return Redis.from_url(self.old.servers["REDIS_URL"])

    def queues(self) -> list[tuple[bytes, int]]:
        """The lists of the broker with tasks in them, and how many."""
        redis = self.broker()
        return [(name, redis.llen(name)) for name in redis.scan_iter() if redis.type(name) == b"list"]

    def media(self) -> dict[str, int]:
        folder = self.old.data / "media"
        return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


STEPS: tuple[tuple[str, Callable[[Upgrade], None]], ...] = (
    ("filling the version to start from", Upgrade.fill),
    ("stopping it in the middle of its work", Upgrade.leave_work_undone),
    ("migrating to this version", Upgrade.migrate),
    ("searching at once", Upgrade.search_at_once),
    ("going on", Upgrade.go_on),
    ("restarting all", Upgrade.restart),
    ("restoring a backup of the version to start from", Upgrade.restore),
)


def main() -> int:
    """The exit code: 0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade", description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="version", default=FIRST, help="a commit or tag (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, help="for all that is made; the environment is used again (default: a temporary one)"
    )
    options = parser.parse_args()
    version = subprocess.run(
        ["git", "rev-parse", "--short", f"{options.version}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    parent = options.folder or Path(tempfile.mkdtemp(prefix="zhiku-upgrade-"))
    parent.mkdir(parents=True, exist_ok=True)
    parent.chmod(0o711)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    run.chmod(0o711)
    upgrade = Upgrade(run, version)
    try:
        for title, step in STEPS:
            print(title, flush=True)
            step(upgrade)
    except Failed as error:
        upgrade.findings.append(str(error))
        print(error)
    finally:
        upgrade.close()
    print(f"\nUpgrade from {version}: {'nothing lost' if not upgrade.findings else f'{len(upgrade.findings)} faults'}")
    if not upgrade.findings:
        shutil.rmtree(run)
    return int(bool(upgrade.findings))


if __name__ == "__main__":
    sys.exit(main())
