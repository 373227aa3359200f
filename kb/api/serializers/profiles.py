from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kb.api.fields import MAX_ID, StrictBooleanField, StrictCharField, StrictIntegerField, StrictSerializer
from kb.api.serializers.search import UsedProfileSerializer
from kb.services.profile_overview import VersionState
from kb.services.profiles import MAX_NAME_CHARACTERS, configuration_of
from retrieval.errors import InvalidConfiguration


@extend_schema_field(OpenApiTypes.OBJECT)
class SettingsField(serializers.DictField):
    """Settings by the names of the configuration; those left out are inherited from the environment."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        settings = super().to_internal_value(data)
        try:
            configuration_of(settings)
        except InvalidConfiguration as error:
            raise serializers.ValidationError({error.field[:100]: [str(error)[:1_000]]}) from error
        return settings


class ProfileCreateSerializer(StrictSerializer):
    name = StrictCharField(
        max_length=MAX_NAME_CHARACTERS,
        help_text="Of the profile, without / and @; it is made where there is none of the name.",
    )
    settings = SettingsField(
        required=False,
        help_text="By the names of the configuration; those left out are inherited from the environment.",
    )
    description = StrictCharField(
        max_length=10_000, allow_blank=True, required=False, help_text="What is different in this version."
    )
    knowledge_base_id = StrictIntegerField(
        min_value=1,
        max_value=MAX_ID,
        required=False,
        allow_null=True,
        help_text="The knowledge base whose own profile a new one becomes; null: shared, which only superusers may make. "
        "Left out: where its other versions are, if that is one place.",
    )


class PublishSerializer(StrictSerializer):
    adopt = StrictBooleanField(
        required=False,
        help_text="The knowledge base whose own profile it is searches by it from now on, whatever it has searched by.",
    )


class UsingKnowledgeBaseSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()


class ProfileOverviewSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    knowledge_base_id = serializers.IntegerField(
        allow_null=True, help_text="The knowledge base whose own profile it is; null: shared."
    )
    published_version = serializers.IntegerField(
        allow_null=True, help_text="What the name stands for; null: its newest version."
    )
    newest_version = serializers.IntegerField()
    version_count = serializers.IntegerField()
    used_by = UsingKnowledgeBaseSerializer(many=True, help_text="The caller's knowledge bases that search by it.")
    used_elsewhere = serializers.IntegerField(help_text="How many other knowledge bases do.")


class ProfileVersionSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    version = serializers.IntegerField()
    state = serializers.ChoiceField(
        [(state.value, state.value) for state in VersionState],
        help_text="`earlier`: it was published, and can be rolled back to.",
    )
    knowledge_base_id = serializers.IntegerField(allow_null=True)
    description = serializers.CharField(allow_blank=True)
    settings = serializers.DictField(help_text="Those that are not inherited from the environment.")
    created_by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    published_at = serializers.DateTimeField(allow_null=True, help_text="The last time; null: never.")


class ResolvedProfileSerializer(ProfileVersionSerializer):
    configuration = serializers.DictField(help_text="The settings of a search under it, with those that are inherited.")


class PublishedProfileSerializer(ProfileVersionSerializer):
    moved = serializers.IntegerField(help_text="How many knowledge bases search by another version than before.")


class SettingDifferenceSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class ProfileDifferenceSerializer(serializers.Serializer[Any]):
    before = UsedProfileSerializer(allow_null=True, help_text="null: the environment's defaults.")
    after = UsedProfileSerializer()
    differences = SettingDifferenceSerializer(many=True, help_text="The settings that they resolve differently.")
