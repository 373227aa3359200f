"""Two tenants with one object of each kind, and what the database holds of the second."""

import uuid
from dataclasses import dataclass, field

from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group
from django.contrib.contenttypes.models import ContentType
from django.core.files.base import ContentFile
from django.db import connection
from django.utils import timezone

from kb.assistants.services.assistants import assistant_create, draft_of, link_create, version_publish
from kb.graph.services.entities import entity_update
from kb.graph.services.writing import graph_request
from kb.ingest.parser import parsed
from kb.ingest.services.pictures import store_picture_files, write_pictures
from kb.models import (
    AuditEntry,
    Concept,
    Conversation,
    Document,
    Entity,
    EvalQuery,
    FailedQuery,
    Folder,
    GraphExtraction,
    GraphFact,
    GroupMembership,
    IngestBatch,
    Invitation,
    Judgment,
    Membership,
    Message,
    ProviderModel,
    RetrievalProfile,
    SearchLog,
    SearchProvider,
    Source,
    SourceItem,
    SourceRun,
    User,
    Visitor,
)
from kb.search.services.search import SearchRequest, search
from tests import factories
from tests.kb.quality.runs.eval_runs import answered, make_run

STRANGER = "zqstranger"
"""Stands in every text of the second tenant, and nowhere else."""
FIRST_ID = 812_345_678
"""Ids begin here, so that one is told from every other number of a page."""
MISSING_ID = 998_765_432
MISSING_UUID = uuid.UUID("99999999-9999-4999-8999-999999999999")
MISSING_NAME = "zqnobody"


@dataclass
class Tenant:
    """A user with a knowledge base.

    Attributes:
        ids: the key of one row of each kind, as it stands in addresses and bodies.
    """

    user: User
    kb: object
    ids: dict[str, object] = field(default_factory=dict)


@dataclass
class World:
    """
    Attributes:
        known: the state in which it was made.
    """

    mine: Tenant
    theirs: Tenant
    missing: dict[str, object]
    known: dict[str, str] = field(default_factory=dict)
    _statement: str = ""
    _rows: dict[str, list[str]] = field(default_factory=dict)
    _counts_writes: bool = False
    _unchanged_at: int = 0

    def changes(self):
        """The names of the tables whose digest is not the known one; none where no row was written since it was taken."""
        if (written := self._written()) == self._unchanged_at:
            return set()
        after = self.state()
        found = {table for table in after if after[table] != self.known[table]}
        if not found:
            self._unchanged_at = written
        return found

    def _written(self):
        """How many rows of any of the tables this transaction has written so far, those that it has taken back among them."""
        with connection.cursor() as cursor:
            name = f"written_of_{self.theirs.kb.pk}"
            if not self._counts_writes:
                cursor.execute(f"PREPARE {name} AS {_written_query()}")
                self._counts_writes = True
            cursor.execute(f"EXECUTE {name}")
            (written,) = cursor.fetchone()
        assert written, "PostgreSQL does not count what is written"
        return written

    def state(self):
        """A digest for each table of the rows that the second tenant had, and of all that is in its knowledge base."""
        with connection.cursor() as cursor:
            if not self._statement:  # prepared, as planning it takes five times as long as executing it
                self._statement = f"state_of_{self.theirs.kb.pk}"
                cursor.execute(f"PREPARE {self._statement} AS {_state_query(self.theirs, self._rows)}")
            cursor.execute(f"EXECUTE {self._statement}")
            return dict(cursor.fetchall())

    def remember(self):
        """Takes all rows that there are and that are not the first tenant's for the second's."""
        with connection.cursor() as cursor:
            for model in _models():
                table, key = model._meta.db_table, model._meta.pk.column
                cursor.execute(f'SELECT "{key}"::text FROM "{table}"')
                self._rows[table] = [key for (key,) in cursor.fetchall()]


def make_world():
    start_ids_at(FIRST_ID)
    theirs = _tenant(STRANGER)
    missing = {kind: _missing(kind, value) for kind, value in theirs.ids.items()}
    world = World(mine=theirs, theirs=theirs, missing=missing)
    world.remember()
    world.mine = _tenant("mine")
    world.known = world.state()
    return world


def _missing(kind, value):
    if isinstance(value, uuid.UUID):
        return MISSING_UUID
    return MISSING_ID + kind.endswith("2") if isinstance(value, int) else MISSING_NAME


def _tenant(word):
    user = factories.make_user(f"{word}-user")
    kb = factories.make_kb(user, f"{word}-base", language="en")
    tenant = Tenant(user, kb)
    tenant.ids = {"kb": kb.pk, "kb2": factories.make_kb(user, f"{word}-other-base").pk, "user": user.pk}
    for made in (_invited, _content, _graph, _web, _evaluation, _profiles, _searches, _assistants):
        tenant.ids |= made(tenant, word)
    return tenant


def _invited(tenant, word):
    """An open invitation to the tenant's user."""
    hosted = factories.make_kb(factories.make_user(f"{word}-host"), f"{word}-hosted")
    invitation = Invitation.objects.create(
        knowledge_base=hosted, user=tenant.user, invited_by=hosted.owner, role=Membership.Role.VIEWER
    )
    return {"invitation": invitation.pk}


def _content(tenant, word):
    texts = [f"{word} rents a bicycle in Vienna.", f"{word} returns the bicycle on Sunday.", f"{word} pays nine euros."]
    batch = IngestBatch.objects.create(knowledge_base=tenant.kb, name=f"{word}-upload", created_by=tenant.user)
    folder = Folder.objects.create(knowledge_base=tenant.kb, name=f"{word}-folder")
    document = factories.make_document(
        tenant.kb,
        *texts,
        title=f"{word}-title",
        source=f"{word}.txt",
        tags=[f"{word}-tag"],
        metadata={"author": f"{word}-author"},
        folder=folder,
        batch=batch,
        created_by=tenant.user,
    )
    document.file.save(f"{word}.txt", ContentFile("\n".join(texts).encode()))
    chunks = list(document.chunks.order_by("position"))
    pictures = [parsed.Picture(f"{word}-picture".encode(), "image/png", 90, 60, caption=f"{word}-caption")]
    store_picture_files(document, pictures)
    write_pictures(document, pictures)
    key, _secret = factories.make_api_key(tenant.user, tenant.kb)
    member = factories.make_member(tenant.kb, user=factories.make_user(f"{word}-member"))
    group = Group.objects.create(name=f"oidc:{word}-group")
    member.groups.add(group)
    GroupMembership.objects.create(knowledge_base=tenant.kb, group=group, role=Membership.Role.EDITOR)
    entry = LogEntry.objects.create(
        user=tenant.user,
        content_type=ContentType.objects.get_for_model(Document),
        object_id=str(document.pk),
        object_repr=f"{word}-title",
        action_flag=CHANGE,
    )
    return {
        "batch": batch.pk,
        "folder": folder.pk,
        "document": document.pk,
        "chunk": chunks[0].pk,
        "chunk2": chunks[1].pk,
        "picture": document.pictures.get().pk,
        "key": key.pk,
        "key_prefix": key.prefix,
        "member": member.pk,
        "group": group.pk,
        "membership": Membership.objects.get(user=member).pk,
        "entry": entry.pk,
        "provider_model": ProviderModel.objects.create(
            role="chat", name=f"model {tenant.kb.pk}", slug=f"model-{tenant.kb.pk}", provider="deepseek", model="m"
        ).pk,
        "audit_entry": AuditEntry.objects.filter(knowledge_base=tenant.kb).latest("pk").pk,
        "tag": f"{word}-tag",
    }


def _graph(tenant, word):
    kb, document = tenant.kb, Document.objects.get(pk=tenant.ids["document"])
    concept = Concept.objects.create(knowledge_base=kb, name=f"{word}-idea", description=f"{word} of ideas")
    document.concepts.add(concept)
    graph_request(document)
    fact = GraphFact.objects.create(
        knowledge_base=kb,
        subject=f"{word}-subject",
        predicate="is",
        object=f"{word}-object",
        source_chunk=document.chunks.first(),
    )
    return {
        "concept": concept.pk,
        "concept_name": concept.name,
        "fact": fact.pk,
        "entity": entity_update(Entity(knowledge_base=kb), name=f"{word}-subject", aliases=[f"{word}-alias"]).pk,
        "entity2": entity_update(Entity(knowledge_base=kb), name=f"{word}-object").pk,
        "extraction": GraphExtraction.objects.get(document=document).pk,
    }


def _web(tenant, word):
    address = f"https://{word}.example/"
    source = Source.objects.create(knowledge_base=tenant.kb, name=f"{word}-site", url=address)
    page = SourceItem.objects.create(
        source=source, url=f"{address}a", key_hash=word.ljust(64, "0"), title=f"{word}-page"
    )
    external = SearchProvider.objects.create(
        knowledge_base=tenant.kb, name=f"{word}-service", settings={"project": f"{word}-project", "engine": "engine"}
    )
    SourceRun.objects.create(source=source, status="done", ended_at=timezone.now())
    return {"source": source.pk, "source_item": page.pk, "external": external.pk}


def _evaluation(tenant, word):
    eval_set = tenant.kb.eval_sets.create(name=f"{word}-set")
    query, _second = (
        EvalQuery.objects.create(eval_set=eval_set, external_id=f"{word}-{n}", text=f"{word} question {n}")
        for n in (1, 2)
    )
    judgment = Judgment.objects.create(
        query=query, document_id=tenant.ids["document"], source=f"{word}.txt", grade=1, quote=f"{word} rents"
    )
    runs = [make_run(eval_set, [answered(f"{word}-1", 0.2 * n)]) for n in (1, 2)]
    return {
        "eval_set": eval_set.pk,
        "eval_query": query.pk,
        "judgment": judgment.pk,
        "run": runs[0].pk,
        "other_run": runs[1].pk,
    }


def _profiles(tenant, word):
    profiles = [
        RetrievalProfile.objects.create(
            knowledge_base=tenant.kb, name=f"{word}-profile", version=version, description=f"{word} tuned"
        )
        for version in (1, 2)
    ]
    return {"profile": profiles[0].pk, "profile2": profiles[1].pk, "profile_name": f"{word}-profile"}


def _searches(tenant, word):
    caller = factories.principal(tenant.user)
    found = search(
        caller,
        SearchRequest(query=f"{word} bicycle", knowledge_base_ids=[tenant.kb.pk], explain=True),
    )
    conversation = Conversation.objects.create(
        user=tenant.user, knowledge_base_ids=[tenant.kb.pk], title=f"{word} asks"
    )
    Message.objects.create(conversation=conversation, role=Message.Role.USER, text=f"{word} asks for a bicycle")
    answer = Message.objects.create(conversation=conversation, role=Message.Role.ASSISTANT, text=f"{word} has one")
    failed = FailedQuery.objects.create(
        key=f"{word}-key",
        knowledge_base_ids=[tenant.kb.pk],
        query=f"{word} fails",
        reasons={"nothing": 1},
        count=1,
        first_seen=timezone.now(),
        last_seen=timezone.now(),
        assignee=tenant.user,
        last_search=SearchLog.objects.get(user=tenant.user),
    )
    return {"trace": found.trace_id, "conversation": conversation.pk, "answer": answer.pk, "failed": failed.pk}


def _assistants(tenant, word):
    """Published by link, with a visitor who has asked."""
    caller = factories.principal(tenant.user)
    assistant = assistant_create(caller, name=f"{word}-chat", knowledge_base_ids=[tenant.kb.pk], access="link")
    version_publish(caller, draft_of(assistant))
    visitor = Visitor.objects.create(assistant=assistant, user=tenant.user)
    conversation = Conversation.objects.create(
        visitor=visitor, knowledge_base_ids=[tenant.kb.pk], title=f"{word} visits"
    )
    Message.objects.create(conversation=conversation, role=Message.Role.USER, text=f"{word} asks for a bicycle")
    return {
        "assistant": assistant.pk,
        "visit": conversation.pk,
        "share_link": link_create(caller, assistant, name=f"{word}-link").pk,
    }


def _models():
    own = [*apps.get_app_config("kb").get_models(include_auto_created=True), LogEntry, Group]
    return [model for model in own if model._meta.managed and not model._meta.proxy]


def _state_query(tenant, rows):
    parts = []
    for model in _models():
        table, key = model._meta.db_table, model._meta.pk.column
        columns = {each.column for each in model._meta.local_fields}
        kept = ", ".join(f"'{each}'" for each in rows.get(table, ())) or "NULL"
        wanted = f'"{key}"::text IN ({kept})'
        for column, kind in (("knowledge_base_id", "kb"), ("knowledgebase_id", "kb"), ("document_id", "document")):
            if column in columns:
                wanted += f' OR "{column}" = {tenant.ids[kind]}'
        parts.append(
            f"SELECT '{table}', count(*) || ' ' || coalesce(md5(string_agg(t::text, '|' ORDER BY \"{key}\")), '')"
            f' FROM "{table}" t WHERE {wanted}'
        )
    return " UNION ALL ".join(parts)


def _written_query():
    counts = " + ".join(f"pg_stat_get_xact_tuples_{each}(id)" for each in ("inserted", "updated", "deleted"))
    ids = ", ".join(f"'\"{model._meta.db_table}\"'::regclass" for model in _models())
    return f"SELECT sum({counts}) FROM unnest(ARRAY[{ids}]::oid[]) id"


def start_ids_at(first):
    with connection.cursor() as cursor:
        for model in _models():
            if model._meta.auto_field:
                table, key = model._meta.db_table, model._meta.pk.column
                cursor.execute(
                    "SELECT setval(sequence, GREATEST(%s, nextval(sequence))) FROM pg_get_serial_sequence(%s, %s) sequence"
                    " WHERE sequence IS NOT NULL",
                    [first, f'"{table}"', key],
                )
