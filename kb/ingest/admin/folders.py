"""Folders in the admin: the line above the documents of a knowledge base, the page of one folder, and moving documents."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils.functional import cached_property
from django.utils.http import urlencode
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy
from django.views.decorators.http import require_POST
from django.views.generic import FormView
from unfold.widgets import UnfoldAdminAutocompleteWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from kb.access.models import KnowledgeBase
from kb.content.folders.services import (
    FolderPath,
    Tree,
    documents_in,
    documents_move,
    folder_create,
    folder_delete,
    folder_in,
    folder_update,
    held_right_in,
)
from kb.content.hub import documents_page
from kb.content.models import FOLDER_NAME_CHARACTERS, Document, Folder
from kb.ingest.services.documents import documents_delete
from kb.web.admin.navigation import hub_of
from kb.web.admin.scoped import KnowledgeBasePage, reporting, reporting_in, row_id
from kb.web.admin.site import add_part

PARAMETER = "in_folder"
# At once above the documents, and of those that a field has found.
FOLDERS_SHOWN: Final = 50
# Of the options of a select; more are searched.
MOST_LISTED: Final = 100


@dataclass(frozen=True, slots=True)
class Place:
    """The folder whose documents a list shows, None for all, among the folders of its knowledge base."""

    tree: Tree
    folder: Folder | None

    @property
    def ids(self) -> list[int] | None:
        """Of the folder and of those in it."""
        return None if self.folder is None else self.tree.below(self.folder.pk)

    def text_of(self, folder_id: int | None) -> str:
        """The names that lead from here to a folder; blank for what lies right here."""
        above = 0 if self.folder is None else len(self.tree.chain(self.folder.pk))
        return " / ".join(self.tree.names(folder_id)[above:])


def folder_place(request: HttpRequest, kb: KnowledgeBase) -> Place:
    """Asked of the database once a request; Http404 for a folder that the knowledge base has not."""
    if "_folder_place" not in request.__dict__:
        tree = Tree(kb.pk)
        asked = request.GET.get(PARAMETER, "")
        folder = tree.folders.get(row_id(asked) or 0)
        if asked and folder is None:
            raise Http404
        request.__dict__["_folder_place"] = Place(tree, folder)
    place: Place = request.__dict__["_folder_place"]
    return place


def folder_url(kb_id: int, folder_id: int | None, **query: Any) -> str:
    """The list of a folder's documents, or of all."""
    given = query if folder_id is None else {PARAMETER: folder_id, **query}
    return f"{documents_page(kb_id)}?{urlencode(given)}" if given else documents_page(kb_id)


@dataclass(frozen=True, slots=True)
class FolderRow:
    """A folder of a list; `text` are the names that lead to it from the folder whose list it is."""

    text: str
    url: str
    count: int


def folder_context(request: HttpRequest, kb: KnowledgeBase) -> dict[str, Any]:
    """What the line above the documents shows: the way to the folder, and the first of the folders in it."""
    place = folder_place(request, kb)
    here = None if place.folder is None else place.folder.pk
    link = partial(folder_url, kb.pk)
    return {
        "folder": place.folder,
        "folder_way": [{"name": each.name, "url": link(each.pk)} for each in place.tree.chain(here)],
        "has_folders": bool(place.tree.folders),
        "all_documents_url": link(None),
        **folder_rows(kb, place),
    }


def folder_rows(kb: KnowledgeBase, place: Place, query: str = "", page: int = 1) -> dict[str, Any]:
    """A page of the folders right in one, or of all below it whose names hold a text, each with its documents."""
    here = None if place.folder is None else place.folder.pk
    right_here = place.tree.within(here)
    if query:
        found = [(path.folder.pk, path.text) for path in found_paths(place.tree, query, below=here)]
    else:
        found = [(folder.pk, folder.name) for folder in right_here]
    rows = Paginator(found, FOLDERS_SHOWN).get_page(page)
    counts = held_right_in([pk for pk, _text in rows]) if found else {}
    return {
        "folders_page": rows,
        "folders_here": [FolderRow(text, folder_url(kb.pk, pk), counts.get(pk, 0)) for pk, text in rows],
        "folders_query": query,
        "finds_folders": len(right_here) > FOLDERS_SHOWN,
        "folders_in": here or "",
    }


def found_paths(tree: Tree, query: str, below: int | None = None) -> list[FolderPath]:
    """Those of the folders, by what leads to them, whose own names hold a text, whatever its case."""
    wanted = query.strip().casefold()
    return [path for path in tree.paths(below) if wanted in path.names[-1].casefold()]


def folder_list_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """Another page of the folders in one, or those that are searched for, for the line above the documents."""
    query, page = request.GET.get("q", "")[:FOLDER_NAME_CHARACTERS], row_id(request.GET.get("page", "")) or 1
    context = {"kb": kb, **folder_rows(kb, folder_place(request, kb), query.strip(), page)}
    return render(request, "ingest/folders/list.html", context)


def folder_options_view(request: HttpRequest, kb: KnowledgeBase) -> JsonResponse:
    """A page of the folders whose names hold a text, as a field that searches them takes it, but for those in `without`."""
    tree, without = Tree(kb.pk), row_id(request.GET.get("without", ""))
    left_out = set() if without is None else set(tree.below(without))
    found = [path for path in found_paths(tree, request.GET.get("q", "")) if path.folder.pk not in left_out]
    page = Paginator(found, FOLDERS_SHOWN).get_page(request.GET.get("page", "1"))
    options = [{"id": path.folder.pk, "text": path.text} for path in page]
    return JsonResponse({"results": options, "pagination": {"more": page.has_next()}})


class FolderFilter(admin.SimpleListFilter):
    """The documents of a folder and of those in it; the line above the list chooses it."""

    title = gettext_lazy("folder")
    parameter_name = PARAMETER

    def has_output(self) -> bool:
        return True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 - Django's
        return []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        kb = hub_of(request)
        ids = None if kb is None else folder_place(request, kb).ids
        return queryset if ids is None else queryset.filter(folder__in=ids)


class FolderSearch(UnfoldAdminAutocompleteWidget):  # type: ignore[misc] # the package has no types
    """A field that searches the folders on the server: its page holds the chosen one only."""

    option_template_name = "django/forms/widgets/select_option.html"  # the theme's writes "True" for every value
    choices: Any

    def optgroups(self, name: str, value: list[str], attrs: dict[str, Any] | None = None) -> Any:
        offered = list(self.choices)
        self.choices = [choice for choice in offered if str(choice[0]) in value]
        return super().optgroups(name, value, attrs)


class FolderChoice(forms.TypedChoiceField):
    """A folder of a knowledge base by the names that lead to it, as its id; blank: none, which is its top."""

    def __init__(self, **kwargs: Any) -> None:
        widget = UnfoldAdminSelectWidget
        super().__init__(**{"coerce": int, "empty_value": None, "required": False, "widget": widget, **kwargs})

    def offer(self, tree: Tree, kb_id: int, *, without: int | None = None) -> None:
        """Offers the folders, but for one and those in it; many are searched, few are a list."""
        left_out = set() if without is None else set(tree.below(without))
        offered = [path for path in tree.paths() if path.folder.pk not in left_out]
        if len(offered) > MOST_LISTED:
            given = {} if without is None else {"without": without}
            url = reverse("admin:kb_knowledgebase_folder_options", args=[kb_id], query=given)
            self.widget = FolderSearch()
            self.widget.attrs |= {"data-ajax--url": url, "data-placeholder": _("no folder")}
        self.choices = [("", _("no folder")), *((path.folder.pk, path.text) for path in offered)]


class FolderForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=FOLDER_NAME_CHARACTERS, widget=UnfoldAdminTextInputWidget
    )
    parent = FolderChoice(label=gettext_lazy("In the folder"))


class FolderView(KnowledgeBasePage, FormView):  # type: ignore[type-arg]
    """Renames, moves and deletes a folder."""

    template_name = "ingest/folders/page.html"
    form_class = FolderForm

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.kb.pk)

    @cached_property
    def folder(self) -> Folder:
        found: Folder | None = self.tree.folders.get(self.kwargs["folder_id"])
        if found is None:
            raise Http404
        if not self.may_edit:
            raise PermissionDenied
        return found

    @property
    def title(self) -> str:
        return _("Folder “%(name)s”") % {"name": self.folder.name}

    def get_initial(self) -> dict[str, Any]:
        return {"name": self.folder.name, "parent": self.folder.parent_id or ""}

    def get_form(self, form_class: Any = None) -> Any:
        form = super().get_form(form_class)
        form.fields["parent"].offer(self.tree, self.kb.pk, without=self.folder.pk)
        return form

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        held = documents_in(Document.objects.all(), self.folder).count()
        folders, back = len(self.tree.below(self.folder.pk)) - 1, folder_url(self.kb.pk, self.folder.pk)
        page = {"folder": self.folder, "documents_held": held, "folders_held": folders, "back_url": back}
        return super().get_context_data(**kwargs, **page)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.POST.get("action") != "delete":
            return super().post(request, *args, **kwargs)
        parent, goes = self.folder.parent_id, request.POST.get("documents") == "delete"
        folder_delete(self.folder, delete_documents=documents_delete if goes else None)
        messages.success(request, _("The folder “%(name)s” was deleted.") % {"name": self.folder.name})
        return HttpResponseRedirect(folder_url(self.kb.pk, parent))

    def form_valid(self, form: FolderForm) -> HttpResponse:
        values = form.cleaned_data
        with reporting_in(form, "name", within_itself="parent", too_deep="parent"):
            folder_update(self.folder, name=values["name"], parent=folder_in(self.kb, values["parent"]))
            return HttpResponseRedirect(folder_url(self.kb.pk, self.folder.pk))
        return self.form_invalid(form)


def add_folder_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """Makes a folder in the one that the form names, and opens it."""
    parent = row_id(request.POST.get("parent", ""))
    with reporting(request):
        folder = folder_create(kb=kb, name=request.POST.get("name", ""), parent=folder_in(kb, parent))
        return HttpResponseRedirect(folder_url(kb.pk, folder.pk))
    return HttpResponseRedirect(folder_url(kb.pk, parent))


MOVED = ngettext_lazy("%(count)d document was moved.", "%(count)d documents were moved.", "count")


class MoveForm(forms.Form):
    folder = FolderChoice(label=gettext_lazy("Into the folder"))


def move_page(model_admin: Any, request: HttpRequest, documents: QuerySet[Document]) -> HttpResponse | None:
    """Asks for a folder of the documents' knowledge base, and moves them when it has been chosen."""
    bases = list(documents.order_by().values_list("knowledge_base", flat=True).distinct()[:2])
    if len(bases) != 1:
        messages.error(request, _("Choose documents of one knowledge base: each has folders of its own."))
        return None
    kb = KnowledgeBase.objects.get(pk=bases[0])
    tree = Tree(kb.pk)
    form = MoveForm(request.POST if "apply" in request.POST else None)
    form.fields["folder"].offer(tree, kb.pk)  # type: ignore[attr-defined]
    if form.is_valid():
        chosen = form.cleaned_data["folder"]
        model_admin.report(request, MOVED, documents_move(documents, folder_in(kb, chosen)))
        return HttpResponseRedirect(folder_url(kb.pk, chosen))
    # All that the list matches are not named one by one: a form has so many fields and no more
    is_all = request.POST.get("select_across") == "1"
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "kb": kb,
        "title": _("Move to a folder"),
        "form": form,
        "ids": list(documents.values_list("pk", flat=True)[: 1 if is_all else None]),
        "is_all": is_all,
        "count": documents.count(),
        "has_folders": bool(tree.folders),
        "back_url": request.get_full_path(),
    }
    return TemplateResponse(request, "ingest/folders/move.html", context)


def folder_pages(model_admin: Any) -> list[URLPattern]:
    return [
        model_admin.row_page("folders/list", folder_list_view, "GET", name="folder_list"),
        model_admin.row_page("folders/options", folder_options_view, "GET", name="folder_options"),
        model_admin.row_page("folders/add", require_POST(add_folder_view), "POST", name="folder_add"),
        model_admin.page(
            "<int:object_id>/folders/<int:folder_id>/", FolderView.as_view(model_admin=model_admin), "folder"
        ),
    ]


add_part(KnowledgeBase, pages=folder_pages)
