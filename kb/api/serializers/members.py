from typing import Any

from rest_framework import serializers

from kb.api.fields import StrictCharField, StrictSerializer
from kb.models import Membership


class MemberSerializer(serializers.Serializer[Any]):
    user_id = serializers.IntegerField(source="user.pk")
    username = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(Membership.Role.choices)
    is_primary = serializers.BooleanField(
        help_text="Whether the knowledge base belongs to this user, who leaves only by handing it over."
    )


class MemberAddSerializer(StrictSerializer):
    username = StrictCharField(max_length=150, help_text="The exact user name.")
    role = serializers.ChoiceField(Membership.Role.choices, default=Membership.Role.VIEWER)


class MemberChangeSerializer(StrictSerializer):
    role = serializers.ChoiceField(Membership.Role.choices)


class OwnerSerializer(StrictSerializer):
    username = StrictCharField(max_length=150, help_text="The exact user name of who is to have the knowledge base.")
