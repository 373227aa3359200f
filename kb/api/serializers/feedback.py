from typing import Any

from rest_framework import serializers

from kb.api.fields import StrictSerializer
from kb.models import SearchLog


class StrictFeedbackField(serializers.ChoiceField):
    """1, -1 or null, as the JSON numbers that they are."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(choices=SearchLog.Feedback.values, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid_choice", input=data)
        return int(super().to_internal_value(int(data) if data == data // 1 else data))


class FeedbackSerializer(StrictSerializer):
    value = StrictFeedbackField(
        allow_null=True, help_text="1: helpful; -1: not helpful; null takes back what was said before."
    )
