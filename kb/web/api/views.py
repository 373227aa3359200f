from typing import Any, NoReturn, TypeVar, cast
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.translation import gettext
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, Serializer
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from kb.access.models import Principal, ScopedQuerySet
from kb.base.errors import NotAllowed, found_in
from kb.web.api.callers import count_failure, principal_of, too_many
from kb.web.api.fields import ShallowJSONParser
from kb.web.api.lists import ListFilters, Order, listed

M = TypeVar("M", bound=Model)
S = TypeVar("S", bound=Serializer[Any])


class AnyAccept(DefaultContentNegotiation):
    """A file or a page of metrics has the type it has, whatever types the caller names; errors are JSON all the same."""

    def select_renderer(
        self,
        request: Request,  # noqa: ARG002 - the framework's interface
        renderers: Any,
        format_suffix: str | None = None,  # noqa: ARG002 - the framework's interface
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """What all views share: JSON with bounds; the OpenAPI schema describes them, so OPTIONS does not."""

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    parser_classes = [ShallowJSONParser]

    @property
    def principal(self) -> Principal:
        return principal_of(self.request)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuses an address that fails too often."""
        try:
            super().initial(request, *args, **kwargs)
        except (AuthenticationFailed, NotAuthenticated):
            count_failure(request._request)
            raise

    def throttled(self, request: Request, wait: float | None) -> NoReturn:  # noqa: ARG002 - the framework's interface
        raise too_many(request.rate_limit)  # type: ignore[attr-defined]

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds headers as in draft-ietf-httpapi-ratelimit-headers: what is allowed, what is left, and for how many seconds."""
        if spent := getattr(request, "rate_limit", None):
            response.headers["RateLimit-Policy"] = f"{spent.limit};w={spent.seconds}"
            response.headers["RateLimit-Limit"] = str(spent.limit)
            response.headers["RateLimit-Remaining"] = str(spent.remaining)
            response.headers["RateLimit-Reset"] = str(spent.resets_in_s)
        return super().finalize_response(request, response, *args, **kwargs)

    def checked(self, serializer_class: type[Serializer[Any]], *, partial: bool = False) -> dict[str, Any]:
        """The request's fields.

        Raises:
            ValidationError: some are not valid.
        """
        return cast(dict[str, Any], valid(serializer_class, self.request.data, partial=partial).validated_data)


class ApiViewSet(ApiView, GenericViewSet[Any]):
    """Views of rows. A handler finds its object before it looks at the request's fields, so that 404 comes first."""

    order: Order | None = None

    def found(self, rows: QuerySet[Any], filters: type[ListFilters]) -> list[Any]:
        """The rows of the page that the parameters of the URL ask for.

        Raises:
            ValidationError: a parameter is unknown or has a value that it does not take.
            NotVisible: one names an object that the caller may not see.
        """
        narrowed, self.order = listed(filters, rows, self.request)
        return list(self.paginate_queryset(narrowed) or [])

    def page(
        self, rows: QuerySet[Any], serializer_class: type[BaseSerializer[Any]], filters: type[ListFilters]
    ) -> Response:
        return self.get_paginated_response(serializer_class(self.found(rows, filters), many=True).data)

    def editable(self, visible: QuerySet[M], pk: int) -> M:
        """The object of a row that the caller may change.

        Raises:
            NotVisible: the caller may not see it.
            NotAllowed: the caller may see it, but not change it.
        """
        found = one(visible, pk)
        rows = cast(ScopedQuerySet, type(found)._default_manager.all())
        if not rows.editable_by(self.principal).filter(pk=pk).exists():
            raise NotAllowed(gettext("You may see this, but not change it: ask its owner to make you an editor."))
        return found


def one(rows: QuerySet[M], pk: int | UUID) -> M:
    """The row with this key.

    Raises:
        NotVisible: it is not among them.
    """
    return found_in(rows.filter(pk=pk), gettext("There is no such object."))


def valid(serializer_class: type[S], data: Any, *, partial: bool = False) -> S:
    """The serializer of what was sent.

    Raises:
        ValidationError: some of the fields are not valid.
    """
    serializer = serializer_class(data=data, partial=partial)
    serializer.is_valid(raise_exception=True)
    return serializer


def asked(serializer_class: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    """The parameters of the URL; raises as `valid`."""
    return cast(dict[str, Any], valid(serializer_class, request.query_params).validated_data)
