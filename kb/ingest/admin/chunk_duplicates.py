"""The page that lists the near-duplicates of a knowledge base, with the words in which they differ."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.generic import TemplateView
from unfold.views import UnfoldModelAdminViewMixin

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import ServiceError
from kb.content.models.documents import Chunk
from kb.ingest.services.chunk_work.bulk import chunks_change
from kb.ingest.services.chunk_work.duplicates import (
    Found,
    Group,
    duplicate_scan_request,
    duplicates_of,
    near_duplicates,
    similarities_within,
)
from kb.web.admin.ids import row_id, row_ids
from kb.web.admin.scoped import principal, visible

GROUPS_A_PAGE = 10
MEMBERS_SHOWN = 12
COMPARED_CHARACTERS = 2_000
_WORD = re.compile(r"[^\W\u2e80-\U0003ffff]+|\s+|.", re.DOTALL)

Run = tuple[bool, str]
"""Whether a piece of a text is only in this one, and the piece."""


class NearDuplicatesView(UnfoldModelAdminViewMixin, TemplateView):  # type: ignore[misc]
    permission_required = ()
    template_name = "ingest/chunk_duplicates.html"

    @property
    def title(self) -> str:
        return _("Near-duplicates in “%(name)s”") % {"name": self.kb.name} if self.kb else _("Near-duplicates")

    @cached_property
    def bases(self) -> list[KnowledgeBase]:
        return list(visible(KnowledgeBase, self.request).order_by("name"))

    @cached_property
    def kb(self) -> KnowledgeBase | None:
        """The chosen one, or the only one there is; None where it is still to be chosen.

        Raises:
            Http404: it does not exist for this user.
        """
        if not self.request.GET.get("kb"):
            return self.bases[0] if len(self.bases) == 1 else None
        chosen = row_id(self.request.GET["kb"])
        found = next((kb for kb in self.bases if kb.pk == chosen), None)
        if found is None:
            raise Http404
        return found

    @cached_property
    def may_edit(self) -> bool:
        return self.kb is not None and (
            KnowledgeBase.objects.editable_by(principal(self.request)).filter(pk=self.kb.pk).exists()
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        found = near_duplicates(self.kb) if self.kb else Found()
        page = Paginator(found.groups, GROUPS_A_PAGE).get_page(self.request.GET.get("page"))
        return super().get_context_data(
            **kwargs,
            opts=self.model_admin.opts,
            bases=self.bases,
            kb=self.kb,
            found=found,
            unkept=found.group_count - len(found.groups),
            page=page,
            groups=_shown(self.kb, list(page.object_list)) if self.kb else [],
            may_edit=self.may_edit,
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if self.kb is None or not self.may_edit:
            raise PermissionDenied
        if request.POST.get("action") == "look":
            duplicate_scan_request(self.kb)
            messages.info(request, _("A worker is looking for near-duplicates: open this page again in a moment."))
        else:
            self._change(self.kb, row_ids(request.POST.getlist("chunk")), request.POST.get("action", ""))
        page = request.GET.get("page", "")
        return HttpResponseRedirect(duplicates_url(self.kb) + (f"&page={page}" if page.isdecimal() else ""))

    def _change(self, kb: KnowledgeBase, chunk_ids: Sequence[int], action: str) -> None:
        if action not in ("disable", "delete") or not chunk_ids:
            messages.error(self.request, _("Choose the chunks first, then what becomes of them."))
            return
        try:
            count = chunks_change(knowledge_base=kb, chunk_ids=chunk_ids, action=action)  # type: ignore[arg-type]
        except ServiceError as error:
            messages.error(self.request, str(error))
            return
        words = (
            ngettext(
                "%(count)d chunk is found by no search now.", "%(count)d chunks are found by no search now.", count
            )
            if action == "disable"
            else ngettext("%(count)d chunk was deleted.", "%(count)d chunks were deleted.", count)
        )
        messages.success(self.request, words % {"count": count})


def duplicates_url(kb: KnowledgeBase) -> str:
    return f"{reverse('admin:kb_chunk_duplicates')}?kb={kb.pk}"


def _shown(kb: KnowledgeBase, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Groups with their first chunks as they are now; one of which fewer than two are left enabled is left out."""
    ids = [chunk_id for group in groups for chunk_id in group.chunk_ids[:MEMBERS_SHOWN]]
    rows = Chunk.objects.filter(knowledge_base=kb, pk__in=ids, enabled=True).select_related("document")
    chunks = {chunk.pk: chunk for chunk in rows}
    there = [[chunks[each] for each in group.chunk_ids[:MEMBERS_SHOWN] if each in chunks] for group in groups]
    kept = [(group, members) for group, members in zip(groups, there, strict=True) if len(members) > 1]
    alike = similarities_within(kb, [members for _, members in kept])
    return [
        {
            "first": members[0],
            "others": [
                {"chunk": other, "percent": percent(alike[other.pk]), "runs": marked(members[0].text, other.text)}
                for other in members[1:]
            ],
            "unshown": max(0, len(group.chunk_ids) - MEMBERS_SHOWN),
        }
        for group, members in kept
    ]


def marked(first: str, second: str) -> list[Run]:
    """The second text in pieces, those marked that the first does not have at their place."""
    words, others = (_WORD.findall(text[:COMPARED_CHARACTERS]) for text in (first, second))
    runs: list[Run] = []
    for tag, start, end, other_start, other_end in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        if piece := "".join(others[other_start:other_end]):
            runs.append((tag != "equal", piece))
        elif start < end:
            runs.append((True, ""))
    return [*runs, (False, second[COMPARED_CHARACTERS:])]


NEIGHBOUR_CHARACTERS = 300


def alike(chunk: Chunk) -> dict[str, Any]:
    """What the part of the page needs that waits for a search: the near-duplicates of a chunk."""
    return {
        "chunk": chunk,
        "neighbour_characters": NEIGHBOUR_CHARACTERS,
        "duplicates": [(other, percent(similarity)) for other, similarity in duplicates_of(chunk)],
    }


def percent(similarity: float) -> int:
    """Whole per cent, rounded down: only the same is 100 %."""
    return int(similarity * 100 + 1e-9)


def moved_meanwhile() -> str:
    return _("The knowledge base moved to another embedding model meanwhile, and nothing was saved: save again.")
