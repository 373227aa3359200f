from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from kb.profiles.services import MAX_REFERENCE_CHARACTERS, MAX_VERSION
from kb.web.api.fields import StrictCharField, StrictIntegerField, StrictSerializer


class ProfiledSerializer(StrictSerializer):
    """A request that may name a profile, or one version of it."""

    profile = StrictCharField(max_length=MAX_REFERENCE_CHARACTERS, required=False, allow_blank=True)
    profile_version = StrictIntegerField(
        min_value=1,
        max_value=MAX_VERSION,
        required=False,
        allow_null=True,
        help_text="A version of that profile, such as a draft. null: its published one.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """A version is one of a profile."""
        if attrs.get("profile_version") is not None and not attrs.get("profile"):
            raise serializers.ValidationError({"profile_version": [_("Name the profile that it is a version of.")]})
        return attrs
