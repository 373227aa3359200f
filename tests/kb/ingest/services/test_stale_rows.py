"""A writer whose row was read before another's change keeps that change, and brings nothing deleted back."""

from contextlib import nullcontext

import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.core.files.base import ContentFile
from django.db import transaction

from kb.base.errors import NotVisible
from kb.graph.services.entities import concept_update, fact_update
from kb.ingest.services.documents import (
    document_add,
    document_held,
    document_replace_file,
    document_requeue,
    document_update,
    documents_recut,
    documents_requeue,
)
from kb.models import Concept, Document, EvalQuery, EvalSet, GraphFact, Principal, SearchProvider
from kb.quality.eval_sets.services.sets import query_update
from kb.sources.external.services import external_source_update
from kb.sources.services.sources import source_create, source_update
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def document(kb):
    return document_add(knowledge_base=kb, file=ContentFile("旧文件".encode()), name="a.txt", user=kb.owner)


def replaced(document, words="新文件"):
    with document_held(document) as held:
        document_replace_file(document=held, file=ContentFile(words.encode()), name="b.txt", title="新的标题")
    return held


def words_of(document):
    with document.file.open() as file:
        return file.read().decode()


def as_it_is(row):
    return type(row).objects.get(pk=row.pk)


def test_processing_again_keeps_the_file_and_the_details_that_another_gave(document):
    stale = as_it_is(document)
    replaced(document)
    document_update(as_it_is(document), tags=["保修"])

    document_requeue(stale)

    kept = as_it_is(document)
    assert (kept.source, kept.title, kept.tags, kept.status) == ("b.txt", "新的标题", ["保修"], "pending")
    assert words_of(kept) == "新文件"


def test_a_new_title_keeps_the_file_that_another_gave(document):
    stale = as_it_is(document)
    replaced(document)

    document_update(stale, title="第三个标题")

    kept = as_it_is(document)
    assert (kept.source, kept.title, words_of(kept)) == ("b.txt", "第三个标题", "新文件")


def test_processing_again_brings_no_deleted_document_back(document):
    stale = as_it_is(document)
    document.delete()

    with pytest.raises(NotVisible):
        document_requeue(stale)
    assert documents_requeue([stale]) == 0
    assert not Document.objects.exists()


def test_cutting_again_skips_what_is_deleted_under_way(kb, document, monkeypatch):
    other = document_add(knowledge_base=kb, file=ContentFile(b"other"), name="o.txt", user=kb.owner)
    Document.objects.update(status=Document.Status.READY)

    def and_delete_the_other(document, **options):
        Document.objects.filter(pk=other.pk).delete()
        document_requeue(document, **options)

    monkeypatch.setattr("kb.ingest.services.documents.document_requeue", and_delete_the_other)

    assert documents_recut(Document.objects.filter(pk__in=[document.pk, other.pk])) == 1
    assert list(Document.objects.values_list("pk", flat=True)) == [document.pk]


@pytest.mark.django_db(transaction=True)
def test_a_former_file_that_cannot_be_deleted_undoes_nothing(document, monkeypatch, caplog):
    enqueued = []

    def refused(name):
        raise OSError(f"{name} is held")

    monkeypatch.setattr(document.file.storage, "delete", refused)
    monkeypatch.setattr("kb.signals.enqueue", lambda task, *arguments: enqueued.append(arguments))

    replaced(document)

    assert as_it_is(document).source == "b.txt"
    assert enqueued == [(document.pk,)]
    assert "is held" in caplog.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("around", [nullcontext, transaction.atomic])
def test_a_file_for_a_knowledge_base_that_is_gone_is_refused_and_not_kept(kb, settings, around):
    stale = as_it_is(kb)
    kb.delete()

    with around(), pytest.raises(NotVisible):
        document_add(knowledge_base=stale, file=ContentFile(b"words"), name="a.txt", user=None)
    assert not [path for path in settings.MEDIA_ROOT.rglob("*") if path.is_file()]


# -- Rows that two callers change in different fields -----------------------------------------------------------------------
def concept(kb):
    made = concept_update(Concept(knowledge_base=kb), name="保修")
    return made, concept_update, {"name": "质保"}, {"description": "期限内的维修"}


def fact(kb):
    made = fact_update(GraphFact(knowledge_base=kb), subject="甲", predicate="是", object="乙")
    return made, fact_update, {"subject": "丙"}, {"object": "丁"}


def query(kb):
    made = EvalQuery.objects.create(eval_set=EvalSet.objects.create(knowledge_base=kb, name="set"), text="年假")

    def update(row, **changes):
        query_update(Principal(kb.owner), row, **changes)

    return made, update, {"text": "年假几天"}, {"answerable": False}


def external(kb):
    values = {"project": "library", "data_store": "site", "location": "global"}
    made = SearchProvider.objects.create(
        knowledge_base=kb, name="s", kind="vertex_ai_search", settings=values, enabled=False
    )

    def update(row, **changes):
        external_source_update(source=row, **changes)

    return made, update, {"weight": 0.5}, {"timeout_ms": 700}


def web(kb):
    made = source_create(
        knowledge_base=kb, user=kb.owner, name="s", kind="page", url="https://example.org/", enabled=False
    )
    return made, source_update, {"name": "t"}, {"every_minutes": 90}


KINDS = [concept, fact, query, external, web]


@pytest.fixture
def _allowed(settings):
    settings.EXTERNAL_PROVIDERS, settings.VERTEX_PROJECTS = ["vertex_ai_search"], ["library"]


@pytest.mark.usefixtures("_allowed")
@pytest.mark.parametrize("make", KINDS)
def test_each_of_two_changes_is_kept(kb, make):
    row, update, one, other = make(kb)
    first, second = as_it_is(row), as_it_is(row)

    update(first, **one)
    update(second, **other)

    kept = as_it_is(row)
    assert {name: getattr(kept, name) for name in one | other} == one | other


@pytest.mark.usefixtures("_allowed")
@pytest.mark.parametrize("make", KINDS)
def test_a_change_brings_no_deleted_row_back(kb, make):
    row, update, one, _other = make(kb)
    stale = as_it_is(row)
    row.delete()

    with pytest.raises((NotVisible, ObjectDoesNotExist)):
        update(stale, **one)
    assert not type(row).objects.exists()
