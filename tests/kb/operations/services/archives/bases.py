"""A knowledge base with everything that curators make, and what searches and evaluations say of it."""

import json
import zipfile

from django.core.files.base import ContentFile

from kb.base.shapes import as_values
from kb.content.services import knowledge_base_delete
from kb.index.services.tokenizing import TOKENIZING, read_settings, tokenizer_change
from kb.ingest.services.chunks import chunk_update
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import (
    Chunk,
    Concept,
    ConceptTerm,
    Document,
    Entity,
    EntityName,
    EvalSet,
    GraphFact,
    KnowledgeBase,
    RetrievalProfile,
    SearchProvider,
    Source,
    SourceItem,
)
from kb.profiles.services import create_version, publish
from kb.quality.eval_sets.services.sets import judge
from kb.quality.runs.services.report import evaluate
from kb.search.services.search import SearchRequest, response_of, search
from tests.factories import make_document, make_kb, principal

LEASE = "租赁合同的租期最长二十年。租赁合同期满以后可以续租。续租的期限也不得超过二十年。"
WARRANTY = "温控器的保修期是两年整。保修从购买之日起开始计算。人为损坏不在保修的范围内。"
QUERIES = ("租期最长几年", "保修期是多久", "怎么装温控器", "退货要多久", "租约", "星河七号", "没有这样的话")


def curated_kb():
    kb = make_kb(name="约定")
    KnowledgeBase.objects.filter(pk=kb.pk).update(
        chunk_strategy="parent_child", chunk_size=20, chunk_overlap=0, parent_size=100, no_answer="没有找到。"
    )
    text = f"# 租赁\n\n{LEASE}\n\n# 保修\n\n{WARRANTY}"
    document = document_add(
        knowledge_base=kb,
        file=ContentFile(text.encode()),
        name="a.md",
        user=kb.owner,
        title="约定",
        metadata={"year": 2024, "of": {"law": "民法"}},
        tags=["合同"],
    )
    index_document(document.pk)
    manual = make_document(
        kb, "安装前请先关闭电源", "购买后三十天内可以退货", "三十天内退货须附发票", title="手册", source="manual.txt"
    )
    own_tokenizer(kb)
    edit(manual)
    judged(kb, manual)
    own_profile(kb)
    taxonomy(kb, document)
    elsewhere(kb, document)
    return KnowledgeBase.objects.select_related("profile", "version_row", "owner").get(pk=kb.pk)


def own_tokenizer(kb):
    kb.refresh_from_db()
    wanted = read_settings(engine="jieba", dictionary="星河七号 9 n", stop_words="以后", simplify=False)
    tokenizer_change(kb, wanted)
    kb.refresh_from_db()
    TOKENIZING.follow(kb)


def edit(manual):
    first, second, third = Chunk.objects.filter(document=manual).select_related("document", "knowledge_base")
    chunk_update(first, text="安装温控器前请先关闭电源，见星河七号手册", enabled=True, questions=["怎么装温控器"])
    chunk_update(third, text=third.text, enabled=False)
    Chunk.objects.filter(pk=second.pk).update(keywords=["退货", "期限"], own_keywords=True)


def judged(kb, manual):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    chunks = Chunk.objects.filter(knowledge_base=kb).select_related("document")
    judge(principal(kb.owner), eval_set, "怎么装温控器", chunks.get(document=manual, position=0), 3)
    judge(principal(kb.owner), eval_set, "退货要多久", chunks.get(document=manual, position=1), 2)
    judge(principal(kb.owner), eval_set, "租期最长几年", chunks.get(text__contains="最长二十年"), 1)
    eval_set.queries.create(external_id="none", text="没有这样的话", answerable=False)


def own_profile(kb):
    who = principal(kb.owner)
    create_version(who, "法务", {"vector_weight": 0.3}, knowledge_base=kb)
    second = create_version(who, "法务", {"vector_weight": 0.2, "keyword_weight": 0.8}, knowledge_base=kb)
    publish(who, second, adopt=True)


def taxonomy(kb, document):
    law = Concept.objects.create(knowledge_base=kb, name="法律")
    lease = Concept.objects.create(knowledge_base=kb, name="租赁合同", parent=law)
    ConceptTerm.objects.create(concept=lease, text="租约")
    document.concepts.add(lease)
    entity = Entity.objects.create(knowledge_base=kb, name="温控器", kind="产品")
    EntityName.objects.create(entity=entity, text="温控器")
    source = Chunk.objects.filter(document=document).order_by("pk").last()
    GraphFact.objects.create(
        knowledge_base=kb, subject="温控器", predicate="保修", object="两年", source_chunk=source, origin="import"
    )


def elsewhere(kb, document):
    source = Source.objects.create(knowledge_base=kb, name="site", url="https://example.org/", every_minutes=60)
    SourceItem.objects.create(
        source=source, document=document, url="https://example.org/a", key_hash="0" * 64, etag='"1"'
    )
    settings = {"project": "p", "api_key": "s3cret"}
    SearchProvider.objects.create(knowledge_base=kb, name="vertex", settings=settings, weight=0.4)


def results(kb):
    """What queries find in a knowledge base: everything of a response that does not name rows by their ids."""
    kb = KnowledgeBase.objects.select_related("profile", "version_row", "owner").get(pk=kb.pk)
    return {query: found(kb, query) for query in QUERIES}


def found(kb, query):
    # Sources elsewhere come switched off, and are no part of what an archive holds.
    overrides = {"score_threshold": 0.0, "top_k": 10, "external": False}
    request = SearchRequest(query=query, knowledge_base_ids=[kb.pk], log=False, overrides=overrides)
    response = as_values(response_of(search(principal(kb.owner), request)))
    kept = ("title", "source", "page", "text", "score", "score_scale", "ranks", "scores", "metadata")
    facts = [{name: value for name, value in fact.items() if not name.endswith("id")} for fact in response["facts"]]
    return (
        [{name: hit[name] for name in kept} for hit in response["results"]],
        facts,
        [each["code"] for each in response["degraded"]],
    )


def figures(kb):
    report = evaluate(principal(kb.owner), EvalSet.objects.get(knowledge_base=kb))
    return report["stages"], report["gate"], report["queries"]


def rewritten(path, change, *, name="changed.zip"):
    """An archive with other entries: `change` is given {name: bytes} and changes it; the manifest follows the parts."""
    with zipfile.ZipFile(path) as source:
        entries = {entry: source.read(entry) for entry in source.namelist()}
    change(entries)
    target = path.with_name(name)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data)
    return target


def lines_of(data):
    return [json.loads(line) for line in data.splitlines()]


def part_of(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def delete_everything():
    """As good as another installation: nothing of the knowledge base is left."""
    for kb in KnowledgeBase.objects.all():
        knowledge_base_delete(kb)
    assert not Document.objects.exists()
    assert not RetrievalProfile.objects.exclude(knowledge_base=None).exists()
