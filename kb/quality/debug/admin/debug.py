"""The retrieval test: what a search finds, and why. The URL holds the query and its settings, so it can be shared."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.db.models import F
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.generic import TemplateView
from unfold.widgets import CHECKBOX_CLASSES

from kb.access.models import KnowledgeBase, Principal
from kb.access.services.rate_limits import GENERAL
from kb.base.errors import NotAllowed, Rejected
from kb.content.models import Document
from kb.profiles.admin.choices import profile_url, profile_value
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import (
    DEFAULT,
    MAX_NAME_CHARACTERS,
    NOT_IN_NAMES,
    create_version,
    environment_config,
    reference,
)
from kb.quality.compare.admin.results import name_at
from kb.quality.debug.admin.form import SETTINGS, SearchPage, open_search_page, visible_bases, with_current
from kb.quality.debug.admin.judge import SESSION_KEY, debug_url, judging
from kb.quality.models import DEFAULT_SET
from kb.search.admin.explain.explanation import explain, shown_results
from kb.search.admin.labels import notices
from kb.search.models import SearchLog
from kb.search.services.search import search
from kb.search.wiring import explicit_count
from kb.web.admin.current import remember_knowledge_base
from kb.web.admin.fields import listed, select, text_input
from kb.web.admin.navigation import Section, add_hub_tab, add_tab
from kb.web.admin.scoped import KnowledgeBasePage, principal as principal_of, signed_in
from kb.web.admin.site import AdminPage, add_part, admin_page
from retrieval.errors import InvalidConfiguration, NoChannelAvailable
from retrieval.selection import SETTING_OF_SCALE

TITLE = gettext_lazy("Retrieval test")
SHARED = "shared"
PROCESS = "process"
MOST_NAMED = 3


class DraftForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name of the profile"),
        max_length=MAX_NAME_CHARACTERS,
        error_messages={"required": gettext_lazy("Give the profile a name.")},
        widget=text_input(),
    )
    place = forms.ChoiceField(label=gettext_lazy("For"), widget=select())
    description = forms.CharField(
        label=gettext_lazy("What is different"), required=False, max_length=2_000, widget=text_input()
    )
    # The cut that was tried on the page, and the scale that its scores are on.
    threshold = forms.FloatField(required=False, min_value=0, max_value=1, widget=forms.HiddenInput())
    scale = forms.ChoiceField(
        required=False, choices=[(each, each) for each in SETTING_OF_SCALE], widget=forms.HiddenInput()
    )

    def __init__(self, data: Mapping[str, Any] | None, places: Mapping[str, str], initial: Mapping[str, str]) -> None:
        super().__init__(data, prefix="draft", initial=dict(initial))
        cast(forms.ChoiceField, self.fields["place"]).choices = list(places.items())

    @property
    def has_cut(self) -> bool:
        return bool(self["threshold"].value())


def draft_form(principal: Principal, page: SearchPage, data: Mapping[str, Any] | None = None) -> DraftForm | None:
    """The form that saves a page's settings, and a cut that was tried on it; None where there is nowhere to save them.

    The places are the chosen knowledge bases first, then the others, then shared, with whom that would affect. It proposes
    a profile of the knowledge base's own: the next version of the one that the search runs under where that is its own.
    """
    places = {str(kb.pk): kb.name for kb in (*page.chosen, *page.bases.values()) if getattr(kb, "may_edit", False)}
    ruling = _ruling(page)
    if principal.user.is_superuser:
        places[SHARED] = shared_place_text(ruling, page)
    if not places:
        return None
    place, name = str(ruling.knowledge_base_id), ruling.name
    if place not in places:
        place = next(iter(places))
        name = "".join(each for each in places[place] if each not in NOT_IN_NAMES)[:MAX_NAME_CHARACTERS]
    return DraftForm(data, places, {"name": name, "place": place})


def shared_place_text(ruling: RetrievalProfile, page: SearchPage) -> str:
    """Says which other knowledge bases a further version of a shared profile changes, once it is published."""
    also = [
        kb.name
        for kb in page.bases.values()
        if kb not in page.chosen and kb.profile.knowledge_base_id is None and kb.profile.name == ruling.name
    ]
    if ruling.knowledge_base_id is not None or not also:
        return _("shared by all knowledge bases")
    message = ngettext(
        "“%(profile)s”, shared: changes %(count)d other knowledge base too (%(names)s)",
        "“%(profile)s”, shared: changes %(count)d other knowledge bases too (%(names)s)",
        len(also),
    )
    named = listed(also[:MOST_NAMED]) + ("…" if len(also) > MOST_NAMED else "")
    return message % {"profile": ruling.name, "count": len(also), "names": named}


def _ruling(page: SearchPage) -> RetrievalProfile:
    """The profile that the page's settings stand over."""
    if page.form.profile_choice is not None:
        return page.form.profile_choice.profile
    own = {kb.profile_id: kb.profile for kb in page.chosen or page.bases.values()}
    return next(iter(own.values())) if len(own) == 1 else page.profiles[DEFAULT].profile


def _draft_settings(page: SearchPage, draft: DraftForm) -> dict[str, Any]:
    """The settings in force, those of the profile included, with the cut that was tried.

    The cut becomes that of its scale, and so no other reranker's, unless a threshold for all of them is set already.
    """
    given = {**_ruling(page).settings, **explicit_count(page.form.overrides)}
    threshold, scale = draft.cleaned_data["threshold"], draft.cleaned_data["scale"]
    if threshold is not None and scale:
        is_common = environment_config().override(given).score_threshold is not None
        given["score_threshold" if is_common else SETTING_OF_SCALE[scale]] = threshold
    return given


class RetrievalTest(TemplateView):
    """The page; `given` is what its address asks for."""

    template_name = "quality/debug/open.html"
    rate_limit_kind = GENERAL
    kb_id: int | None = None  # of the knowledge base that the page keeps to

    @cached_property
    def given(self) -> QueryDict:
        return with_current(self.request, self.kb_id)

    @cached_property
    def shows_process(self) -> bool:
        return self.request.GET.get("view") == PROCESS

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        page = open_search_page(principal_of(request), self.given)
        return self._respond(page, draft_form(principal_of(request), page))

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        """Saves the settings of the URL as a draft, and leads back to the search, which then runs under it."""
        caller = principal_of(request)
        page = open_search_page(caller, self.given)
        form = draft_form(caller, page, request.POST)
        if form is None or not page.form.is_valid() or not form.is_valid():
            return self._respond(page, form, status=400)
        if not (page.form.overrides or form.has_cut):
            form.add_error(None, _("Nothing is changed yet: change a setting or move the threshold first."))
            return self._respond(page, form, status=400)
        place = form.cleaned_data["place"]
        try:
            draft = create_version(
                caller,
                form.cleaned_data["name"],
                _draft_settings(page, form),
                description=form.cleaned_data["description"],
                knowledge_base=None if place == SHARED else page.bases[int(place)],
                begun_with=_ruling(page),
            )
        except (Rejected, NotAllowed) as error:
            form.add_error("name", str(error))
        except InvalidConfiguration as error:
            page.form.reject(error)
        else:
            message = _("“%(profile)s” was saved as a draft, and this search runs under it.") % {"profile": draft}
            label = _("See it, compare it, publish it")
            link = format_html('{} <a href="{}" class="kb-link">{}</a>', message, profile_url(draft), label)
            messages.success(request, link)
            kept = {name: values for name, values in request.GET.lists() if name not in SETTINGS}
            query = {**kept, "profile": profile_value(reference(draft), draft.version)}
            return HttpResponseRedirect(f"{request.path}?{urlencode(query, doseq=True)}")
        return self._respond(page, form, status=400)

    def _respond(self, page: SearchPage, draft: DraftForm | None, status: int = 200) -> HttpResponse:
        context: dict[str, Any] = {
            **page.context,
            "draft": draft,
            "draft_is_open": draft is not None and bool(page.form.overridden or draft.errors),
            "is_fixed": self.kb_id is not None,
            "checkbox_classes": " ".join(CHECKBOX_CLASSES),
            "shows_process": self.shows_process,
        }
        status = max(status, self._search(page, context))
        if not (page.form.asks or page.form.errors):
            bases = page.chosen or list(page.bases.values())
            context["example"] = _example(principal_of(self.request), bases)
        return self.render_to_response(self.get_context_data(**context), status=status)

    def _search(self, page: SearchPage, context: dict[str, Any]) -> int:
        """Runs the search, if the form asks for one, and puts what came out into the context; returns the HTTP status.

        The process is that of the same search, run again and not logged again.
        """
        form, caller = page.form, principal_of(self.request)
        if not form.asks:
            return 400 if form.errors else 200
        try:
            outcome = search(caller, dataclasses.replace(form.request(), log=not self.shows_process))
        except InvalidConfiguration as error:
            form.reject(error)
            return 400
        except NoChannelAvailable as error:
            context["outage"] = notices(error.degradations, (), page.bases)
            return 503
        if len(page.chosen) == 1:
            remember_knowledge_base(self.request, page.chosen[0])
        asked = self.given.copy()
        asked.pop("view", None)
        as_side = urlencode({name_at(name, "a"): values for name, values in asked.lists()}, doseq=True)
        context |= {
            "results_url": f"{self.request.path}?{asked.urlencode()}",
            "process_url": f"{self.request.path}?{asked.urlencode()}&view={PROCESS}",
            "why_not": f"{reverse('admin:why_not')}?{asked.urlencode()}&chunk=",
            "compare": f"{reverse('admin:compare')}?{as_side}",
        }
        if self.shows_process:
            context["explanation"] = explain(outcome, page.bases, caller)
            return 200
        context["explanation"] = explanation = shown_results(outcome, page.bases)
        shown = [row["chunk_id"] for name in ("results", "near_misses", "cut") for row in explanation[name]]
        eval_set = str(self.request.session.get(SESSION_KEY) or DEFAULT_SET)  # that the user has last judged in
        editable = frozenset(kb.pk for kb in page.chosen if getattr(kb, "may_edit", False))
        query = form.cleaned_data["q"]
        context["judging"] = judging(caller, eval_set, query, editable, shown, editable=editable)
        return 200


@admin_page("search-debug/", name="search_debug")
class SearchDebugView(RetrievalTest, AdminPage):
    """The page of the menu: of the knowledge bases that are chosen on it."""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(title=TITLE, **kwargs)


class KnowledgeBaseTestView(KnowledgeBasePage, RetrievalTest):
    """The page among those of a knowledge base, which it keeps to."""

    title = TITLE

    @cached_property
    def kb_id(self) -> int:  # type: ignore[override]
        return int(self.kb.pk)


MOST_LISTED = 20
# So many of the newest are read: enough to find MOST_LISTED different ones, unless someone repeats the same few.
ROWS_READ = 60


@admin_page("search-debug/history/", name="search_debug_history")
class SearchHistoryView(TemplateView):
    """The last different searches of the user, the newest first, as a fragment that the page loads on request.

    Those whose text the log does not hold cannot be run again and are left out, and so are those in knowledge bases
    that were deleted or are closed to the user.
    """

    template_name = "quality/debug/history.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        bases = visible_bases(principal_of(self.request))
        rows = (
            SearchLog.objects.filter(user=signed_in(self.request), assistant=None)
            .exclude(query="")
            .order_by("-created_at")
        )
        rows = rows.defer("trace", "configuration", "history").annotate(asked_for=F("trace__request"))
        found: dict[str, dict[str, Any]] = {}
        for row in rows[:ROWS_READ]:
            searched = [kb_id for kb_id in row.knowledge_base_ids if kb_id in bases]
            url = debug_url(searched, row.query, row.asked_for)
            if searched and url not in found:
                found[url] = {"search": row, "url": url, "kb_names": listed(bases[kb_id].name for kb_id in searched)}
        return super().get_context_data(**kwargs, searches=list(found.values())[:MOST_LISTED])


def _example(principal: Principal, bases: Sequence[KnowledgeBase]) -> dict[str, str] | None:
    """A query that finds something: the title of a document that is there."""
    ids = [kb.pk for kb in bases if getattr(kb, "has_chunks", True)]
    document = (
        Document.objects.visible_to(principal)
        .filter(knowledge_base__in=ids, status=Document.Status.READY)
        .exclude(title="")
        .order_by("-pk")
        .first()
    )
    if document is None:
        return None
    query = {"kb": document.knowledge_base_id, "q": document.title}
    return {"title": document.title, "url": f"?{urlencode(query)}"}


add_tab(Section.TEST, gettext_lazy("Test"), "search_debug", order=10, covers=("search_debug_",))
add_part(
    KnowledgeBase,
    pages=lambda of: [of.page("<int:object_id>/test/", KnowledgeBaseTestView.as_view(model_admin=of), "test")],
)
add_hub_tab("test", gettext_lazy("Test"), order=40)
