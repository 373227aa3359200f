"""What the first start makes: someone who can log in, and something to search."""

import secrets
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import TextIOBase

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction
from tqdm import tqdm

from kb.access.models import KnowledgeBase, User
from kb.content.models import Document
from kb.content.services import knowledge_base_create
from kb.ingest.services.documents import document_add
from kb.providers.embedding_models import recommended_embedding_model
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.errors import ModelUnavailable, message_of
from retrieval.model_files import download, libraries_available, probe

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


def first_start(stdout: TextIOBase) -> bool:
    """Makes an administrator and the demo content where there is no user yet; else returns False at once.

    Without a user there is no content either, since every knowledge base has an owner, so a demo comes only once. The
    password is written to `stdout` this once and is stored nowhere but as a hash. Workers make the content searchable.
    """
    if User.objects.exists():
        return False
    model, reason = choose_model(stdout)
    password = secrets.token_urlsafe(12)
    with transaction.atomic():
        admin = User.objects.create_superuser(ADMIN, password=password)
        for folder, demo in DEMOS.items():
            kb = knowledge_base_create(owner=admin, embedding_model=model, **demo)
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
    if reason:
        stdout.write(f"{_advice(reason)}\n")
    return True


def choose_model(stdout: TextIOBase) -> tuple[str, str]:
    """The configured model where it is here or small enough to fetch unasked, else the hashing embedder, and why."""
    model: str = settings.EMBEDDING_MODEL
    if model == HASHING_MODEL_ID or model.startswith(OPENAI_PREFIX):
        return model, ""
    if not libraries_available():
        return HASHING_MODEL_ID, "sentence-transformers or torch is not installed"
    endpoint = settings.HF_ENDPOINT or None
    found = probe(model, endpoint=endpoint, timeout_s=PROBE_SECONDS)
    if found.found == "none":
        return HASHING_MODEL_ID, found.reason
    if found.found == "local":
        return model, ""
    if found.size_bytes is None or found.size_bytes > UNASKED_DOWNLOAD_BYTES:
        size = "of unknown size" if found.size_bytes is None else f"{found.size_bytes / 1e6:,.0f} MB large"
        return HASHING_MODEL_ID, f"it is {size}, and more than 200 MB are downloaded only when you ask for it"
    stdout.write(f"Downloading the embedding model {model} ({found.size_bytes / 1e6:,.0f} MB) ...\n")
    failure: str | None = None
    with tqdm(total=found.size_bytes, unit="B", unit_scale=True, file=sys.stderr) as bar:
        try:
            download(model, endpoint=endpoint, progress=lambda done, _total: bar.update(done - bar.n))
        except ModelUnavailable as error:
            failure = message_of(error)
    return (model, "") if failure is None else (HASHING_MODEL_ID, failure)


def _advice(reason: str) -> str:
    model = settings.EMBEDDING_MODEL
    models = {demo["name"]: recommended_embedding_model(demo["language"]) for demo in DEMOS.values()}
    steps = [f"manage.py download_model {each}" for each in dict.fromkeys(models.values())]
    if not libraries_available():
        steps.insert(0, "pip install 'zhiku[models]'")
    steps += [f'manage.py reindex --kb "{name}" --embeddings --model {each}' for name, each in models.items()]
    return (
        f"The demo runs degraded, on the hashing embedder, which compares words and not meaning: {model} is not used "
        f"({reason}). To change that:\n" + "\n".join(f"  {step}" for step in steps)
    )


def demo_files(language: str) -> Iterator[Traversable]:
    """The demo documents of a language, by name."""
    yield from sorted((files("kb") / "demo" / language).iterdir(), key=lambda file: file.name)
