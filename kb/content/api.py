from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import Invitation, KnowledgeBase, Membership
from kb.access.services.groups import (
    LONGEST_NAME,
    group_add,
    group_change,
    group_remove,
    member_group_of,
    member_groups_of,
)
from kb.access.services.sharing import (
    check_owner,
    invitation_accept,
    invitation_decline,
    member_add,
    member_change,
    member_leave,
    member_of,
    member_remove,
    members_of,
    offer_withdraw,
    ownership_transfer,
)
from kb.web.api.fields import StrictCharField, StrictSerializer, answers
from kb.web.api.views import ApiViewSet, ListFilters, one


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


class MemberGroupSerializer(serializers.Serializer[Any]):
    group_id = serializers.IntegerField()
    name = serializers.CharField(help_text="As the provider has it.")
    role = serializers.ChoiceField(Membership.Role.choices)
    user_count = serializers.IntegerField(help_text="How many users were in it at their last sign-in.")


class MemberGroupAddSerializer(StrictSerializer):
    name = StrictCharField(max_length=LONGEST_NAME, help_text="As the provider has it; nobody need have signed in yet.")
    role = serializers.ChoiceField(Membership.Role.choices, default=Membership.Role.VIEWER)


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


class OwnersViewSet(ApiViewSet):
    """For owners: who else may see a knowledge base is no matter of its readers."""

    pagination_class = None

    def _owned(self, kb_id: int) -> KnowledgeBase:
        kb: KnowledgeBase = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        check_owner(kb, KnowledgeBase.objects.managed_by(self.principal))
        return kb


@extend_schema_view(
    list=extend_schema(
        operation_id="members_list",
        summary="List who may use a knowledge base",
        description="For its owners only. All of them, not in pages, and those who are invited with `is_pending`.",
        responses=answers({200: MemberSerializer(many=True)}, 403, 404),
    ),
    create=extend_schema(
        operation_id="members_add",
        summary="Invite a user to a knowledge base",
        description="For its owners only. The user is a member once they accept (`invitations/`); one whom a superuser adds is "
        "one at once. A user name that nobody has and one of an inactive account get the same answer. A user has at most 20 "
        "open invitations, and who has declined one is not invited again within 30 days.",
        request=MemberAddSerializer,
        responses=answers({201: MemberSerializer}, 400, 403, 404, 409, 413, 415),
        examples=[OpenApiExample("A reader", value={"username": "ann", "role": "viewer"}, request_only=True)],
    ),
    retrieve=extend_schema(
        operation_id="members_retrieve",
        summary="Read a member of a knowledge base",
        responses=answers({200: MemberSerializer}, 403, 404),
    ),
    partial_update=extend_schema(
        operation_id="members_change",
        summary="Give a member another role",
        request=MemberChangeSerializer,
        responses=answers({200: MemberSerializer}, 400, 403, 404, 409, 413, 415),
    ),
    destroy=extend_schema(
        operation_id="members_remove",
        summary="Remove a member from a knowledge base, or withdraw an invitation",
        description="An owner cannot be removed where no other one with an active account is left.",
        responses=answers({204: None}, 403, 404, 409),
    ),
)
class MemberViewSet(OwnersViewSet):
    """Users."""

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(MemberSerializer(members_of(self._owned(kb_id)), many=True).data)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        member = member_add(kb=self._owned(kb_id), by=self.principal, **self.checked(MemberAddSerializer))
        return Response(MemberSerializer(member).data, status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, kb_id: int, user_id: int) -> Response:  # noqa: ARG002
        return Response(MemberSerializer(member_of(self._owned(kb_id), user_id)).data)

    def partial_update(self, request: Request, kb_id: int, user_id: int) -> Response:  # noqa: ARG002
        kb = self._owned(kb_id)
        member_of(kb, user_id)
        member = member_change(kb=kb, by=self.principal, user_id=user_id, **self.checked(MemberChangeSerializer))
        return Response(MemberSerializer(member).data)

    def destroy(self, request: Request, kb_id: int, user_id: int) -> Response:  # noqa: ARG002
        member_remove(kb=self._owned(kb_id), by=self.principal, user_id=user_id)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        operation_id="owner_change",
        summary="Offer a knowledge base to another user",
        description="It is theirs once they accept (`invitations/`), with 202; at once, with 200, where a superuser hands it "
        "over or an owner takes it. Who had it stays as a member with the role owner. An offer replaces the one before it.",
        request=OwnerSerializer,
        responses=answers({200: MemberSerializer, 202: MemberSerializer}, 400, 403, 404, 409, 413, 415),
    )
    def transfer(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        member = ownership_transfer(kb=self._owned(kb_id), by=self.principal, **self.checked(OwnerSerializer))
        code = status.HTTP_202_ACCEPTED if member.is_offered else status.HTTP_200_OK
        return Response(MemberSerializer(member).data, status=code)

    @extend_schema(
        operation_id="owner_change_withdraw",
        summary="Withdraw the offer of a knowledge base",
        responses=answers({204: None}, 403, 404),
    )
    def withdraw(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        offer_withdraw(kb=self._owned(kb_id), by=self.principal)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        operation_id="members_leave",
        summary="Leave a knowledge base",
        description="For its members. Whom it belongs to, and the last owner with an active account, cannot leave: hand it "
        "over, or make another member an owner first.",
        request=None,
        responses=answers({204: None}, 403, 404, 409),
    )
    def leave(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        member_leave(kb=one(KnowledgeBase.objects.visible_to(self.principal), kb_id), principal=self.principal)
        return Response(status=status.HTTP_204_NO_CONTENT)


@extend_schema_view(
    list=extend_schema(
        operation_id="member_groups_list",
        summary="List the groups that may use a knowledge base",
        description="For its owners only. Groups are those of the provider that people sign in with (OpenID Connect); who is in one "
        "has its role besides one of their own, and the higher of the two.",
        responses=answers({200: MemberGroupSerializer(many=True)}, 403, 404),
    ),
    create=extend_schema(
        operation_id="member_groups_add",
        summary="Give a group a role in a knowledge base",
        description="For superusers only, since nobody in the group is asked.",
        request=MemberGroupAddSerializer,
        responses=answers({201: MemberGroupSerializer}, 400, 403, 404, 409, 413, 415),
        examples=[OpenApiExample("Readers", value={"name": "engineering", "role": "viewer"}, request_only=True)],
    ),
    retrieve=extend_schema(
        operation_id="member_groups_retrieve",
        summary="Read the role of a group",
        responses=answers({200: MemberGroupSerializer}, 403, 404),
    ),
    partial_update=extend_schema(
        operation_id="member_groups_change",
        summary="Give a group another role",
        description="A higher one for superusers only.",
        request=MemberChangeSerializer,
        responses=answers({200: MemberGroupSerializer}, 400, 403, 404, 409, 413, 415),
    ),
    destroy=extend_schema(
        operation_id="member_groups_remove",
        summary="Take the role of a group away",
        responses=answers({204: None}, 403, 404, 409),
    ),
)
class MemberGroupViewSet(OwnersViewSet):
    """Groups."""

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(MemberGroupSerializer(member_groups_of(self._owned(kb_id)), many=True).data)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        group = group_add(kb=self._owned(kb_id), by=self.principal, **self.checked(MemberGroupAddSerializer))
        return Response(MemberGroupSerializer(group).data, status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, kb_id: int, group_id: int) -> Response:  # noqa: ARG002
        return Response(MemberGroupSerializer(member_group_of(self._owned(kb_id), group_id)).data)

    def partial_update(self, request: Request, kb_id: int, group_id: int) -> Response:  # noqa: ARG002
        kb = self._owned(kb_id)
        member_group_of(kb, group_id)
        group = group_change(kb=kb, by=self.principal, group_id=group_id, **self.checked(MemberChangeSerializer))
        return Response(MemberGroupSerializer(group).data)

    def destroy(self, request: Request, kb_id: int, group_id: int) -> Response:  # noqa: ARG002
        group_remove(kb=self._owned(kb_id), by=self.principal, group_id=group_id)
        return Response(status=status.HTTP_204_NO_CONTENT)


class InvitationFilters(ListFilters):
    orders: ClassVar = ("-created_at", "created_at", "id", "-id")


@extend_schema_view(
    list=extend_schema(
        operation_id="invitations_list",
        summary="List the invitations to you",
        description="Knowledge bases that others share with you, or hand over to you, and that you have not answered yet. They "
        "open nothing before you accept. A key that is bound to knowledge bases sees none.",
        parameters=InvitationFilters.parameters(),
        responses=answers({200: InvitationSerializer(many=True)}, 400, 404),
    ),
)
class InvitationViewSet(ApiViewSet):
    """Of the caller's own; an invitation to somebody else does not exist."""

    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        rows = Invitation.objects.visible_to(self.principal).select_related("knowledge_base", "invited_by")
        return self.page(rows, InvitationSerializer, InvitationFilters)

    @extend_schema(
        operation_id="invitations_accept",
        summary="Accept an invitation",
        description="The knowledge base is then among yours, also for programs that search in all that you have.",
        request=None,
        responses=answers({200: JoinedSerializer}, 400, 403, 404),
    )
    def accept(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(JoinedSerializer(invitation_accept(principal=self.principal, invitation_id=pk)).data)

    @extend_schema(
        operation_id="invitations_decline",
        summary="Decline an invitation",
        description="Who made it cannot invite you again within 30 days, and nobody can to the same knowledge base.",
        request=None,
        responses=answers({204: None}, 403, 404),
    )
    def decline(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        invitation_decline(principal=self.principal, invitation_id=pk)
        return Response(status=status.HTTP_204_NO_CONTENT)
