from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import ApiKey, KnowledgeBase
from kb.access.services.api_keys import api_key_create, api_key_revoke, api_keys_of
from kb.base.errors import NotVisible, found_in
from kb.web.api.callers import user_of
from kb.web.api.fields import KnowledgeBaseIdsField, StrictCharField, StrictSerializer, answers
from kb.web.api.views import ApiViewSet, Flag, ListFilters, OneOf, Text


class ApiKeySerializer(serializers.ModelSerializer[ApiKey]):
    scope = serializers.CharField(help_text="read or write.")
    knowledge_base_ids = serializers.SerializerMethodField(
        help_text="The only ones that it opens; null: all that its user may see."
    )
    expires_at = serializers.DateTimeField(source="expiry_date", allow_null=True, help_text="null: never.")
    rate_limit = serializers.CharField(help_text="Its own; empty: the server’s.")
    made_with = serializers.CharField(
        source="asked_for_with",
        allow_null=True,
        help_text="The prefix of the key that it was made with, and is revoked with; null: it was made in a session or by an "
        "operator, or the key that asks is bound to knowledge bases.",
    )

    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = (
            "prefix",
            "name",
            "scope",
            "knowledge_base_ids",
            "rate_limit",
            "created",
            "made_with",
            "expires_at",
            "last_used_at",
            "revoked",
        )
        read_only_fields = fields

    def get_knowledge_base_ids(self, key: ApiKey) -> list[int] | None:
        return sorted(kb.pk for kb in key.knowledge_bases.all()) if key.bound else None


class NewApiKeySerializer(ApiKeySerializer):
    """With its secret, this once."""

    key = serializers.SerializerMethodField(help_text="The secret. It is not stored and cannot be read again.")

    class Meta(ApiKeySerializer.Meta):
        fields = ("key", *ApiKeySerializer.Meta.fields)
        read_only_fields = fields

    def get_key(self, _key: ApiKey) -> str:
        return str(self.context["secret"])


class ApiKeyCreateSerializer(StrictSerializer):
    name = StrictCharField(max_length=50, help_text="To tell keys apart.")
    # No enumeration: other fields are named scope in other schemas, and two of one name would need names of their own.
    scope = StrictCharField(max_length=8, required=False, help_text="read (the default) or write.")
    # An empty list would read as none at all, and mean all there are.
    knowledge_base_ids = KnowledgeBaseIdsField(
        required=False,
        allow_empty=False,
        max_length=200,
        help_text="The only ones that it opens; left out: all that you may see.",
    )
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="Left out: never, or when the key that asks does."
    )
    rate_limit = StrictCharField(
        max_length=40, required=False, allow_blank=True, help_text="Such as 60/minute; left out: the server’s."
    )


class ApiKeyFilters(ListFilters):
    orders: ClassVar = ("-created", "created", "name", "-name")
    key: ClassVar[str] = "prefix"  # its id holds the hash of the secret
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    scope = OneOf(ApiKey.Scope.values)
    revoked = Flag()


@extend_schema_view(
    list=extend_schema(
        operation_id="api_keys_list",
        summary="List your API keys",
        description="Of the user of the key or session. A key that is bound to knowledge bases sees only itself.",
        parameters=ApiKeyFilters.parameters(),
        responses=answers({200: ApiKeySerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        operation_id="api_keys_create",
        summary="Create an API key",
        description="The answer holds the secret, this once. A key that is bound to knowledge bases, or may only read, makes "
        "none; any other key makes none that lives longer or may send more requests than itself.",
        request=ApiKeyCreateSerializer,
        responses=answers({201: NewApiKeySerializer}, 400, 403, 404, 413, 415),
        examples=[
            OpenApiExample(
                "A key for a shop’s help page",
                value={
                    "name": "help page",
                    "scope": "read",
                    "knowledge_base_ids": [1],
                    "expires_at": "2030-01-01T00:00:00Z",
                    "rate_limit": "120/minute",
                },
                request_only=True,
            )
        ],
    ),
    retrieve=extend_schema(
        operation_id="api_keys_retrieve",
        summary="Read an API key of yours, without its secret",
        responses=answers({200: ApiKeySerializer}, 404),
    ),
    destroy=extend_schema(
        operation_id="api_keys_revoke",
        summary="Revoke an API key of yours, for good",
        description="From the next request on it is refused everywhere, and so are the keys that were made with it, and with "
        "those in turn: `made_with` names the key that one was made with. They stay in the list as revoked.",
        responses=answers({204: None}, 403, 404),
    ),
)
class ApiKeyViewSet(ApiViewSet):
    """Keys are named by their prefix: their id holds the hash of the secret."""

    queryset = ApiKey._default_manager.none()
    lookup_field = "prefix"

    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(self._keys(), ApiKeySerializer, ApiKeyFilters)

    def create(self, request: Request) -> Response:
        fields: dict[str, Any] = self.checked(ApiKeyCreateSerializer)
        ids = fields.pop("knowledge_base_ids", [])
        bases = list(KnowledgeBase.objects.visible_to(self.principal).filter(pk__in=ids))
        if missing := set(ids) - {kb.pk for kb in bases}:
            message = _("There are no knowledge bases with these ids: %(ids)s.")
            raise NotVisible(message % {"ids": ", ".join(map(str, sorted(missing)))})
        fields |= {"knowledge_bases": bases, "expires": fields.pop("expires_at", None)}
        key, secret = api_key_create(user=user_of(request), made_with=self._asked_with, **fields)
        body = NewApiKeySerializer(self._key(key.prefix), context={"secret": secret}).data
        return Response(body, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    def retrieve(self, request: Request, prefix: str) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(ApiKeySerializer(self._key(prefix)).data)

    def destroy(self, request: Request, prefix: str) -> Response:  # noqa: ARG002 - the framework's interface
        api_key_revoke(self._key(prefix))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @property
    def _asked_with(self) -> ApiKey | None:
        return self.request.auth if isinstance(self.request.auth, ApiKey) else None

    def _keys(self) -> QuerySet[ApiKey]:
        return api_keys_of(user_of(self.request), asked_with=self._asked_with)

    def _key(self, prefix: str) -> ApiKey:
        keys = self._keys().none() if "\0" in prefix else self._keys().filter(prefix=prefix)
        return found_in(keys, _("There is no such object."))
