"""System → Models: what this installation asks, how it was tested, who uses it, and how much."""

from typing import Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _, gettext_lazy
from unfold.admin import ModelAdmin

from kb.base.messages import shown
from kb.base.waits import waiting_outside
from kb.providers.admin.cards import groups, users_of
from kb.providers.admin.forms import ADVANCED, ROLES, ModelForm, result_of, signed_result
from kb.providers.admin.usage import usage
from kb.providers.admin.weights import weights_context
from kb.providers.downloads.models import ModelDownload
from kb.providers.downloads.services import download_cancel, download_start
from kb.providers.endpoints import endpoint_of
from kb.providers.models import ProviderModel
from kb.providers.presets import BY_KEY, PRESETS, Preset, preset_of
from kb.providers.probes import ProbeFailed, list_models, probe
from kb.providers.recommended import Role
from kb.providers.services import (
    knowledge_bases_using,
    provider_model_create,
    provider_model_delete,
    provider_model_set_default,
    provider_model_tested,
    provider_model_update,
)
from kb.web.admin.navigation import Section, add_tab, to_superusers
from kb.web.admin.scoped import RowActions, reporting, reporting_in, row_id, signed_in


@admin.register(ProviderModel)
class ProviderModelAdmin(RowActions, ModelAdmin):  # type: ignore[misc]
    """For superusers only; every change goes through the services, which say what may be."""

    actions = ()
    protected_remedy = gettext_lazy("Choose another embedding model for them first.")

    def has_module_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return bool(request.user.is_active and request.user.is_superuser)

    has_view_permission = has_add_permission = has_change_permission = has_module_permission

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request) and not (obj is not None and obj.variable)

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        """Who may see no model gets the same answer for one that is and one that is not there."""
        self._require(request)
        return cast(HttpResponse, super()._get_obj_does_not_exist_redirect(request, opts, object_id))

    def get_urls(self) -> list[URLPattern]:
        return [
            self._page("test/", self.test, "test"),
            self._page("names/", self.names, "names"),
            self._page("usage/", self.usage, "usage"),
            self._page("weights/", self.weights, "weights"),
            self._page("weights/<int:object_id>/cancel/", self.cancel, "weights_cancel"),
            self._page("<int:object_id>/default/", self.make_default, "default"),
            self._page("<int:object_id>/test/", self.test_row, "test_row"),
            *super().get_urls(),
        ]

    def _page(self, route: str, view: Any, name: str) -> URLPattern:
        def guarded(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if not self.has_module_permission(request):
                raise PermissionDenied
            return cast(HttpResponse, view(request, **kwargs))

        return cast(URLPattern, path(route, self.admin_site.admin_view(guarded), name=f"kb_providermodel_{name}"))

    # -- Pages -----------------------------------------------------------------------------------------------------------
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        self._require(request)
        found = groups()
        context = {
            "title": _("Models"),
            "groups": found,
            "presets": [(each, _roles_of(each)) for each in PRESETS],
            **weights_context(),
        }
        return self._answer(request, "list", context)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        self._require(request)
        preset, role = _asked_for(request)
        chosen = {"model": request.GET["model"][:200]} if request.GET.get("model") else None
        form = ModelForm(request.POST or None, preset=preset, role=role, initial=chosen)
        if request.method == "POST" and form.is_valid():
            row = self._saved(request, form)
            if row is not None:
                return self._after(request, row, _("“%(name)s” is added."))
        return self._form(request, form, _("Add a model: %(name)s") % {"name": preset.name})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: Any = None,  # noqa: ARG002
    ) -> HttpResponse:
        row = self._row(request, object_id)
        preset, role = preset_of(row.provider), Role(row.role)
        if row.variable:
            return self._answer(request, "locked", {"title": row.name, "original": row, "preset": preset})
        form = ModelForm(request.POST or None, preset=preset, role=role, row=row)
        if request.method == "POST" and form.is_valid() and self._saved(request, form) is not None:
            return self._after(request, row, _("“%(name)s” is saved."))
        return self._form(request, form, row.name)

    def usage(self, request: HttpRequest) -> HttpResponse:
        """What models were asked of late, by model and knowledge base."""
        return self._answer(request, "usage", {"title": _("Use of models"), "usage": usage()})

    # -- Parts of pages, and buttons -------------------------------------------------------------------------------------
    def test(self, request: HttpRequest) -> HttpResponse:
        """Asks the model that a form describes, saved or not."""
        form = self._posted(request)
        if not form.is_valid():
            return render(request, "providers/form_errors.html", {"form": form})
        endpoint = form.endpoint
        with waiting_outside(request.user.pk):
            found = probe(endpoint)
        context = {"probe": found, "error": shown(found.error), "remedy": shown(found.remedy), "role": form.role}
        return render(request, "providers/tested.html", context | {"signed": signed_result(endpoint, found)})

    def names(self, request: HttpRequest) -> HttpResponse:
        """The models that the form's server lists, as what the field of the name suggests."""
        form = self._posted(request)
        form.fields["model"].required = False
        if not form.is_valid():
            return render(request, "providers/form_errors.html", {"form": form})
        try:
            with waiting_outside(request.user.pk):
                found = list_models(form.endpoint)
        except ProbeFailed as failure:
            return render(
                request, "providers/names.html", {"error": shown(failure.error), "remedy": shown(failure.remedy)}
            )
        return render(request, "providers/names.html", {"names": found, "chosen": form.cleaned_data["model"]})

    def test_row(self, request: HttpRequest, object_id: int) -> HttpResponse:
        row = self._row(request, str(object_id), method="POST")
        with waiting_outside(request.user.pk):
            found = probe(endpoint_of(row))
        provider_model_tested(
            row, ok=found.ok, latency_ms=found.latency_ms, message=found.error, dimension=found.dimension
        )
        if found.ok:
            messages.success(request, _("“%(name)s” answers: %(ms)d ms.") % {"name": row.name, "ms": found.latency_ms})
        else:
            messages.error(request, f"{row.name}: {shown(found.error)} {shown(found.remedy)}")
        return _to_list()

    def make_default(self, request: HttpRequest, object_id: int) -> HttpResponse:
        row = self._row(request, str(object_id), method="POST")
        self._done(request, lambda: provider_model_set_default(row, user=signed_in(request)))
        return _to_list()

    def weights(self, request: HttpRequest) -> HttpResponse:
        """The weights on this server and those that can be fetched; POST fetches some."""
        if request.method == "POST":
            model, mirror = request.POST.get("model", ""), request.POST.get("mirror", "")
            self._done(request, lambda: download_start(signed_in(request), model, mirror))
            return HttpResponseRedirect(f"{_list_url()}#weights")
        return render(request, "providers/weights.html", weights_context())

    def cancel(self, request: HttpRequest, object_id: int) -> HttpResponse:
        row = ModelDownload.objects.filter(pk=object_id).first()
        if row is None or request.method != "POST":
            raise Http404
        download_cancel(signed_in(request), row)
        return HttpResponseRedirect(f"{_list_url()}#weights")

    # -- Deletion ----------------------------------------------------------------------------------------------------------
    def get_deleted_objects(self, objs: QuerySet[Any] | Any, request: HttpRequest) -> tuple[Any, ...]:  # noqa: ARG002
        """No more than the rows themselves; what uses one keeps it."""
        using = [str(kb) for row in objs for kb in knowledge_bases_using(row)[:20]]
        return [str(row) for row in objs], {}, set(), using

    def render_delete_form(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        return super().render_delete_form(request, {**context, "used_by": users_of(context["object"])})

    def delete_model(self, request: HttpRequest, obj: ProviderModel) -> None:
        provider_model_delete(obj, user=signed_in(request))

    # -- Helpers -----------------------------------------------------------------------------------------------------------
    def _require(self, request: HttpRequest) -> None:
        if not self.has_module_permission(request):
            raise PermissionDenied

    def _row(self, request: HttpRequest, object_id: str, *, method: str = "") -> ProviderModel:
        self._require(request)
        found = ProviderModel.objects.filter(pk=row_id(object_id) or 0).first()
        if found is None or (method and request.method != method):
            raise Http404
        return found

    def _posted(self, request: HttpRequest) -> ModelForm:
        """The form of a page whose button asks; of a saved row where it names one."""
        row = ProviderModel.objects.filter(pk=row_id(request.POST.get("row", "")) or 0, variable="").first()
        if request.method != "POST":
            raise Http404
        if row is not None:
            return ModelForm(request.POST, preset=preset_of(row.provider), role=Role(row.role), row=row)
        preset, role = _asked_for(request)
        return ModelForm(request.POST, preset=preset, role=role)

    def _saved(self, request: HttpRequest, form: ModelForm) -> ProviderModel | None:
        """The row with what the form says and how it was tested; None, and errors at the form's fields, if refused."""
        endpoint, user, values = form.endpoint, signed_in(request), form.values
        row = None
        with reporting_in(form, role_invalid="model"):
            if form.row is None:
                key = form.given_key or ""
                row = provider_model_create(user=user, role=form.role, provider=form.preset.key, api_key=key, **values)
            else:
                provider_model_update(form.row, user=user, api_key=form.given_key, **values)
                row = form.row
        if row and (result := result_of(request.POST.get("tested", ""), endpoint)):
            provider_model_tested(
                row,
                ok=not result["error"],
                latency_ms=result["ms"],
                message=result["error"],
                dimension=result["dimension"],
            )
        return row

    def _done(self, request: HttpRequest, act: Any) -> None:
        with reporting(request):
            act()

    def _form(self, request: HttpRequest, form: ModelForm, title: str) -> HttpResponse:
        advanced = [form[name] for name in form.fields if name in ("is_enabled", *ADVANCED[form.role])]
        context = {
            "title": title,
            "form": form,
            "original": form.row,
            "preset": form.preset,
            "role": form.role,
            "roles": [] if form.row else _roles_of(form.preset),
            "advanced": advanced,
            "names": form.preset.roles[form.role].models if form.role in form.preset.roles else (),
        }
        return self._answer(request, "form", context)

    def _answer(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        every = {**self.admin_site.each_context(request), "opts": self.opts, **context}
        return TemplateResponse(request, f"providers/{name}.html", every)

    def _after(self, request: HttpRequest, row: ProviderModel, said: str) -> HttpResponse:
        messages.success(request, said % {"name": row.name})
        return _to_list()


def _asked_for(request: HttpRequest) -> tuple[Preset, Role]:
    """The preset and the role of an address or of a form; the first role that the preset serves where none is named."""
    given = request.POST if request.method == "POST" else request.GET
    preset = BY_KEY.get(given.get("provider", ""))
    if preset is None:
        raise Http404
    role = given.get("role") or next(iter(preset.roles)).value
    if role not in preset.roles:
        raise Http404
    return preset, Role(role)


def _roles_of(preset: Preset) -> list[tuple[str, Any]]:
    return [(role.value, label) for role, label in ROLES.items() if role in preset.roles]


def _list_url() -> str:
    return reverse("admin:kb_providermodel_changelist")


def _to_list() -> HttpResponse:
    return HttpResponseRedirect(_list_url())


add_tab(Section.SYSTEM, gettext_lazy("Models"), "kb_providermodel_changelist", order=10, shown=to_superusers)
