import hashlib
from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext_lazy as _
from rest_framework_api_key.crypto import KeyGenerator
from rest_framework_api_key.models import AbstractAPIKey, APIKeyManager

from kb.models.access import Principal


class User(AbstractUser):
    class Meta(AbstractUser.Meta):
        verbose_name = _("user")  # type: ignore[assignment]
        verbose_name_plural = _("users")  # type: ignore[assignment]


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
    bound = models.BooleanField(_("bound to knowledge bases"), default=False, editable=False)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    objects: ClassVar[ApiKeyManager] = ApiKeyManager()

    class Meta(AbstractAPIKey.Meta):
        abstract = False
        verbose_name = _("API key")  # type: ignore[assignment]
        verbose_name_plural = _("API keys")  # type: ignore[assignment]

    def principal(self) -> Principal:
        """The caller that this key stands for.

        A key that was bound to knowledge bases stays bound when the last of them is deleted; it then opens nothing.
        """
        kb_ids = frozenset(self.knowledge_bases.values_list("pk", flat=True)) if self.bound else None
        return Principal(user=self.user, kb_ids=kb_ids, can_write=self.scope == self.Scope.WRITE)
