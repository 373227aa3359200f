"""What every admin page of a knowledge base's content shares: who may see it, change it and delete it.

Django's model permissions play no part: memberships do, and an object that the user may not see does not exist (404).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from http import HTTPStatus
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IS_POPUP_VAR, ModelAdmin as DjangoModelAdmin
from django.contrib.admin.utils import display_for_value, get_fields_from_path
from django.contrib.admin.widgets import RelatedFieldWidgetWrapper
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.db.models import OrderBy, Q, QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.forms import BaseInlineFormSet, ModelChoiceField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise, cached_property
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.text import Truncator
from django.utils.translation import gettext, gettext_lazy as _, ngettext
from django.views.decorators.http import require_http_methods
from django.views.generic import FormView
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import AutocompleteSelectFilter, DropdownFilter, RelatedDropdownFilter
from unfold.contrib.filters.forms import AutocompleteDropdownForm
from unfold.decorators import display
from unfold.views import ChangeList, UnfoldModelAdminViewMixin
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldBooleanWidget

from kb.access.models import AuditEntry, KnowledgeBase, Principal, ScopedQuerySet, User, kind_of
from kb.access.services.rate_limits import UPLOAD
from kb.base.errors import ServiceError, Superseded
from kb.web.admin.current import current_knowledge_base, note_curator
from kb.web.admin.deletion import deleted_with, left_behind_by
from kb.web.admin.navigation import hub_list_url, hub_of
from kb.web.admin.site import ADDED_CONTEXTS, ADDED_PAGES
from retrieval.errors import InvalidConfiguration

# The parameter of a list that narrows it to a knowledge base.
BY_KB = "knowledge_base__id__exact"
# What fits a bigint, whatever the digits are.
ID_DIGITS = 18
NAME_CHARACTERS = 80  # of a row in the name of its box


def row_id(text: str) -> int | None:
    plain = text.strip()
    return int(plain) if plain.isascii() and plain.isdecimal() and len(plain) <= ID_DIGITS else None


def row_ids(texts: Iterable[str]) -> list[int]:
    return [found for text in texts if (found := row_id(text)) is not None]


Kinds = type[Exception] | tuple[type[Exception], ...]
# By default what says that a change is refused.
REFUSALS: Kinds = (ServiceError, InvalidConfiguration)


def reason(error: Exception) -> str:
    if isinstance(error, Superseded):
        return gettext("The knowledge base moved to another model meanwhile, and nothing was changed: try again.")
    return str(error)


@contextmanager
def reporting(request: HttpRequest, kinds: Kinds = REFUSALS) -> Iterator[None]:
    """Leaves the block at an error of these kinds, which is a message of the next page."""
    try:
        yield
    except kinds as error:
        messages.error(request, reason(error))


@contextmanager
def reporting_in(
    form: forms.BaseForm, field: str | None = None, kinds: Kinds = REFUSALS, **fields: str
) -> Iterator[None]:
    """As `reporting`, in a form: at the field that `fields` has for the error's code, or that the code begins with.

    Where there is none, at `field`; None: above all fields.
    """
    try:
        yield
    except kinds as error:
        code = getattr(error, "code", "")
        named = (fields.get(code, code), code.rpartition("_")[0], field)
        form.add_error(next((each for each in named if each in form.fields), None), reason(error))


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to look at the rows; `count` is None where it is not counted."""

    value: str
    label: str
    url: str
    is_chosen: bool
    count: int | None = None


class OwnRowsFormSet(BaseInlineFormSet):  # type: ignore[type-arg]
    """Knows the rows of its object only: Django's looks the key of a row up among all rows that there are."""

    def add_fields(self, form: Any, index: int | None) -> None:
        super().add_fields(form, index)
        key = form.fields.get("id")
        if isinstance(key, ModelChoiceField):
            key.queryset = self.get_queryset()


@dataclass(frozen=True, slots=True)
class Empty:
    """What a list without rows says: what stands in it, one example, and beside its "add" a page where rows come from."""

    text: str | Promise
    example: str | Promise = ""
    icon: str = "inbox"
    page: str = ""
    action: str | Promise = ""

    @property
    def url(self) -> str:
        return reverse(f"admin:{self.page}") if self.page else ""


Column = TypeVar("Column", bound=Callable[..., Any])


def column(
    description: str | Promise,
    *,
    ordering: str | OrderBy | None = None,
    label: Mapping[str, str] | None = None,
    empty_value: str | Promise | None = None,
) -> Callable[[Column], Column]:
    """A column of a list or a read-only field; `label` makes it a badge by the code in the returned (code, message)."""

    def decorate(method: Column) -> Column:
        @wraps(method)
        def written(admin: Any, row: Any) -> Any:
            value = method(admin, row)
            if isinstance(value, datetime):
                return display_for_value(value, "")
            return empty_value if value is None else value

        as_column = display(description=description, ordering=ordering, label=label, empty_value=empty_value)
        return cast(Column, as_column(written))

    return decorate


def principal(request: HttpRequest) -> Principal:
    return Principal(request.user)


def signed_in(request: HttpRequest) -> User:
    """The user of an admin page, which nobody opens without a login."""
    return cast(User, request.user)


def visible(model: type[models.Model], request: HttpRequest) -> QuerySet[Any]:
    """The rows of a model that the caller may see, all where it has no scope; of accounts one's own, superusers all."""
    rows = model._default_manager.all()
    if model is User and not request.user.is_superuser:
        return rows.filter(pk=request.user.pk)
    return rows.visible_to(principal(request)) if hasattr(rows, "visible_to") else rows


def filtered_knowledge_base(request: HttpRequest) -> int | None:
    """The knowledge base that the list was filtered by from which a form was opened."""
    return row_id(QueryDict(request.GET.get("_changelist_filters", "")).get(BY_KB, ""))


def back_from(request: HttpRequest) -> str:
    """The page of this site that a form names as the one to go back to; blank where it names none."""
    url = request.POST.get("next", "")
    is_own = url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure())
    return url if is_own else ""


class RowActions:
    """What is asked before rows are deleted, and actions on rows whose ids anybody can write into the form of a list.

    Attributes:
        protected_remedy: what to do where rows cannot be deleted, because others use them.
    """

    protected_remedy: ClassVar[str | Promise] = _("Delete or change these first.")

    delete_confirmation_template = "web/delete_confirmation.html"
    delete_selected_confirmation_template = "web/delete_selected_confirmation.html"

    @display(description=ModelAdmin.action_checkbox.short_description)  # type: ignore[untyped-decorator]
    def action_checkbox(self, row: Any) -> str:
        """The box that chooses a row, by whose name it is read out."""
        name = _("Select “%(name)s”") % {"name": Truncator(row).chars(NAME_CHARACTERS)}
        box = UnfoldBooleanWidget({"class": "action-select", "aria-label": name}, lambda _value: False)
        return cast(str, box.render(ACTION_CHECKBOX_NAME, str(row.pk)))

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Runs the chosen action; raises Http404 for a text that no id can be, on which Django's fails."""
        for chosen in request.POST.getlist(ACTION_CHECKBOX_NAME):
            try:
                queryset.model._meta.pk.to_python(chosen)
            except ValidationError as error:
                raise Http404 from error
        response: HttpResponse | None = super().response_action(request, queryset)  # type: ignore[misc]
        context = getattr(response, "context_data", None) or {}
        if "deletable_objects" in context:
            context["left_behind"] = left_behind_by(queryset.model, [row.pk for row in context["queryset"]]).items()
            context["protected_remedy"] = self.protected_remedy
        return response

    def render_delete_form(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        context["left_behind"] = left_behind_by(type(context["object"]), [context["object"].pk]).items()
        context["protected_remedy"] = self.protected_remedy
        return cast(HttpResponse, super().render_delete_form(request, context))  # type: ignore[misc]

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """What the audit log has of an object, for who may read it there; else what was done in the admin alone."""
        found = self.get_object(request, object_id)  # type: ignore[attr-defined]
        if found is not None and self.has_view_permission(request, found):  # type: ignore[attr-defined]
            logged = {"object_type": kind_of(found), "object_id": getattr(found, "prefix", found.pk)}
            if visible(AuditEntry, request).filter(**logged).exists():
                query = urlencode({"kind": logged["object_type"], "object_id": logged["object_id"]})
                return HttpResponseRedirect(f"{reverse('admin:kb_auditentry_changelist')}?{query}")
        return cast(HttpResponse, super().history_view(request, object_id, extra_context))  # type: ignore[misc]


class ScopedChangeList(ChangeList):  # type: ignore[misc]
    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = self.model_admin.completed(request, self.result_list)

    @property
    def unfinished_ids(self) -> str:
        return cast(str, self.model_admin.unfinished_ids(self.result_list))


class ScopedModelAdmin(RowActions, ModelAdmin):  # type: ignore[misc]
    """Rows are those that are visible to the caller; `delete_grant` names who may delete one.

    Attributes:
        linked_lookups: lookups of the query string, besides the filters', that the project's links to the list use.
        unfinished: the statuses of rows that a page has to ask about again.
        empty: what the list says while there is no row.
        add_title: what the button that adds a row says, where “New …” does not fit.
    """

    delete_grant: ClassVar[str] = "editable_by"
    linked_lookups: ClassVar[frozenset[str]] = frozenset()
    unfinished: ClassVar[Collection[str]] = ()
    empty: ClassVar[Empty | None] = None
    add_title: ClassVar[str | Promise] = ""
    list_filter_submit = True
    actions: ClassVar[Sequence[str]] = ("delete_selected",)
    list_per_page = 30  # below 300 KB of HTML
    list_disable_select_all = True
    show_facets = admin.ShowFacets.NEVER

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The visible rows; in the list of a knowledge base's page those of that one."""
        rows = super().get_queryset(request).visible_to(principal(request))
        if (kb := hub_of(request)) is not None:
            rows = rows.filter(**{rows.kb_path: kb})
        return cast("QuerySet[Any]", rows)

    def formfield_for_dbfield(self, db_field: "models.Field[Any, Any]", request: HttpRequest, **kwargs: Any) -> Any:
        """Without the theme's menu that adds and changes what a field names: no key opens it, and these have pages."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        widget = getattr(field, "widget", None)
        if isinstance(widget, RelatedFieldWidgetWrapper):
            widget.can_add_related = widget.can_change_related = False
            widget.can_delete_related = widget.can_view_related = False
        return field

    def get_list_filter(self, request: HttpRequest) -> Any:
        filters = super().get_list_filter(request)
        return filters if hub_of(request) is None else [each for each in filters if _first(each) != "knowledge_base"]

    def get_list_display(self, request: HttpRequest) -> Any:
        columns = super().get_list_display(request)
        return columns if hub_of(request) is None else [each for each in columns if each != "knowledge_base"]

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """What leads back from a form to the list that it was opened from; from that of a knowledge base, which one it was."""
        if (kb := hub_of(request)) is None:
            return cast(str, super().get_preserved_filters(request))
        return urlencode({"_changelist_filters": f"{BY_KB}={kb.pk}"})

    def _response_post_save(self, request: HttpRequest, obj: Any) -> HttpResponse:
        url = self._list_around(obj)
        return HttpResponseRedirect(url) if url else cast(HttpResponse, super()._response_post_save(request, obj))

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Leads to the list that the row stood in, also where its rows are deleted and not changed."""
        url = ""
        if request.method == "POST":
            url = self._list_around(self.get_object(request, object_id))
            if not url and not self.has_change_permission(request):
                url = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        response = cast(HttpResponse, super().delete_view(request, object_id, extra_context))
        return HttpResponseRedirect(url) if url and response.status_code == HTTPStatus.FOUND else response

    def _list_around(self, row: Any) -> str:
        """The rows of a row's knowledge base; blank where that has no list of them."""
        kb_id = getattr(row, "knowledge_base_id", None)
        return hub_list_url(self.model, kb_id) if kb_id else ""

    def get_urls(self) -> list[URLPattern]:
        return [*(page for pages in ADDED_PAGES[self.model] for page in pages(self)), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The list; one that is narrowed to a knowledge base that has it among its pages is shown there."""
        kb_id = row_id(request.GET.get(BY_KB, ""))
        url = (
            hub_list_url(self.model, kb_id)
            if kb_id and hub_of(request) is None and IS_POPUP_VAR not in request.GET
            else ""
        )
        if url and request.method == "GET" and len(request.GET.getlist(BY_KB)) == 1:
            others = request.GET.copy()
            del others[BY_KB]
            return HttpResponseRedirect(f"{url}?{others.urlencode()}" if others else url)
        return super().changelist_view(request, extra_context)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:  # noqa: ARG002
        return ScopedChangeList

    def completed(self, request: HttpRequest, rows: Any) -> Any:  # noqa: ARG002
        """The rows of a page of the list, with what is read for all of them at once."""
        return rows

    def unfinished_ids(self, rows: Iterable[Any]) -> str:
        """The rows that a page has to ask about again, as the value of a query parameter."""
        return ",".join(str(row.pk) for row in rows if row.status in self.unfinished)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        if row := kwargs.get("obj"):
            context |= self.form_context(request, row)
        return cast(HttpResponse, super().render_change_form(request, context, **kwargs))

    def form_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What the templates around the form of a row need."""
        added = (context(request, row) for context in ADDED_CONTEXTS[type(row)])
        return {name: value for context in added for name, value in context.items()}

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:  # noqa: ARG002
        """Only what filters and links of a list ask: others would tell, sign by sign, what the caller may not see."""
        first = lookup.partition(LOOKUP_SEP)[0]
        fields = {field.name for field in self.opts.get_fields()} | {"pk"}
        fields |= {field.attname for field in self.opts.concrete_fields}
        if first not in fields or lookup in self.linked_lookups:
            return True  # what is no field is ignored
        filters = self.get_list_filter(request) if request is not None else self.list_filter
        paths = [each[0] if isinstance(each, tuple | list) else each for each in filters]
        named = {getattr(each, "parameter_name", None) for each in filters}  # of filters that belong to no field
        return lookup in named or any(_is_filtered(self.model, path, lookup) for path in paths if isinstance(path, str))

    def get_object_or_404(self, request: HttpRequest, object_id: str, *, to_change: bool = False) -> Any:
        """The object of a page; raises Http404, or PermissionDenied where the user may see but not change it."""
        found = self.get_object(request, object_id)
        if found is None:
            raise Http404
        if to_change and not self.has_change_permission(request, found):
            raise PermissionDenied
        return found

    def page(self, route: str, view: Callable[..., Any], name: str) -> URLPattern:
        """The route of a page of the project's own; it is named as those that every model has: `kb_MODEL_NAME`."""
        named = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return cast(URLPattern, path(route, self.admin_site.admin_view(view), name=named))

    def row_page(
        self, route: str, view: Callable[[HttpRequest, Any], HttpResponse], *methods: str, name: str = ""
    ) -> URLPattern:
        """The route of a page of a row, which its view is given; to POST to it the user has to be able to change the row."""

        @require_http_methods(list(methods))
        @wraps(view)
        def of_row(request: HttpRequest, object_id: int) -> HttpResponse:
            return view(request, self.get_object_or_404(request, str(object_id), to_change="POST" in methods))

        return self.page(f"<int:object_id>/{route}/", of_row, name or route.replace("/", "_"))

    def get_form(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """A form that may ask who fills it in, by `self.request`."""
        form = super().get_form(request, obj, **kwargs)
        form.request = request
        return form

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """What a link gives, and the knowledge base that the list before was filtered by, else the current one."""
        given: dict[str, Any] = super().get_changeform_initial_data(request)
        current = current_knowledge_base(request)
        chosen = filtered_knowledge_base(request) or (current and current.pk)
        return given if chosen is None else {"knowledge_base": chosen, **given}

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
            rows = self.model._default_manager.filter(pk=key[1])
            answers[key] = self.granted(rows, request, grant).exists()
            if answers[key] and grant in ("editable_by", "owned_by") and isinstance(rows, ScopedQuerySet):
                note_curator(request)
        return bool(answers[key])

    @staticmethod
    def granted(rows: QuerySet[Any], request: HttpRequest, grant: str) -> QuerySet[Any]:
        return cast("QuerySet[Any]", getattr(rows, grant)(principal(request)))

    def get_field_queryset(self, db: str | None, db_field: Any, request: HttpRequest) -> QuerySet[Any]:  # noqa: ARG002
        return visible(db_field.remote_field.model, request)

    # -- Deletion: counts, never a tree of all that goes with it ---------------------------------------------------------
    def get_deleted_objects(
        self, objs: QuerySet[Any] | Sequence[Any], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[Any], list[Any]]:
        ids = [obj.pk for obj in objs]
        granted = self.granted(self.model._default_manager.filter(pk__in=ids), request, self.delete_grant)
        lacking = {self.opts.verbose_name} if granted.count() < len(objs) else set()
        return [str(obj) for obj in objs], deleted_with(self.model, ids), lacking, []

    @admin.action(description=_("Delete selected %(verbose_name_plural)s"), permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        allowed = self.only_granted(request, queryset, self.delete_grant)
        return None if allowed.query.is_empty() else delete_selected(self, request, allowed)

    def only_granted(self, request: HttpRequest, queryset: QuerySet[Any], grant: str) -> QuerySet[Any]:
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
        return allowed if kept else queryset.none()

    def report(self, request: HttpRequest, message: Any, count: int) -> None:
        """Says how many rows an action has changed, by a lazy `ngettext` of `count`."""
        self.message_user(request, message % {"count": count}, messages.SUCCESS if count else messages.INFO)


def _first(of_list: Any) -> Any:
    return of_list[0] if isinstance(of_list, tuple | list) else of_list


class ReadOnlyAdmin(ScopedModelAdmin):
    def _may_not(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - Django's interface
        return False

    has_add_permission = has_change_permission = has_delete_permission = _may_not


def _is_filtered(model: type[models.Model], path: str, lookup: str) -> bool:
    """Whether a filter of a field asks a lookup; of another row, only which one it is."""
    if lookup != path and not lookup.startswith(f"{path}{LOOKUP_SEP}"):
        return False
    field: Any = get_fields_from_path(model, path)[-1]
    if not field.is_relation:
        return True
    key = field.target_field.name
    return lookup in {f"{path}{LOOKUP_SEP}{tail}" for tail in ("exact", "isnull", f"{key}__exact", f"{key}__isnull")}


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


class ConditionFilter(DropdownFilter):  # type: ignore[misc]
    """Narrows to the rows that meet one of `conditions`, which are by the parameter's value, each with its label."""

    conditions: ClassVar[Mapping[str, tuple[Any, Q]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ARG002
        return [(value, label) for value, (label, _condition) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        chosen = self.conditions.get(self.value() or "")
        return queryset.filter(chosen[1]) if chosen else queryset


class KnowledgeBaseRowAdmin(ScopedModelAdmin):
    """Rows that editors of a knowledge base add to it, and that stay in it."""

    list_filter: ClassVar[Any] = (("knowledge_base", ScopedRelatedFilter),)
    list_select_related: ClassVar[Any] = ("knowledge_base",)
    warn_unsaved_form = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        return () if obj is None else ("knowledge_base",)

    def get_field_queryset(self, db: str | None, db_field: Any, request: HttpRequest) -> QuerySet[Any]:
        if db_field.name == "knowledge_base":
            return KnowledgeBase.objects.editable_by(principal(request))
        return super().get_field_queryset(db, db_field, request)


class ScopedAutocompleteForm(AutocompleteDropdownForm):  # type: ignore[misc]
    """Names the chosen object only if it is visible."""

    def __init__(self, request: HttpRequest, name: str, label: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, name, label, *args, **kwargs)
        chosen = self.fields[name]
        chosen.queryset = visible(chosen.queryset.model, request)


class ScopedAutocompleteFilter(AutocompleteSelectFilter):  # type: ignore[misc]
    form_class = ScopedAutocompleteForm


class ModelPage(UnfoldModelAdminViewMixin):  # type: ignore[misc]
    """A page below those of a model, open to whoever may open the admin: it shows what that user may see."""

    permission_required = ()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return cast(dict[str, Any], super().get_context_data(**{"opts": self.model_admin.opts, **kwargs}))


class KnowledgeBasePage(ModelPage):
    """A page of the knowledge base that its address names as `object_id`; 404 where the user may not see it."""

    @cached_property
    def kb(self) -> Any:
        return self.model_admin.get_object_or_404(self.request, str(self.kwargs["object_id"]))

    @cached_property
    def may_edit(self) -> bool:
        return bool(self.model_admin.has_change_permission(self.request, self.kb))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        page = {"original": self.kb, "kb": self.kb, "may_edit": self.may_edit}
        return super().get_context_data(**page | kwargs)


class LinesField(forms.CharField):
    """A text of one entry a line; its value is a list."""

    def __init__(self, *, is_code: bool = False, **kwargs: Any) -> None:
        widget = UnfoldAdminTextareaWidget({"rows": 3, "spellcheck": "false"} if is_code else {"rows": 3})
        super().__init__(required=False, widget=widget, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> Any:
        return [line for each in super().clean(value).splitlines() if (line := each.strip())]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(list(initial or []) != LinesField.clean(self, data))


class IntoKnowledgeBaseForm(forms.Form):
    """Offers the knowledge bases that the user may change."""

    knowledge_base_help: Any = ""
    knowledge_base = forms.ModelChoiceField(
        KnowledgeBase.objects.none(),
        label=_("Knowledge base"),
        widget=UnfoldAdminSelectWidget,
        empty_label=_("Select value"),
    )

    def __init__(self, *args: Any, writable: "QuerySet[KnowledgeBase]", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["knowledge_base"]
        field.queryset, field.help_text = writable, self.knowledge_base_help  # type: ignore[attr-defined]


class IntoKnowledgeBaseView(ModelPage, FormView):  # type: ignore[type-arg]
    """A page that brings something into a knowledge base; a link may choose it by `kb`."""

    rate_limit_kind = UPLOAD

    @cached_property
    def writable(self) -> "QuerySet[KnowledgeBase]":
        return KnowledgeBase.objects.editable_by(principal(self.request))

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "writable": self.writable}

    def get_initial(self) -> dict[str, Any]:
        """The knowledge base that a link names, else the current one, else the only one there is."""
        chosen = row_id(self.request.GET.get("kb", self.request.GET.get("knowledge_base", "")))
        current = current_knowledge_base(self.request)
        if kb_id := chosen or filtered_knowledge_base(self.request) or (current and current.pk):
            return {"knowledge_base": kb_id}
        writable = list(self.writable[:2])
        return {"knowledge_base": writable[0].pk} if len(writable) == 1 else {}
