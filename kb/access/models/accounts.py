"""Who may see what: every read goes through `visible_to(principal)`, every write through `editable_by(principal)`."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from django.apps import apps
from django.contrib.auth.models import AbstractUser, AnonymousUser
from django.contrib.postgres.expressions import ArraySubquery
from django.db import models
from django.db.models import OuterRef, Q
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext_lazy as _
from rest_framework_api_key.crypto import KeyGenerator
from rest_framework_api_key.models import AbstractAPIKey, APIKeyManager

from kb.base.db.audit_triggers import API_KEY, USER, key_binding_triggers


class User(AbstractUser):
    class Meta(AbstractUser.Meta):
        verbose_name = _("user")  # type: ignore[assignment]
        verbose_name_plural = _("users")  # type: ignore[assignment]
        triggers: ClassVar = USER.triggers()


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: a user, narrowed by the scope of the API key in use.

    Attributes:
        user: whose memberships count.
        kb_ids: the knowledge bases that an API key is bound to; None: all that the user may see.
        can_write: False for a key with the scope `read`.
    """

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
        """Rows of the knowledge bases that the principal owns or is a member of; a superuser sees all."""
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
        if not principal.can_write:
            return self.none()
        return self._granted(principal, roles=("editor", "owner"))

    def owned_by(self, principal: Principal) -> Self:
        """Rows of the knowledge bases that the principal owns, and so may share or delete."""
        if not principal.can_write:
            return self.none()
        return self._granted(principal, roles=("owner",))

    def managed_by(self, principal: Principal) -> Self:
        """Rows of the knowledge bases of whose sharing and history the principal may know, as their owner.

        A key with the scope read suffices: it is for looking. To change them takes `owned_by`.
        """
        return self._granted(principal, roles=("owner",))

    def _granted(self, principal: Principal, roles: tuple[str, ...] | None) -> Self:
        user = principal.user
        if not user.is_active or isinstance(user, AnonymousUser):
            return self.none()
        rows = self
        if principal.kb_ids is not None:
            rows = rows.filter(**{f"{self.kb_path or 'pk'}__in": principal.kb_ids})
        if user.is_superuser:
            return rows
        return rows.filter(**{f"{self.kb_path or 'pk'}__in": _joined(user, roles)})


def _joined(user: User, roles: tuple[str, ...] | None) -> models.QuerySet[Any]:
    """The ids of the knowledge bases that a user owns, or is a member of in one of the roles."""
    memberships: models.QuerySet[Any] = apps.get_model("kb", "Membership")._default_manager.filter(user=user)
    if roles is not None:
        memberships = memberships.filter(role__in=roles)
    knowledge_bases: models.QuerySet[Any] = apps.get_model("kb", "KnowledgeBase")._default_manager.all()
    granted = knowledge_bases.filter(Q(owner=user) | Q(pk__in=memberships.values("knowledge_base_id")))
    return granted.values("pk")


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


class ApiKeyManager(APIKeyManager):
    key_generator = Sha256KeyGenerator()

    def get_with_caller(self, prefix: str) -> "ApiKey | None":
        """The usable key of a prefix with its user and `opened_ids`, the knowledge bases it is bound to: one query."""
        bound = ApiKey.knowledge_bases.through._default_manager.filter(apikey_id=OuterRef("pk"))
        keys = (
            self.get_usable_keys()
            .select_related("user")
            .annotate(opened_ids=ArraySubquery(bound.values("knowledgebase_id")))
        )
        found: ApiKey | None = keys.filter(prefix=prefix).first()
        return found


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
        "self",
        models.CASCADE,
        null=True,
        blank=True,
        editable=False,
        related_name="made",
        verbose_name=_("made with"),
    )
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    objects: ClassVar[ApiKeyManager] = ApiKeyManager()

    class Meta(AbstractAPIKey.Meta):
        abstract = False
        verbose_name = _("API key")  # type: ignore[assignment]
        verbose_name_plural = _("API keys")  # type: ignore[assignment]
        triggers: ClassVar = API_KEY.triggers()

    def principal(self) -> Principal:
        """The caller that this key stands for.

        A key that was bound to knowledge bases stays bound when the last of them is deleted; it then opens nothing.
        """
        kb_ids = frozenset(self._opened_ids()) if self.bound else None
        return Principal(user=self.user, kb_ids=kb_ids, can_write=self.scope == self.Scope.WRITE)

    def _opened_ids(self) -> Iterable[int]:
        read_with_it: list[int] | None = getattr(self, "opened_ids", None)
        return self.knowledge_bases.values_list("pk", flat=True) if read_with_it is None else read_with_it


class ApiKeyKnowledgeBase(ApiKey.knowledge_bases.through):  # type: ignore[misc, name-defined]
    """What keys are bound to, as far as the audit log is concerned."""

    class Meta:
        proxy = True
        triggers: ClassVar = key_binding_triggers()
