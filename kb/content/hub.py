"""The head of a knowledge base's pages: its name, chips, buttons, and what the user may do with it."""

from dataclasses import dataclass
from typing import Any, Final

from django import template
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Exists, Func, IntegerField, OuterRef, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _, ngettext

from kb.access.models import KnowledgeBase, Membership, Principal
from kb.content.models import Document
from kb.content.services import may_rename
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.parts import Chip, actions, add_chips, chips

register = template.Library()

MOST_COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class HubState:
    """What the user may do with a knowledge base, and how many documents it has, up to one more than `MOST_COUNTED`."""

    may_edit: bool
    is_owner: bool
    may_leave: bool
    documents: int
    failed: int


def hub_state(request: HttpRequest, kb: KnowledgeBase) -> HubState:
    """Asked of the database once a request."""
    states: dict[int, HubState] = request.__dict__.setdefault("_hub_states", {})
    if kb.pk not in states:
        user: Any = request.user
        by, this = Principal(user), {"pk": OuterRef("pk")}
        documents = Document.objects.filter(knowledge_base=OuterRef("pk"))
        may_edit, is_owner, is_member, count, failed = (
            KnowledgeBase.objects.filter(pk=kb.pk)
            .order_by()
            .values_list(
                Exists(KnowledgeBase.objects.editable_by(by).filter(**this)),
                Exists(KnowledgeBase.objects.owned_by(by).filter(**this)),
                Exists(Membership.objects.filter(knowledge_base=OuterRef("pk"), user=user.pk)),
                _capped(documents),
                _capped(documents.filter(status=Document.Status.FAILED)),
            )
            .get()
        )
        may_leave = is_member and kb.owner_id != user.pk
        states[kb.pk] = HubState(may_edit, is_owner, may_leave, count, failed)
    return states[kb.pk]


def _capped(rows: QuerySet[Any]) -> Func:
    """How many rows there are, without a look at more of them than are counted."""
    some = rows.order_by().values("pk")[: MOST_COUNTED + 1]
    return Func(ArraySubquery(some), function="cardinality", output_field=IntegerField())


def owns_current(request: HttpRequest) -> bool:
    """Whether the user owns the knowledge base that the page is about."""
    kb = current_knowledge_base(request)
    return kb is not None and hub_state(request, kb).is_owner


def edits_current(request: HttpRequest) -> bool:
    """Whether the user may change the knowledge base that the page is about."""
    kb = current_knowledge_base(request)
    return kb is not None and hub_state(request, kb).may_edit


def count_text(count: int) -> str:
    return f"{MOST_COUNTED:,}+" if count > MOST_COUNTED else str(count)


@register.simple_tag(takes_context=True)
def hub_head(context: Any, kb: KnowledgeBase) -> dict[str, Any]:
    """What the head of a knowledge base's page shows."""
    request: HttpRequest = context["request"]
    state = hub_state(request, kb)
    by = Principal(request.user)
    return {
        "state": state,
        "may_rename": state.may_edit and may_rename(kb, by),
        "actions": list(actions(request, kb)),
        "chips": [*chips(request, kb), *_document_chips(kb, state)],
        "documents_url": documents_page(kb.pk),
        "test_url": reverse("admin:kb_knowledgebase_test", args=[kb.pk]),
        "ask_url": f"{reverse('admin:ask')}?kb={kb.pk}",
    }


def documents_page(kb_id: int) -> str:
    return reverse("admin:kb_knowledgebase_documents", args=[kb_id])


def failed_documents_page(kb_id: int) -> str:
    return f"{documents_page(kb_id)}?status__exact={Document.Status.FAILED}"


def _document_chips(kb: KnowledgeBase, state: HubState) -> list[Chip]:
    documents = ngettext("%(count)s document", "%(count)s documents", state.documents)
    found = [Chip(documents % {"count": count_text(state.documents)}, url=documents_page(kb.pk))]
    if state.failed and state.may_edit:
        text = ngettext("%(count)s failed", "%(count)s failed", state.failed)
        found.append(Chip(text % {"count": count_text(state.failed)}, "bad", failed_documents_page(kb.pk)))
    return found


@add_chips
def _language_chip(_request: HttpRequest, kb: KnowledgeBase) -> list[Chip]:
    return [Chip(kb.get_language_display(), title=_("Language of most documents"))]
