"""Lists by cursor: a page begins after a row, not at a number, so that rows which come or go meanwhile move no other row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core import signing
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

CURSOR, PAGE_SIZE = "cursor", "page_size"
DEFAULT_PAGE_SIZE, MOST_ROWS = 50, 200


@dataclass(frozen=True, slots=True)
class Order:
    """What a list is sorted by; rows that are equal in it stand in the order of their keys, in the same direction.

    Attributes:
        field: which no row lacks.
        descending: the largest first.
        key: what no two rows have in common.
    """

    field: str
    descending: bool = False
    key: str = "pk"

    @classmethod
    def parse(cls, text: str, key: str = "pk") -> "Order":
        return cls(text.removeprefix("-"), text.startswith("-"), key)

    def __str__(self) -> str:
        return f"-{self.field}" if self.descending else self.field

    def sorted(self, rows: QuerySet[Any], *, backwards: bool) -> QuerySet[Any]:
        sign = "-" if self.descending != backwards else ""
        return rows.order_by(f"{sign}{self.field}", f"{sign}{self.key}")

    def beyond(self, rows: QuerySet[Any], place: "Place") -> QuerySet[Any]:
        """The rows after a place, or before it. The first condition alone lets an index be used."""
        side = "lt" if self.descending != place.backwards else "gt"
        tie = Q(**{self.field: place.value, f"{self.key}__{side}": place.key})
        return rows.filter(
            Q(**{f"{self.field}__{side}e": place.value}) & (Q(**{f"{self.field}__{side}": place.value}) | tie)
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A row that a page lies beside.

    Attributes:
        value: its own of what the list is sorted by.
        key: its own of what no two have in common.
        backwards: the page ends before the row.
    """

    value: Any
    key: Any
    backwards: bool = False


class Cursors(BasePagination):
    """Pages of `{"next", "previous", "results"}`; nothing is counted.

    A cursor is signed, and serves only lists of the same rows in the same order.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request = request
        self.order: Order = getattr(view, "order", None) or Order("pk")
        self.kind = str(queryset.model._meta.label_lower)
        size = _page_size(request)
        place = self._place(request.query_params.get(CURSOR))
        rows = self.order.sorted(queryset, backwards=bool(place and place.backwards))
        found = list((self.order.beyond(rows, place) if place else rows)[: size + 1])
        page, has_more = found[:size], len(found) > size
        is_backwards = place is not None and place.backwards
        if is_backwards:
            page.reverse()
        self.has_next = is_backwards or has_more
        self.has_previous = has_more if is_backwards else place is not None
        self.page = page
        return page

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
        size = {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": DEFAULT_PAGE_SIZE}
        return [
            {
                "name": CURSOR,
                "in": "query",
                "required": False,
                "description": "Where the page begins: as `next` and `previous` of a page have it. No other is valid.",
                "schema": {"type": "string"},
            },
            {
                "name": PAGE_SIZE,
                "in": "query",
                "required": False,
                "description": "How many results a page has.",
                "schema": size,
            },
        ]

    def _place(self, cursor: str | None) -> Place | None:
        if cursor is None:
            return None
        try:
            order, value, key, backwards = signing.loads(cursor, salt=self._salt)
        except (signing.BadSignature, ValueError) as error:
            message = _(
                "This cursor is of another list, or none: follow “next” and “previous” of a page, or leave it out."
            )
            raise ValidationError({CURSOR: [message]}) from error
        if order != str(self.order):
            message = _(
                "This cursor is of a list in the order “%(order)s”: ask for that, or begin anew without a cursor."
            )
            raise ValidationError({CURSOR: [message % {"order": order}]})
        return Place(value, key, backwards)

    def _link(self, row: Any, *, backwards: bool) -> str:
        value = getattr(row, self.order.field)
        told = value if isinstance(value, int | str) else str(value)
        key = getattr(row, self.order.key)
        cursor = signing.dumps(
            [str(self.order), told, key if isinstance(key, int) else str(key), backwards],
            salt=self._salt,
            compress=True,
        )
        bare = remove_query_param(self.request.build_absolute_uri(), CURSOR)
        return replace_query_param(bare, CURSOR, cursor)

    @property
    def _salt(self) -> str:
        return f"kb.web.api.pagination:{self.kind}"


def _page_size(request: Request) -> int:
    value = request.query_params.get(PAGE_SIZE)
    if value is None:
        return DEFAULT_PAGE_SIZE
    if not (value.isascii() and value.isdigit() and len(value) < 10 and 0 < int(value) <= MOST_ROWS):
        raise ValidationError({PAGE_SIZE: [_("Give a number from 1 to %(most)s.") % {"most": MOST_ROWS}]})
    return int(value)
