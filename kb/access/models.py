"""Who may see what: every read goes through `visible_to(principal)`, every write through `editable_by(principal)`."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Self, cast

from django.conf import settings
from django.contrib.auth.models import AbstractUser, AnonymousUser, Group
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import EmptyResultSet, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Case, Exists, F, Model, OuterRef, Q, Value, When
from django.db.models.functions import Now
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext_lazy as _, pgettext_lazy
from rest_framework_api_key.crypto import KeyGenerator
from rest_framework_api_key.models import AbstractAPIKey, APIKeyManager

from kb.base.db.audit_triggers import (
    API_KEY,
    GROUP_MEMBERSHIP,
    INVITATION,
    KEY_BINDING_TRIGGERS,
    KNOWLEDGE_BASE,
    MEMBERSHIP,
    USER,
    USER_GROUP_TRIGGERS,
)
from kb.base.db.transactions import columns_of, fetch_all, rows_of
from kb.base.db.triggers import KNOWLEDGE_BASE_TRIGGERS


class User(AbstractUser):
    # Where the admin goes on. A plain number to the database: a knowledge base is deleted without a look at it.
    last_knowledge_base = models.ForeignKey(
        "kb.KnowledgeBase",
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
    )
    # The ids of those that the user was in before it and in it, the newest first; some may have been deleted since.
    recent_knowledge_bases = ArrayField(
        models.BigIntegerField(), default=list, db_default=[], blank=True, editable=False
    )

    class Meta(AbstractUser.Meta):
        verbose_name = _("user")  # type: ignore[assignment]
        verbose_name_plural = _("users")  # type: ignore[assignment]
        triggers: ClassVar = USER.triggers()


class UserGroup(User.groups.through):  # type: ignore[misc, name-defined]
    """Who is in which group, as far as the audit log is concerned."""

    class Meta:
        proxy = True
        triggers: ClassVar = USER_GROUP_TRIGGERS


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: a user, narrowed by the scope of the API key in use; `kb_ids` None: all that the user may see."""

    user: User | AnonymousUser
    kb_ids: frozenset[int] | None = None
    can_write: bool = True


class ScopedQuerySet(models.QuerySet[Any]):
    """Rows that belong to a knowledge base; `kb_path` is the lookup that leads to it ("" for the base itself)."""

    kb_path: ClassVar[str] = "knowledge_base"

    @classmethod
    def through(cls, kb_path: str) -> type["ScopedQuerySet"]:
        """The same query set for a model whose knowledge base is reached by another lookup."""
        return type(cls.__name__, (cls,), {"kb_path": kb_path})

    def visible_to(self, principal: Principal) -> Self:
        """Rows of the knowledge bases that the principal owns or is a member of, also by a group; a superuser sees all."""
        return self._granted(principal, roles=None)

    def joined_by(self, principal: Principal) -> Self:
        """Visible rows of the knowledge bases that the principal chose to have: as owner, as member, or in the key's scope.

        That a superuser sees all others too does not put their texts before the superuser's agents.
        """
        if principal.kb_ids is not None or isinstance(principal.user, AnonymousUser):
            return self.visible_to(principal)
        return self.visible_to(principal).filter(**{f"{self.kb_path or 'pk'}__in": _joined(principal.user, roles=None)})

    def editable_by(self, principal: Principal) -> Self:
        """Rows that the principal may change: as owner, or as a member with the role editor or owner."""
        return self._granted(principal, roles=("editor", "owner"), to_write=True)

    def curated_by(self, principal: Principal) -> Self:
        """Rows of the knowledge bases that the principal edits, to look at: a key with the scope read suffices."""
        return self._granted(principal, roles=("editor", "owner"))

    def owned_by(self, principal: Principal) -> Self:
        """Rows of the knowledge bases that the principal owns, and so may share or delete."""
        return self._granted(principal, roles=("owner",), to_write=True)

    def managed_by(self, principal: Principal) -> Self:
        """Rows of the knowledge bases that the principal owns, to look at: a key with the scope read suffices."""
        return self._granted(principal, roles=("owner",))

    def _granted(self, principal: Principal, roles: tuple[str, ...] | None, *, to_write: bool = False) -> Self:
        user = principal.user
        if not user.is_active or isinstance(user, AnonymousUser) or (to_write and not principal.can_write):
            return self.none()
        rows = self
        if principal.kb_ids is not None:
            rows = rows.filter(**{f"{self.kb_path or 'pk'}__in": principal.kb_ids})
        if user.is_superuser:
            return rows
        return rows.filter(**{f"{self.kb_path or 'pk'}__in": _joined(user, roles)})


def _joined(user: User, roles: tuple[str, ...] | None) -> models.QuerySet[Any]:
    """The ids of the knowledge bases that a user owns, or is a member of, alone or by a group, in one of the roles."""
    own, of_groups = Membership.objects.filter(user=user), GroupMembership.objects.filter(group__user=user)
    if roles is not None:
        own, of_groups = own.filter(role__in=roles), of_groups.filter(role__in=roles)
    joined = Q(pk__in=own.values("knowledge_base_id")) | Q(pk__in=of_groups.values("knowledge_base_id"))
    return KnowledgeBase.objects.filter(Q(owner=user) | joined).values("pk")


def role_of(user: User | AnonymousUser) -> Case:
    """An expression of knowledge bases that a user sees: the highest role that the user has alone or by a group.

    A superuser who is no member has that of an owner.
    """
    if isinstance(user, AnonymousUser):
        return Case(default=Value(Membership.Role.VIEWER), output_field=models.CharField())
    highest_first = reversed(Membership.Role.values)  # whom it belongs to counts for `_joined` as having each
    has = [When(pk__in=_joined(user, (each,)), then=Value(each)) for each in highest_first]
    otherwise = Membership.Role.OWNER if user.is_superuser else Membership.Role.VIEWER
    return Case(*has, default=Value(otherwise), output_field=models.CharField())


def members_by_group(kb_id: int) -> models.QuerySet[Any]:
    """The ids of the users that groups make members of a knowledge base."""
    groups = GroupMembership.objects.filter(knowledge_base=kb_id).values("group")
    return cast("models.QuerySet[Any]", UserGroup.objects.filter(group__in=groups).values("user"))


class Sha256KeyGenerator(KeyGenerator):
    """Keys of 8 + 40 random characters; only the SHA-256 is stored, which suffices for a random secret."""

    def __init__(self) -> None:
        super().__init__(prefix_length=8, secret_key_length=40)

    def hash(self, value: str) -> str:
        return hashlib.sha256(value.encode()).hexdigest()

    def verify(self, key: str, hashed_key: str) -> bool:
        return constant_time_compare(self.hash(key), hashed_key)

    def using_preferred_hasher(self, hashed_key: str) -> bool:  # noqa: ARG002 - the library's interface
        return True


_WITH_CALLER = """
SELECT {key}, {user}, ARRAY(SELECT knowledgebase_id FROM kb_apikey_knowledge_bases b WHERE b.apikey_id = k.id)
FROM kb_apikey k JOIN kb_user u ON u.id = k.user_id
WHERE k.prefix = %s AND NOT k.revoked
"""


class ApiKeyManager(APIKeyManager):
    key_generator = Sha256KeyGenerator()

    def get_with_caller(self, prefix: str) -> "ApiKey | None":
        """The usable key of a prefix with its user and `opened_ids`, the knowledge bases it is bound to: one query."""
        statement = _WITH_CALLER.format(key=columns_of(ApiKey, "k"), user=columns_of(User, "u"))
        found = fetch_all(statement, [prefix])
        if not found:
            return None
        (key, user), (opened_ids,) = rows_of((ApiKey, User), found[0])
        key.user, key.opened_ids = user, opened_ids
        return cast(ApiKey, key)


class ApiKey(AbstractAPIKey):
    class Scope(models.TextChoices):
        READ = "read", _("read")
        WRITE = "write", _("read and write")

    user = models.ForeignKey(User, models.CASCADE, related_name="api_keys", verbose_name=_("user"))
    scope = models.CharField(_("scope"), max_length=8, choices=Scope, default=Scope.READ)
    knowledge_bases = models.ManyToManyField(
        "kb.KnowledgeBase",
        blank=True,
        related_name="api_keys",
        verbose_name=_("knowledge bases"),
        help_text=_("Leave empty for every knowledge base that the user may see."),
    )
    rate_limit = models.CharField(
        _("rate limit"),
        max_length=40,
        blank=True,
        db_default="",
        help_text=_("Such as 60/minute or 5000/hour. Leave empty for the limit of this server."),
    )
    rate_limit_granted = models.BooleanField(_("rate limit granted by an operator"), db_default=False, editable=False)
    bound = models.BooleanField(_("bound to knowledge bases"), default=False, editable=False)
    made_with = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, editable=False, related_name="made", verbose_name=_("made with")
    )
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    objects: ClassVar[ApiKeyManager] = ApiKeyManager()

    class Meta(AbstractAPIKey.Meta):
        abstract = False
        verbose_name = _("API key")  # type: ignore[assignment]
        verbose_name_plural = _("API keys")  # type: ignore[assignment]
        triggers: ClassVar = API_KEY.triggers()

    def principal(self) -> Principal:
        """The caller. A bound key stays so when the last of its knowledge bases is deleted; it then opens nothing."""
        kb_ids: frozenset[int] | None = None
        if self.bound:
            opened = getattr(self, "opened_ids", None)
            kb_ids = frozenset(self.knowledge_bases.values_list("pk", flat=True) if opened is None else opened)
        return Principal(user=self.user, kb_ids=kb_ids, can_write=self.scope == self.Scope.WRITE)


class ApiKeyKnowledgeBase(ApiKey.knowledge_bases.through):  # type: ignore[misc, name-defined]
    """What keys are bound to, as far as the audit log is concerned."""

    class Meta:
        proxy = True
        triggers: ClassVar = KEY_BINDING_TRIGGERS


def notes_only() -> list[str]:
    return ["notes"]


class KnowledgeBase(models.Model):
    class Language(models.TextChoices):
        CHINESE = "zh", _("Chinese")
        ENGLISH = "en", _("English")

    class ChunkUnit(models.TextChoices):
        CHARACTERS = "characters", _("characters")
        TOKENS = "tokens", _("tokens")

    class ChunkStrategy(models.TextChoices):
        RECURSIVE = "recursive", _("by paragraphs and sentences")
        HEADINGS = "headings", _("by headings, with their path as context")
        QUESTIONS = "questions", _("questions and answers")
        PARENT_CHILD = "parent_child", _("small to search, large to return")
        TOKENS = "tokens", _("fixed numbers of the model’s tokens")

    class WordPart(models.TextChoices):
        """What is read of Word documents beside their body."""

        NOTES = "notes", _("footnotes and endnotes")
        COMMENTS = "comments", _("comments")
        MARGINS = "margins", _("headers and footers")

    class Store(models.TextChoices):
        """What searches its vectors, and with Milvus its keywords; PostgreSQL holds everything in any case."""

        POSTGRES = "postgres", "PostgreSQL"
        MILVUS = "milvus", "Milvus"
        CHROMA = "chroma", "ChromaDB"

    class Parser(models.TextChoices):
        """What reads its files; of those elsewhere, formats that they do not read are read here."""

        BUILT_IN = "", _("built-in reader")
        DOCLING = "docling", "Docling Serve"

    class KeywordMethod(models.TextChoices):
        TFIDF = "tfidf", _("TF-IDF")
        TEXTRANK = "textrank", _("TextRank, by part of speech")
        LLM = "llm", _("a chat model")

    name = models.CharField(_("name"), max_length=120)
    description = models.TextField(_("description"), blank=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, related_name="knowledge_bases", verbose_name=_("owner")
    )
    language = models.CharField(_("language"), max_length=2, choices=Language, default=Language.CHINESE)
    embedding_model = models.CharField(_("embedding model"), max_length=255)
    target_embedding_model = models.CharField(max_length=255, blank=True, editable=False)
    previous_embedding_model = models.CharField(max_length=255, blank=True, editable=False)
    dimension = models.PositiveIntegerField(_("dimension"), null=True, editable=False)
    store = models.CharField(
        _("store"), max_length=10, choices=Store, default=Store.POSTGRES, db_default="postgres", editable=False
    )
    target_store = models.CharField(max_length=10, choices=Store, blank=True, default="", db_default="", editable=False)
    tokenizer_id = models.CharField(_("tokenizer"), max_length=120, blank=True, editable=False)
    target_tokenizer_id = models.CharField(max_length=120, blank=True, editable=False)
    tokenizing_at = models.DateTimeField(null=True, editable=False)
    tokenizer_swapped_at = models.DateTimeField(null=True, editable=False)
    lacks_postings = models.BooleanField(default=False, editable=False)
    chunk_size = models.PositiveIntegerField(
        _("chunk size"), default=500, validators=[MinValueValidator(20), MaxValueValidator(8_000)]
    )
    chunk_overlap = models.PositiveIntegerField(_("chunk overlap"), default=50, validators=[MaxValueValidator(4_000)])
    chunk_unit = models.CharField(_("chunk unit"), max_length=12, choices=ChunkUnit, default=ChunkUnit.CHARACTERS)
    chunk_strategy = models.CharField(
        _("chunking"), max_length=12, choices=ChunkStrategy, default=ChunkStrategy.RECURSIVE
    )
    parent_size = models.PositiveIntegerField(
        _("parent chunk size"),
        default=2_000,
        validators=[MinValueValidator(100), MaxValueValidator(32_000)],
        help_text=_("Only where small chunks are searched and large ones returned; in the chunk unit."),
    )
    word_parts = ArrayField(
        models.CharField(max_length=10, choices=WordPart),
        verbose_name=_("read in Word documents"),
        default=notes_only,
        db_default=["notes"],
        blank=True,
        help_text=_("Beside their body. Notes follow the paragraph that refers to them, comments too."),
    )
    parser = models.CharField(
        _("files read by"),
        max_length=20,
        choices=Parser,
        blank=True,
        default=Parser.BUILT_IN,
        db_default="",
        help_text=_("Where it fails, the built-in reader reads the document, and a remark says so."),
    )
    profile = models.ForeignKey(
        "kb.RetrievalProfile",
        models.RESTRICT,  # its own profiles go with it
        related_name="knowledge_bases",
        verbose_name=_("retrieval profile"),
    )
    keyword_vectors = models.BooleanField(
        _("keyword vectors"), default=False, help_text=_("Extract keywords and embed them beside the content.")
    )
    keyword_method = models.CharField(
        _("keywords by"), max_length=8, choices=KeywordMethod, default=KeywordMethod.TFIDF
    )
    ask_questions = models.BooleanField(
        _("questions by a chat model"),
        default=False,
        help_text=_("Let the chat model write questions that a chunk answers, and embed them."),
    )
    extract_graph = models.BooleanField(
        _("graph by a chat model"),
        default=False,
        help_text=_("Let the chat model find entities, relations and concepts in every document."),
    )
    no_answer = models.CharField(
        _("answer when nothing is found"),
        max_length=500,
        blank=True,
        help_text=_("Blank: a sentence in the knowledge base’s language."),
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects = ScopedQuerySet.through("").as_manager()

    class Meta:
        verbose_name = _("knowledge base")
        verbose_name_plural = _("knowledge bases")
        ordering = ("name", "pk")
        constraints: ClassVar = [models.UniqueConstraint(fields=["owner", "name"], name="kb_name_per_owner")]
        triggers: ClassVar = [*KNOWLEDGE_BASE_TRIGGERS, *KNOWLEDGE_BASE.triggers()]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if self.chunk_size is not None and self.chunk_overlap is not None and self.chunk_overlap >= self.chunk_size:
            raise ValidationError({"chunk_overlap": _("The overlap must be smaller than the chunk size.")})
        has_parents = self.chunk_strategy == self.ChunkStrategy.PARENT_CHILD
        if has_parents and None not in (self.chunk_size, self.parent_size) and self.parent_size <= self.chunk_size:
            raise ValidationError({"parent_size": _("The parent chunk must be larger than the chunk size.")})


class Membership(models.Model):
    class Role(models.TextChoices):
        VIEWER = "viewer", _("viewer")
        EDITOR = "editor", _("editor")
        OWNER = "owner", _("owner")

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships", verbose_name=_("user")
    )
    role = models.CharField(_("role"), max_length=8, choices=Role, default=Role.VIEWER)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints: ClassVar = [models.UniqueConstraint(fields=["knowledge_base", "user"], name="membership_once")]
        triggers: ClassVar = MEMBERSHIP.triggers()

    def __str__(self) -> str:
        return f"{self.user} · {self.get_role_display()}"


GROUP_PREFIX: Final = "oidc:"
"""Of the names of groups that the claims of a provider have made, so that they never mix with others."""


class GroupMembership(models.Model):
    """A role in a knowledge base for all who are in a group."""

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="group_memberships")
    group = models.ForeignKey(Group, models.CASCADE, related_name="knowledge_bases", verbose_name=_("group"))
    role = models.CharField(_("role"), max_length=8, choices=Membership.Role, default=Membership.Role.VIEWER)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("membership of a group")
        verbose_name_plural = _("memberships of groups")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "group"], name="group_membership_once")
        ]
        triggers: ClassVar = GROUP_MEMBERSHIP.triggers()

    def __str__(self) -> str:
        return f"{self.group} · {self.get_role_display()}"


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def open(self) -> Self:
        """Those that can be accepted: not declined, and made by one who owns the knowledge base still."""
        of_it = {"knowledge_base": OuterRef("knowledge_base"), "role": Membership.Role.OWNER}
        owns = Membership.objects.filter(user=OuterRef("invited_by"), **of_it)
        owns_by_group = GroupMembership.objects.filter(group__user=OuterRef("invited_by"), **of_it)
        return self.filter(
            Q(knowledge_base__owner=F("invited_by")) | Q(Exists(owns)) | Q(Exists(owns_by_group)),
            knowledge_base__isnull=False,
            invited_by__is_active=True,
            declined_at=None,
        )

    def visible_to(self, principal: Principal) -> Self:
        """The principal's own open ones; a key that is bound to knowledge bases has none, as it opens no others."""
        user = principal.user
        if not user.is_active or isinstance(user, AnonymousUser) or principal.kb_ids is not None:
            return self.none()
        return self.open().filter(user=user)


class Invitation(models.Model):
    """A membership, or (`transfers`) the ownership, that a user has not accepted yet: it opens nothing.

    It is never changed but declined, so that a user accepts what it said when it was read. A declined one outlives its
    knowledge base (None then), see `kb.access.services.sharing`.
    """

    knowledge_base = models.ForeignKey(KnowledgeBase, models.SET_NULL, null=True, related_name="invitations")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="invitations", verbose_name=_("user")
    )
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", verbose_name=_("invited by")
    )
    role = models.CharField(_("role"), max_length=8, choices=Membership.Role)
    transfers = models.BooleanField(_("hands over"), default=False)
    declined_at = models.DateTimeField(_("declined"), null=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = InvitationQuerySet.as_manager()

    class Meta:
        verbose_name = _("invitation")
        verbose_name_plural = _("invitations")
        ordering = ("-created_at", "-pk")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["knowledge_base", "user"], condition=Q(declined_at=None), name="invitation_once"
            )
        ]
        triggers: ClassVar = INVITATION.triggers()

    def __str__(self) -> str:
        return f"{self.knowledge_base} · {self.user}"


class AuditQuerySet(ScopedQuerySet):
    def visible_to(self, principal: Principal) -> Self:
        """Entries of the knowledge bases that the principal owns, and what a user has done beside any that is left.

        A key that is bound to knowledge bases shows entries of these only.
        """
        user = principal.user
        of_owned = self.managed_by(principal)
        if isinstance(user, AnonymousUser) or user.is_superuser or principal.kb_ids is not None:
            return of_owned
        if not user.is_active:
            return self.none()
        is_left = Exists(KnowledgeBase.objects.filter(pk=OuterRef("knowledge_base_id")))
        owned = KnowledgeBase.objects.managed_by(principal).values("pk")
        return self.filter(Q(knowledge_base__in=owned) | Q(~is_left, user=user.pk))


class AuditEntry(models.Model):
    """One change. It refers to nothing by a constraint: names are stored, so that it outlives what it tells of.

    Attributes:
        object_id: of the row; of an API key its prefix; blank where one statement changed many rows.
        amount: how many rows the entry stands for.
        changes: before and after, by field; two nulls: changed, and not stored, as of a password.
        via: the route of the API or the admin, without ids, or the name of the command.
    """

    class How(models.TextChoices):
        API = "api", _("API")
        ADMIN = "admin", _("admin")
        COMMAND = "command", _("command line")
        TASK = "task", _("background task")
        OTHER = "other", _("another program")

    class Action(models.TextChoices):
        CREATE = "create", pgettext_lazy("audit log", "created")
        UPDATE = "update", pgettext_lazy("audit log", "changed")
        DELETE = "delete", pgettext_lazy("audit log", "deleted")
        BIND = "bind", pgettext_lazy("audit log", "bound")
        UNBIND = "unbind", pgettext_lazy("audit log", "unbound")

    at = models.DateTimeField(_("time"), db_default=Now(), db_index=True)
    how = models.CharField(_("by way of"), max_length=8, choices=How)
    via = models.CharField(_("operation"), max_length=200, blank=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="+",
        verbose_name=_("user"),
    )
    username = models.CharField(_("user"), max_length=150, blank=True)
    api_key = models.CharField(_("API key"), max_length=8, blank=True)
    address = models.CharField(_("address"), max_length=45, blank=True)
    request_id = models.CharField(_("request"), max_length=64, blank=True)
    knowledge_base = models.ForeignKey(
        KnowledgeBase,
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="+",
        verbose_name=_("knowledge base"),
    )
    knowledge_base_name = models.CharField(_("knowledge base"), max_length=120, blank=True)
    action = models.CharField(_("action"), max_length=8, choices=Action)
    object_type = models.CharField(_("kind"), max_length=40)
    object_id = models.CharField(_("id"), max_length=40, blank=True)
    object_name = models.CharField(_("name"), max_length=300, blank=True)
    amount = models.PositiveIntegerField(_("rows"), default=1)
    changes = models.JSONField(_("changes"), default=dict)

    objects = AuditQuerySet.as_manager()

    class Meta:
        verbose_name = _("entry of the audit log")
        verbose_name_plural = _("audit log")
        ordering = ("-pk",)
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["knowledge_base", "-id"], name="audit_by_kb"),
            models.Index(fields=["user", "-id"], name="audit_by_user"),
            models.Index(fields=["object_type", "object_id", "-id"], name="audit_by_object"),
        ]

    def __str__(self) -> str:
        return f"{self.get_action_display()}: {self.object_name or self.amount}"


MODELS = {
    "knowledge_base": "KnowledgeBase",
    "membership": "Membership",
    "group_membership": "GroupMembership",
    "invitation": "Invitation",
    "folder": "Folder",
    "document": "Document",
    "chunk": "Chunk",
    "api_key": "ApiKey",
    "user": "User",
    "retrieval_profile": "RetrievalProfile",
    "concept": "Concept",
    "concept_term": "ConceptTerm",
    "entity": "Entity",
    "fact": "GraphFact",
    "source": "Source",
    "external_source": "SearchProvider",
    "provider_model": "ProviderModel",
    "assistant": "Assistant",
    "share_link": "ShareLink",
    "sign_in_provider": "SignInProvider",
    "eval_set": "EvalSet",
    "eval_query": "EvalQuery",
    "judgment": "Judgment",
}


def kind_of(row: Model) -> str:
    """What the log calls objects of a model; blank: it has none of them."""
    return next((kind for kind, name in MODELS.items() if name == type(row).__name__), "")


Statement = tuple[str, tuple[Any, ...]]


def visible_knowledge_bases(principal: Principal) -> Statement | None:
    """A SELECT of the ids of the knowledge bases that `visible_to` grants, and its values; None where it grants none."""
    user = principal.user
    return _statement(user.pk, user.is_active, user.is_superuser, principal.kb_ids)


@lru_cache(maxsize=1_024)
def _statement(
    user_id: int | None,
    is_active: bool,  # noqa: FBT001 - a key
    is_superuser: bool,  # noqa: FBT001
    kb_ids: frozenset[int] | None,
) -> Statement | None:
    """Making the SELECT takes a millisecond; it depends on these alone, and looks memberships up when it is run."""
    user = User(pk=user_id, is_active=is_active, is_superuser=is_superuser) if user_id else AnonymousUser()
    rows = KnowledgeBase.objects.visible_to(Principal(user=user, kb_ids=kb_ids)).order_by().values("pk")
    try:
        sql, values = rows.query.sql_with_params()
    except EmptyResultSet:
        return None
    return sql, tuple(values)
