"""Search debug: why each result stands where it does. The URL holds the query and its settings, so it can be shared."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django import forms
from django.contrib.admin import AdminSite
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.generic import TemplateView
from unfold.widgets import CHECKBOX_CLASSES, INPUT_CLASSES, SELECT_CLASSES

from kb.admin.explain import Explanation, explain
from kb.admin.explain_stages import is_empty, notices, upload_url
from kb.conf import environment_config
from kb.models import Chunk, Document, KnowledgeBase, Principal, RetrievalProfile
from kb.services.errors import NotVisible
from kb.services.search import SearchOutcome, SearchRequest, search
from retrieval.config import RetrievalConfig
from retrieval.errors import InvalidConfiguration, NoChannelAvailable

# Fields of the form and the settings that they override.
SETTINGS = {
    "top_k": "top_k",
    "vector_weight": "vector_weight",
    "keyword_weight": "keyword_weight",
    "threshold": "score_threshold",
    "rerank": "use_rerank",
}
SWITCH = {"on": True, "off": False}


def _input(**attrs: str) -> forms.TextInput:
    # A text field, so that a number that is none stays in it to be corrected.
    return forms.TextInput({"class": " ".join(INPUT_CLASSES), "autocomplete": "off", **attrs})


class SearchForm(forms.Form):
    """What to search for; an empty setting is inherited and shows as what it inherits."""

    q = forms.CharField(
        label=gettext_lazy("Query"),
        required=False,
        max_length=2_000,
        widget=_input(type="search", enterkeyhint="search"),
    )
    kb = forms.TypedMultipleChoiceField(
        label=gettext_lazy("Knowledge bases"),
        required=False,
        coerce=int,
        widget=forms.CheckboxSelectMultiple({"class": " ".join(CHECKBOX_CLASSES)}),
    )
    top_k = forms.IntegerField(
        label=gettext_lazy("Top K"), required=False, min_value=1, max_value=200, widget=_input(inputmode="numeric")
    )
    vector_weight = forms.FloatField(
        label=gettext_lazy("Vector weight"),
        required=False,
        min_value=0,
        max_value=1_000,
        widget=_input(inputmode="decimal"),
    )
    keyword_weight = forms.FloatField(
        label=gettext_lazy("Keyword weight"),
        required=False,
        min_value=0,
        max_value=1_000,
        widget=_input(inputmode="decimal"),
    )
    threshold = forms.FloatField(
        label=gettext_lazy("Threshold"), required=False, min_value=0, max_value=1, widget=_input(inputmode="decimal")
    )
    rerank = forms.ChoiceField(
        label=gettext_lazy("Rerank"), required=False, widget=forms.Select({"class": " ".join(SELECT_CLASSES)})
    )
    profile = forms.ChoiceField(
        label=gettext_lazy("Profile"), required=False, widget=forms.Select({"class": " ".join(SELECT_CLASSES)})
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None,
        bases: Sequence[KnowledgeBase],
        profiles: Sequence[RetrievalProfile],
        inherited: Mapping[str, str],
    ) -> None:
        super().__init__(data)
        self.offer("kb", [(str(kb.pk), kb.name) for kb in bases])
        own = _("Each its own (%(profiles)s)") % {"profiles": inherited["profile"]}
        self.offer("profile", [("", own), *((profile.name, str(profile)) for profile in profiles)])
        same = _("Inherited (%(value)s)") % {"value": inherited["rerank"]}
        self.offer("rerank", [("", same), ("on", _("on")), ("off", _("off"))])
        for name in ("top_k", "vector_weight", "keyword_weight", "threshold"):
            self.fields[name].widget.attrs["placeholder"] = inherited[name]
        if data is None and len(bases) == 1:
            self.initial["kb"] = [str(bases[0].pk)]

    def offer(self, name: str, choices: list[tuple[str, str]]) -> None:
        cast(forms.ChoiceField, self.fields[name]).choices = choices

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if values.get("q") and not values.get("kb") and "kb" not in self.errors:
            self.add_error("kb", _("Choose at least one knowledge base."))
        return values

    @property
    def asks(self) -> bool:
        """Whether there is a query, and everything about it is valid."""
        return self.is_bound and self.is_valid() and bool(self.cleaned_data["q"])

    @property
    def settings_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in (*SETTINGS, "profile")]

    @property
    def has_settings(self) -> bool:
        return any(self[name].value() not in (None, "") for name in (*SETTINGS, "profile"))

    @property
    def overridden(self) -> list[str]:
        """The settings that differ from what is inherited, in words."""
        given = [self[name] for name in SETTINGS if self[name].value()]
        return [
            f"{field.label} {dict(getattr(field.field, 'choices', ())).get(field.value(), field.value())}"
            for field in given
        ]

    def request(self) -> SearchRequest:
        values = {name: self.cleaned_data[name] for name in SETTINGS}
        values["rerank"] = SWITCH.get(values["rerank"])
        return SearchRequest(
            query=self.cleaned_data["q"],
            knowledge_base_ids=self.cleaned_data["kb"],
            profile=self.cleaned_data["profile"],
            overrides={SETTINGS[name]: value for name, value in values.items() if value is not None},
            explain=True,
        )

    def reject(self, error: InvalidConfiguration) -> None:
        """Shows an error of the resolved settings next to the field that can mend it."""
        fields = {setting: name for name, setting in SETTINGS.items()}
        words = str(error)
        if error.field == "keyword_weight":
            words = _("Both weights are 0: give at least one channel a weight.")
        self.add_error(fields.get(error.field), words)


class SearchDebugView(TemplateView):
    """The page. Whoever may open the admin may open it; what it shows is what that user may see."""

    admin_site: AdminSite | None = None
    template_name = "admin/search_debug.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        principal = Principal(request.user)
        bases = _visible_bases(principal)
        chosen = _chosen(request.GET.getlist("kb"), bases)
        profiles = list(RetrievalProfile.objects.order_by("name", "-version").distinct("name"))
        choice = {
            "kbs": {str(kb.pk): _settings_of(kb.profile) for kb in bases.values()},
            "profiles": {profile.name: _settings_of(profile) for profile in profiles},
        }
        inherited = _inherited(choice, [str(kb.pk) for kb in chosen], request.GET.get("profile", ""))
        is_bound = any(name in request.GET for name in SearchForm.base_fields)
        form = SearchForm(request.GET if is_bound else None, list(bases.values()), profiles, inherited)
        context: dict[str, Any] = {
            "form": form,
            "bases": bases,
            "inheritable": choice,
            "empty_bases": [{"name": kb.name, "url": upload_url(kb)} for kb in chosen if is_empty(kb)],
            "title": _("Search debug"),
            **(self.admin_site.each_context(request) if self.admin_site else {}),
        }
        status = self._search(principal, form, bases, context)
        if not form.is_bound or not (form.asks or form.errors):
            context["example"] = _example(principal, chosen or list(bases.values()))
        return self.render_to_response(self.get_context_data(**context), status=status)

    def _search(
        self,
        principal: Principal,
        form: SearchForm,
        bases: Mapping[int, KnowledgeBase],
        context: dict[str, Any],
    ) -> int:
        """Runs the search, if the form asks for one, and puts what came out into the context; returns the HTTP status."""
        if not form.asks:
            return 400 if form.errors else 200
        try:
            outcome = search(principal, form.request())
        except InvalidConfiguration as error:
            form.reject(error)
            return 400
        except NotVisible as error:
            raise Http404(str(error)) from error
        except NoChannelAvailable as error:
            context["outage"] = notices(error.degradations, (), bases)
            return 503
        context["explanation"] = _explain(principal, outcome, bases)
        return 200


def search_debug_urls(site: AdminSite) -> list[URLPattern]:
    """The page's route among those of an admin site; its name is `admin:search_debug`."""
    return [path("search-debug/", site.admin_view(SearchDebugView.as_view(admin_site=site)), name="search_debug")]


def _visible_bases(principal: Principal) -> dict[int, KnowledgeBase]:
    bases = (
        KnowledgeBase.objects.visible_to(principal)
        .select_related("profile")
        .annotate(has_chunks=Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk"))))
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


def _settings_of(profile: RetrievalProfile) -> dict[str, str]:
    """What a search under a profile inherits, as the form shows it."""
    config: RetrievalConfig = environment_config().override(profile.settings)
    threshold = config.score_threshold
    return {
        "profile": f"{profile}: {config.vector_weight:g} / {config.keyword_weight:g}",
        "top_k": str(config.top_k),
        "vector_weight": f"{config.vector_weight:g}",
        "keyword_weight": f"{config.keyword_weight:g}",
        "threshold": _("default") if threshold is None else f"{threshold:g}",
        "rerank": _("on") if config.use_rerank else _("off"),
    }


def _inherited(
    choice: Mapping[str, Mapping[str, Mapping[str, str]]], kbs: Sequence[str], profile: str
) -> dict[str, str]:
    """The values that empty fields stand for; where knowledge bases differ, each of them. The page's script does the same."""
    own = [choice["kbs"][kb] for kb in kbs or choice["kbs"]]
    named = choice["profiles"].get(profile)
    shown = {name: _distinct(each[name] for each in ([named] if named else own)) for name in SETTINGS}
    return {**shown, "profile": _distinct(each["profile"] for each in own)}


def _distinct(values: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(values))


def _example(principal: Principal, bases: Sequence[KnowledgeBase]) -> dict[str, str] | None:
    """A query that finds something: the title of a document that is there."""
    ids = [kb.pk for kb in bases if not is_empty(kb)]
    document = (
        Document.objects.visible_to(principal)
        .filter(knowledge_base__in=ids, status=Document.Status.READY)
        .exclude(title="")
        .order_by("-pk")
        .first()
    )
    if document is None:
        return None
    query = QueryDict(mutable=True)
    query.update({"kb": document.knowledge_base_id, "q": document.title})
    return {"title": document.title, "url": f"?{query.urlencode()}"}


def _explain(principal: Principal, outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> Explanation:
    ids = [candidate.chunk_id for candidate in outcome.result.candidates]
    chunks = Chunk.objects.visible_to(principal).filter(pk__in=ids)
    return explain(outcome, bases, dict(chunks.values_list("pk", "position")))
