"""The tokenizer page of a knowledge base: what it does to a text, its settings, and the way to other ones."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import MaxLengthValidator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.generic import FormView
from unfold.widgets import RADIO_CLASSES, UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.content.models import Chunk
from kb.index.services.tokenizing import (
    DryRun,
    MarkedToken,
    compare_tokens,
    dry_run,
    problem_text,
    read_settings,
    tokenizer_change,
    tokenizer_change_cancel,
    tokenizer_settings,
    tokenizing_progress,
)
from kb.providers.models import TokenizerSettings
from kb.providers.tokenizers import options_of, tokenizer, tokenizer_options
from kb.web.admin.scoped import KnowledgeBasePage
from retrieval.dictionary import MAX_TEXT_CHARACTERS, DictionaryError, parse_dictionary, parse_stop_words
from retrieval.errors import DependencyMissing
from retrieval.segmenters import Engine, engine_versions
from retrieval.tokenize import JiebaTokenizer, TokenizerOptions, TokenKind, simplifier_version

MAX_SAMPLE_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine as the form offers it.

    Attributes:
        version: of its package; blank: it is not installed.
    """

    radio: Any
    name: str
    meaning: str
    version: str
    install: str


class Lines(UnfoldAdminTextareaWidget):  # type: ignore[misc]
    """A text of one word a line."""

    template_name = "django/forms/widgets/textarea.html"  # keeps a first empty line

    def __init__(self, *, rows: int) -> None:
        plain = {"spellcheck": "false", "autocapitalize": "off", "autocomplete": "off", "wrap": "off"}
        super().__init__({"rows": rows, "class": "kb-mono kb-lines", **plain})


class LinesField(forms.CharField):
    """A text of one word a line, not stripped, so that an error names the line as it stands on the page."""

    # As a max_length it would become the page's, where a browser cuts what is pasted without a word.
    default_validators = [MaxLengthValidator(MAX_TEXT_CHARACTERS)]

    def __init__(self, *, label: Any) -> None:
        super().__init__(label=label, required=False, strip=False, widget=Lines(rows=9))


class TokenizerForm(forms.Form):
    """Settings, which a viewer sees and cannot change, and a text to try them on."""

    engine = forms.ChoiceField(
        label=gettext_lazy("Engine"),
        choices=TokenizerSettings.Engine.choices,
        widget=forms.RadioSelect({"class": " ".join(RADIO_CLASSES)}),
    )
    dictionary = LinesField(label=gettext_lazy("User dictionary"))
    stop_words = LinesField(label=gettext_lazy("Stop words"))
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
        for name in ("engine", "dictionary", "stop_words", "simplify"):
            self.fields[name].disabled = not may_edit

    @property
    def engines(self) -> list[EngineChoice]:
        meanings: Mapping[str, str] = {
            Engine.JIEBA: _("The usual one, in Python."),
            Engine.RJIEBA: _(
                "In Rust and several times faster. It cuts some words differently, so every chunk is tokenised anew."
            ),
        }
        return [
            EngineChoice(radio, name, meanings[name], engine_version(Engine(name)), _extra(Engine(name)))
            for radio in self["engine"]
            if (name := str(radio.data["value"]))
        ]

    def clean_engine(self) -> str:
        engine = str(self.cleaned_data["engine"])
        if self.may_edit and not engine_version(Engine(engine)):
            message = _("%(engine)s is not installed on this server: run “%(command)s” there and restart it.")
            raise ValidationError(message % {"engine": engine, "command": _extra(Engine(engine))})
        return engine

    def clean_dictionary(self) -> str:
        return self._parsed("dictionary", parse_dictionary)

    def clean_stop_words(self) -> str:
        return self._parsed("stop_words", parse_stop_words)

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
            try:
                self.settings = read_settings(
                    **{name: values[name] for name in ("engine", "dictionary", "stop_words", "simplify")}
                )
            except Rejected as error:
                self.add_error(None, str(error))
        return values

    def _parsed(self, name: str, parse: Callable[[str], object]) -> str:
        text = str(self.cleaned_data[name])
        try:
            parse(text)
        except DictionaryError as error:
            raise ValidationError(problem_text(error)) from error
        return text


def engine_version(engine: Engine) -> str:
    """The version of an engine's package; blank where it is not installed."""
    try:
        return engine_versions(engine)[0]
    except DependencyMissing:
        return ""


def install_command(options: TokenizerOptions) -> str:
    """What installs packages that a tokenizer with these options is missing."""
    if not engine_version(options.engine):
        return _extra(options.engine)
    if options.simplify and not _has_simplifier():
        return "pip install 'zhiku[traditional]'"
    return "pip install rank-bm25 pystemmer"


def _has_simplifier() -> bool:
    try:
        return bool(simplifier_version())
    except DependencyMissing:
        return False


def _extra(engine: Engine) -> str:
    return {Engine.JIEBA: "pip install jieba", Engine.RJIEBA: "pip install 'zhiku[rjieba]'"}[engine]


SAMPLE_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token as the page shows it; `description` says what its colours mean."""

    term: str
    kind: str
    description: str
    is_dropped: bool
    is_changed: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """What the settings in the form make of the text and of the chunks.

    Attributes:
        before: tokens under the active tokenizer.
        after: tokens under the settings in the form; None where these are the active ones.
        run: of the chunks; None where there is nothing to compare.
    """

    before: tuple[ShownToken, ...]
    after: tuple[ShownToken, ...] | None
    run: DryRun | None


class TokenizerView(KnowledgeBasePage, FormView):  # type: ignore[type-arg]
    template_name = "index/tokenizer/page.html"
    form_class = TokenizerForm

    @property
    def title(self) -> str:
        return _("Tokenizer of “%(name)s”") % {"name": self.kb.name}

    @cached_property
    def active(self) -> JiebaTokenizer | None:
        return tokenizer(self.kb.tokenizer_id)

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "may_edit": self.may_edit}

    def get_initial(self) -> dict[str, Any]:
        row = tokenizer_settings(self.kb)
        text = Chunk.objects.filter(knowledge_base=self.kb).order_by("pk").values_list("text", flat=True).first() or ""
        return {
            "engine": row.engine,
            "dictionary": row.dictionary,
            "stop_words": row.stop_words,
            "simplify": row.simplify,
            "text": text[:SAMPLE_CHARACTERS],
        }

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        form = kwargs.get("form") or self.get_form()
        if not form.is_bound and self.active:
            before, _same = compare_tokens(self.active.explain(form["text"].value() or ""), ())
            kwargs["preview"] = Preview(_shown(before, marks=False), None, None)
        return super().get_context_data(
            **{**kwargs, "form": form},
            opts=self.model_admin.opts,
            original=self.kb,
            kb=self.kb,
            may_edit=self.may_edit,
            active=tokenizer_text(self.kb.tokenizer_id),
            trouble=_trouble(self.kb, self.active),
            progress=tokenizing_progress(self.kb),
            kinds=_kinds_text(),
        )

    def form_valid(self, form: TokenizerForm) -> HttpResponse:
        settings = form.settings
        action = self.request.POST.get("action", "try")
        if settings is None or action == "try":
            return self.render_to_response(self.get_context_data(form=form, **self._previewed(form, settings)))
        if not self.may_edit:
            raise PermissionDenied
        is_known = settings.tokenizer_id in (self.kb.tokenizer_id, self.kb.target_tokenizer_id)
        if action == "save" and self.kb.chunk_count and not is_known:
            return self.render_to_response(self.get_context_data(form=form, asks=True))
        return self._save(settings)

    def _save(self, settings: TokenizerSettings) -> HttpResponse:
        if tokenizer_change(self.kb, settings):
            words = _("The settings were saved.")  # the page itself says how far the tokenising is
        else:
            words = _("These settings are in use already: nothing was changed.")
        messages.success(self.request, words)
        return HttpResponseRedirect(tokenizer_url(self.kb))

    def _previewed(self, form: TokenizerForm, settings: TokenizerSettings | None) -> dict[str, Any]:
        """A preview, unless packages are missing."""
        if self.active is None or settings is None:
            return {}
        text = form.cleaned_data["text"]
        if settings.tokenizer_id == self.active.id == self.kb.tokenizer_id:
            before, _same = compare_tokens(self.active.explain(text), ())
            return {"preview": Preview(_shown(before, marks=False), None, None)}
        changed = JiebaTokenizer(options_of(settings)).explain(text)
        before, after = compare_tokens(self.active.explain(text), changed)
        return {"preview": Preview(_shown(before), _shown(after), dry_run(self.kb, settings))}


def tokenizer_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_tokenizer", args=[kb.pk])


def progress_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """How far the tokenising is, for a page that polls; it asks again while it goes on."""
    awaited = request.GET.get("target", "")
    context = {
        "kb": kb,
        "progress": tokenizing_progress(kb),
        "is_done": kb.tokenizer_id == awaited,
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
    """As `tokenizer_text`, in one query."""
    rows = TokenizerSettings.objects.filter(tokenizer_id__in=[each for each in tokenizer_ids if each])
    stored = {row.tokenizer_id: row for row in rows}
    return {each: _as_text(stored.get(each) or TokenizerSettings()) if each else _("none") for each in tokenizer_ids}


def _as_text(row: TokenizerSettings) -> str:
    parts = [row.engine]
    if words := _entries(row.dictionary):
        parts.append(_("dictionary words: %(count)d") % {"count": words})
    if words := _entries(row.stop_words):
        parts.append(_("stop words: %(count)d") % {"count": words})
    if row.simplify:
        parts.append(_("traditional to simplified"))
    return " · ".join(parts)


def _entries(text: str) -> int:
    return sum(1 for line in map(str.strip, text.splitlines()) if line and not line.startswith("#"))


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


def _kinds_text() -> dict[str, str]:
    return {
        TokenKind.DICTIONARY: _("dictionary word"),
        TokenKind.WORD: _("word"),
        TokenKind.CODE: _("number or code"),
        TokenKind.PART: _("part of a code"),
        TokenKind.STEM: _("stem"),
    }


def _shown(tokens: Sequence[MarkedToken], *, marks: bool = True) -> tuple[ShownToken, ...]:
    kinds = _kinds_text()
    return tuple(
        ShownToken(
            term=each.token.term,
            kind=each.token.kind,
            description=_token_text(each, kinds[each.token.kind]),
            is_dropped=each.token.is_dropped,
            is_changed=marks and each.is_changed,
        )
        for each in tokens
    )


def _token_text(marked: MarkedToken, kind: str) -> str:
    token = marked.token
    parts = [kind]
    if token.surface != token.term:
        parts.append(_("made of “%(surface)s”") % {"surface": token.surface})
    if token.is_dropped:
        parts.append(_("dropped as a stop word"))
    return ", ".join(parts)
