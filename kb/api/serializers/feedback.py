from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field

from kb.api.fields import StrictIntegerField, StrictSerializer
from kb.models import SearchLog


@extend_schema_field({"anyOf": [*({"const": each} for each in SearchLog.Feedback.values), {"type": "null"}]})
class FeedbackField(StrictIntegerField):
    default_error_messages = {
        "unknown": _("Say 1 where it was helpful, -1 where it was not, or null to take that back.")
    }

    def to_internal_value(self, data: Any) -> int:
        value = super().to_internal_value(data)
        if value not in SearchLog.Feedback.values:
            self.fail("unknown")
        return value


class FeedbackSerializer(StrictSerializer):
    value = FeedbackField(
        allow_null=True, help_text="1: helpful; -1: not helpful; null takes back what was said before."
    )
