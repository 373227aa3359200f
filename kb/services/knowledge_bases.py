import shutil

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from kb.conf import HASHING_MODEL, tokenizer
from kb.models import Chunk, Document, KnowledgeBase, User
from kb.services.errors import NotVisible, Rejected
from kb.services.profiles import starting_profile
from retrieval.model_files import local_path


def default_embedding_model() -> str:
    """The configured model where its weights are at hand, else the hashing embedder, chosen knowingly."""
    configured: str = settings.EMBEDDING_MODEL
    if configured == HASHING_MODEL or configured.startswith("openai:") or local_path(configured) is not None:
        return configured
    return HASHING_MODEL


def knowledge_base_create(
    *, name: str, owner: User, embedding_model: str = "", language: str = "zh", description: str = ""
) -> KnowledgeBase:
    """Creates a knowledge base with the profile that suits its model.

    Raises:
        Rejected: the owner has one of this name.
    """
    kb = KnowledgeBase(
        name=name, owner=owner, embedding_model=embedding_model, language=language, description=description
    )
    prepare_knowledge_base(kb)
    try:
        with transaction.atomic():
            kb.save()
    except IntegrityError as error:
        message = _("You have a knowledge base named “%(name)s” already: choose another name.") % {"name": name}
        raise Rejected("name_taken", message) from error
    return kb


def prepare_knowledge_base(kb: KnowledgeBase) -> None:
    """Fills in what follows from the rest, before a new knowledge base is saved."""
    kb.embedding_model = kb.embedding_model or default_embedding_model()
    cutter = tokenizer()
    kb.tokenizer_id = cutter.id if cutter else ""
    if kb.profile_id is None:
        kb.profile = starting_profile(kb.embedding_model)


def knowledge_base_delete(kb: KnowledgeBase) -> None:
    """Deletes a knowledge base with its documents and files; its chunks and documents are never loaded."""
    directory = settings.MEDIA_ROOT / "documents" / str(kb.pk)
    with transaction.atomic():
        Chunk.objects.filter(knowledge_base=kb).delete()
        documents = Document.objects.filter(knowledge_base=kb)
        for eval_set in kb.eval_sets.all():
            eval_set.delete()
        documents._raw_delete(documents.db)  # noqa: SLF001 - all that points to them is gone; signals would load each
        kb.delete()
        transaction.on_commit(lambda: shutil.rmtree(directory, ignore_errors=True))


def knowledge_base_by_name(name: str, *, owner: str | None = None) -> KnowledgeBase:
    """The knowledge base that a command names; operators at the command line see all of them.

    Raises:
        NotVisible: there is none, or several owners have one of this name.
    """
    found = KnowledgeBase.objects.filter(name=name).select_related("profile", "version_row", "owner")
    if owner is not None:
        found = found.filter(owner__username=owner)
    matches = list(found[:2])
    if not matches:
        existing = ", ".join(KnowledgeBase.objects.values_list("name", flat=True)[:10]) or "none yet"
        raise NotVisible(f"no knowledge base named {name!r}; there are: {existing}")
    if len(matches) > 1:
        raise NotVisible(f"several owners have a knowledge base named {name!r}: add --owner USER")
    return matches[0]
