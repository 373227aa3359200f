"""Pages of a knowledge base's indexes: its tokenizer, the tiers of the keyword cache, the store that searches use."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.core.validators import MaxLengthValidator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.generic import FormView, TemplateView
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected, ServiceError
from kb.base.metrics import SHARED_FOLDER, cache_counters
from kb.content.models import Chunk
from kb.index.bm25 import BM25Store
from kb.index.facts import keyword_index, vector_index
from kb.index.models import StoreState
from kb.index.services.reindex import IndexState, add_index_state, database_bytes, indexed_knowledge_bases
from kb.index.services.stores.migration import migration_cancel, migration_start, store_rebuild, stores_state
from kb.index.services.tokenizing import (
    SETTINGS,
    compare_tokens,
    dry_run,
    problem_text,
    read_settings,
    tokenizer_change,
    tokenizer_change_cancel,
    tokenizer_settings,
    tokenizing_progress,
)
from kb.providers.embedding_models import options_of, tokenizer, tokenizer_options
from kb.providers.models import TokenizerSettings
from kb.web.admin.fields import radios
from kb.web.admin.navigation import Section, add_hub_tab, add_tab, to_superusers
from kb.web.admin.parts import Chip, Task, add_chips, add_tasks
from kb.web.admin.scoped import KnowledgeBasePage, principal, reporting, reporting_in
from kb.web.admin.site import AdminPage, admin_page
from retrieval.cache import PROCESS_TIER
from retrieval.dictionary import MAX_TEXT_CHARACTERS, DictionaryError, parse_dictionary, parse_stop_words
from retrieval.errors import DependencyMissing, RetrievalError, import_dependency
from retrieval.tokenize import Engine, JiebaTokenizer, Token, TokenizerOptions, TokenKind, engine_versions

MAX_SAMPLE_CHARACTERS = 2_000
ROWS_A_PAGE = 50


INSTALL_COMMANDS = {Engine.JIEBA: "pip install jieba", Engine.RJIEBA: "pip install 'zhiku[rjieba]'"}
KINDS = {
    TokenKind.DICTIONARY: gettext_lazy("dictionary word"),
    TokenKind.WORD: gettext_lazy("word"),
    TokenKind.CODE: gettext_lazy("number or code"),
    TokenKind.PART: gettext_lazy("part of a code"),
    TokenKind.STEM: gettext_lazy("stem"),
}


class LinesField(forms.CharField):
    """A text of one word a line, not stripped, so that an error names the line as it stands on the page."""

    # As a max_length it would become the page's, where a browser cuts what is pasted without a word.
    default_validators = [MaxLengthValidator(MAX_TEXT_CHARACTERS)]

    def __init__(self, *, label: Any, parse: Callable[[str], object]) -> None:
        plain = {"spellcheck": "false", "autocapitalize": "off", "autocomplete": "off", "wrap": "off"}
        widget = UnfoldAdminTextareaWidget({"rows": 9, "class": "kb-mono kb-lines", **plain})
        widget.template_name = "django/forms/widgets/textarea.html"  # keeps a first empty line
        super().__init__(label=label, required=False, strip=False, widget=widget)
        self._parse = parse

    def clean(self, value: Any) -> str:
        text = str(super().clean(value))
        try:
            self._parse(text)
        except DictionaryError as error:
            raise ValidationError(problem_text(error)) from error
        return text


class TokenizerForm(forms.Form):
    """Settings, which a viewer sees and cannot change, and a text to try them on."""

    engine = forms.ChoiceField(
        label=gettext_lazy("Engine"),
        choices=TokenizerSettings.Engine.choices,
        widget=radios(),
    )
    dictionary = LinesField(label=gettext_lazy("User dictionary"), parse=parse_dictionary)
    stop_words = LinesField(label=gettext_lazy("Stop words"), parse=parse_stop_words)
    simplify = forms.BooleanField(
        label=gettext_lazy("Traditional to simplified Chinese"), required=False, widget=UnfoldBooleanSwitchWidget
    )
    text = forms.CharField(
        label=gettext_lazy("Text or query to try"),
        required=False,
        max_length=MAX_SAMPLE_CHARACTERS,
        widget=UnfoldAdminTextareaWidget({"rows": 3, "class": "kb-sample"}),
    )

    def __init__(self, *args: Any, may_edit: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.may_edit = may_edit
        self.settings: TokenizerSettings | None = None
        for name in SETTINGS:
            self.fields[name].disabled = not may_edit

    @property
    def engines(self) -> list[dict[str, Any]]:
        """The choices of the field `engine`; a blank version says that its package is not installed."""
        meanings = {
            Engine.JIEBA: _("The usual one, in Python."),
            Engine.RJIEBA: _(
                "In Rust and several times faster. It cuts some words differently, so every chunk is tokenised again."
            ),
        }
        return [
            {
                "radio": radio,
                "name": engine.value,
                "meaning": meanings[engine],
                "version": engine_version(engine),
                "install": INSTALL_COMMANDS[engine],
            }
            for radio, engine in zip(self["engine"], map(Engine, TokenizerSettings.Engine.values), strict=True)
        ]

    def clean_engine(self) -> str:
        engine = Engine(self.cleaned_data["engine"])
        if self.may_edit and not engine_version(engine):
            raise ValidationError(
                _("%(engine)s is not installed on this server: run “%(command)s” there and restart it.")
                % {"engine": engine.value, "command": INSTALL_COMMANDS[engine]}
            )
        return engine.value

    def clean_simplify(self) -> bool:
        wanted = bool(self.cleaned_data["simplify"])
        if wanted and self.may_edit and not _has_simplifier():
            raise ValidationError(
                _(
                    "OpenCC is not installed on this server: run “pip install 'zhiku[traditional]'” there and restart it."
                )
            )
        return wanted

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if not self.errors:
            with reporting_in(self, None, Rejected):
                self.settings = read_settings(**{name: values[name] for name in SETTINGS})
        return values


def engine_version(engine: Engine) -> str:
    """The version of an engine's package; blank where it is not installed."""
    try:
        return engine_versions(engine)[0]
    except DependencyMissing:
        return ""


def install_command(options: TokenizerOptions) -> str:
    if not engine_version(options.engine):
        return INSTALL_COMMANDS[options.engine]
    if options.simplify and not _has_simplifier():
        return "pip install 'zhiku[traditional]'"
    return "pip install rank-bm25 pystemmer"


def _has_simplifier() -> bool:
    try:
        return bool(import_dependency("opencc"))
    except DependencyMissing:
        return False


class TokenizerView(KnowledgeBasePage, FormView):  # type: ignore[type-arg]
    template_name = "index/tokenizer/page.html"
    form_class = TokenizerForm

    title = gettext_lazy("Tokenizer and dictionary")

    @cached_property
    def active(self) -> JiebaTokenizer | None:
        return tokenizer(self.kb.tokenizer_id)

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "may_edit": self.may_edit}

    def get_initial(self) -> dict[str, Any]:
        row = tokenizer_settings(self.kb)
        text = Chunk.objects.filter(knowledge_base=self.kb).order_by("pk").values_list("text", flat=True).first() or ""
        return {**{name: getattr(row, name) for name in SETTINGS}, "text": text[:120]}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        form = kwargs.get("form") or self.get_form()
        if not form.is_bound and self.active:
            kwargs["preview"] = {
                "before": [shown_token(each) for each in self.active.explain(form["text"].value() or "")]
            }
        return super().get_context_data(
            **{**kwargs, "form": form},
            active=tokenizer_text(self.kb.tokenizer_id),
            trouble=_trouble(self.kb, self.active),
            progress=tokenizing_progress(self.kb),
            kinds=KINDS,
        )

    def form_valid(self, form: TokenizerForm) -> HttpResponse:
        settings = form.settings
        action = self.request.POST.get("action", "try")
        if settings is None or action == "try":
            return self.render_to_response(self.get_context_data(form=form, **self._previewed(form)))
        if not self.may_edit:
            raise PermissionDenied
        is_known = settings.tokenizer_id in (self.kb.tokenizer_id, self.kb.target_tokenizer_id)
        count = 0 if is_known else Chunk.objects.filter(knowledge_base=self.kb).count()
        if action == "save" and count:
            return self.render_to_response(self.get_context_data(form=form, asks=True, chunk_count=count))
        is_started = tokenizer_change(self.kb, settings)  # the page itself says how far the tokenising is
        saved, unchanged = _("The settings were saved."), _("These settings are in use already: nothing was changed.")
        messages.success(self.request, saved if is_started else unchanged)
        return HttpResponseRedirect(tokenizer_url(self.kb))

    def _previewed(self, form: TokenizerForm) -> dict[str, Any]:
        """What the settings in the form make of the text and of the chunks, unless packages are missing."""
        if self.active is None or form.settings is None:
            return {}
        before = self.active.explain(form.cleaned_data["text"])
        if form.settings.tokenizer_id == self.active.id == self.kb.tokenizer_id:
            return {"preview": {"before": [shown_token(each) for each in before]}}
        after = JiebaTokenizer(options_of(form.settings)).explain(form.cleaned_data["text"])
        sides = [[shown_token(*each) for each in tokens] for tokens in compare_tokens(before, after)]
        return {"preview": {"before": sides[0], "after": sides[1], "run": dry_run(self.kb, form.settings)}}


def shown_token(token: Token, is_changed: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - of `compare_tokens`
    parts = [str(KINDS[token.kind])]
    if token.surface != token.term:
        parts.append(_("made of “%(surface)s”") % {"surface": token.surface})
    if token.is_dropped:
        parts.append(_("dropped as a stop word"))
    return {"token": token, "is_changed": is_changed, "description": ", ".join(parts)}


def tokenizer_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_tokenizer", args=[kb.pk])


def progress_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    context = {
        "kb": kb,
        "progress": tokenizing_progress(kb),
        "is_done": kb.tokenizer_id == request.GET.get("target", ""),
        "active": tokenizer_text(kb.tokenizer_id),
        "swap": True,
    }
    return render(request, "index/tokenizer/progress.html", context)


def cancel_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    tokenizer_change_cancel(kb)
    messages.success(request, _("The change was cancelled: the present tokenizer stays."))
    return HttpResponseRedirect(tokenizer_url(kb))


def tokenizer_text(tokenizer_id: str) -> str:
    """Engine and options behind an id, in a few words."""
    return tokenizers_text([tokenizer_id])[tokenizer_id]


def tokenizers_text(tokenizer_ids: Collection[str]) -> dict[str, str]:
    stored = {row.tokenizer_id: row for row in TokenizerSettings.objects.filter(tokenizer_id__in=tokenizer_ids)}
    return {each: _as_text(stored.get(each) or TokenizerSettings()) if each else _("none") for each in tokenizer_ids}


def _as_text(row: TokenizerSettings) -> str:
    parts = [row.engine]
    for text, label in (
        (row.dictionary, _("dictionary words: %(count)d")),
        (row.stop_words, _("stop words: %(count)d")),
    ):
        lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
        if lines:
            parts.append(label % {"count": len(lines)})
    if row.simplify:
        parts.append(_("traditional to simplified"))
    return " · ".join(parts)


def _trouble(kb: KnowledgeBase, active: JiebaTokenizer | None) -> str:
    """Why the knowledge base cannot be searched by keywords; blank where it can."""
    if active is None:
        return _(
            "Keyword search is off in this knowledge base, because packages of its tokenizer are missing on this "
            "server: run “%(command)s” there and restart it, or choose other settings below."
        ) % {"command": install_command(tokenizer_options(kb.tokenizer_id))}
    if active.id != kb.tokenizer_id:
        return _(
            "The chunks were not tokenised by this version, so searches go without keywords: save these settings, or "
            "run “manage.py reindex --bm25”."
        )
    return ""


INDEX_LABELS: Mapping[str, str] = {
    IndexState.CURRENT: "success",
    IndexState.CHANGED: "success",
    IndexState.BUILDING: "info",
    IndexState.MISSING: "info",
    IndexState.OUTDATED: "info",
    IndexState.EMPTY: "warning",
}


@admin_page("keyword-cache/", name="keyword_cache")
class KeywordCacheView(AdminPage):
    template_name = "index/keyword_cache/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        page = Paginator(indexed_knowledge_bases(caller), ROWS_A_PAGE).get_page(self.request.GET.get("page"))
        bases: list[Any] = list(page.object_list)
        add_index_state(bases)
        editable = KnowledgeBase.objects.editable_by(caller).in_bulk([kb.pk for kb in bases])
        named = tokenizers_text({kb.tokenizer_id for kb in bases})
        rows = [
            {
                "kb": kb,
                "tokenizer": named[kb.tokenizer_id],
                "state": index_state_text(kb.index_state, kb.changes),
                "label": INDEX_LABELS[kb.index_state],
                "may_drop": kb.pk in editable,
            }
            for kb in bases
        ]
        return super().get_context_data(
            **kwargs,
            title=_("Keyword index cache"),
            cards=_tier_cards(database_bytes(caller)),
            counts_all_processes=bool(os.environ.get(SHARED_FOLDER)),
            page=page,
            rows=rows,
            is_redis_down=any(kb.redis_bytes is None for kb in bases),
        )


@admin_page("keyword-cache/<int:kb_id>/invalidate/", name="keyword_cache_invalidate")
class InvalidateView(AdminPage):
    template_name = "index/keyword_cache/confirm.html"

    @cached_property
    def kb(self) -> KnowledgeBase:
        caller = principal(self.request)
        kb: KnowledgeBase = get_object_or_404(KnowledgeBase.objects.visible_to(caller), pk=self.kwargs["kb_id"])
        if not KnowledgeBase.objects.editable_by(caller).filter(pk=kb.pk).exists():
            raise PermissionDenied
        return kb

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs, title=_("Drop the keyword index of “%(name)s”?") % {"name": self.kb.name}, kb=self.kb
        )

    def post(self, *_args: Any, **_kwargs: Any) -> HttpResponse:
        BM25Store().invalidate(self.kb.pk)
        messages.success(
            self.request,
            _("The keyword index of “%(name)s” was dropped; the next search builds it again.") % {"name": self.kb.name},
        )
        return redirect("admin:keyword_cache")


def index_state_text(state: IndexState, changes: int) -> str:
    changed = ngettext("current: %(count)d change over the base", "current: %(count)d changes over the base", changes)
    return {
        IndexState.EMPTY: _("no chunks"),
        IndexState.BUILDING: _("being built now"),
        IndexState.CURRENT: _("current"),
        IndexState.CHANGED: changed % {"count": changes},
        IndexState.MISSING: _("none yet: built at the next search"),
        IndexState.OUTDATED: _("rebuilt at the next search"),
    }[state]


def _tier_cards(stored_bytes: int) -> list[dict[str, Any]]:
    """What the page shows of each tier: its hit ratio in per cent (a dash before the first look-up), and its counts."""
    counters = cache_counters()
    labels = {"hits": _("hits"), "misses": _("misses"), "stores": _("stores"), "errors": _("errors")}
    cards: list[dict[str, Any]] = [
        {
            "tier": PROCESS_TIER,
            "name": _("Process memory"),
            "what": _("Indexes ready to be searched; each process holds its own."),
            "counts": labels | {"builds": _("built again"), "updates": _("changes read over a base")},
            "bytes": _("memory"),
            "sizes": {_("limit of each process"): settings.BM25_MEMORY_BYTES},
        },
        {
            "tier": "redis",
            "name": _("Redis"),
            "what": _("Signed cache entries that all processes share, with a time to live."),
            "counts": labels,
            "bytes": _("read and written"),
            "sizes": {},
        },
        {
            "tier": "database",
            "name": _("PostgreSQL"),
            "what": _("One signed payload for each knowledge base, which outlives restarts."),
            "counts": labels,
            "bytes": _("read and written"),
            "sizes": {_("stored for what you may see"): stored_bytes},
        },
    ]
    for card in cards:
        counted = Counter(counters.get(card["tier"], {}))
        sizes = {card["bytes"]: counted["nbytes"], **card["sizes"]}
        card["figures"] = {label: f"{counted[field]:,}" for field, label in card["counts"].items()}
        card["figures"] |= {label: filesizeformat(size) for label, size in sizes.items()}
        looked_up = counted["hits"] + counted["misses"]
        card["hit_ratio"] = f"{100 * counted['hits'] / looked_up:.0f}%" if looked_up else "–"
    return cards


class StoresView(KnowledgeBasePage, TemplateView):
    template_name = "index/stores/page.html"

    title = gettext_lazy("Store")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        indexes = {"keyword_index": index_state_text(*keyword_index(self.kb)), **vector_index(self.kb)}
        return super().get_context_data(**kwargs, state=stores_state(self.kb), **indexes)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if not self.may_edit:
            raise PermissionDenied
        with reporting(request, (ServiceError, RetrievalError)):
            match request.POST.get("action"):
                case "cancel":
                    migration_cancel(self.kb)
                    messages.success(request, _("The move was cancelled: the present store stays."))
                case "rebuild":
                    store_rebuild(self.kb)
                    messages.success(
                        request, _("A worker fills the copy again; PostgreSQL answers until it is complete.")
                    )
                case _:
                    migration_start(self.kb, request.POST.get("store", ""))  # the page itself says how far it is
        return HttpResponseRedirect(stores_url(self.kb))


def stores_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_stores", args=[kb.pk])


def stores_progress_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """How far the move is, for a page that polls; once nothing goes on any more, the page is reloaded."""
    state = stores_state(kb)
    response = render(request, "index/stores/progress.html", {"kb": kb, "state": state})
    if state["target"] is None or state["target"].status == StoreState.Status.FAILED:
        response.headers["HX-Refresh"] = "true"
    return response


add_tab(Section.SYSTEM, gettext_lazy("Caches and stores"), "keyword_cache", order=40, covers=("keyword_cache_",))
add_hub_tab(
    "tokenizer",
    gettext_lazy("Tokenizer and dictionary"),
    order=40,
    under="settings",
    covers=("kb_knowledgebase_tokenizer",),
)
add_hub_tab("stores", gettext_lazy("Store"), order=50, under="settings", covers=("kb_knowledgebase_stores",))


@add_tasks
def indexes_due(request: HttpRequest) -> Iterator[Task]:
    """Keyword indexes that lack chunks and that nothing completes at the moment; for superusers, who run the command."""
    if not to_superusers(request):
        return
    due = KnowledgeBase.objects.filter(lacks_postings=True, target_tokenizer_id="").count()
    if due:
        text = ngettext("%(count)d keyword index is outdated", "%(count)d keyword indexes are outdated", due)
        said, url = text % {"count": due}, reverse("admin:keyword_cache")
        yield Task(said, url, _("See which"), order=50, is_urgent=True, count=due)


@add_chips
def tokenizer_chip(_request: HttpRequest, kb: KnowledgeBase) -> Iterator[Chip]:
    if kb.target_tokenizer_id:
        yield Chip(_("tokenizer being changed"), "warning", tokenizer_url(kb))
