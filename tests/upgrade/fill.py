"""Fills the installation of the version to start from with a row of every kind, and prints what the upgrade is checked by.

Runs in that version's tree and environment, by its `manage.py shell`.
"""

import inspect
import json
from importlib import import_module
from importlib.util import find_spec

from celery import Task
from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.core.files.base import ContentFile
from django.test import Client
from django.utils import timezone

from kb import models, tasks
from tests import factories
from tests.isolation.world import make_world

# The modules of versions before there was a folder for each feature, or of those since.
if find_spec("kb.services"):
    PLACES = {
        "documents": "kb.services.documents",
        "indexing": "kb.services.indexing",
        "runs": "kb.services.evaluation.runs",
        "search": "kb.services.search",
        "search_log": "kb.services.search_log",
        "vector_index": "kb.stores.vector_index",
        "vector_recall": "kb.stores.vector_recall",
    }
else:
    PLACES = {
        "documents": "kb.ingest.services.documents",
        "indexing": "kb.ingest.services.indexing",
        "runs": "kb.quality.runs.services.runs",
        "search": "kb.search.services.search",
        "search_log": "kb.search.services.search_log",
        "vector_index": "kb.index.vector_index",
        "vector_recall": "kb.index.pgvector",
    }
AT = {name: import_module(place) for name, place in PLACES.items()}
document_add, index_document = AT["documents"].document_add, AT["indexing"].index_document

QUERY = "How long is the warranty of the lamp?"
TEXT = "# Handbook\n\n## Warranty\n\nThe warranty of the lamp lasts for three years.\n\n## Returns\n\nReturns take {} days."
VECTORS = 40
PASSWORD = "correct horse battery"


def groups(owner):
    group = Group.objects.create(name="upgrade")
    owner.groups.add(group)
    owner.user_permissions.add(Permission.objects.first())


def handbook(owner):
    """A knowledge base whose indexes of both channels are built and stored."""
    kb = factories.make_kb(owner, "upgrade-handbook", language="en")
    for number in range(VECTORS):
        document = document_add(
            knowledge_base=kb, file=ContentFile(TEXT.format(number).encode()), name=f"{number}.md", user=owner
        )
        index_document(document.pk)
    AT["vector_index"].maintain_vector_indexes()
    AT["vector_recall"].measure_due()
    search = AT["search"]
    search.search(
        factories.principal(owner), search.SearchRequest(query=QUERY, knowledge_base_ids=[kb.pk], explain=True)
    )
    return kb


def remaining(owner, kb):
    """Rows of the models that the tenants' world leaves empty."""
    document = kb.documents.first()
    chunk = document.chunks.first()
    models.ChunkParent.objects.create(knowledge_base=kb, document=document, position=0, text="The whole section.")
    concept = models.Concept.objects.create(knowledge_base=kb, name="lamp")
    models.ConceptTerm.objects.create(concept=concept, text="luminaire")
    fact = models.GraphFact.objects.create(
        knowledge_base=kb, subject="lamp", predicate="has", object="warranty", source_chunk=chunk
    )
    models.FactSource.objects.create(fact=fact, document=document, chunk=chunk)
    models.GraphReading.objects.create(document=document, content_hash=chunk.content_hash, version="1", found=[])
    models.DuplicateScan.objects.create(knowledge_base=kb)
    models.IdempotencyKey.objects.create(user=owner, key="upgrade", fingerprint="0" * 64, status=201, body="{}")
    models.Reembedding.objects.create(knowledge_base=kb, model="hashing", status="cancelled")
    models.StoreState.objects.create(knowledge_base=kb, store="milvus", status="failed", error="unreachable")
    models.StoreChange.objects.create(knowledge_base_id=kb.pk, store="milvus", chunk_id=chunk.pk)
    models.TokenizerSettings.objects.create(knowledge_base=kb, tokenizer_id="jieba-search:upgrade", dictionary="lamp")


def since(kb, ids):
    """Rows of models that the first version had not."""
    today = timezone.localdate()
    models.AssistantUse.objects.create(assistant_id=ids["assistant"], day=today, questions=2, tokens=30)
    ids["model_download"] = models.ModelDownload.objects.create(model="BAAI/bge-m3", status="done").pk
    models.ModelUse.objects.create(day=today, role="chat", model="m", knowledge_base_id=kb.pk, requests=2)
    models.SignInProvider.objects.create(issuer="https://id.example.org", client_id="zhiku", secrets={})
    models.SourceItemChange.objects.create(item_id=ids["source_item"], text_key="0" * 64, data=b"text", details={})


def waiting(owner, kb):
    """Documents whose tasks wait in the queue, alone and in an upload that is paused half way, and one that takes long."""
    batch = models.IngestBatch.objects.create(knowledge_base=kb, name="half done", created_by=owner, paused=True)

    def add(name, text, **more):
        return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name=name, user=owner, **more).pk

    models.FileDetails.objects.create(batch=batch, name="paused-0.txt", title="Paused")
    index_document(add("batch-done.txt", "This one was read before the upload was paused.", batch=batch))
    return {
        "queued": [add(f"queued-{number}.txt", f"Document {number} waits in the queue.") for number in range(5)],
        "paused": [
            add(f"paused-{number}.txt", f"Document {number} waits in a paused upload.", batch=batch)
            for number in range(3)
        ],
        "batch": batch.pk,
    }


def one_of_each_task(owner, kb, world):
    """Every task there is waits in the queue once; those that need ids get those of rows that exist."""
    ids = {
        "kb_id": kb.pk,
        "kb_ids": kb.pk,
        "document_id": kb.documents.first().pk,
        "document_ids": kb.documents.first().pk,
        "batch_id": world.mine.ids["batch"],
        "run_id": run_create(kb, owner),
        "source_id": world.mine.ids.get("web_source") or world.mine.ids["source"],
        "download_id": world.mine.ids.get("model_download"),
        "place": 0,
        "after": 0,
    }
    queued = []
    for task in vars(tasks).values():
        if isinstance(task, Task) and task.name.startswith("kb.tasks."):
            task.delay(*(ids[name] for name in inspect.signature(task.run).parameters))
            queued.append(task.name)
    return sorted(queued)


def run_create(kb, owner):
    """An evaluation that waits for a worker."""
    eval_set = models.EvalSet.objects.create(knowledge_base=kb, name="upgrade")
    query = models.EvalQuery.objects.create(eval_set=eval_set, external_id="1", text=QUERY)
    document = kb.documents.first()
    models.Judgment.objects.create(query=query, document=document, source=document.source, grade=1, quote="warranty")
    return AT["runs"].start_run(factories.principal(owner), eval_set).pk


def long_document(owner, kb):
    paragraphs = (
        f"Paragraph {number} tells of lamp {number % 97} and its shelf {number % 89}." for number in range(40_000)
    )
    file = ContentFile("\n\n".join(paragraphs).encode())
    return document_add(knowledge_base=kb, file=file, name="long.txt", user=owner).pk


def main():
    world = make_world()
    owner = factories.make_user("upgrade-owner", superuser=True)
    owner.set_password(PASSWORD)
    owner.save()
    kb = handbook(owner)
    remaining(owner, kb)
    if hasattr(models, "SourceItemChange"):
        since(kb, world.mine.ids)
    groups(owner)
    member = factories.make_member(kb)
    _key, secret = factories.make_api_key(owner, scope="write")
    _key, members_secret = factories.make_api_key(member)
    client = Client()
    client.force_login(owner)
    AT["search_log"].flush()
    documents = waiting(owner, kb) | {"long": long_document(owner, kb)}
    queued = one_of_each_task(owner, kb, world)
    empty = sorted(
        model.__name__
        for model in apps.get_app_config("kb").get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy and not model._base_manager.exists()
    )
    report = {
        "kb": kb.pk,
        "query": QUERY,
        "key": secret,
        "members_key": members_secret,
        "session": client.cookies["sessionid"].value,
        "empty": empty,
        "tasks": queued,
        **documents,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
