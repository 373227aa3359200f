from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.members import (
    MemberAddSerializer,
    MemberChangeSerializer,
    MemberSerializer,
    OwnerSerializer,
)
from kb.api.views.base import ApiViewSet, one
from kb.models import KnowledgeBase, Membership
from kb.services.sharing import (
    check_owner,
    member_add,
    member_change,
    member_of,
    member_remove,
    members_of,
    ownership_transfer,
)

ADDED = OpenApiExample("A reader", value={"username": "ann", "role": "viewer"}, request_only=True)


@extend_schema_view(
    list=extend_schema(
        operation_id="members_list",
        summary="List who may use a knowledge base",
        description="For its owners only. All of them, not in pages.",
        responses=answers({200: MemberSerializer(many=True)}, 403, 404),
    ),
    create=extend_schema(
        operation_id="members_add",
        summary="Share a knowledge base with a user",
        description="For its owners only. A user name that nobody has and one of an inactive account get the same answer.",
        request=MemberAddSerializer,
        responses=answers({201: MemberSerializer}, 400, 403, 404, 409, 413, 415),
        examples=[ADDED],
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
        summary="Remove a member from a knowledge base",
        description="An owner cannot be removed where no other one with an active account is left.",
        responses=answers({204: None}, 403, 404, 409),
    ),
)
class MemberViewSet(ApiViewSet):
    """For owners: who else may see a knowledge base is no matter of its readers."""

    queryset = Membership.objects.none()
    pagination_class = None

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(MemberSerializer(members_of(self._owned(kb_id)), many=True).data)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        kb = self._owned(kb_id)
        member = member_add(kb=kb, by=self.principal, **self.checked(MemberAddSerializer))
        return Response(MemberSerializer(member).data, status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, kb_id: int, user_id: int) -> Response:  # noqa: ARG002
        return Response(MemberSerializer(member_of(self._owned(kb_id), user_id)).data)

    def partial_update(self, request: Request, kb_id: int, user_id: int) -> Response:  # noqa: ARG002
        kb = self._owned(kb_id)
        member_of(kb, user_id)
        role = self.checked(MemberChangeSerializer)["role"]
        member = member_change(kb=kb, by=self.principal, user_id=user_id, role=role)
        return Response(MemberSerializer(member).data)

    def destroy(self, request: Request, kb_id: int, user_id: int) -> Response:  # noqa: ARG002
        member_remove(kb=self._owned(kb_id), by=self.principal, user_id=user_id)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        operation_id="owner_change",
        summary="Hand a knowledge base over to another user",
        description="Who had it stays as a member with the role owner.",
        request=OwnerSerializer,
        responses=answers({200: MemberSerializer}, 400, 403, 404, 409, 413, 415),
    )
    def transfer(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        kb = self._owned(kb_id)
        username = self.checked(OwnerSerializer)["username"]
        member = ownership_transfer(kb=kb, by=self.principal, username=username)
        return Response(MemberSerializer(member).data)

    def _owned(self, kb_id: int) -> KnowledgeBase:
        kb: KnowledgeBase = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        check_owner(kb, KnowledgeBase.objects.managed_by(self.principal))
        return kb
