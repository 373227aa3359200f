"""Every page of the admin in both languages."""

import re

import lxml.html
import pytest
from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from kb.graph.services.entities import entity_update
from kb.graph.services.writing import graph_request
from kb.models import (
    AuditEntry,
    Concept,
    Entity,
    EvalRun,
    GraphFact,
    IngestBatch,
    RetrievalProfile,
    SearchProvider,
    Source,
    SourceItem,
)
from kb.profiles.services import create_version
from kb.search.services.search import SearchRequest, search
from tests.factories import make_api_key, make_member, make_user, principal
from tests.kb.quality.failed_queries.admin.test_queries import make_failed
from tests.kb.quality.runs.admin.run_pages import done, judged_set, missed
from tests.kb.quality.runs.eval_runs import answered, make_run

# Names and codes that are the same in every language.
SAME_IN_CHINESE = re.compile(
    r"(?<![a-z])(contracts?|legal|curator2?|curated|law questions|text of q\d|someone|test|hashing|keyword-led|default|weighted|balanced|"
    r"manage\.py.*|recall|ndcg|mrr|hit rate|auroc|idf|rrf|top k|n-gram|cross[- _]encoder|http|overlap|cosine|vector_weight|cmrc2018|"
    r"textrank|tf-idf|external_providers|vertex_\w*|vertex ai search|google cloud|global|us-central1|engine|enterprise|grpc|rest|google|beir|trec|queries|qrels|topics|passages|zip|csv|"
    r"utc|sha-256|jieba|rjieba|rust|python|redis|postgresql|prometheus_multiproc_dir|"
    r"english|api|openai|ldap|json|zh-hans|notes\.txt|mac|control|command|esc|enter|shift|mb|deepseek|llm|javascript)(?![a-z])"
    r"|\b[0-9a-f]{8}(?:(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?\b|\.[a-z]+",
    re.IGNORECASE,
)


@pytest.fixture
def objects(kb, document, curator):
    key, _ = make_api_key(curator, kb)
    other = make_user("someone")
    other.set_unusable_password()  # a hash would be shown
    other.save()
    concept = Concept.objects.create(knowledge_base=kb, name="违约金")
    fact = GraphFact.objects.create(
        knowledge_base=kb, subject="违约金", predicate="可以", object="减少", source_chunk=document.chunks.first()
    )
    search(principal(curator), SearchRequest(query="违约金", knowledge_base_ids=[kb.pk], explain=True))
    eval_set = judged_set(kb, document)
    source = Source.objects.create(knowledge_base=kb, name="test", url="https://test/")
    SourceItem.objects.create(source=source, document=document, url="https://test/", key_hash="0" * 64)
    graph_request(document)
    runs = [
        done(eval_set, [answered("q0"), missed("q1", "fusion")]),
        done(eval_set, [answered("q0", 0.2), answered("q1")]),
    ]
    return {
        "kb": kb.pk,
        "document": document.pk,
        "chunk": document.chunks.first().pk,
        "concept": concept.pk,
        "fact": fact.pk,
        "key": key.pk,
        "user": other.pk,
        "eval_set": eval_set.pk,
        "eval_query": eval_set.queries.first().pk,
        "run": runs[0].pk,
        "other_run": runs[1].pk,
        "running": make_run(eval_set, status=EvalRun.Status.RUNNING, finished_at=None, report={}).pk,
        "failed": make_failed(kb).pk,
        "batch": IngestBatch.objects.create(knowledge_base=kb, name="test", created_by=curator).pk,
        "source": source.pk,
        "entity": entity_update(Entity(knowledge_base=kb), name="违约金", aliases=["违约"]).pk,
        "external": SearchProvider.objects.create(knowledge_base=kb, name="someone", settings={"project": "test"}).pk,
        "profile": RetrievalProfile.objects.get(name="default").pk,
        "member": make_member(kb, user=other).pk,
        "change": _change(document).pk,
        "draft": create_version(principal(curator), "legal", {"vector_weight": 0.3}, knowledge_base=kb).pk,
    }


def _change(document):
    document.tags = ["test"]
    document.save()
    return AuditEntry.objects.filter(object_type="document").latest("pk")


PAGES = {
    "index": ("index", None),
    "password": ("password_change", None),
    "knowledge bases": ("kb_knowledgebase_changelist", None),
    "knowledge base": ("kb_knowledgebase_change", "kb"),
    "new knowledge base": ("kb_knowledgebase_add", None),
    "delete knowledge base": ("kb_knowledgebase_delete", "kb"),
    "documents": ("kb_document_changelist", None),
    "document": ("kb_document_change", "document"),
    "history": ("kb_ingestbatch_history", "batch"),
    "delete document": ("kb_document_delete", "document"),
    "upload": ("kb_document_upload", None),
    "chunks": ("kb_chunk_changelist", None),
    "chunk": ("kb_chunk_change", "chunk"),
    "split a chunk": ("kb_chunk_split", "chunk"),
    "delete chunk": ("kb_chunk_delete", "chunk"),
    "near-duplicates": ("kb_chunk_duplicates?kb={kb}", None),
    "concepts": ("kb_concept_changelist", None),
    "concept": ("kb_concept_change", "concept"),
    "new concept": ("kb_concept_add", None),
    "delete concept": ("kb_concept_delete", "concept"),
    "facts": ("kb_graphfact_changelist", None),
    "fact": ("kb_graphfact_change", "fact"),
    "new fact": ("kb_graphfact_add", None),
    "delete fact": ("kb_graphfact_delete", "fact"),
    "ask": ("ask", None),
    "keys": ("kb_apikey_changelist", None),
    "key": ("kb_apikey_change", "key"),
    "new key": ("kb_apikey_add", None),
    "log": ("kb_searchlog_changelist", None),
    "search debug": ("search_debug?q=违约金&kb={kb}", None),
    "search history": ("search_debug_history", None),
    "why not found": ("why_not", None),
    "why one is not found": ("why_not?q=违约金&kb={kb}&chunk={chunk}", None),
    "profiles": ("kb_retrievalprofile_changelist", None),
    "profile": ("kb_retrievalprofile_change", "profile"),
    "draft": ("kb_retrievalprofile_change", "draft"),
    "new profile": ("kb_retrievalprofile_add", None),
    "edit profile": ("kb_retrievalprofile_edit", "draft"),
    "publish profile": ("kb_retrievalprofile_publish", "draft"),
    "delete profile": ("kb_retrievalprofile_delete", "draft"),
    "compare profiles": ("kb_retrievalprofile_diff?before={profile}&after={draft}", None),
    "compare": ("compare", None),
    "compare searches": ("compare?q=违约金&kb={kb}&b_profile=legal@1", None),
    "compare runs": ("compare_runs?a={run}&b={other_run}", None),
    "start a pair of runs": ("compare_start", None),
    "calibration": ("calibration", None),
    "evaluation sets": ("kb_evalset_changelist", None),
    "evaluation set": ("kb_evalset_change", "eval_set"),
    "new evaluation set": ("kb_evalset_add", None),
    "import evaluation set": ("kb_evalset_import", None),
    "evaluation query": ("kb_evalset_query", ("eval_set", "eval_query")),
    "delete evaluation set": ("kb_evalset_delete", "eval_set"),
    "evaluation runs": ("kb_evalrun_changelist", None),
    "evaluation run": ("kb_evalrun_change", "run"),
    "running evaluation": ("kb_evalrun_change", "running"),
    "new evaluation run": ("kb_evalrun_add", None),
    "queries of a run": ("kb_evalrun_queries", "run"),
    "delete evaluation run": ("kb_evalrun_delete", "run"),
    "failed queries": ("kb_failedquery_changelist", None),
    "failed query": ("kb_failedquery_change", "failed"),
    "failed query to a set": ("kb_failedquery_to_set", "failed"),
    "external sources": ("kb_searchprovider_changelist", None),
    "external source": ("kb_searchprovider_change", "external"),
    "new external source": ("kb_searchprovider_add", None),
    "delete external source": ("kb_searchprovider_delete", "external"),
    "tokenizer": ("kb_knowledgebase_tokenizer", "kb"),
    "embedding model": ("kb_knowledgebase_reembedding", "kb"),
    "store": ("kb_knowledgebase_stores", "kb"),
    "chunk preview": ("kb_knowledgebase_chunk_preview", "kb"),
    "cut again": ("kb_knowledgebase_recut", "kb"),
    "export": ("kb_knowledgebase_export", "kb"),
    "import archive": ("kb_knowledgebase_import", None),
    "uploads": ("kb_ingestbatch_changelist", None),
    "one upload": ("kb_ingestbatch_change", "batch"),
    "delete upload": ("kb_ingestbatch_delete", "batch"),
    "web sources": ("kb_source_changelist", None),
    "web source": ("kb_source_change", "source"),
    "new web source": ("kb_source_add", None),
    "delete web source": ("kb_source_delete", "source"),
    "web pages": ("kb_sourceitem_changelist", None),
    "entities": ("kb_entity_changelist", None),
    "entity": ("kb_entity_change", "entity"),
    "new entity": ("kb_entity_add", None),
    "merge an entity": ("kb_entity_merge", "entity"),
    "split an entity": ("kb_entity_split", "entity"),
    "delete entity": ("kb_entity_delete", "entity"),
    "import graph": ("kb_entity_import", None),
    "graph readings": ("kb_graphextraction_changelist", None),
    "sharing": ("kb_knowledgebase_sharing", "kb"),
    "remove a member": ("kb_knowledgebase_sharing?action=remove&member={member}", "kb"),
    "leave": ("kb_knowledgebase_leave", "kb"),
    "invitations": ("invitations", None),
    "audit log": ("kb_auditentry_changelist", None),
    "entry of the audit log": ("kb_auditentry_change", "change"),
    "keyword cache": ("keyword_cache", None),
    "drop keyword index": ("keyword_cache_invalidate", "kb"),
}
SEARCHING = {"search debug", "why one is not found", "compare searches"}
"""Pages that search, whose own queries are counted where they are tested."""
SOURCES = re.compile(
    "https|RSS|Atom|/docs/|WebDAV|Nextcloud|cloud|remote|dav|files|NAME|Folder|REPOSITORY|ssh-keyscan HOST|"
    "SOURCE_FOLDERS|/srv/documents|Amazon|MinIO|auto|path|virtual|manuals|drafts|Git(?![a-z])|github|gitlab|gitee|gitea|"
    "git|SSH"
)
TECHNICAL = {
    "new key": re.compile("minute|hour"),
    "embedding model": re.compile("sentence-transformers|BAAI/bge-large-zh|MODEL"),
    "store": re.compile("PostgreSQL|MILVUS_URI|CHROMA_URL"),
    "one upload": re.compile("filename|title|tags|metadata"),
    "import graph": re.compile("name|kind|description|aliases|subject|predicate|object|document|chunk|parent|synonyms"),
    "knowledge base": re.compile("Word"),
    "new knowledge base": re.compile("Word"),
    "web sources": re.compile("https|RSS|Atom|WebDAV|Git"),
    "web source": SOURCES,
    "new web source": SOURCES,
    "web pages": re.compile("https|robots"),
}
"""Names and columns that these pages give as they are written in files and addresses."""
MOST_QUERIES = {"knowledge base": 10, "delete knowledge base": 10, "entity": 10}
"""Of the pages that take more than nine."""
SUPERUSER_PAGES = {
    "users": ("kb_user_changelist", None),
    "user": ("kb_user_change", "user"),
    "new user": ("kb_user_add", None),
    "new password": ("auth_user_password_change", "user"),
    "delete user": ("kb_user_delete", "user"),
}
ALL_PAGES = PAGES | SUPERUSER_PAGES


def url_of(objects, name):
    target, needed = ALL_PAGES[name]
    route, _, query = target.partition("?")
    names = (needed,) if isinstance(needed, str) else needed or ()
    return reverse(f"admin:{route}", args=[objects[each] for each in names]) + f"?{query.format(**objects)}"


def words_of(response):
    """What a reader sees and a screen reader says: texts and labels, without scripts and icon names."""
    page = lxml.html.fromstring(response.content.decode())
    for hidden in page.xpath(
        "//script | //style | //template | //*[contains(@class, 'material-symbols')] | //code | //pre"
    ):
        hidden.drop_tree()  # codes, key prefixes and commands are no words either
    labels = page.xpath("//@title | //@placeholder | //@aria-label | //@data-label")
    return "\n".join([*page.itertext(), *labels])


@pytest.fixture
def log_in_for(client, curator):
    """Logs in whoever may see a page."""
    superuser = make_user("curator2", superuser=True)
    return lambda name: client.force_login(superuser if name in SUPERUSER_PAGES else curator)


@pytest.fixture
def opened(client, objects, log_in_for):
    def open_page(name, language):
        log_in_for(name)
        return client.get(url_of(objects, name), headers={"accept-language": language})

    return open_page


def test_every_page_opens_in_english(opened):
    shown = "简体中文 违约金 违约 约金 违约金过高的 过高 过高的 可以 请求 减少 可以请求减少 诉讼时效期间为三年 违约金过高怎么办 诉讼时效多久"
    found = {}
    for name in ALL_PAGES:
        page = opened(name, "en")
        assert page.status_code == 200, name
        words = words_of(page)
        as_python_writes = re.findall(r"\d:\d\d:\d\d\.\d{6}", words)
        found[name] = [*as_python_writes, *(set(re.findall(r"[\u4e00-\u9fff]{2,}", words)) - set(shown.split()))]

    assert {name: words for name, words in found.items() if words} == {}


def test_every_page_opens_in_chinese_and_holds_no_english_sentence(opened):
    found = {}
    for name in ALL_PAGES:
        page = opened(name, "zh-hans")
        assert page.status_code == 200, name
        left = SAME_IN_CHINESE.sub(" ", words_of(page))
        left = TECHNICAL[name].sub(" ", left) if name in TECHNICAL else left
        found[name] = re.findall(r"[A-Za-z]{3,}(?: +[A-Za-z]+)*", left)

    assert {name: words for name, words in found.items() if words} == {}


def test_every_page_takes_few_queries(client, objects, log_in_for):
    ContentType.objects.get_for_models(*apps.get_app_config("kb").get_models())  # a process keeps them
    taken = {}
    for name in ALL_PAGES.keys() - SEARCHING:
        log_in_for(name)
        with CaptureQueriesContext(connection) as queries:
            client.get(url_of(objects, name))
        taken[name] = len(queries)

    assert {name: number for name, number in taken.items() if number > MOST_QUERIES.get(name, 9)} == {}


@pytest.mark.parametrize(("language", "words"), [("zh-hans", "欢迎回到"), ("en", "Welcome back to")])
def test_the_login_page_speaks_the_browser_s_language_and_offers_both(client, language, words):
    client.logout()

    page = client.get(reverse("admin:login"), headers={"accept-language": language}).content.decode()

    assert words in page
    assert "简体中文" in page
    assert "English" in page


def test_the_chosen_language_stays(client):
    client.post(reverse("set_language"), {"language": "en", "next": "/admin/"})

    page = client.get(reverse("admin:index"), headers={"accept-language": "zh-hans"}).content.decode()

    assert "Next steps" in page


def test_the_first_page_leads_to_a_first_knowledge_base(client):
    page = client.get(reverse("admin:index")).content.decode()

    assert reverse("admin:kb_knowledgebase_add") in page
    assert reverse("admin:kb_document_upload") in page


def test_the_first_page_counts_what_the_user_may_see(client, document, foreign):
    counts = client.get(reverse("admin:index")).context

    assert (counts["knowledge_base_count"], counts["document_count"], counts["chunk_count"]) == (1, 1, 2)
