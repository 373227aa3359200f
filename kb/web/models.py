import uuid
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone

from kb.base.models import InternalRow


class IdempotencyKey(InternalRow):
    """A request that its caller may send again without it being done twice, and the answer that it had, as it was sent.

    Attributes:
        credential: the prefix of the API key that it came with; blank: a session.
        fingerprint: of the request; another one may not come with the same key.
        claim: of the process that works on it since `claimed_at`, or has; after a while it is dead.
        status: of the answer; None: there is none yet.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    credential = models.CharField(max_length=16, blank=True)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    claim = models.UUIDField(default=uuid.uuid4)
    claimed_at = models.DateTimeField(default=timezone.now)
    status = models.PositiveSmallIntegerField(null=True)
    body = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "credential", "key"], name="idempotency_key_once")
        ]
