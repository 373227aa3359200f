"""Folders of documents: a tree in each knowledge base, which files of uploads bring with them."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.base.db.transactions import holding_knowledge_bases, lock_knowledge_bases
from kb.base.errors import NotVisible, Rejected, found_in
from kb.base.text import storable
from kb.content.models import FOLDER_NAME, FOLDER_NAME_CHARACTERS, Document, Folder

MOST_FOLDERS: Final = 10_000  # In a knowledge base
MOST_DEPTH: Final = 20
TOP: Final = None


@dataclass(frozen=True, slots=True)
class FolderPath:
    """A folder with the names that lead to it, its own the last."""

    folder: Folder
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        return " / ".join(self.names)


class Tree:
    """The folders of a knowledge base as they are, read by one query."""

    def __init__(self, kb_id: int) -> None:
        rows: QuerySet[Any] = Folder.objects.filter(knowledge_base=kb_id)
        self.folders: dict[int, Any] = {folder.pk: folder for folder in rows}
        self._within: dict[int | None, list[Any]] = {}
        for folder in self.folders.values():
            self._within.setdefault(folder.parent_id, []).append(folder)

    def within(self, folder_id: int | None) -> list[Any]:
        """The folders right in one, or at the top, by name."""
        return self._within.get(folder_id, [])

    def chain(self, folder_id: int | None) -> list[Any]:
        """The folders that lead to one, from the top down to itself."""
        chain: list[Any] = []
        while folder_id is not None and (folder := self.folders.get(folder_id)) is not None:
            chain.append(folder)
            folder_id = folder.parent_id
        return chain[::-1]

    def names(self, folder_id: int | None) -> tuple[str, ...]:
        return tuple(folder.name for folder in self.chain(folder_id))

    def below(self, folder_id: int) -> list[int]:
        """The ids of a folder and of all that are in it."""
        found, left = [], [folder_id]
        while left:
            found.append(left.pop())
            left += [folder.pk for folder in self.within(found[-1])]
        return found

    def paths(self, below: int | None = None) -> list[FolderPath]:
        """All folders, or those below one, each after the one that it is in, with the names that lead to it from there."""
        found: list[FolderPath] = []
        left: list[tuple[Any, tuple[str, ...]]] = [(folder, (folder.name,)) for folder in reversed(self.within(below))]
        while left:
            folder, names = left.pop()
            found.append(FolderPath(folder, names))
            left += [(each, (*names, each.name)) for each in reversed(self.within(folder.pk))]
        return found


def folder_in(kb: KnowledgeBase, folder_id: int | None) -> Folder | None:
    """The folder of a knowledge base with this id; None for its top. Raises NotVisible where it has none such."""
    if folder_id is None:
        return None
    found: Folder = found_in(Folder.objects.filter(knowledge_base=kb, pk=folder_id), _("There is no such folder."))
    return found


def folder_create(*, kb: KnowledgeBase, name: str, parent: Folder | None = None) -> Folder:
    """Makes a folder; Rejected where its name is blank or taken, or where there are too many or they lie too deep."""
    folder = Folder(knowledge_base=kb, parent=parent, name=name)
    with transaction.atomic():
        _check(folder)
        folder.save()
    return folder


def folder_update(folder: Folder, **changes: Any) -> Folder:
    """Renames or moves a folder, by `name` and `parent`; raises as `folder_create`, and where it would lie in itself."""
    with holding_knowledge_bases([folder.knowledge_base_id]):
        stored: Folder = found_in(Folder.objects.filter(pk=folder.pk), _("There is no such folder."))
        for field, value in changes.items():
            setattr(stored, field, value)
        _check(stored)
        stored.save()
    return stored


def folder_delete(folder: Folder, *, delete_documents: Callable[[QuerySet[Document]], None] | None = None) -> None:
    """Deletes a folder with those in it; their documents go to the folder around it, or go too by `delete_documents`."""
    with holding_knowledge_bases([folder.knowledge_base_id]):
        tree = Tree(folder.knowledge_base_id)
        if folder.pk not in tree.folders:
            raise NotVisible(_("There is no such folder."))
        ids = tree.below(folder.pk)
        # Waits for those who are adding documents to them, which are not seen before
        list(Folder.objects.select_for_update().filter(pk__in=ids).order_by("pk").values_list("pk"))
        documents = Document.objects.filter(folder__in=ids)
        if delete_documents is not None:
            delete_documents(documents)
        else:
            documents.update(folder=tree.folders[folder.pk].parent_id)
        Folder.objects.filter(pk=folder.pk).delete()


def documents_move(documents: QuerySet[Document], folder: Folder | None) -> int:
    """Puts documents of the folder's knowledge base into it, or all of them to the top; returns how many."""
    rows = documents if folder is None else documents.filter(knowledge_base=folder.knowledge_base_id)
    with holding_knowledge_bases(rows.order_by().values_list("knowledge_base_id", flat=True).distinct()):
        if folder is not None and not Folder.objects.filter(pk=folder.pk).exists():
            raise NotVisible(_("There is no such folder."))
        return Document.objects.filter(pk__in=list(rows.values_list("pk", flat=True))).update(folder=folder)


def documents_in(rows: QuerySet[Any], folder: Folder) -> QuerySet[Any]:
    """Those of the documents that lie in a folder or in one within."""
    return rows.filter(folder__in=Tree(folder.knowledge_base_id).below(folder.pk))


def folders_of(kb_id: int, base: int | None, paths: Iterable[str]) -> Mapping[str, int | None]:
    """The ids of the folders that files lie in by their paths, "/" between the names, made where they are missing.

    They begin in the folder `base`. What would lie too deep, or be one too many, goes into the last folder that there is.
    Belongs inside a transaction or makes its own.
    """
    wanted = {path: _parts(path) for path in paths}
    if not any(wanted.values()):
        return dict.fromkeys(wanted, base)
    with holding_knowledge_bases([kb_id]):
        tree = Tree(kb_id)
        start = base if base in tree.folders else None
        room = MOST_DEPTH - len(tree.chain(start))
        known = {(folder.parent_id, folder.name): folder.pk for folder in tree.folders.values()}
        return {path: _made(kb_id, start, parts[: max(0, room)], known) for path, parts in wanted.items()}


def _made(kb_id: int, start: int | None, names: Sequence[str], known: dict[tuple[int | None, str], int]) -> int | None:
    place = start
    for name in names:
        if (place, name) not in known:
            if len(known) >= MOST_FOLDERS:
                return place
            folder = Folder.objects.create(knowledge_base_id=kb_id, parent_id=place, name=name)
            known[place, name] = folder.pk
        place = known[place, name]
    return place


def _parts(path: str) -> tuple[str, ...]:
    """The names of the folders of a file's path."""
    parts = PurePosixPath(path.replace("\\", "/")).parts[:-1]
    named = (storable(part).strip()[:FOLDER_NAME_CHARACTERS].strip() for part in parts if part not in ("/", ".", ".."))
    return tuple(filter(None, named))


def _check(folder: Folder) -> None:
    lock_knowledge_bases([folder.knowledge_base_id])
    folder.name = storable(folder.name).strip()
    if not re.match(FOLDER_NAME, folder.name):
        raise Rejected("bad_name", _("A folder needs a name without “/” and “\\”."))
    if len(folder.name) > FOLDER_NAME_CHARACTERS:
        message = _("The name of a folder has at most %(most)d characters.")
        raise Rejected("bad_name", message, most=FOLDER_NAME_CHARACTERS)
    tree = Tree(folder.knowledge_base_id)
    if folder.pk is None and len(tree.folders) >= MOST_FOLDERS:
        message = _("A knowledge base has at most %(most)d folders: delete some, or put documents into fewer.")
        raise Rejected("too_many_folders", message, most=MOST_FOLDERS)
    if folder.parent_id is not None and folder.parent_id not in tree.folders:
        raise NotVisible(_("There is no such folder."))
    if any(each.name == folder.name and each.pk != folder.pk for each in tree.within(folder.parent_id)):
        raise Rejected("name_taken", _("There is a folder named “%(name)s” here already."), name=folder.name)
    if folder.pk is not None and folder.parent_id in tree.below(folder.pk):
        raise Rejected("within_itself", _("A folder cannot be put into itself or into one that it holds."))
    if len(tree.chain(folder.parent_id)) + (1 if folder.pk is None else _height(tree, folder.pk)) > MOST_DEPTH:
        raise Rejected("too_deep", _("Folders lie at most %(most)d deep."), most=MOST_DEPTH)


def _height(tree: Tree, folder_id: int) -> int:
    """How many levels a folder and those in it make."""
    levels, level = 0, [folder_id]
    while level:
        levels += 1
        level = [each.pk for parent in level for each in tree.within(parent)]
    return levels


def held_right_in(folder_ids: Collection[int]) -> dict[int, int]:
    """How many documents lie right in folders; a folder without any is left out."""
    rows = Document.objects.filter(folder__in=folder_ids).order_by().values_list("folder")
    return dict(rows.annotate(count=Count("pk")))


def folder_overview(principal: Principal) -> QuerySet[Any]:
    """Folders with `document_count`: of those right in them."""
    rows: QuerySet[Any] = Folder.objects.visible_to(principal).annotate(document_count=Count("documents"))
    return rows
