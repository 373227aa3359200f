"""Makes a knowledge base of an archive, whoever made it: whole, or not at all."""

import json
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.conf import settings
from django.core.files import File
from django.core.files.base import ContentFile
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _, ngettext

from kb.access.models import KnowledgeBase, Principal, User
from kb.base.db.transactions import Purpose, fetch_all, lock_until_commit
from kb.base.errors import NotAllowed, Rejected
from kb.base.files import FilesUnavailable, delete_folder, replace_file
from kb.content.models import GONE_SINCE, Chunk, Document, Folder, Picture, documents_folder, upload_path
from kb.graph.models import Concept
from kb.index.models import ChunkEmbedding
from kb.index.services.writing import ROWS_A_STATEMENT, write_postings, write_vectors
from kb.ingest.services.chunks import TEXT_CHARACTERS
from kb.ingest.services.pictures import MOST_PICTURE_BYTES, is_picture
from kb.operations.services.archives.export import archive_folder
from kb.operations.services.archives.format import (
    FILE_LIST,
    TABLES,
    VECTOR_KINDS,
    Archive,
    Table,
    damaged,
    file_part,
    limits,
    open_archive,
    picture_part,
    vector_parts,
)
from kb.operations.services.archives.rows import check_rows, originals, read_settings_of, rows_of
from kb.operations.services.archives.vectors import Indexes, chunk_count, in_pieces, stage, staged
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, NOT_IN_NAMES, configuration_of, starting_profile
from kb.providers.embedding_models import embedder, options_of, require_embedding_model, tokenizer
from kb.providers.models import TokenizerSettings
from kb.quality.models import Judgment
from kb.sources.models import SearchProvider, Source
from retrieval.errors import RetrievalError
from retrieval.tokenize import JiebaTokenizer

OnProgress = Callable[[int, int], None]
# What a caller waits for, of each at most; what is not named is not bounded. rows: of all tables; json_bytes: of all
# tables, by what the manifest says; unpacked_bytes: of the whole archive; embedded_chunks: that have no vectors which
# can be used; embedded_texts: with the questions and keywords of those chunks; characters: of what is tokenised;
# longest: characters of a chunk or a parent, which one call of the tokenizer takes.
Bounds = Mapping[str, int]
# Some seconds of checking, of tokenising and of a local model; the command knows no such bounds.
AT_ONCE: Bounds = {
    "rows": 20_000,
    "json_bytes": 20 * 1024**2,
    "embedded_chunks": 500,
    "embedded_texts": 2_000,
    "characters": 4_000_000,
    "longest": TEXT_CHARACTERS,
}


class Profiles:
    """The names that a new knowledge base's profiles get, and which it searches by. Belongs inside a transaction."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self._kb = kb
        self._names: dict[str, str] = {}

    def rename(self, profile: RetrievalProfile) -> None:
        """Gives a version a name that no shared profile has; versions of one name stay together."""
        name = profile.name
        if not name.strip() or not name.isprintable() or NOT_IN_NAMES & set(name):
            raise damaged(_("a profile has a name that none can have"))
        if name not in self._names:
            self._names[name] = self._free(name)
        profile.name = self._names[name]

    def chosen(self, wanted: Mapping[str, Any]) -> RetrievalProfile:
        """The profile that an archive's knowledge base has searched by.

        A shared one is used where the installation has it with the same settings, else made the knowledge base's own.

        Raises:
            Rejected: it is said to be among the knowledge base's own profiles, and is not.
        """
        if wanted["is_own"]:
            name = self._names.get(wanted["name"])
            own = RetrievalProfile.objects.filter(knowledge_base=self._kb, name=name, version=wanted["version"]).first()
            if own is None:
                raise damaged(_("the profile in use is not in it"))
            return own
        shared = RetrievalProfile.objects.filter(knowledge_base=None, name=wanted["name"])
        live = shared.live(wanted["name"]) if shared.exists() else None
        if live is not None and live.settings == wanted["settings"]:
            return live
        return RetrievalProfile.objects.create(
            name=self._free(wanted["name"]),
            knowledge_base=self._kb,
            description=wanted["description"],
            settings=wanted["settings"],
            published=True,
            published_at=timezone.now(),
            created_by=self._kb.owner,
        )

    def _free(self, name: str) -> str:
        lock_until_commit(Purpose.PROFILES)
        seen = RetrievalProfile.objects.filter(Q(knowledge_base=None) | Q(knowledge_base=self._kb))
        endings = chain([""], (f" ({number})" for number in count(2)))
        names = (name[: MAX_NAME_CHARACTERS - len(ending)] + ending for ending in endings)
        given = self._names.values()
        return next(each for each in names if each not in given and not seen.filter(name=each).exists())


class TableWriter:
    """Writes one table after the other; belongs inside the transaction that makes the knowledge base.

    `indexes` are the postings and vectors of each chunk, as `vectors.staged` gives them, and `files` the names of the
    originals by the line of their document.
    """

    def __init__(
        self, archive: Archive, kb: KnowledgeBase, indexes: Indexes, files: dict[int, str], profiles: Profiles
    ) -> None:
        self._archive, self._kb, self._indexes = archive, kb, indexes
        self._files, self._profiles = files, profiles
        self._ids: dict[str, array[int]] = {}

    def write(self, table: Table, on_rows: Callable[[int], None]) -> None:
        """Writes the rows of a table, after those that they refer to; Rejected where one is wrong after all."""
        if table.model is Folder:
            rows = [row for _size, row in rows_of(self._archive, table, kb_id=self._kb.pk)]
            self._ids[table.name] = array("q", _write_folders(rows))
            on_rows(len(rows))
            return
        ids: array[int] = array("q")
        wider: dict[int, int] = {}
        for rows in in_pieces(rows_of(self._archive, table, ids=self._ids, kb_id=self._kb.pk)):
            if table.model is Concept:  # a wider one may come later: it is known by its line until then
                wider |= {line: row.parent_id for line, row in enumerate(rows, len(ids)) if row.parent_id is not None}
                for row in rows:
                    row.parent_id = None
            ids.extend(self._created(table, len(ids), rows))
            if table.model is Chunk:
                made = list(zip(rows, islice(self._indexes, len(rows)), strict=True))
                tokenizer_id, model = self._kb.tokenizer_id, self._kb.embedding_model
                write_postings((chunk, {tokenizer_id: postings}) for chunk, (postings, _) in made)
                for place, kind in enumerate(VECTOR_KINDS):
                    of_kind = [(chunk, vector) for chunk, (_, vectors) in made for vector in vectors[place]]
                    write_vectors(of_kind, model, ChunkEmbedding.Kind(kind))
            on_rows(len(rows))
        self._ids[table.name] = ids
        concepts = [Concept(pk=ids[narrow], parent_id=ids[line]) for narrow, line in wider.items()]
        Concept.objects.bulk_update(concepts, ["parent"], batch_size=ROWS_A_STATEMENT)

    def _created(self, table: Table, start: int, rows: Sequence[Any]) -> list[int]:
        """Inserts rows, the first of which is at a line; returns their ids."""
        moments = [(row, row.created_at) for row in rows] if table.model is Document else []
        for line, row in enumerate(rows, start):
            if isinstance(row, RetrievalProfile):
                self._profiles.rename(row)
            if isinstance(row, RetrievalProfile | Document | Judgment | Source):
                row.created_by = self._kb.owner
            if isinstance(row, Document):
                row.file = self._files.get(line, "")
                row.keep_chunks = row.keep_chunks or not row.file
        table.model._default_manager.bulk_create(rows, batch_size=ROWS_A_STATEMENT)
        for row, created_at in moments:  # set to now by the field
            row.created_at = created_at
        if moments:
            Document.objects.bulk_update(rows, ["created_at"], batch_size=ROWS_A_STATEMENT)
        return [row.pk for row in rows]


def _write_folders(folders: Sequence[Folder]) -> list[int]:
    """Inserts folders, each of which names the one that it is in by its place; returns their ids."""
    around = [None if folder.parent_id is None else folders[folder.parent_id] for folder in folders]
    left = list(zip(folders, around, strict=True))
    while left:
        level = [(folder, holder) for folder, holder in left if holder is None or holder.pk is not None]
        for folder, holder in level:
            folder.parent_id = None if holder is None else holder.pk
        Folder.objects.bulk_create([folder for folder, _holder in level], batch_size=ROWS_A_STATEMENT)
        left = [(folder, holder) for folder, holder in left if folder.pk is None]
    return [folder.pk for folder in folders]


@dataclass(frozen=True, slots=True)
class Restored:
    """What an import made: rows by table, and what the owner should look at, in the caller's language."""

    knowledge_base: KnowledgeBase
    rows: dict[str, int]
    notes: tuple[str, ...]


def restore_kb(
    path: Path,
    *,
    owner: User,
    name: str = "",
    embedding_model: str = "",
    bounds: Bounds | None = None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Restored:
    """Makes a knowledge base of an archive, for the owner of it and of everything in it; seen only once it is complete.

    A blank name is that in the archive, as is a blank embedding model, whose vectors are then taken where it has any.
    `on_progress` is called with how much is done, and of how much.

    Raises:
        Rejected: the archive is wrong or beyond the bounds, the owner has a knowledge base of the name, or the model
            cannot run here; nothing was made.
    """
    with open_archive(path, limits()) as archive, TemporaryDirectory(dir=archive_folder()) as folder:
        fields, cutter = read_settings_of(archive)
        fields |= {"owner": owner, "name": name.strip()[:120] or fields["name"]}
        refuse_taken_name(owner, fields["name"])
        model_id = require_embedding_model(embedding_model or archive.manifest["embedding"]["model"])
        try:
            return _Restoring(archive, fields, cutter, model_id, bounds or {}, on_progress).run(Path(folder))
        except RetrievalError as error:
            raise Rejected("model_unavailable", str(error)) from error


def refuse_taken_name(owner: User, name: str) -> None:
    """Rejected where the owner has a knowledge base of a name."""
    if KnowledgeBase.objects.filter(owner=owner, name=name).exists():
        message = _("You have a knowledge base named “%(name)s” already: choose another name.")
        raise Rejected("name_taken", message, name=name)


class _Restoring:
    def __init__(
        self,
        archive: Archive,
        fields: dict[str, Any],
        cutter: TokenizerSettings,
        model_id: str,
        bounds: Bounds,
        on_progress: OnProgress,
    ) -> None:
        self._archive, self._fields, self._bounds, self._on_progress = archive, fields, bounds, on_progress
        self._cutter, self._model = cutter, embedder(model_id)
        self._files: dict[int, str] = {}
        self._rows = {table.name: archive.rows_in(table.part) for table in TABLES}
        self._done = 0
        self._total = 2 * sum(self._rows.values()) + chunk_count(archive) + archive.rows_in(FILE_LIST)
        # The dimension comes last: a model is loaded for it, or asked.
        self._embeds = not (
            vector_parts(ChunkEmbedding.Kind.CONTENT)[0] in archive.parts
            and archive.manifest["embedding"]["model"] == self._model.model_id
            and archive.manifest["embedding"]["dimension"] == self._model.dimension
        )

    def run(self, folder: Path) -> Restored:
        archive = self._archive
        self._refuse_more(
            rows=sum(self._rows.values()),
            json_bytes=sum(
                archive.parts[part]["bytes"]
                for part in (*(table.part for table in TABLES), FILE_LIST)
                if part in archive.parts
            ),
            unpacked_bytes=archive.unpacked_bytes,
            embedded_chunks=chunk_count(archive) if self._embeds else 0,
        )
        contents = check_rows(archive, partial(self._advance, 1))
        embedded = contents.questions + contents.keyword_chunks + chunk_count(archive)
        self._refuse_more(
            embedded_texts=embedded if self._embeds else 0, characters=contents.characters, longest=contents.longest
        )
        stage(
            archive,
            contents,
            folder,
            cutter=JiebaTokenizer(options_of(self._cutter)),
            model=self._model,
            embeds=self._embeds,
            keyword_vectors=self._fields["keyword_vectors"],
            on_chunks=self._advance,
        )
        # The originals are stored under the id before the knowledge base is there.
        [(kb_id,)] = fetch_all("SELECT nextval(pg_get_serial_sequence('kb_knowledgebase', 'id'))")
        try:
            storage = Document._meta.get_field("file").storage
            for line, suffix, size, sha256 in originals(archive):
                name = upload_path(Document(knowledge_base_id=kb_id, sha256=sha256), f"original.{suffix or 'bin'}")
                with archive.entry(file_part(line, suffix), size=size, sha256=sha256) as stream:
                    self._files[line] = storage.save(name, File(stream, name="original"))
                self._advance(1)
            kb = self._write(kb_id, folder)
        except BaseException:
            with suppress(FilesUnavailable):  # what went wrong first is what the caller reads
                delete_folder(documents_folder(kb_id))
            raise
        return Restored(kb, self._rows, tuple(self._all_notes(kb)))

    def _refuse_more(self, **found: int) -> None:
        if any(count > self._bounds.get(name, count) for name, count in found.items()):
            raise _too_large()

    def _write(self, kb_id: int, folder: Path) -> KnowledgeBase:
        """Everything in one transaction, in which no model runs; Rejected also where the name was taken meanwhile."""
        try:
            indexes = staged(self._archive, folder, self._model.dimension, embeds=self._embeds)
            with transaction.atomic(), closing(indexes):
                chosen = self._cutter
                kb = KnowledgeBase(
                    pk=kb_id,
                    embedding_model=self._model.model_id,
                    dimension=self._model.dimension,
                    tokenizer_id=chosen.tokenizer_id,
                    profile=starting_profile(self._model.model_id),
                    **self._fields,
                )
                kb.save(force_insert=True)
                cutter = tokenizer()
                if cutter is None or cutter.id != chosen.tokenizer_id:
                    chosen.knowledge_base = kb
                    chosen.save()
                profiles = Profiles(kb)
                writer = TableWriter(self._archive, kb, indexes, self._files, profiles)
                for table in TABLES:
                    writer.write(table, self._advance)
                # What has no source in the archive, as of files, is never back in it.
                orphans = Document.objects.filter(knowledge_base=kb, source_item=None)
                Chunk.objects.filter(document__in=orphans, is_hidden=True).update(enabled=True, is_hidden=False)
                for document in orphans.filter(metadata__has_key=GONE_SINCE):
                    del document.metadata[GONE_SINCE]
                    document.save(update_fields=["metadata"])
                self._write_picture_files(kb)
                next(indexes, None)  # refuses vectors of chunks that are not there
                kb.profile = profiles.chosen(self._archive.manifest["profile"])
                kb.save(update_fields=["profile"])
                connection.check_constraints()  # those that wait for the end of the transaction
        except (IntegrityError, DataError) as error:
            refuse_taken_name(self._fields["owner"], self._fields["name"])
            raise damaged(_("rows contradict each other")) from error
        return kb

    def _write_picture_files(self, kb: KnowledgeBase) -> None:
        """Stores the files of pictures under the ids that their documents have now; Rejected: one is no picture."""
        sizes: Counter[int] = Counter()
        rows = Picture.objects.filter(knowledge_base=kb).select_related("document").order_by("pk")
        for line, picture in enumerate(rows.iterator(ROWS_A_STATEMENT)):
            name = picture_part(line)
            sizes[picture.document_id] += picture.size
            if not self._archive.has(name):
                continue
            with self._archive.entry(name, size=picture.size, sha256=picture.sha256) as stream:
                data = stream.read(MOST_PICTURE_BYTES)
            if not is_picture(data, picture.mime):
                raise damaged(_("“%(name)s” is no picture") % {"name": name})
            replace_file(picture.file_name, ContentFile(data))
        documents = [Document(pk=pk, picture_bytes=size) for pk, size in sizes.items()]
        Document.objects.bulk_update(documents, ["picture_bytes"], batch_size=ROWS_A_STATEMENT)

    def _all_notes(self, kb: KnowledgeBase) -> Iterator[str]:
        """What differs from the installation that the archive was made in, or needs a look."""
        manifest = self._archive.manifest
        if kb.embedding_model != manifest["embedding"]["model"]:
            words = _("The archive’s embedding model is %(theirs)s, and this knowledge base uses %(ours)s.")
            yield words % {"theirs": manifest["embedding"]["model"][:200], "ours": kb.embedding_model}
        if manifest["tokenizer"]["id"] not in ("", kb.tokenizer_id):
            yield _("The tokenizer is of another version than where the archive was made: keyword scores may differ.")
        if kb.profile.name != manifest["profile"]["name"]:
            words = _("The retrieval profile “%(name)s” is here as “%(new)s”: the name was taken.")
            yield words % {"name": manifest["profile"]["name"], "new": kb.profile.name}
        here = json.loads(json.dumps(configuration_of(kb.profile.settings).as_dict()))
        if differing := sorted(name for name, value in here.items() if manifest["configuration"].get(name) != value):
            words = _("Settings of this installation differ (%(names)s): results may differ too.")
            yield words % {"names": ", ".join(differing)}
        if off := sum(model.objects.filter(knowledge_base=kb).count() for model in (Source, SearchProvider)):
            words = ngettext(
                "%(count)d source or search provider is switched off: check its address, then switch it on.",
                "%(count)d sources and search providers are switched off: check their addresses, then switch them on.",
                off,
            )
            yield words % {"count": off}

    def _advance(self, count: int) -> None:
        self._done += count
        self._on_progress(self._done, self._total)


def import_upload(principal: Principal, owner: User, file: "File[Any]", name: str = "") -> Restored:
    """Makes a knowledge base of an uploaded archive; a blank `name` is the archive's, `owner` is the caller's user.

    Raises:
        NotAllowed: the caller may not make knowledge bases, or is bound to some.
        Rejected: the archive is wrong, or too large to wait for; nothing was made.
    """
    if principal.kb_ids is not None or not principal.can_write:
        raise NotAllowed(_("This API key is bound to knowledge bases and cannot make another: use one that is not."))
    if file.size > settings.MAX_UPLOAD_BYTES:
        raise _too_large()
    with TemporaryDirectory(dir=archive_folder()) as folder:
        path = Path(folder) / "upload.zip"
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        try:
            return restore_kb(
                path, owner=owner, name=name, bounds={**AT_ONCE, "unpacked_bytes": settings.MAX_ZIP_BYTES}
            )
        except Rejected as error:
            if error.code == "too_large":
                raise _too_large() from error
            raise


def _too_large() -> Rejected:
    message = _(
        "This archive takes too long to import while you wait: have it imported on the server with “manage.py import_kb "
        "FILE --owner USER”. Where only its vectors are missing, export it with them."
    )
    return Rejected("too_large", message)
