from rest_framework import serializers

from kb.api.fields import KnowledgeBaseIdsField, StrictCharField, StrictSerializer
from kb.models import ApiKey


class ApiKeySerializer(serializers.ModelSerializer[ApiKey]):
    scope = serializers.CharField(help_text="read or write.")
    knowledge_base_ids = serializers.SerializerMethodField(
        help_text="The only ones that it opens; null: all that its user may see."
    )
    expires_at = serializers.DateTimeField(source="expiry_date", allow_null=True, help_text="null: never.")
    rate_limit = serializers.CharField(help_text="Its own; empty: the server’s.")
    made_with = serializers.CharField(
        source="asked_for_with",
        allow_null=True,
        help_text="The prefix of the key that it was made with, and is revoked with; null: it was made in a session or by an "
        "operator, or the key that asks is bound to knowledge bases.",
    )

    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = (
            "prefix",
            "name",
            "scope",
            "knowledge_base_ids",
            "rate_limit",
            "created",
            "made_with",
            "expires_at",
            "last_used_at",
            "revoked",
        )
        read_only_fields = fields

    def get_knowledge_base_ids(self, key: ApiKey) -> list[int] | None:
        return sorted(kb.pk for kb in key.knowledge_bases.all()) if key.bound else None


class NewApiKeySerializer(ApiKeySerializer):
    """With its secret, this once."""

    key = serializers.SerializerMethodField(help_text="The secret. It is not stored and cannot be read again.")

    class Meta(ApiKeySerializer.Meta):
        fields = ("key", *ApiKeySerializer.Meta.fields)
        read_only_fields = fields

    def get_key(self, _key: ApiKey) -> str:
        secret: str = self.context["secret"]
        return secret


class ApiKeyCreateSerializer(StrictSerializer):
    name = StrictCharField(max_length=50, help_text="To tell keys apart.")
    # No enumeration: other fields are named scope in other schemas, and two of one name would need names of their own.
    scope = StrictCharField(max_length=8, required=False, help_text="read (the default) or write.")
    # An empty list would read as none at all, and mean all there are.
    knowledge_base_ids = KnowledgeBaseIdsField(
        required=False,
        allow_empty=False,
        max_length=200,
        help_text="The only ones that it opens; left out: all that you may see.",
    )
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="Left out: never, or when the key that asks does."
    )
    rate_limit = StrictCharField(
        max_length=40, required=False, allow_blank=True, help_text="Such as 60/minute; left out: the server’s."
    )
