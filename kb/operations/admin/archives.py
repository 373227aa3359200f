"""Whole knowledge bases as files: the page that gives one out, and the one that takes one in."""

from functools import partial
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET
from django.views.generic import FormView
from unfold.views import UnfoldModelAdminViewMixin
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminTextInputWidget

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.base.errors import Rejected
from kb.content.models import Document
from kb.operations.services.archives.export import archive_name, export_open
from kb.operations.services.archives.restore import import_upload
from kb.quality.models import EvalSet
from kb.web.admin.parts import add_part
from kb.web.admin.scoped import principal, signed_in


class ArchiveForm(forms.Form):
    file = forms.FileField(
        label=gettext_lazy("Archive"), widget=UnfoldAdminFileFieldWidget({"accept": ".zip,application/zip"})
    )
    name = forms.CharField(
        label=gettext_lazy("Name of the knowledge base"),
        required=False,
        max_length=120,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("Blank: the name in the archive."),
    )


class ImportArchiveView(UnfoldModelAdminViewMixin, FormView):  # type: ignore[misc,type-arg]
    title = gettext_lazy("Import a knowledge base")
    permission_required = ()
    template_name = "operations/archives/import.html"
    form_class = ArchiveForm
    rate_limit_kind = UPLOAD

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        megabytes = settings.MAX_UPLOAD_BYTES // 1024**2
        return super().get_context_data(**kwargs, opts=self.model_admin.opts, max_megabytes=megabytes)

    def form_valid(self, form: ArchiveForm) -> HttpResponse:
        given = form.cleaned_data
        try:
            done = import_upload(principal(self.request), signed_in(self.request), given["file"], given["name"])
        except Rejected as error:
            form.add_error("name" if error.code == "name_taken" else "file", str(error))
            return self.form_invalid(form)
        words = _("“%(name)s” was imported: documents %(documents)d, chunks %(chunks)d, judgments %(judgments)d.")
        messages.success(self.request, words % {**done.rows, "name": done.knowledge_base.name})
        for note in done.notes:
            messages.warning(self.request, note)
        return HttpResponseRedirect(reverse("admin:kb_knowledgebase_change", args=[done.knowledge_base.pk]))


def export_view(model_admin: Any, request: HttpRequest, object_id: int) -> HttpResponse:
    """Says what an export holds, with a choice of what to leave out."""
    kb: KnowledgeBase = model_admin.get_object_or_404(request, str(object_id), to_change=True)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": _("Export “%(name)s”") % {"name": kb.name},
        "opts": model_admin.opts,
        "original": kb,
        "kb": kb,
        "eval_set_count": EvalSet.objects.filter(knowledge_base=kb).count(),
        "file_count": Document.objects.filter(knowledge_base=kb).exclude(file="").count(),
    }
    return render(request, "operations/archives/export.html", context)


def export_file_view(model_admin: Any, request: HttpRequest, object_id: int) -> FileResponse:
    """The archive itself."""
    kb: KnowledgeBase = model_admin.get_object_or_404(request, str(object_id), to_change=True)
    return FileResponse(
        export_open(principal(request), kb, vectors="vectors" in request.GET),
        as_attachment=True,
        filename=archive_name(kb),
        content_type="application/zip",
        headers={"X-Content-Type-Options": "nosniff"},
    )


def archive_pages(model_admin: Any) -> list[URLPattern]:
    return [
        model_admin.page("import/", ImportArchiveView.as_view(model_admin=model_admin), "import"),
        model_admin.page("<int:object_id>/export/", require_GET(partial(export_view, model_admin)), "export"),
        model_admin.page(
            "<int:object_id>/export/file/", require_GET(partial(export_file_view, model_admin)), "export_file"
        ),
    ]


add_part(KnowledgeBase, pages=archive_pages)
