"""The form of a knowledge base's tokenizer settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import RADIO_CLASSES, UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from kb.base.errors import Rejected
from kb.index.services.tokenizing.tokenizing import problem_in_words, read_settings
from kb.providers.models import TokenizerSettings
from retrieval.dictionary import MAX_TEXT_CHARACTERS, DictionaryError, parse_dictionary, parse_stop_words
from retrieval.errors import DependencyMissing
from retrieval.segmenters import Engine, engine_versions
from retrieval.simplify import simplifier_version
from retrieval.tokenize import TokenizerOptions

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
            raise ValidationError(problem_in_words(error)) from error
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
