"""Makes an installation of a backup, in a database that is empty or may be emptied."""

import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from django.core.files import File
from django.core.management import CommandError, call_command
from django.db import DatabaseError, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.models import Q
from django.utils import timezone

from kb.access.models import KnowledgeBase, User
from kb.base.db.transactions import fetch_all
from kb.base.errors import Rejected
from kb.base.files import replace_file
from kb.base.models import installation_id
from kb.content.models import Document
from kb.index.mirrors.registry import DRIVERS
from kb.index.services.stores.applying import refill
from kb.index.vector_index import PREFIXES, build_options, most_build_bytes
from kb.operations.services.archives.export import archive_folder
from kb.operations.services.backups import backup as programs
from kb.operations.services.backups.backup import DUMP, FILES, OnBytes, Reader, damaged, reading

_PIECE: Final = 1024**2
# Belonging to no extension, in the order in which they can go.
_OBJECTS: Final = """
    SELECT format('DROP %s IF EXISTS %s CASCADE', o.kind, o.name) FROM (
        SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END
               AS kind, oid::regclass::text AS name, oid, CASE relkind WHEN 'S' THEN 1 ELSE 0 END AS place
        FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
        UNION ALL
        SELECT 'ROUTINE', oid::regprocedure::text, oid, 2 FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    ) o WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = o.oid AND d.deptype = 'e') ORDER BY o.place"""
_EXTENSION: Final = re.compile(r"^\d+; \d+ \d+ (COMMENT - )?EXTENSION ")
# Made after the rows, each with the memory that it needs; see kb.index.vector_index.
_VECTOR_INDEX: Final = re.compile(rf"^\d+; \d+ \d+ INDEX public ({'|'.join(PREFIXES.values())})\d+_")
# What takes long to restore, by its entry in the list and by its statement.
_LONG_ENTRY: Final = re.compile(r"^\d+; \d+ \d+ (TABLE DATA|INDEX|CONSTRAINT) ")
_LONG_STATEMENT: Final = re.compile(
    r"^(?:COPY (?:public\.)?(?P<table>\S+) |CREATE (?:UNIQUE )?INDEX (?P<index>\S+) | +ADD CONSTRAINT (?P<key>\S+) (?:PRIMARY KEY|UNIQUE) )"
)
_BECOME_ANOTHER: Final = (
    "DELETE FROM public.kb_installation;\nINSERT INTO public.kb_installation (id) VALUES ('{id}');\n"
)

OnStep = Callable[[str, int], None]


def restore(
    path: Path,
    *,
    is_forced: bool = False,
    is_trusted: bool = False,
    on_bytes: OnBytes = lambda _: None,
    on_step: OnStep = lambda _name, _total: None,
) -> dict[str, Any]:
    """Restores a backup, verified as a whole before anything is touched; then migrates it to this version of the code.

    `is_forced` replaces what the database holds, and disconnects nobody: whoever is connected would go on with the old;
    `is_trusted` takes a backup that another secret key signed. `on_bytes` is called with how many further bytes are
    verified, and once more when they are restored; `on_step` with the table whose rows come next or the index that is
    built next, and how many of both there are.

    Returns:
        The counts of rows, the number of files, the version (`zhiku`) and the moment (`created_at`) of the backup, and the new
        id of the installation.

    Raises:
        Rejected: the backup is damaged, forged or of a newer version, the database is in use or not empty, or PostgreSQL's
            programs are missing or failed; the database is as it was then. Or the migration failed, after the rows and
            the new id of the installation came together.
        FilesUnavailable: the store of the uploads cannot be used.
    """
    with reading(path, is_trusted=is_trusted, on_bytes=on_bytes) as archive:
        known = {tuple(key) for key in MigrationLoader(None).disk_migrations}
        unknown = [".".join(each) for each in archive.manifest["migrations"] if tuple(each) not in known]
        if unknown:
            raise Rejected(
                "newer_backup",
                f"The backup is of Zhiku {archive.manifest['zhiku']}, whose migrations this version does not have "
                f"({', '.join(unknown[:3])}): install that version or a newer one, then restore.",
            )
        here = programs.server_major()
        if archive.manifest["postgresql"] > here:
            raise Rejected(
                "older_server",
                f"The backup is of PostgreSQL {archive.manifest['postgresql']}, and this server is of version {here}: use a newer one.",
            )
        if not is_forced:
            # Tables that a migration has made are no content, users and knowledge bases are
            for model in (User, KnowledgeBase):
                [(table,)] = fetch_all("SELECT to_regclass(%s)", [f"public.{model._meta.db_table}"])
                if table and model._default_manager.exists():
                    raise Rejected(
                        "not_empty",
                        "The database holds users or knowledge bases: restore into an empty one, "
                        "or add --force to replace all that it holds.",
                    )
        [(others,)] = fetch_all(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )
        if others:  # a process that goes on would serve what it has in memory of the former installation
            raise Rejected(
                "in_use",
                f"{others} other connections use this database: stop web, MCP, workers and beat, then restore.",
            )
        _restore_files(archive, on_bytes)
        installation = _restore_database(archive, on_bytes, on_step)
        try:
            call_command("migrate", interactive=False, verbosity=0)
        except (DatabaseError, CommandError) as error:
            raise Rejected(
                "not_migrated",
                f"The rows are restored, and could not be migrated to this version ({error}): start nothing; correct "
                "that and restore again with --force.",
            ) from error
        _resume_jobs()
        about = {name: archive.manifest[name] for name in ("counts", "zhiku", "created_at")}
        return about | {"files": len(archive.files), "installation": installation}


def _restore_files(archive: Reader, on_bytes: OnBytes) -> None:
    """Before the rows that name them; those that a failure leaves belong to nothing."""
    for name in archive.files:
        with archive.open(f"{FILES}{name}") as stream:
            replace_file(name, File(stream, name=name))
        on_bytes(archive.manifest["parts"][f"{FILES}{name}"]["bytes"])


def _restore_database(archive: Reader, on_bytes: OnBytes, on_step: OnStep) -> str:
    """Returns the new id of the installation, which comes with the rows: under the former one caches would answer for them."""
    major = max(programs.server_major(), archive.manifest["postgresql"])
    installation = str(uuid.uuid4())
    with TemporaryDirectory(dir=archive_folder()) as folder:
        dump, wanted, emptying, script, another = (
            Path(folder) / name for name in (DUMP, "wanted", "emptying.sql", "restore.sql", "another.sql")
        )
        with archive.open(DUMP) as stream, dump.open("wb") as copy:
            shutil.copyfileobj(stream, copy, _PIECE)
        listed = programs.run("pg_restore", "--list", str(dump), at_least=major)
        if not listed:
            raise damaged("its dump is empty")
        # The extension stays in the database, since only a superuser could make it again.
        lines = [
            line
            for line in listed.splitlines()
            if not (" SCHEMA - public " in line or _EXTENSION.match(line) or _VECTOR_INDEX.match(line))
        ]
        wanted.write_text("".join(f"{line}\n" for line in lines))
        arguments = ("--no-owner", "--no-privileges", f"--use-list={wanted}", f"--file={script}", str(dump))
        programs.run("pg_restore", *arguments, at_least=major)
        # The statements after which the database holds nothing but its extensions
        statements = ["SET search_path = public", "CREATE EXTENSION IF NOT EXISTS vector SCHEMA public"]
        statements += [statement for (statement,) in fetch_all(_OBJECTS)]
        emptying.write_text("".join(f"{statement};\n" for statement in statements))
        another.write_text(_BECOME_ANOTHER.format(id=installation))
        total = sum(bool(_LONG_ENTRY.match(line)) for line in lines)

        def report(line: str) -> None:
            if found := _LONG_STATEMENT.match(line):
                on_step(next(name for name in found.groups() if name), total)

        programs.run(
            "psql",
            "--no-psqlrc",
            "--quiet",
            "--echo-queries",
            "--set=ON_ERROR_STOP=1",
            "--single-transaction",  # or the former rows would be gone
            *(f"--file={path}" for path in (emptying, script, another)),
            at_least=major,
            options=build_options(most_build_bytes()),
            on_line=report,
        )
        on_bytes(dump.stat().st_size)
    installation_id.cache_clear()
    return installation


def _resume_jobs() -> None:
    """Has other stores filled, which hold nothing under the new id, and documents processed that a worker was at."""
    with transaction.atomic():
        for kb in KnowledgeBase.objects.filter(Q(store__in=DRIVERS) | Q(target_store__in=DRIVERS)).select_for_update():
            for store in {kb.store, kb.target_store} & DRIVERS.keys():
                refill(kb.pk, store)
        now = timezone.now()
        Document.objects.filter(status__in=Document.UNFINISHED).update(
            status=Document.Status.PENDING, stage="", lease=None, lease_until=None, waiting_since=now, updated_at=now
        )
