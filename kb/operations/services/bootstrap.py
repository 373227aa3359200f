"""What the first start makes: someone who can log in, and something to search."""

import logging
import secrets
from collections.abc import Collection, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import TextIOBase

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction

from kb.access.models import KnowledgeBase, User
from kb.base.errors import Rejected
from kb.content.models import Document
from kb.content.services import knowledge_base_create
from kb.index.services.reembedding import reembedding_start
from kb.ingest.services.documents import document_add
from kb.jobs.leases import WorkerEnds, return_if_ending
from kb.providers.embedding_models import recommended_embedding_models
from kb.providers.recommended import Size
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import DependencyMissing, ModelUnavailable, message_of
from retrieval.model_files import Probe, download, libraries_available, local_path, probe

logger = logging.getLogger(__name__)

ADMIN = "admin"
PROBE_SECONDS = 5.0
UNASKED_DOWNLOAD_BYTES = 200_000_000
SOURCE_TYPES = {"faq.md": Document.SourceType.QA, "error-codes.html": Document.SourceType.WEB}


# By the folder of kb/demo that holds the files of each, the knowledge bases of the first start.
DEMOS: dict[str, dict[str, str]] = {
    "zh": {
        "name": "演示知识库",
        "language": KnowledgeBase.Language.CHINESE,
        "description": "虚构产品“知暖 TH-01”智能温控器的手册、常见问题与工程文档。",
    },
    "en": {
        "name": "Demo knowledge base",
        "language": KnowledgeBase.Language.ENGLISH,
        "description": "Handbook, FAQ and engineering wiki of a fictional smart thermostat, the Zhinuan TH-01.",
    },
}


def first_start(stdout: TextIOBase) -> list[int]:
    """Makes an administrator and the demo content where there is no user yet, else nothing; the demos' ids.

    Without a user there is no content either, since every knowledge base has an owner, so a demo comes only once. The
    password is written to `stdout` this once and is stored nowhere but as a hash. Workers make the content searchable.
    """
    if User.objects.exists():
        return []
    password = secrets.token_urlsafe(12)
    made = []
    with transaction.atomic():
        admin = User.objects.create_superuser(ADMIN, password=password)
        for folder, demo in DEMOS.items():
            kb = knowledge_base_create(owner=admin, **demo)
            made.append(kb)
            for file in demo_files(folder):
                document_add(
                    knowledge_base=kb,
                    file=ContentFile(file.read_bytes()),
                    name=file.name,
                    user=admin,
                    source_type=SOURCE_TYPES.get(file.name, Document.SourceType.BOOK),
                )
    line = "=" * 60
    stdout.write(
        f"\n{line}\n  user name: {ADMIN}\n  password:  {password}\n"
        f"  It is shown this once; change it in the admin.\n{line}\n"
    )
    if settings.EMBEDDING_MODEL not in {kb.embedding_model for kb in made}:
        stdout.write(f"{_advice()}\n")
    return [kb.pk for kb in made]


def _advice() -> str:
    models = {demo["name"]: recommended_embedding_models(demo["language"])[0] for demo in DEMOS.values()}
    steps = [f"manage.py download_model {each}" for each in dict.fromkeys(models.values())]
    if not libraries_available():
        steps.insert(0, "pip install 'zhiku[models]'")
    steps += [f'manage.py reindex --kb "{name}" --embeddings --model {each}' for name, each in models.items()]
    lines = [
        f"The demo runs degraded, on the hashing embedder, which compares words and not meaning: "
        f"{settings.EMBEDDING_MODEL} is not on this machine, or cannot run here."
    ]
    if _may_fetch():
        lines.append(
            "A worker tries to fetch a small model for each language, 200 MB at most in all, and moves the demo to them; "
            "ZHIKU_FIRST_MODELS=false keeps it from that. By hand:"
        )
    else:
        lines.append("To change that:")
    return "\n".join(lines + [f"  {step}" for step in steps])


def _may_fetch() -> bool:
    return settings.FIRST_MODELS and settings.EMBEDDING_MODEL != HASHING_MODEL_ID and libraries_available()


def demo_models_fetch(kb_ids: Collection[int]) -> bool:
    """Fetches small models for the demos that are still on hashing, and begins their moves; True: it has to be called again.

    Of each language the best recommended one that fits into what the others have left of UNASKED_DOWNLOAD_BYTES, or
    EMBEDDING_MODEL where that is the operator's own. Whatever cannot be had leaves its demo on hashing and is logged.
    """
    if not _may_fetch():
        return False
    endpoint = settings.HF_ENDPOINT or None
    demos = KnowledgeBase.objects.filter(pk__in=kb_ids)
    # An earlier call may have fetched these.
    moved = {model for pair in demos.values_list("embedding_model", "target_embedding_model") for model in pair}
    left = UNASKED_DOWNLOAD_BYTES - sum(
        probe(each, endpoint=None).size_bytes or 0 for each in moved if local_path(each)
    )
    hashing = demos.filter(embedding_model=HASHING_MODEL_ID, target_embedding_model="")
    for kb_id in kb_ids:
        kb = hashing.filter(pk=kb_id).first()
        if kb is None:
            continue
        try:
            for model in recommended_embedding_models(kb.language, Size.SMALL):
                found = _found(model, endpoint)
                size = 0 if found.found == "local" else found.size_bytes
                if size is None or size > left:
                    continue
                left -= size  # whether it arrives or not
                download(
                    model,
                    endpoint=endpoint,
                    progress=lambda _done, _total: return_if_ending(),
                    revision=found.revision,
                    most_bytes=size,
                )
                with transaction.atomic():
                    if hashing.select_for_update(no_key=True).filter(pk=kb_id).first():
                        reembedding_start(kb, model, swaps=True)
                break
            else:
                logger.warning("%s stays on hashing: %s is too large to be fetched unasked", kb.name, model)
        except WorkerEnds:
            return True
        except (ModelUnavailable, DependencyMissing, Rejected) as error:
            logger.warning("%s stays on hashing: %s", kb.name, message_of(error))
    return False


def _found(model: str, endpoint: str | None) -> Probe:
    """Where a model may be had from unasked.

    Raises ModelUnavailable where the hub does not answer within PROBE_SECONDS or does not have it, and where it has only
    pickles.
    """
    found = probe(model, endpoint=endpoint, timeout_s=PROBE_SECONDS)
    if found.found == "none":
        raise ModelUnavailable(f"{model}: {found.reason}")
    if found.is_pickled:
        raise ModelUnavailable(
            f"{model}: its weights are pickles, which run code when opened and are not fetched unasked"
        )
    return found


def demo_files(language: str) -> Iterator[Traversable]:
    """The demo documents of a language, by name."""
    yield from sorted((files("kb") / "demo" / language).iterdir(), key=lambda file: file.name)
