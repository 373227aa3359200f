"""Requests that schemathesis makes of the OpenAPI description, valid and not, to every operation.

An answer must be one that the description knows: its status, content type, headers and body. No answer is a 500.
"""

import re
import zlib

import pytest
import schemathesis
from django.core.files.base import ContentFile
from django.utils import timezone
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from kb.models import (
    Concept,
    Conversation,
    Entity,
    EvalQuery,
    EvalRun,
    EvalSet,
    GraphFact,
    IngestBatch,
    Judgment,
    RetrievalProfile,
    SearchLog,
    SearchProvider,
    Source,
)
from tests import factories
from tests.described import CONFIG, closing, one_connection  # noqa: F401 - a fixture
from tests.isolation.openapi import description

pytestmark = pytest.mark.django_db

SCOPES = ("write", "read")

schema = schemathesis.openapi.from_dict(description(), config=SchemathesisConfig.from_dict(CONFIG))
schema.app = closing


@pytest.fixture
def rows(kb, document, chunk, owner):
    """The ids of real objects, by the routes that name them."""
    document.file.save("notes.txt", ContentFile(b"text"))
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    query = EvalQuery.objects.create(eval_set=eval_set, external_id="1", text="年假")
    run, other = (EvalRun.objects.create(eval_set=eval_set, profile=kb.profile) for _ in range(2))
    RetrievalProfile.objects.create(name="tuned", knowledge_base=kb)
    entry = SearchLog.objects.create(
        user=owner,
        knowledge_base_ids=[kb.pk],
        query="年假",
        profile="default",
        profile_version=1,
        configuration={},
        trace={},
        result_count=0,
        duration_ms=1.0,
        created_at=timezone.now(),
    )
    return {
        "kb_id": kb.pk,
        "knowledge-bases": kb.pk,
        "documents": document.pk,
        "chunks": chunk.pk,
        "batches": IngestBatch.objects.create(knowledge_base=kb, name="upload").pk,
        "eval-sets": eval_set.pk,
        "eval-runs": run.pk,
        "entities": Entity.objects.create(knowledge_base=kb, name="年假").pk,
        "sources": Source.objects.create(knowledge_base=kb, name="site", url="https://example.org/").pk,
        "conversations": str(Conversation.objects.create(user=owner, knowledge_base_ids=[kb.pk]).pk),
        "trace_id": str(entry.pk),
        "query_id": query.pk,
        "judgment_id": Judgment.objects.create(query=query, document=document, source="a", grade=1).pk,
        "source_id": SearchProvider.objects.create(knowledge_base=kb, name="search").pk,
        "other": other.pk,
        "name": "tuned",
        "version": 1,
        "user_id": factories.make_member(kb).pk,
        "concepts": Concept.objects.create(knowledge_base=kb, name="年假").pk,
        "facts": GraphFact.objects.create(knowledge_base=kb, subject="a", predicate="b", object="c").pk,
    }


@pytest.fixture
def callers(owner):
    """The headers of who asks: mostly one who may write, else one who may read, or nobody."""
    write, read = ({"Authorization": f"Bearer {factories.make_api_key(owner, scope=each)[1]}"} for each in SCOPES)
    return [write, write, write, read, {}]


def _number_of(case):
    """Differs from case to case, and is the same whenever a case is made again."""
    return zlib.crc32(repr((case.query, case.headers, case.body, case.path_parameters)).encode(errors="replace"))


def _aimed(case, rows):
    """Most requests that are valid go to objects that exist; else hardly one would come further than 404."""
    if case.meta is None or not case.meta.generation.mode.is_positive or _number_of(case) % 4 == 0:
        return
    kind = re.match(r"/api/v1/([a-z-]+)/", case.operation.path)[1]
    for name in case.path_parameters or {}:
        known = rows.get(kind) if name == "id" else rows.get(name)
        if known is not None:
            case.path_parameters[name] = known


@schema.parametrize()
@settings(suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_is_described(case, rows, callers):
    number = _number_of(case)
    _aimed(case, rows)
    case.call_and_validate(headers=callers[number % len(callers)])
