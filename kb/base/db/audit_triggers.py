"""Triggers that write the audit log, so that bulk updates, cascades and raw SQL are in it like everything else.

Who acts is a setting of the transaction (`kb.access.services.attribution`); a migration makes the functions that they
call. A change of what is not tracked, such as progress, calls none: the database compares the columns by itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pgtrigger

from kb.base.db.triggers import statement_trigger

# A statement that makes or deletes more rows than this leaves one entry for all of them.
MAX_ENTRIES = 500
MAX_CHUNK_ENTRIES = 20

_ADDED = """
    IF (SELECT count(*) FROM {rows} r WHERE {only}) > {limit} THEN
        PERFORM kb_audit_add('{action}', '{kind}', '', '', g.kb, '{}'::jsonb, g.amount)
            FROM (SELECT {kb} AS kb, count(*) AS amount FROM {rows} r WHERE {only} GROUP BY 1) g;
    ELSE
        PERFORM kb_audit_add('{action}', '{kind}', {key}, {name}, {kb}, {changes}, 1) FROM {rows} r WHERE {only};
    END IF;
    RETURN NULL;
"""
_UPDATED = """
    PERFORM kb_audit_add('update', '{kind}', {key}, {name}, {kb}, {changes}, 1) FROM (SELECT NEW.*) r WHERE {only};
    RETURN NULL;
"""

_EMPTY = "'{}'::jsonb"
_ONLY_PEOPLE = "IF NOT kb_audit_attended() THEN RETURN NULL; END IF;"
_CHANGED_CHUNKS = """
    SELECT id, knowledge_base_id, text, enabled, keywords, questions, heading_path, page FROM new_rows
    EXCEPT SELECT id, knowledge_base_id, text, enabled, keywords, questions, heading_path, page FROM old_rows"""
_CHUNKS_UPDATED = """
    IF (SELECT count(*) FROM ({changed}) c) > {limit} THEN
        PERFORM kb_audit_add('update', '{kind}', '', '', g.kb, g.changes, g.amount) FROM (
            SELECT c.knowledge_base_id AS kb, count(*) AS amount, CASE
                WHEN bool_and(c.enabled) THEN jsonb_build_object('enabled', jsonb_build_array(NULL, TRUE))
                WHEN NOT bool_or(c.enabled) THEN jsonb_build_object('enabled', jsonb_build_array(NULL, FALSE))
                ELSE '{}'::jsonb END AS changes
            FROM ({changed}) c GROUP BY 1) g;
    ELSE
        PERFORM kb_audit_add('update', '{kind}', {key}, {name}, {kb}, kb_audit_changed({before}, {after}), 1)
            FROM new_rows r JOIN old_rows o ON o.id = r.id WHERE r.id IN (SELECT c.id FROM ({changed}) c);
    END IF;
    RETURN NULL;
"""


@dataclass(frozen=True, slots=True)
class Audited:
    """What the log holds of a table, whose rows it calls `kind`; in SQL expressions the row is `r`.

    Attributes:
        columns: those whose values are stored; of `secret` ones only that they have changed.
        as_text: what stands in for the value of a column, such as the name of the user that an id refers to.
        only: which rows the log is about.
        routine: which updates, from OLD to NEW, belong to the ordinary course of work and to nobody; blank: none.
    """

    kind: str
    columns: tuple[str, ...]
    name: str = "r.name"
    kb: str = "r.knowledge_base_id"
    key: str = "r.id::text"
    as_text: Mapping[str, str] = field(default_factory=dict)
    secret: tuple[str, ...] = ()
    only: str = "TRUE"
    routine: str = ""

    def triggers(self) -> list[pgtrigger.Trigger]:
        """One for each event; those of insertions and deletions fire once a statement."""
        secrets = "".join(
            f""" || CASE WHEN OLD.{each} IS DISTINCT FROM NEW.{each} THEN '{{"{each}": [null, null]}}'::jsonb"""
            " ELSE '{}'::jsonb END"
            for each in self.secret
        )
        return [
            statement_trigger(
                "audit_insert", pgtrigger.Insert, self._added("create", "new_rows", _EMPTY, self._values("r"))
            ),
            pgtrigger.Trigger(
                name="audit_update",
                level=pgtrigger.Row,
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition(
                    " OR ".join(f"OLD.{each} IS DISTINCT FROM NEW.{each}" for each in (*self.columns, *self.secret))
                ),
                func=self._filled(
                    _UPDATED,
                    changes=f"kb_audit_changed({self._values('OLD')}, {self._values('NEW')})" + secrets,
                    only=f"{self.only} AND NOT ({self.routine})" if self.routine else self.only,
                ),
            ),
            statement_trigger(
                "audit_delete", pgtrigger.Delete, self._added("delete", "old_rows", self._values("r"), _EMPTY)
            ),
        ]

    def _added(self, action: str, rows: str, before: str, after: str, limit: int = MAX_ENTRIES) -> str:
        changes = f"kb_audit_changed({before}, {after})"
        return self._filled(_ADDED, action=action, rows=rows, changes=changes, limit=str(limit))

    def _values(self, row: str) -> str:
        values = {column: self.as_text.get(column, f"r.{column}") for column in self.columns}
        pairs = ", ".join(f"'{column.removesuffix('_id')}', {value}" for column, value in values.items())
        return re.sub(r"\br\.", f"{row}.", f"jsonb_build_object({pairs})")

    def _filled(self, template: str, **parts: str) -> str:
        filled = template
        for name, value in {"kind": self.kind, "only": self.only, **parts}.items():
            filled = filled.replace(f"{{{name}}}", value)
        for name in ("key", "name", "kb"):
            filled = filled.replace(f"{{{name}}}", getattr(self, name))
        return filled


_ASSISTANT_BOUND = """
        PERFORM kb_audit_add('{action}', 'assistant', r.assistant_id::text, a.name, r.knowledgebase_id, '{{}}'::jsonb, 1)
            FROM {rows} r JOIN kb_assistant a ON a.id = r.assistant_id;
        RETURN NULL;
        """
_BOUND = """
        PERFORM kb_audit_add('{action}', 'api_key', split_part(r.apikey_id, '.', 1), k.name, r.knowledgebase_id,
            '{{}}'::jsonb, 1) FROM {rows} r JOIN kb_apikey k ON k.id = r.apikey_id;
        RETURN NULL;
        """
_GROUPED = """
        PERFORM kb_audit_add('{action}', 'user', r.user_id::text, u.username, NULL::bigint,
            jsonb_build_object('group', jsonb_build_array({before}, {after})), 1)
            FROM {rows} r JOIN kb_user u ON u.id = r.user_id JOIN auth_group g ON g.id = r.group_id;
        RETURN NULL;
        """
_USERNAME = "(SELECT u.username FROM kb_user u WHERE u.id = r.{column})"

KNOWLEDGE_BASE = Audited(
    kind="knowledge_base",
    columns=(
        "name", "description", "owner_id", "language", "embedding_model", "target_embedding_model", "tokenizer_id",
        "chunk_size", "chunk_overlap", "chunk_unit", "chunk_strategy", "parent_size", "word_parts", "parser", "profile_id",
        "keyword_vectors", "keyword_method", "ask_questions", "extract_graph", "no_answer",
    ),
    kb="r.id",
    as_text={
        "owner_id": _USERNAME.format(column="owner_id"),
        "profile_id": "(SELECT p.name || ' v' || p.version FROM kb_retrievalprofile p WHERE p.id = r.profile_id)",
    },
)  # fmt: skip
MEMBERSHIP = Audited(kind="membership", columns=("role",), name=_USERNAME.format(column="user_id"))
GROUP_MEMBERSHIP = Audited(
    kind="group_membership", columns=("role",), name="(SELECT g.name FROM auth_group g WHERE g.id = r.group_id)"
)
INVITATION = Audited(
    kind="invitation",
    columns=("role", "transfers", "declined_at"),
    name=_USERNAME.format(column="user_id"),
    only="r.knowledge_base_id IS NOT NULL",
)
CHUNK = Audited(
    kind="chunk",
    columns=("text", "enabled", "keywords", "questions", "heading_path", "page"),
    name="(SELECT coalesce(nullif(d.title, ''), d.source) FROM kb_document d WHERE d.id = r.document_id)"
    " || ' #' || (r.position + 1)",
)
_FOLDER = "(SELECT f.name FROM kb_folder f WHERE f.id = r.{column})"
FOLDER = Audited(
    kind="folder", columns=("name", "parent_id"), as_text={"parent_id": _FOLDER.format(column="parent_id")}
)
DOCUMENT = Audited(
    kind="document",
    columns=("title", "source", "source_type", "file", "sha256", "metadata", "tags", "folder_id"),
    name="coalesce(nullif(r.title, ''), r.source)",
    as_text={"folder_id": _FOLDER.format(column="folder_id")},
    routine="OLD.title = '' AND OLD.status IN ('pending', 'processing') AND NOT kb_audit_attended()",  # found in the file
)
API_KEY = Audited(
    kind="api_key",
    columns=("name", "user_id", "scope", "bound", "rate_limit", "expiry_date", "revoked"),
    kb="NULL::bigint",
    key="r.prefix",
    as_text={"user_id": _USERNAME.format(column="user_id")},
    secret=("hashed_key",),
)
USER = Audited(
    kind="user",
    columns=("username", "email", "first_name", "last_name", "is_active", "is_staff", "is_superuser"),
    name="r.username",
    kb="NULL::bigint",
    secret=("password",),
)
PROFILE = Audited(
    kind="retrieval_profile", columns=("description", "settings", "published"), name="r.name || ' v' || r.version"
)
CONCEPT = Audited(
    kind="concept",
    columns=("name", "description", "parent_id"),
    as_text={"parent_id": "(SELECT p.name FROM kb_concept p WHERE p.id = r.parent_id)"},
)
TERM = Audited(kind="concept_term", columns=("text", "kind"), name="r.text")
_BY_PEOPLE = "(r.origin <> 'llm' OR kb_audit_attended())"
ENTITY = Audited(kind="entity", columns=("name", "kind", "description"), only=_BY_PEOPLE)
FACT = Audited(
    kind="fact",
    columns=("subject", "predicate", "object"),
    name="r.subject || ' · ' || r.predicate || ' · ' || r.object",
    only=_BY_PEOPLE,
)
SOURCE = Audited(
    kind="source",
    columns=(
        "name", "kind", "url", "settings", "enabled", "paused", "live", "every_minutes", "hides_gone", "max_share", "max_pages",
        "max_depth", "include", "exclude", "tags", "accepted_at",
    ),
    secret=("secrets",),
)  # fmt: skip
EXTERNAL_SOURCE = Audited(
    kind="external_source", columns=("name", "kind", "settings", "enabled", "timeout_ms", "weight")
)
PROVIDER_MODEL = Audited(
    kind="provider_model",
    columns=(
        "role", "name", "provider", "base_url", "model", "options", "allows_private", "is_default", "is_enabled",
    ),
    kb="NULL::bigint",
    secret=("secrets",),
    only="r.variable = ''",
)  # fmt: skip
ASSISTANT = Audited(
    kind="assistant",
    columns=(
        "name", "slug", "publisher_id", "published_id", "access", "origins", "visitor_questions", "visitor_tokens",
        "address_questions", "address_tokens", "total_questions", "total_tokens", "retention_days", "keeps_text",
    ),
    kb="NULL::bigint",
    as_text={
        "publisher_id": _USERNAME.format(column="publisher_id"),
        "published_id": "(SELECT v.number FROM kb_assistantversion v WHERE v.id = r.published_id)",
    },
    secret=("password",),
)  # fmt: skip
SHARE_LINK = Audited(
    kind="share_link",
    columns=("name", "expires_at", "revoked_at"),
    name="coalesce((SELECT a.name FROM kb_assistant a WHERE a.id = r.assistant_id), '') || ' ' || r.name",
    kb="NULL::bigint",
)
SIGN_IN_PROVIDER = Audited(
    kind="sign_in_provider",
    columns=(
        "issuer", "client_id", "name", "scopes", "groups_claim", "allowed_groups", "staff_groups", "admin_groups", "links_email",
        "hours", "allows_private",
    ),
    name="r.issuer",
    kb="NULL::bigint",
    secret=("secrets",),
)  # fmt: skip
EVAL_SET = Audited(kind="eval_set", columns=("name",))
EVAL_QUERY = Audited(
    kind="eval_query",
    columns=("external_id", "text", "answerable"),
    name="r.text",
    kb="(SELECT s.knowledge_base_id FROM kb_evalset s WHERE s.id = r.eval_set_id)",
)
JUDGMENT = Audited(
    kind="judgment",
    columns=("source", "quote", "grade"),
    name="(SELECT q.text FROM kb_evalquery q WHERE q.id = r.query_id)",
    kb="(SELECT s.knowledge_base_id FROM kb_evalset s JOIN kb_evalquery q ON q.eval_set_id = s.id WHERE q.id = r.query_id)",
)

# Changes of chunks by people, which keep what was there before; what ingestion writes is not looked at.
CHUNK_AUDIT_TRIGGERS = [
    statement_trigger(
        "audit_update",
        pgtrigger.Update,
        _ONLY_PEOPLE
        + CHUNK._filled(
            _CHUNKS_UPDATED,
            changed=_CHANGED_CHUNKS,
            before=CHUNK._values("o"),
            after=CHUNK._values("r"),
            limit=str(MAX_CHUNK_ENTRIES),
        ),
    ),
    statement_trigger(
        "audit_delete",
        pgtrigger.Delete,
        _ONLY_PEOPLE + CHUNK._added("delete", "old_rows", CHUNK._values("r"), _EMPTY, MAX_CHUNK_ENTRIES),
    ),
]
# Which knowledge bases an API key opens; a key is known by its prefix, its id holds the hash of its secret.
KEY_BINDING_TRIGGERS = [
    statement_trigger("audit_insert", pgtrigger.Insert, _BOUND.format(action="bind", rows="new_rows")),
    statement_trigger("audit_delete", pgtrigger.Delete, _BOUND.format(action="unbind", rows="old_rows")),
]
# Which knowledge bases an assistant answers from.
ASSISTANT_BASE_TRIGGERS = [
    statement_trigger("audit_insert", pgtrigger.Insert, _ASSISTANT_BOUND.format(action="bind", rows="new_rows")),
    statement_trigger("audit_delete", pgtrigger.Delete, _ASSISTANT_BOUND.format(action="unbind", rows="old_rows")),
]
# Who is in which group.
USER_GROUP_TRIGGERS = [
    statement_trigger(
        "audit_insert", pgtrigger.Insert, _GROUPED.format(action="bind", rows="new_rows", before="NULL", after="g.name")
    ),
    statement_trigger(
        "audit_delete",
        pgtrigger.Delete,
        _GROUPED.format(action="unbind", rows="old_rows", before="g.name", after="NULL"),
    ),
]
