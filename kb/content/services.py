from collections.abc import Collection
from typing import Any, cast

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User, role_of
from kb.base.db.transactions import after_commit
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.base.files import delete_folder
from kb.base.models import count_of
from kb.content.models import Chunk, Document, documents_folder, knowledge_base_deleting
from kb.profiles.services import keeping_content, starting_profile
from kb.providers.embedding_models import default_embedding_model, tokenizer


def knowledge_base_create(
    *, name: str, owner: User, embedding_model: str = "", language: str = "zh", description: str = "", **chunking: Any
) -> KnowledgeBase:
    """Creates a knowledge base with the starting profile of its model; a blank model is `default_embedding_model()`.

    The language is that of most of its documents; `chunking` holds settings of chunks where they differ from the
    defaults. Raises Rejected where the owner has one of this name, or its settings of chunks do not go together.
    """
    kb = KnowledgeBase(
        name=name, owner=owner, embedding_model=embedding_model, language=language, description=description, **chunking
    )
    prepare_knowledge_base(kb)
    _save(kb)
    return kb


def may_rename(kb: KnowledgeBase, by: Principal) -> bool:
    """Whether the principal may see all knowledge bases of its owner, as a name that is taken tells that there is one."""
    return by.kb_ids is None and (by.user.is_superuser or by.user.pk == kb.owner_id)


def knowledge_base_update(kb: KnowledgeBase, *, by: Principal, **changes: Any) -> None:
    """Changes name, description, language or chunking; new chunking serves documents that are indexed from now on.

    Raises NotAllowed where there is another name and `by` may not rename it, and Rejected where the owner has another
    one of this name, or the settings of chunks do not go together.
    """
    if changes.get("name", kb.name) != kb.name and not may_rename(kb, by):
        raise NotAllowed(_("Only the user to whom a knowledge base belongs may rename it, and no key that is bound."))
    for field, value in changes.items():
        setattr(kb, field, value)
    # Texts are cut into other words in another language.
    kept = [] if "language" in changes else [kb.pk]
    with transaction.atomic(), keeping_content(kept):
        _save(kb, update_fields=[*changes, "updated_at"])


def check_chunking(kb: KnowledgeBase) -> None:
    """Checks what no single setting can tell; raises Rejected where the settings of chunks do not go together."""
    try:
        kb.clean()
    except ValidationError as error:
        code = "invalid_parent_size" if "parent_size" in error.message_dict else "invalid_chunking"
        raise Rejected(code, " ".join(error.messages)) from error


def _save(kb: KnowledgeBase, update_fields: list[str] | None = None) -> None:
    check_chunking(kb)
    try:
        with transaction.atomic():
            kb.save(update_fields=update_fields)
    except IntegrityError as error:
        message = _("You have a knowledge base named “%(name)s” already: choose another name.")
        raise Rejected("name_taken", message, name=kb.name) from error


def prepare_knowledge_base(kb: KnowledgeBase) -> None:
    """Fills in what follows from the rest, before a new knowledge base is saved."""
    kb.embedding_model = kb.embedding_model or default_embedding_model()
    active = tokenizer()
    kb.tokenizer_id = active.id if active else ""
    if kb.profile_id is None:
        kb.profile = starting_profile(kb.embedding_model)


def knowledge_base_delete(kb: KnowledgeBase) -> None:
    """Deletes a knowledge base with its documents and files; its chunks, documents, concepts and facts are never loaded."""
    folder = documents_folder(kb.pk)
    with transaction.atomic():
        KnowledgeBase.objects.select_for_update().get(pk=kb.pk)  # first, as every writer of chunks does
        Chunk.objects.filter(knowledge_base=kb).delete()
        knowledge_base_deleting.send(KnowledgeBase, knowledge_base=kb)
        documents = Document.objects.filter(knowledge_base=kb)
        documents._raw_delete(documents.db)
        kb.delete()
        after_commit(delete_folder, folder)


def knowledge_base_by_name(name: str, *, owner: str | None = None) -> KnowledgeBase:
    """The knowledge base that a command names; NotVisible where there is none, or several owners have one of this name.

    Operators at the command line see all of them.
    """
    found = KnowledgeBase.objects.filter(name=name).select_related("profile", "version_row", "owner")
    if owner is not None:
        found = found.filter(owner__username=owner)
    matches: list[KnowledgeBase] = list(found[:2])
    if not matches:
        existing = ", ".join(KnowledgeBase.objects.values_list("name", flat=True)[:10]) or "none yet"
        raise NotVisible(f"no knowledge base named {name!r}; there are: {existing}")
    if len(matches) > 1:
        raise NotVisible(f"several owners have a knowledge base named {name!r}: add --owner USER")
    return matches[0]


def knowledge_base_overview(principal: Principal) -> QuerySet[Any]:
    """Knowledge bases with `document_count`, `chunk_count` and the principal's `role`."""
    role = role_of(principal.user)
    documents, chunks = count_of(Document.objects, "knowledge_base"), count_of(Chunk.objects, "knowledge_base")
    bases = KnowledgeBase.objects.visible_to(principal).select_related("profile")
    return cast("QuerySet[Any]", bases.annotate(document_count=documents, chunk_count=chunks, role=role))


def document_overview(principal: Principal) -> QuerySet[Any]:
    """Documents with `chunk_count`."""
    documents = Document.objects.visible_to(principal)
    return cast("QuerySet[Any]", documents.annotate(chunk_count=count_of(Chunk.objects, "document")))


def document_counts(kb: KnowledgeBase, folder_ids: Collection[int] | None = None) -> dict[tuple[str, str], int]:
    """How many documents a knowledge base, or some of its folders, have by status and source type: one pass over an index."""
    within = {} if folder_ids is None else {"folder__in": folder_ids}
    rows = Document.objects.filter(knowledge_base=kb, **within).order_by().values_list("status", "source_type")
    return {(status, kind): count for status, kind, count in rows.annotate(count=Count("*"))}
