"""What every page with the form of a search needs: the knowledge bases and profiles to choose from, and the form."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef
from django.http import Http404, QueryDict
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.content.models import Chunk
from kb.profiles.admin.choices import ProfileChoice, profile_choices
from kb.quality.debug.admin.form import SearchForm, inherited_settings, settings_in_words


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page's form, filled from its URL, and what it chooses from.

    Attributes:
        bases: those that may be searched, by id, with their profile, `has_chunks` and `may_edit`.
        chosen: those that the URL names, in its order.
        profiles: by the value of the form's field.
        inheritable: what empty fields stand for under each knowledge base and profile; the page's script reads it.
    """

    form: SearchForm
    bases: Mapping[int, KnowledgeBase]
    chosen: tuple[KnowledgeBase, ...]
    profiles: Mapping[str, ProfileChoice]
    inheritable: Mapping[str, Any]

    @property
    def context(self) -> dict[str, Any]:
        """For the templates of the form."""
        return {
            "form": self.form,
            "bases": self.bases,
            "inheritable": self.inheritable,
            "empty_bases": [kb for kb in self.chosen if not getattr(kb, "has_chunks", True)],
        }


def open_search_page(principal: Principal, given: QueryDict) -> SearchPage:
    """The form of a search, and what it may choose, in two queries.

    Args:
        principal: who searches.
        given: of the URL; without a field of the form in it, the form is not bound.

    Raises:
        Http404: the URL names a knowledge base that does not exist for this principal.
    """
    bases = visible_bases(principal)
    chosen = _chosen(given.getlist("kb"), bases)
    asked = given.get("profile", "")
    profiles = {choice.value: choice for choice in profile_choices(principal, asked, [kb.pk for kb in chosen])}
    inheritable = {
        "kbs": {str(kb.pk): settings_in_words(kb.profile) for kb in bases.values()},
        "profiles": {value: settings_in_words(choice.profile) for value, choice in profiles.items()},
    }
    inherited = inherited_settings(inheritable, [str(kb.pk) for kb in chosen], asked)
    is_bound = any(name in given for name in SearchForm.base_fields)
    form = SearchForm(given if is_bound else None, list(bases.values()), list(profiles.values()), inherited)
    return SearchPage(form, bases, tuple(chosen), profiles, inheritable)


def visible_bases(principal: Principal) -> dict[int, KnowledgeBase]:
    """The knowledge bases that may be searched, by id, with their profile, `has_chunks` and `may_edit`."""
    editable = KnowledgeBase.objects.editable_by(principal).order_by()
    bases = (
        KnowledgeBase.objects.visible_to(principal)
        .select_related("profile")
        .annotate(
            has_chunks=Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk"))),
            may_edit=Exists(editable.filter(pk=OuterRef("pk"))),
        )
    )
    return {kb.pk: kb for kb in bases}


def _chosen(ids: Iterable[str], bases: Mapping[int, KnowledgeBase]) -> list[KnowledgeBase]:
    """The knowledge bases that the URL names.

    Raises:
        Http404: one of them does not exist for this user.
    """
    by_id = {str(pk): kb for pk, kb in bases.items()}
    try:
        return [by_id[each] for each in dict.fromkeys(ids)]
    except KeyError as error:
        raise Http404(_("There is no knowledge base with the id %(ids)s.") % {"ids": error.args[0]}) from error
