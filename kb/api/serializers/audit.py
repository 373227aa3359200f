from rest_framework import serializers

from kb.models import AuditEntry


class AuditEntrySerializer(serializers.ModelSerializer[AuditEntry]):
    # No enumerations: other fields are named so in other schemas, and two of one name would need names of their own.
    how = serializers.CharField(help_text=f"One of: {', '.join(AuditEntry.How.values)}.")
    action = serializers.CharField(help_text=f"One of: {', '.join(AuditEntry.Action.values)}.")
    user_id = serializers.IntegerField(allow_null=True, help_text="null: not known.")
    knowledge_base_id = serializers.IntegerField(allow_null=True, help_text="It may be gone.")
    changes = serializers.DictField(
        child=serializers.ListField(), help_text="By field: before and after. Two nulls: changed, and not kept."
    )

    class Meta:
        model = AuditEntry
        fields = (
            "id",
            "at",
            "user_id",
            "username",
            "api_key",
            "how",
            "via",
            "address",
            "request_id",
            "knowledge_base_id",
            "knowledge_base_name",
            "action",
            "object_type",
            "object_id",
            "object_name",
            "amount",
            "changes",
        )
        read_only_fields = fields
