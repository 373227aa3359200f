from typing import Any

from rest_framework import serializers

from kb.api.fields import StrictCharField, StrictSerializer
from kb.models import Invitation, Membership


class MemberSerializer(serializers.Serializer[Any]):
    user_id = serializers.IntegerField(source="user.pk")
    username = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(Membership.Role.choices)
    is_primary = serializers.BooleanField(
        help_text="Whether the knowledge base belongs to this user, who leaves only by handing it over."
    )
    is_pending = serializers.BooleanField(
        help_text="Whether the user was invited and has not accepted yet: the knowledge base does not exist for them."
    )
    is_offered = serializers.BooleanField(
        help_text="Whether the knowledge base was offered to this user, to whom it belongs once they accept."
    )


class MemberAddSerializer(StrictSerializer):
    username = StrictCharField(max_length=150, help_text="The exact user name.")
    role = serializers.ChoiceField(Membership.Role.choices, default=Membership.Role.VIEWER)


class MemberChangeSerializer(StrictSerializer):
    role = serializers.ChoiceField(Membership.Role.choices)


class OwnerSerializer(StrictSerializer):
    username = StrictCharField(max_length=150, help_text="The exact user name of who is to have the knowledge base.")


class InvitationSerializer(serializers.ModelSerializer[Invitation]):
    knowledge_base_name = serializers.CharField(source="knowledge_base.name", help_text="As its owner wrote it.")
    invited_by = serializers.CharField(source="invited_by.username", help_text="The name of the user who invites.")
    transfers = serializers.BooleanField(help_text="Whether the knowledge base becomes yours with all that is in it.")

    class Meta:
        model = Invitation
        fields = ("id", "knowledge_base_name", "invited_by", "role", "transfers", "created_at")


class JoinedSerializer(serializers.Serializer[Any]):
    knowledge_base_id = serializers.IntegerField(source="pk")
    knowledge_base_name = serializers.CharField(source="name")
