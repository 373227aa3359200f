"""Every page of the admin, with what it is opened for."""

from string import Formatter

from django.urls import reverse
from django.utils import timezone

from kb.assistants.services.assistants import (
    assistant_create,
    draft_of,
    link_create,
    version_create,
    version_publish,
)
from kb.assistants.settings import AssistantSettings
from kb.graph.services.entities import entity_update
from kb.graph.services.writing import graph_request
from kb.models import (
    AssistantUse,
    AuditEntry,
    Concept,
    Conversation,
    Document,
    Entity,
    EvalRun,
    EvalSet,
    Folder,
    GraphExtraction,
    GraphFact,
    IngestBatch,
    ProviderModel,
    RetrievalProfile,
    SearchLog,
    SearchProvider,
    ShareLink,
    Source,
    SourceItem,
    Visitor,
)
from kb.profiles.services import create_version
from kb.search.services.search import SearchRequest, search
from tests.factories import make_api_key, make_group, make_kb, make_member, make_user, principal
from tests.kb.quality.failed_queries.admin.test_queries import make_failed
from tests.kb.quality.runs.admin.run_pages import done, judged_set, missed
from tests.kb.quality.runs.eval_runs import answered, make_run

PAGES = {
    "index": ("index", None),
    "overview of quality": ("quality_overview", None),
    "password": ("password_change", None),
    "password was changed": ("password_change_done", None),
    "knowledge bases": ("kb_knowledgebase_changelist", None),
    "knowledge base": ("kb_knowledgebase_change", "kb"),
    "documents of a knowledge base": ("kb_knowledgebase_documents", "kb"),
    "documents after an upload": ("kb_knowledgebase_documents?upload={batch}", "kb"),
    "folder of a knowledge base": ("kb_knowledgebase_folder", ("kb", "folder")),
    "sources of a knowledge base": ("kb_knowledgebase_sources", "kb"),
    "concepts of a knowledge base": ("kb_knowledgebase_concepts", "kb"),
    "entities of a knowledge base": ("kb_knowledgebase_entities", "kb"),
    "facts of a knowledge base": ("kb_knowledgebase_facts", "kb"),
    "quality of a knowledge base": ("kb_knowledgebase_quality", "kb"),
    "new knowledge base": ("kb_knowledgebase_add", None),
    "delete knowledge base": ("kb_knowledgebase_delete", "kb"),
    "documents": ("kb_document_changelist", None),
    "document": ("kb_document_change", "document"),
    "history": ("kb_ingestbatch_history", "batch"),
    "document at a chunk": ("kb_document_change?chunk={chunk}", "document"),
    "original of a document": ("kb_document_original", "document"),
    "page of a document": ("kb_document_page?n=1", "document"),
    "chunks of a document": ("kb_document_chunks", "document"),
    "replace the file of a document": ("kb_document_replace", "document"),
    "card of a chunk": ("kb_chunk_card", "chunk"),
    "form of a chunk": ("kb_chunk_work?form=edit", "chunk"),
    "delete document": ("kb_document_delete", "document"),
    "upload": ("kb_document_upload", None),
    "chunks": ("kb_chunk_changelist", None),
    "chunk": ("kb_chunk_change", "chunk"),
    "split a chunk": ("kb_chunk_split", "chunk"),
    "delete chunk": ("kb_chunk_delete", "chunk"),
    "history of a chunk": ("kb_chunk_history", "chunk"),
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
    "conversation": ("ask?conversation={conversation}", None),
    "earlier turns": ("ask_earlier?conversation={conversation}", None),
    "answer of a conversation": ("ask_resume", "answer"),
    "suggested questions": ("ask_suggestions?kb={kb}", None),
    "passage": ("kb_chunk_passage", "chunk"),
    "page of a passage": ("kb_chunk_passage_page", "chunk"),
    "text of a passage in its document": ("kb_chunk_passage_text", "chunk"),
    "write an answer": ("ask_write?kb={kb}&q=违约金过高怎么办", None),
    "rename a conversation": ("ask_rename?edit=1", "conversation"),
    "delete a conversation": ("ask_delete", "conversation"),
    "keys": ("kb_apikey_changelist", None),
    "key": ("kb_apikey_change", "key"),
    "new key": ("kb_apikey_add", None),
    "integrations": ("integrations", None),
    "assistants": ("kb_assistant_changelist", None),
    "new assistant": ("kb_assistant_add?kb={kb}", None),
    "assistant": ("kb_assistant_change", "assistant"),
    "sharing an assistant": ("kb_assistant_share", "assistant"),
    "use of an assistant": ("kb_assistant_use", "assistant"),
    "conversations of an assistant": ("kb_assistant_conversations", "assistant"),
    "conversation of an assistant": ("kb_assistant_conversation", ("assistant", "visit")),
    "questions to an assistant": ("kb_assistant_questions", "assistant"),
    "versions of an assistant": ("kb_assistant_versions", "assistant"),
    "take an assistant back": ("kb_assistant_close", "assistant"),
    "delete assistant": ("kb_assistant_delete", "assistant"),
    "log": ("kb_searchlog_changelist", None),
    "history of a search": ("kb_searchlog_history", "trace"),
    "search debug": ("search_debug?q=违约金&kb={kb}", None),
    "process of a search": ("search_debug?q=违约金&kb={kb}&view=process", None),
    "test of a knowledge base": ("kb_knowledgebase_test", "kb"),
    "text of a passage": ("search_debug_text", "chunk"),
    "question of a passage": ("search_debug_question", "chunk"),
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
    "delete failed query": ("kb_failedquery_delete", "failed"),
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
    "delete what a source no longer has": ("kb_source_delete_gone", "source"),
    "web pages": ("kb_sourceitem_changelist", None),
    "web page": ("kb_sourceitem_change", "item"),
    "history of a web page": ("kb_sourceitem_history", "item"),
    "entities": ("kb_entity_changelist", None),
    "entity": ("kb_entity_change", "entity"),
    "new entity": ("kb_entity_add", None),
    "merge an entity": ("kb_entity_merge", "entity"),
    "split an entity": ("kb_entity_split", "entity"),
    "delete entity": ("kb_entity_delete", "entity"),
    "import graph": ("kb_entity_import", None),
    "graph readings": ("kb_graphextraction_changelist", None),
    "graph reading": ("kb_graphextraction_change", "extraction"),
    "history of a graph reading": ("kb_graphextraction_history", "extraction"),
    "sharing": ("kb_knowledgebase_sharing", "kb"),
    "remove a member": ("kb_knowledgebase_sharing?action=remove&member={member}", "kb"),
    "remove a group": ("kb_knowledgebase_sharing?group={group}", "kb"),
    "leave": ("kb_knowledgebase_leave", "kb"),
    "use of models of a knowledge base": ("kb_knowledgebase_usage", "kb"),
    "badges": ("badges", None),
    "invitations": ("invitations", None),
    "audit log": ("kb_auditentry_changelist", None),
    "entry of the audit log": ("kb_auditentry_change", "change"),
    "history of an entry of the audit log": ("kb_auditentry_history", "change"),
    "keyword cache": ("keyword_cache", None),
    "drop keyword index": ("keyword_cache_invalidate", "kb"),
}
SUPERUSER_PAGES = {
    "overview of the system": ("system_overview", None),
    "delete key": ("kb_apikey_delete", "key"),
    "users": ("kb_user_changelist", None),
    "user": ("kb_user_change", "user"),
    "new user": ("kb_user_add", None),
    "new password": ("auth_user_password_change", "user"),
    "delete user": ("kb_user_delete", "user"),
    "models": ("kb_providermodel_changelist", None),
    "new model": ("kb_providermodel_add?provider=dashscope&role=rerank", None),
    "model": ("kb_providermodel_change", "model"),
    "delete model": ("kb_providermodel_delete", "model"),
    "use of models": ("kb_providermodel_usage", None),
    "sign-in": ("sign_in", None),
    "status": ("system_status", None),
    "checks": ("system_status_checks", None),
}
ALL_PAGES = PAGES | SUPERUSER_PAGES


SEARCHING = {"search debug", "process of a search", "why one is not found", "compare searches"}
"""Pages that search, whose own queries are counted where they are tested."""


def make_objects(kb, document, curator):
    """The ids of what the pages are opened for, in a knowledge base that the curator owns."""
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
    item = SourceItem.objects.create(source=source, document=document, url="https://test/", key_hash="0" * 64)
    graph_request(document)
    extraction = GraphExtraction.objects.get(document=document)
    runs = [
        done(eval_set, [answered("q0"), missed("q1", "fusion")]),
        done(eval_set, [answered("q0", 0.2), answered("q1")]),
    ]
    assistant = _assistant(kb, curator)
    return {
        "assistant": assistant.pk,
        "visit": Conversation.objects.get(visitor__assistant=assistant).pk,
        "kb": kb.pk,
        "folder": Folder.objects.create(knowledge_base=kb, name="test").pk,
        "item": item.pk,
        "extraction": extraction.pk,
        "invitation": 0,
        "content_type": 0,
        "trace": SearchLog.objects.latest("created_at").pk,
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
        "model": ProviderModel.objects.create(
            role="chat", name="test", slug="test", provider="deepseek", model="test"
        ).pk,
        "member": make_member(kb, user=other).pk,
        "group": make_group(kb, "viewer", other, name="101").pk,
        "change": _change(document).pk,
        "conversation": (conversation := _conversation(kb, curator)).pk,
        "answer": conversation.messages.last().pk,
        "draft": create_version(principal(curator), "legal", {"vector_weight": 0.3}, knowledge_base=kb).pk,
    }


def make_bare_objects(curator):
    """The ids of those that can be without anything in them, in the one knowledge base of a curator who has done nothing."""
    kb = make_kb(curator, "bare")
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="bare")
    return {
        "kb": kb.pk,
        "folder": Folder.objects.create(knowledge_base=kb, name="bare").pk,
        "document": Document.objects.create(knowledge_base=kb, title="bare", status=Document.Status.FAILED).pk,
        "concept": Concept.objects.create(knowledge_base=kb, name="bare").pk,
        "entity": entity_update(Entity(knowledge_base=kb), name="bare", aliases=[]).pk,
        "key": make_api_key(curator, kb)[0].pk,
        "assistant": assistant_create(principal(curator), name="bare", knowledge_base_ids=[kb.pk], access="link").pk,
        "eval_set": eval_set.pk,
        "running": make_run(eval_set, status=EvalRun.Status.FAILED, report={}).pk,
        "run": make_run(eval_set, report={}).pk,
        "other_run": make_run(eval_set, report={}).pk,
        "batch": IngestBatch.objects.create(knowledge_base=kb, name="bare", created_by=curator).pk,
        "source": Source.objects.create(knowledge_base=kb, name="bare", url="https://test/").pk,
        "conversation": Conversation.objects.create(user=curator, knowledge_base_ids=[kb.pk], title="bare").pk,
        "profile": RetrievalProfile.objects.get(name="default").pk,
        "draft": create_version(principal(curator), "bare", {}, knowledge_base=kb).pk,
    }


def _conversation(kb, curator):
    conversation = Conversation.objects.create(user=curator, knowledge_base_ids=[kb.pk], title="违约金过高怎么办")
    conversation.messages.create(role="user", text="违约金过高怎么办")
    conversation.messages.create(role="assistant", text="可以请求减少。", hit=False)
    return conversation


def _assistant(kb, curator):
    """Published by link, with a draft, a link of each kind, and a visitor's conversation."""
    caller = principal(curator)
    assistant = assistant_create(caller, name="legal", knowledge_base_ids=[kb.pk], access="link")
    version_publish(caller, draft_of(assistant))
    version_create(caller, assistant, AssistantSettings(temperature=0.5, opening="违约金"))
    for revoked_at in (None, timezone.now()):
        link = link_create(caller, assistant, name="test")
        ShareLink.objects.filter(pk=link.pk).update(revoked_at=revoked_at)
    visitor = Visitor.objects.create(assistant=assistant, user=curator)
    conversation = Conversation.objects.create(visitor=visitor, knowledge_base_ids=[kb.pk], title="违约金过高怎么办")
    conversation.messages.create(role="user", text="违约金过高怎么办")
    conversation.messages.create(role="assistant", text="可以请求减少。", hit=False, feedback=-1)
    AssistantUse.objects.create(assistant=assistant, day=timezone.localdate(), questions=1, tokens=100)
    return assistant


def _change(document):
    document.tags = ["test"]
    document.save()
    return AuditEntry.objects.filter(object_type="document").latest("pk")


def needed_by(name):
    """The names of the objects that a page's address holds."""
    target, needed = ALL_PAGES[name]
    names = (needed,) if isinstance(needed, str) else needed or ()
    return {*names, *(field for _text, field, *_rest in Formatter().parse(target) if field)}


def url_of(objects, name):
    target, needed = ALL_PAGES[name]
    route, _, query = target.partition("?")
    names = (needed,) if isinstance(needed, str) else needed or ()
    return reverse(f"admin:{route}", args=[objects[each] for each in names]) + f"?{query.format(**objects)}"
