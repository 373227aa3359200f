"""The knowledge base that a user works with: the one that a page is about, else the one that they were in last."""

from typing import Any, Final

from django.db.models import Exists, F, Func, IntegerField, OrderBy, OuterRef, QuerySet, Value
from django.http import HttpRequest

from kb.access.models import KnowledgeBase, Principal, User

RECENT: Final = 12


def current_knowledge_base(request: HttpRequest) -> KnowledgeBase | None:
    """None where the user has been in none yet, or may not see that one any more; asked of the database once a request.

    It carries `may_edit`.
    """
    if "_current_knowledge_base" not in request.__dict__:
        user: Any = request.user
        kb_id = getattr(user, "last_knowledge_base_id", None)
        request.__dict__["_current_knowledge_base"] = None if kb_id is None else _visible(user, kb_id)
    found: KnowledgeBase | None = request.__dict__["_current_knowledge_base"]
    return found


def remember_knowledge_base(request: HttpRequest, kb: KnowledgeBase) -> None:
    """Makes a knowledge base, which the user may see, the current one; a write only where it was another."""
    request.__dict__["_current_knowledge_base"] = kb
    user: Any = request.user
    if user.last_knowledge_base_id != kb.pk:
        others = [kb_id for kb_id in user.recent_knowledge_bases if kb_id != kb.pk]
        user.last_knowledge_base_id, user.recent_knowledge_bases = kb.pk, [kb.pk, *others][:RECENT]
        User.objects.filter(pk=user.pk).update(
            last_knowledge_base=kb.pk, recent_knowledge_bases=user.recent_knowledge_bases
        )


def recent_first(request: HttpRequest, rows: "QuerySet[KnowledgeBase]") -> "QuerySet[KnowledgeBase]":
    """Knowledge bases in the order in which the user was in them last; those that they were never in follow by name."""
    user: Any = request.user
    recent = [user.last_knowledge_base_id or 0, *user.recent_knowledge_bases]
    place = Func(
        Value(recent, User._meta.get_field("recent_knowledge_bases")),
        F("pk"),
        function="array_position",
        output_field=IntegerField(),
    )
    return rows.order_by(OrderBy(place, nulls_last=True), "name", "pk")


def note_curator(request: HttpRequest) -> None:
    """Saves `is_curator` its question, where it is known that the user may change a knowledge base."""
    request.__dict__["_is_curator"] = True


def is_curator(request: HttpRequest) -> bool:
    """Whether the user may change a knowledge base, or has none yet and may make one; the others only read and ask."""
    if "_is_curator" not in request.__dict__:
        principal = Principal(request.user)
        rows = KnowledgeBase.objects
        request.__dict__["_is_curator"] = (
            request.user.is_superuser or rows.editable_by(principal).exists() or not rows.visible_to(principal).exists()
        )
    return bool(request.__dict__["_is_curator"])


def _visible(user: User, kb_id: int) -> KnowledgeBase | None:
    principal = Principal(user)
    editable = KnowledgeBase.objects.editable_by(principal).filter(pk=OuterRef("pk"))
    rows = KnowledgeBase.objects.visible_to(principal).select_related("owner", "version_row", "profile")
    found: KnowledgeBase | None = rows.filter(pk=kb_id).annotate(may_edit=Exists(editable)).first()
    return found
