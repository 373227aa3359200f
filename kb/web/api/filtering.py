"""What lists are narrowed and sorted by: filters that take what they name and nothing that could be turned into it."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar

import django_filters
from django import forms
from django.db.models import Model, QuerySet
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import NotVisible
from kb.base.filter_values import InvalidFilter, read_time
from kb.base.validators import storable
from kb.web.api.authentication import principal_of
from kb.web.api.fields import MAX_ID
from kb.web.api.pagination import CURSOR, PAGE_SIZE, Order

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


class _Described:
    """A filter that says in the OpenAPI description what it takes."""

    schema: ClassVar[dict[str, Any]] = {}
    extra: dict[str, Any]

    def described(self) -> dict[str, Any]:
        return self.schema


class Whole(_Described, django_filters.Filter):  # type: ignore[misc]
    field_class = WholeField
    schema = {"type": "integer", "minimum": 1, "maximum": MAX_ID}


class Text(_Described, django_filters.Filter):  # type: ignore[misc]
    field_class = TextField
    schema = {"type": "string", "minLength": 1, "maxLength": MOST_CHARACTERS}


class Moment(_Described, django_filters.Filter):  # type: ignore[misc]
    field_class = MomentField
    schema = {"type": "string", "format": "date-time"}


class OneOf(_Described, django_filters.ChoiceFilter):  # type: ignore[misc]
    """One of the values; `choices` are their names for programs."""

    def __init__(self, values: Iterable[str], **kwargs: Any) -> None:
        self.values = list(values)
        super().__init__(choices=[(value, value) for value in self.values], null_label=None, **kwargs)

    def described(self) -> dict[str, Any]:
        return {"type": "string", "enum": self.values}


class Flag(_Described, django_filters.TypedChoiceFilter):  # type: ignore[misc]
    schema = {"type": "boolean"}

    def __init__(self, **kwargs: Any) -> None:
        choices = [("true", "true"), ("false", "false")]
        super().__init__(choices=choices, coerce=lambda value: value == "true", **kwargs)


class Related(Whole):
    """The id of a row that the caller may see; another is 404.

    Attributes:
        rows: what a principal may see.
        narrowed: the rows of the list that go with the found one; None: those that refer to it by the field's name.
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
        found: Model | None = self.rows(principal_of(self.parent.request)).filter(pk=value).first()
        if found is None:
            raise NotVisible(_("There is no such object."))
        narrowed: QuerySet[Any] = self.narrowed(qs, found) if self.narrowed else super().filter(qs, found)
        return narrowed


class ListFilters(django_filters.FilterSet):  # type: ignore[misc]
    """The parameters of a list.

    Attributes:
        orders: what it may be sorted by, each with a leading - for the largest first; the first is the default.
        key: what tells rows apart that are equal in it.
    """

    orders: ClassVar[tuple[str, ...]] = ("id",)
    key: ClassVar[str] = "pk"

    @classmethod
    def parameters(cls) -> list[OpenApiParameter]:
        """What the OpenAPI description says of them."""
        told = [
            OpenApiParameter(name, each.described(), description=str(each.extra.get("help_text", "")))
            for name, each in cls.base_filters.items()
        ]
        orders = {"type": "string", "enum": list(cls.orders), "default": cls.orders[0]}
        return [*told, OpenApiParameter(ORDERING, orders, description="What it is sorted by; -: the largest first.")]


def listed(filters: type[ListFilters], rows: QuerySet[Any], request: Request) -> tuple[QuerySet[Any], Order]:
    """The rows that the parameters of the URL ask for, and their order.

    Raises:
        ValidationError: a parameter is unknown, given twice, blank, or has a value that it does not take.
        NotVisible: one names an object that the caller may not see.
    """
    names = [*filters.base_filters, ORDERING, CURSOR, PAGE_SIZE]
    require_known(request, names)
    ordering = request.query_params.get(ORDERING, filters.orders[0])
    if ordering not in filters.orders:
        message = _("It cannot be sorted by this: choose from %(known)s.")
        raise ValidationError({ORDERING: [message % {"known": ", ".join(filters.orders)}]})
    given = filters(request.query_params, queryset=rows, request=request)
    if not given.is_valid():
        raise ValidationError({name: list(messages) for name, messages in given.errors.items()})
    narrowed: QuerySet[Any] = given.qs
    return narrowed, Order.parse(ordering, filters.key)


def require_known(request: Request, names: Iterable[str]) -> None:
    """Refuses parameters of the URL that are unknown, given twice or blank: none of them may pass for the default.

    Raises:
        ValidationError: there are such ones.
    """
    known = sorted(names)
    errors: dict[str, list[Any]] = {}
    for name, values in request.query_params.lists():
        if name not in known:
            told = ", ".join(known)
            message = _("Unknown parameter: choose from %(known)s.") % {"known": told} if known else _("It takes none.")
            errors[name[:100]] = [message]
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
