"""What views share: their base classes, and the parameters by which lists are filtered, sorted and paged."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, NoReturn, TypeVar, cast
from uuid import UUID

import django_filters
from django import forms
from django.core import signing
from django.db.models import Model, Q, QuerySet
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated, ValidationError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.pagination import BasePagination
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, Serializer
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from kb.access.models import KnowledgeBase, Principal, ScopedQuerySet
from kb.base.errors import found_in, not_editable
from kb.base.text import InvalidFilter, read_time, storable
from kb.web.api.callers import count_failure, principal_of, too_many
from kb.web.api.fields import MAX_ID, ShallowJSONParser

M = TypeVar("M", bound=Model)
S = TypeVar("S", bound=Serializer[Any])

CURSOR, PAGE_SIZE = "cursor", "page_size"
DEFAULT_PAGE_SIZE, MOST_ROWS = 50, 200
NO_PLACE = (None, None, False)


class Cursors(BasePagination):
    """Pages of `{"next", "previous", "results"}`, by the view's `ordering`, then its `order_key`; nothing is counted.

    A cursor is signed, and serves only lists of the same rows in the same order.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request = request
        self.ordering: str = view.ordering
        self.field, self.key = self.ordering.removeprefix("-"), view.order_key
        self.salt = f"kb.web.api.lists:{queryset.model._meta.label_lower}"
        wanted = request.query_params.get(PAGE_SIZE, str(DEFAULT_PAGE_SIZE))
        if not (wanted.isascii() and wanted.isdigit() and len(wanted) < 10 and 0 < int(wanted) <= MOST_ROWS):
            raise ValidationError({PAGE_SIZE: [_("Give a number from 1 to %(most)s.") % {"most": MOST_ROWS}]})
        size = int(wanted)
        value, key, backwards = place = self._place(request.query_params.get(CURSOR))
        sign, side = ("-", "lt") if self.ordering.startswith("-") != backwards else ("", "gt")
        rows = queryset.order_by(f"{sign}{self.field}", f"{sign}{self.key}")
        is_first = place == NO_PLACE
        if not is_first:  # the first condition alone lets an index be used
            tie = Q(**{self.field: value, f"{self.key}__{side}": key})
            rows = rows.filter(Q(**{f"{self.field}__{side}e": value}) & (Q(**{f"{self.field}__{side}": value}) | tie))
        found = list(rows[: size + 1])
        has_more = len(found) > size
        self.page = found[:size][::-1] if backwards else found[:size]
        self.has_next, self.has_previous = (True, has_more) if backwards else (has_more, not is_first)
        return self.page

    def get_paginated_response(self, data: Any) -> Response:
        following = self._link(self.page[-1], backwards=False) if self.page and self.has_next else None
        previous = self._link(self.page[0], backwards=True) if self.page and self.has_previous else None
        return Response({"next": following, "previous": previous, "results": data})

    def get_paginated_response_schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {
                "next": {**link, "description": "The page after this one; null: this is the last."},
                "previous": {**link, "description": "The page before this one; null: this is the first."},
                "results": schema,
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - likewise
        where = "Where the page begins: as `next` and `previous` of a page have it. No other is valid."
        size = {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": DEFAULT_PAGE_SIZE}
        optional = {"in": "query", "required": False}
        return [
            {"name": CURSOR, **optional, "description": where, "schema": {"type": "string"}},
            {"name": PAGE_SIZE, **optional, "description": "How many results a page has.", "schema": size},
        ]

    def _place(self, cursor: str | None) -> tuple[Any, Any, bool]:
        """Of the row that the page lies beside: its value, its key, and whether the page ends before it."""
        if cursor is None:
            return NO_PLACE
        try:
            order, value, key, backwards = signing.loads(cursor, salt=self.salt)
        except (signing.BadSignature, ValueError) as error:
            message = _(
                "This cursor is of another list, or none: follow “next” and “previous” of a page, or leave it out."
            )
            raise ValidationError({CURSOR: [message]}) from error
        if order != self.ordering:
            message = _(
                "This cursor is of a list in the order “%(order)s”: ask for that, or start again without a cursor."
            )
            raise ValidationError({CURSOR: [message % {"order": order}]})
        return value, key, backwards

    def _link(self, row: Any, *, backwards: bool) -> str:
        values = (getattr(row, self.field), getattr(row, self.key))
        shown = [value if isinstance(value, int | str) else str(value) for value in values]
        cursor = signing.dumps([self.ordering, *shown, backwards], salt=self.salt, compress=True)
        return replace_query_param(self.request.build_absolute_uri(), CURSOR, cursor)


ORDERING = "ordering"
MOST_CHARACTERS = 500
_WHOLE = re.compile(r"[0-9]{1,19}")


class WholeField(forms.Field):
    def to_python(self, value: Any) -> int | None:
        if value in self.empty_values:
            return None
        if not _WHOLE.fullmatch(value) or not 1 <= int(value) <= MAX_ID:
            raise forms.ValidationError(_("Give a whole number from 1."))
        return int(value)


class MomentField(forms.Field):
    def to_python(self, value: Any) -> datetime | None:
        if value in self.empty_values:
            return None
        try:
            return read_time("created_after", value)
        except InvalidFilter as error:
            raise forms.ValidationError(str(error)) from error


class TextField(forms.CharField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=MOST_CHARACTERS, strip=False, **kwargs)

    def to_python(self, value: Any) -> str:
        return storable(super().to_python(value) or "")


# Each filter says by its `schema` what it takes.
class Whole(django_filters.Filter):  # type: ignore[misc]
    field_class = WholeField
    schema = {"type": "integer", "minimum": 1, "maximum": MAX_ID}


class Text(django_filters.Filter):  # type: ignore[misc]
    field_class = TextField
    schema = {"type": "string", "minLength": 1, "maxLength": MOST_CHARACTERS}


class Moment(django_filters.Filter):  # type: ignore[misc]
    field_class = MomentField
    schema = {"type": "string", "format": "date-time"}


class OneOf(django_filters.ChoiceFilter):  # type: ignore[misc]
    def __init__(self, values: Iterable[str], **kwargs: Any) -> None:
        self.schema = {"type": "string", "enum": list(values)}
        super().__init__(choices=[(value, value) for value in self.schema["enum"]], null_label=None, **kwargs)


class Flag(django_filters.TypedChoiceFilter):  # type: ignore[misc]
    schema = {"type": "boolean"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(choices=[("true", "true"), ("false", "false")], coerce=lambda value: value == "true", **kwargs)


class Related(Whole):
    """The id of a row, of those that a principal may see; another is 404.

    `narrowed` gives the rows of the list that go with it; None: those that refer to it by the field's name.
    """

    def __init__(
        self,
        rows: Callable[[Any], QuerySet[Any]],
        narrowed: Callable[[QuerySet[Any], Any], QuerySet[Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.rows = rows
        self.narrowed = narrowed
        super().__init__(**kwargs)

    def filter(self, qs: QuerySet[Any], value: int | None) -> QuerySet[Any]:
        if value is None:
            return qs
        found = found_in(self.rows(principal_of(self.parent.request)).filter(pk=value), _("There is no such object."))
        return cast("QuerySet[Any]", self.narrowed(qs, found) if self.narrowed else super().filter(qs, found))


class ListFilters(django_filters.FilterSet):  # type: ignore[misc]
    """The parameters of a list.

    Attributes:
        orders: what it may be sorted by, each with a leading - for the largest first; the first is the default. No row lacks it.
        key: what rows that are equal in it are sorted by; unique, and no secret, since cursors hold it.
    """

    orders: ClassVar[tuple[str, ...]] = ("id",)
    key: ClassVar[str] = "pk"

    @classmethod
    def parameters(cls) -> list[OpenApiParameter]:
        filters = [
            OpenApiParameter(name, each.schema, description=str(each.extra.get("help_text", "")))
            for name, each in cls.base_filters.items()
        ]
        orders = {"type": "string", "enum": list(cls.orders), "default": cls.orders[0]}
        return [*filters, OpenApiParameter(ORDERING, orders, description="What it is sorted by; -: the largest first.")]


def require_known(request: Request, names: Iterable[str]) -> None:
    """Raises ValidationError for URL parameters that are unknown, repeated or blank: none may pass for the default."""
    known = sorted(names)
    errors: dict[str, list[Any]] = {}
    for name, values in request.query_params.lists():
        if name not in known:
            message = _("Unknown parameter: choose from %(known)s.") if known else _("It takes none.")
            errors[name[:100]] = [message % {"known": ", ".join(known)}]
        elif len(values) > 1:
            errors[name] = [_("Give it once.")]
        elif not values[0]:
            errors[name] = [_("Give it a value, or leave it out.")]
    if errors:
        raise ValidationError(errors)


def knowledge_bases_of(principal: Any) -> QuerySet[Any]:
    return KnowledgeBase.objects.visible_to(principal)


class Created(django_filters.FilterSet):  # type: ignore[misc]
    created_after = Moment(field_name="created_at", lookup_expr="gte", help_text="Created then or later.")
    created_before = Moment(field_name="created_at", lookup_expr="lt", help_text="Created before that.")


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
        """The request's fields; raises ValidationError."""
        return cast(dict[str, Any], valid(serializer_class, self.request.data, partial=partial).validated_data)


class ApiViewSet(ApiView, GenericViewSet[Any]):
    """Views of rows. A handler finds its object before it looks at the request's fields, so that 404 comes first."""

    ordering, order_key = "pk", "pk"
    pagination_class: type[BasePagination] | None = Cursors

    def found(self, rows: QuerySet[Any], filters: type[ListFilters]) -> list[Any]:
        """The rows that the URL asks for; raises ValidationError, and NotVisible for what the caller may not see."""
        require_known(self.request, [*filters.base_filters, ORDERING, CURSOR, PAGE_SIZE])
        ordering = self.request.query_params.get(ORDERING, filters.orders[0])
        if ordering not in filters.orders:
            message = _("It cannot be sorted by this: choose from %(known)s.")
            raise ValidationError({ORDERING: [message % {"known": ", ".join(filters.orders)}]})
        given = filters(self.request.query_params, queryset=rows, request=self.request)
        if not given.is_valid():
            raise ValidationError({name: list(messages) for name, messages in given.errors.items()})
        self.ordering, self.order_key = ordering, filters.key
        return list(self.paginate_queryset(given.qs) or [])

    def page(
        self, rows: QuerySet[Any], serializer_class: type[BaseSerializer[Any]], filters: type[ListFilters]
    ) -> Response:
        return self.get_paginated_response(serializer_class(self.found(rows, filters), many=True).data)

    def editable(self, visible: QuerySet[M], pk: int) -> M:
        """The row with this key; raises NotVisible, or NotAllowed where the caller may see but not change it."""
        found = one(visible, pk)
        rows = cast(ScopedQuerySet, type(found)._default_manager.all())
        if not rows.editable_by(self.principal).filter(pk=pk).exists():
            raise not_editable()
        return found


def one(rows: QuerySet[M], pk: int | UUID) -> M:
    """The row with this key; raises NotVisible where it is not among them."""
    return found_in(rows.filter(pk=pk), _("There is no such object."))


def valid(serializer_class: type[S], data: Any, *, partial: bool = False) -> S:
    """The serializer of what was sent; raises ValidationError."""
    serializer = serializer_class(data=data, partial=partial)
    serializer.is_valid(raise_exception=True)
    return serializer


def asked(serializer_class: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    """The parameters of the URL; raises as `valid`."""
    return cast(dict[str, Any], valid(serializer_class, request.query_params).validated_data)
