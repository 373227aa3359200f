"""What every admin page of a knowledge base's content shares: who may see it, change it and delete it.

Django's model permissions play no part: memberships do, and an object that the user may not see does not exist (404).
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.options import ModelAdmin as DjangoModelAdmin
from django.contrib.admin.utils import display_for_value
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import QuerySet
from django.forms import ModelChoiceField, ModelMultipleChoiceField
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import AutocompleteSelectFilter, RelatedDropdownFilter
from unfold.contrib.filters.forms import AutocompleteDropdownForm
from unfold.decorators import display

from kb.models import Principal, User

Column = TypeVar("Column", bound=Callable[..., Any])


def column(
    description: str | Promise,
    *,
    ordering: str | None = None,
    label: Mapping[str, str] | None = None,
    empty_value: str | Promise | None = None,
) -> Callable[[Column], Column]:
    """A column of a list or a read-only field, in which times and None are written as in a list.

    Args:
        description: its name.
        ordering: the lookup that it sorts by.
        label: makes it a badge: variants by the first part of the returned (code, words).
        empty_value: stands for None.
    """

    def decorate(method: Column) -> Column:
        @wraps(method)
        def written(admin: Any, row: Any) -> Any:
            value = method(admin, row)
            if isinstance(value, datetime):
                return display_for_value(value, "")
            return empty_value if value is None else value

        shown = display(description=description, ordering=ordering, label=label, empty_value=empty_value)
        return cast(Column, shown(written))

    return decorate


def principal(request: HttpRequest) -> Principal:
    """The caller of an admin page."""
    return Principal(request.user)


def signed_in(request: HttpRequest) -> User:
    """The user of an admin page, which nobody opens without a login."""
    return cast(User, request.user)


def visible(model: type[models.Model], request: HttpRequest) -> QuerySet[Any]:
    """The rows of a scoped model that the caller may see; all rows of a model that has no scope."""
    rows = model._default_manager.all()
    return rows.visible_to(principal(request)) if hasattr(rows, "visible_to") else rows


class ScopedModelAdmin(ModelAdmin):  # type: ignore[misc]
    """Rows are those that are visible to the caller; `delete_grant` names who may delete one."""

    delete_grant: ClassVar[str] = "editable_by"
    actions: ClassVar[Sequence[str]] = ("delete_selected",)
    delete_confirmation_template = "admin/kb/delete_confirmation.html"
    delete_selected_confirmation_template = "admin/kb/delete_selected_confirmation.html"
    list_per_page = 50
    list_disable_select_all = True
    show_facets = admin.ShowFacets.NEVER

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).visible_to(principal(request))
        return rows

    def get_object_or_404(self, request: HttpRequest, object_id: str, *, to_change: bool = False) -> Any:
        """The object of a page of the project's own.

        Raises:
            Http404: it does not exist for this user.
            PermissionDenied: the user may see but not change it.
        """
        found = self.get_object(request, object_id)
        if found is None:
            raise Http404
        if to_change and not self.has_change_permission(request, found):
            raise PermissionDenied
        return found

    def page(self, route: str, view: Callable[..., Any], name: str) -> URLPattern:
        """The route of a page of the project's own; it is named as those that every model has: `kb_MODEL_NAME`."""
        named = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        pattern: URLPattern = path(route, self.admin_site.admin_view(view), name=named)
        return pattern

    def get_form(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """A form that may ask who fills it in, by `self.request`."""
        form = super().get_form(request, obj, **kwargs)
        form.request = request
        return form

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> NoReturn:  # noqa: ARG002
        raise Http404

    # -- Permissions ---------------------------------------------------------------------------------------------------
    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.is_granted(request, obj, "editable_by")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.is_granted(request, obj, self.delete_grant)

    def is_granted(self, request: HttpRequest, obj: Any, grant: str) -> bool:
        """Whether a row is among the granted ones; asked of the database once a request."""
        if not self.has_module_permission(request):
            return False
        if obj is None:
            return True
        answers = request.__dict__.setdefault("_granted_rows", {})
        key = (self.model, getattr(obj, "pk", obj), grant)
        if key not in answers:
            answers[key] = self.granted(self.model._default_manager.filter(pk=key[1]), request, grant).exists()
        return bool(answers[key])

    @staticmethod
    def granted(rows: QuerySet[Any], request: HttpRequest, grant: str) -> QuerySet[Any]:
        granted: QuerySet[Any] = getattr(rows, grant)(principal(request))
        return granted

    # -- Fields show only what is visible --------------------------------------------------------------------------------
    def formfield_for_foreignkey(
        self, db_field: "models.ForeignKey[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> "ModelChoiceField[Any] | None":
        kwargs.setdefault("queryset", visible(db_field.remote_field.model, request))
        field: ModelChoiceField[Any] | None = super().formfield_for_foreignkey(db_field, request, **kwargs)
        return field

    def formfield_for_manytomany(
        self, db_field: "models.ManyToManyField[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> "ModelMultipleChoiceField[Any] | None":
        kwargs.setdefault("queryset", visible(db_field.remote_field.model, request))
        field: ModelMultipleChoiceField[Any] | None = super().formfield_for_manytomany(db_field, request, **kwargs)
        return field

    # -- Deletion: counts, never a tree of all that goes with it ---------------------------------------------------------
    def related_counts(self, rows: QuerySet[Any]) -> dict[str, int]:  # noqa: ARG002
        """What is deleted together with rows, as counts by name."""
        return {}

    def get_deleted_objects(
        self, objs: QuerySet[Any] | Sequence[Any], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[Any], list[Any]]:
        ids = [obj.pk for obj in objs]
        rows = self.model._default_manager.filter(pk__in=ids)
        lacking = set()
        if self.granted(rows, request, self.delete_grant).count() < len(ids):
            lacking.add(self.opts.verbose_name)
        return [str(obj) for obj in objs], self.related_counts(rows), lacking, []

    @admin.action(description=_("Delete selected %(verbose_name_plural)s"), permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        allowed = self.only_granted(request, queryset, self.delete_grant)
        if allowed is None:
            return None
        response: HttpResponse | None = delete_selected(self, request, allowed)
        return response

    def only_granted(self, request: HttpRequest, queryset: QuerySet[Any], grant: str) -> QuerySet[Any] | None:
        """The rows of a selection that an action may touch, and a message on those that it passes over."""
        allowed = self.granted(queryset, request, grant)
        chosen, kept = queryset.count(), allowed.count()
        if kept < chosen:
            passed_over = ngettext(
                "%(count)d selected row was passed over, because you may not change it.",
                "%(count)d selected rows were passed over, because you may not change them.",
                chosen - kept,
            )
            self.message_user(request, passed_over % {"count": chosen - kept}, messages.WARNING)
        return allowed if kept else None


class ScopedRelatedFilter(RelatedDropdownFilter):  # type: ignore[misc]
    """A filter that offers the visible objects; always there, so that a link to a filtered list shows what it did."""

    def has_output(self) -> bool:
        return True

    def field_choices(
        self,
        field: "models.ForeignKey[Any, Any]",
        request: HttpRequest,
        model_admin: "DjangoModelAdmin[Any]",  # noqa: ARG002 - Django's interface
    ) -> list[tuple[Any, str]]:
        return [(row.pk, str(row)) for row in visible(field.remote_field.model, request)]


class ScopedAutocompleteForm(AutocompleteDropdownForm):  # type: ignore[misc]
    """Names the chosen object only if it is visible."""

    def __init__(self, request: HttpRequest, name: str, label: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, name, label, *args, **kwargs)
        chosen = self.fields[name]
        chosen.queryset = visible(chosen.queryset.model, request)


class ScopedAutocompleteFilter(AutocompleteSelectFilter):  # type: ignore[misc]
    form_class = ScopedAutocompleteForm
