from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.base.errors import NotVisible, found_in
from kb.base.shapes import as_values
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import (
    MAX_NAME_CHARACTERS,
    configuration_of,
    create_version,
    delete_draft,
    find_version,
    name_and_version,
    named_at,
    place_of,
    publish,
)
from kb.quality.profiles.services import (
    ProfileDifference,
    ProfileVersion,
    PublishedProfile,
    ResolvedProfile,
    profile_difference,
    profile_overviews,
    resolved,
)
from kb.web.api.fields import (
    MAX_ID,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
    answers,
    shape,
)
from kb.web.api.views import ApiViewSet, Flag, ListFilters, Related, Text, knowledge_bases_of, one
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


class ProfileFilters(ListFilters):
    orders: ClassVar = ("name", "-name")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    knowledge_base_id = Related(knowledge_bases_of, field_name="knowledge_base", help_text="Its own profiles only.")


@extend_schema_view(
    list=extend_schema(
        summary="List the retrieval profiles that the caller may use",
        description="Shared ones, and those of the caller's knowledge bases; one entry a profile.",
        parameters=ProfileFilters.parameters(),
        responses=answers({200: ProfileOverviewSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Save settings as the next version of a profile, or as the first of a new one",
        description="A draft: searches use it only where they name its version, until it is published. "
        "Needs a key with the scope write.",
        request=ProfileCreateSerializer,
        responses=answers({201: shape(ProfileVersion)}, 400, 403, 404, 413, 415),
    ),
)
class ProfileViewSet(ApiViewSet):
    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        visible = RetrievalProfile.objects.visible_to(self.principal)
        place = ("name", "knowledge_base_id")
        one_each = visible.order_by(*place, "-version").distinct(*place)
        rows = self.found(visible.filter(pk__in=one_each.values("pk")), ProfileFilters)
        told = {
            (each.newest.name, each.newest.knowledge_base_id): each.as_dict()
            for each in profile_overviews(self.principal, {row.name for row in rows})
        }
        return self.get_paginated_response([told[row.name, row.knowledge_base_id] for row in rows])

    def create(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(ProfileCreateSerializer)
        draft = create_version(
            self.principal,
            fields["name"],
            fields.get("settings", {}),
            description=fields.get("description", ""),
            knowledge_base=self._place(fields),
        )
        return Response(as_values(ProfileVersion.of(draft)), status=status.HTTP_201_CREATED)

    def _place(self, fields: dict[str, Any]) -> KnowledgeBase | None:
        if "knowledge_base_id" not in fields:
            return place_of(self.principal, fields["name"])
        pk = fields["knowledge_base_id"]
        return None if pk is None else one(KnowledgeBase.objects.visible_to(self.principal), pk)


class ProfileVersionFilters(ListFilters):
    orders: ClassVar = ("-version", "version")
    published = Flag()


@extend_schema_view(
    list=extend_schema(
        summary="List the versions of a profile, the newest first",
        parameters=ProfileVersionFilters.parameters(),
        responses=answers({200: shape(ProfileVersion)(many=True)}, 400, 404),
    ),
    retrieve=extend_schema(
        summary="Read a version of a profile with the configuration that it makes",
        responses=answers({200: shape(ResolvedProfile)}, 404),
    ),
    destroy=extend_schema(
        summary="Delete a draft that nothing has used",
        description="Needs a key with the scope write.",
        responses=answers({204: None}, 400, 403, 404),
    ),
    publish=extend_schema(
        operation_id="profile_publish",
        summary="Publish a version, also an earlier one",
        description="The name stands for it from now on, and the knowledge bases that search by another version of the "
        "profile move to it. Needs a key with the scope write.",
        request=PublishSerializer,
        responses=answers({200: shape(PublishedProfile)}, 400, 403, 404, 413, 415),
    ),
    diff=extend_schema(
        operation_id="profile_diff",
        summary="Tell in which settings a version differs from another",
        parameters=[
            OpenApiParameter(
                "against",
                OpenApiTypes.STR,
                description="NAME@VERSION, or NAME for its live version; of those of a name, the one of the same knowledge base. Left out: the environment's defaults.",
            )
        ],
        responses=answers({200: shape(ProfileDifference)}, 400, 404),
    ),
)
class ProfileVersionViewSet(ApiViewSet):
    def list(self, request: Request, name: str) -> Response:  # noqa: ARG002 - the framework's interface
        versions = self.found(self._versions(name), ProfileVersionFilters)
        return self.get_paginated_response([as_values(ProfileVersion.of(version)) for version in versions])

    def retrieve(self, request: Request, name: str, version: int) -> Response:  # noqa: ARG002 - likewise
        return Response(as_values(resolved(self._version(name, version))))

    def destroy(self, request: Request, name: str, version: int) -> Response:  # noqa: ARG002 - likewise
        delete_draft(self.principal, self._version(name, version))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def publish(self, request: Request, name: str, version: int) -> Response:  # noqa: ARG002 - likewise
        profile = self._version(name, version)
        moved = publish(self.principal, profile, adopt=self.checked(PublishSerializer).get("adopt", False))
        return Response(as_values(PublishedProfile.of(profile, moved=moved)))

    @action(detail=True)
    def diff(self, request: Request, name: str, version: int) -> Response:
        after = self._version(name, version)
        against = request.query_params.get("against")
        scope = [after.knowledge_base_id] if after.knowledge_base_id else []
        before = find_version(self.principal, *name_and_version(against), scope=scope) if against else None
        return Response(as_values(profile_difference(before, after)))

    def _versions(self, name: str) -> QuerySet[RetrievalProfile]:
        """Of NAME, or of ID/NAME, where several knowledge bases have one of that name."""
        live = named_at(self.principal, name)
        if live is None:
            raise NotVisible(_("There is no such object."))
        return RetrievalProfile.objects.versions_of(live).select_related("created_by")

    def _version(self, name: str, version: int) -> RetrievalProfile:
        return found_in(self._versions(name).filter(version=version), _("There is no such object."))
