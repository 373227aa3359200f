"""The tokenizer page of a knowledge base: what it does to a text, its settings, and the way to other ones."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.views.generic import FormView

from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.documents import Chunk
from kb.index.admin.tokenizer_form import TokenizerForm, install_command
from kb.index.services.tokenizing.preview import DryRun, MarkedToken, compare_tokens, dry_run
from kb.index.services.tokenizing.tokenizing import (
    tokenizer_change,
    tokenizer_change_cancel,
    tokenizer_settings,
    tokenizing_progress,
)
from kb.providers.models import TokenizerSettings
from kb.providers.tokenizers import options_of, tokenizer, tokenizer_options
from kb.web.admin.views import KnowledgeBasePage
from retrieval.tokenize import JiebaTokenizer, TokenKind

SAMPLE_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token as the page shows it; `words` say what its colours do."""

    term: str
    kind: str
    words: str
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
            active=tokenizer_in_words(self.kb.tokenizer_id),
            trouble=_trouble(self.kb, self.active),
            progress=tokenizing_progress(self.kb),
            kinds=_kinds_in_words(),
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
        "active": tokenizer_in_words(kb.tokenizer_id),
        "swap": True,
    }
    return render(request, "index/tokenizer/progress.html", context)


def cancel_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    tokenizer_change_cancel(kb)
    messages.success(request, _("The change was cancelled: the present tokenizer stays."))
    return HttpResponseRedirect(tokenizer_url(kb))


def tokenizer_in_words(tokenizer_id: str) -> str:
    """Engine and options behind an id, in a few words."""
    return tokenizers_in_words([tokenizer_id])[tokenizer_id]


def tokenizers_in_words(tokenizer_ids: Collection[str]) -> dict[str, str]:
    """As `tokenizer_in_words`, in one query."""
    rows = TokenizerSettings.objects.filter(tokenizer_id__in=[each for each in tokenizer_ids if each])
    stored = {row.tokenizer_id: row for row in rows}
    return {each: _in_words(stored.get(each) or TokenizerSettings()) if each else _("none") for each in tokenizer_ids}


def _in_words(row: TokenizerSettings) -> str:
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


def _kinds_in_words() -> dict[str, str]:
    return {
        TokenKind.DICTIONARY: _("dictionary word"),
        TokenKind.WORD: _("word"),
        TokenKind.CODE: _("number or code"),
        TokenKind.PART: _("part of a code"),
        TokenKind.STEM: _("stem"),
    }


def _shown(tokens: Sequence[MarkedToken], *, marks: bool = True) -> tuple[ShownToken, ...]:
    kinds = _kinds_in_words()
    return tuple(
        ShownToken(
            term=each.token.term,
            kind=each.token.kind,
            words=_token_in_words(each, kinds[each.token.kind]),
            is_dropped=each.token.is_dropped,
            is_changed=marks and each.is_changed,
        )
        for each in tokens
    )


def _token_in_words(marked: MarkedToken, kind: str) -> str:
    token = marked.token
    parts = [kind]
    if token.surface != token.term:
        parts.append(_("made of “%(surface)s”") % {"surface": token.surface})
    if token.is_dropped:
        parts.append(_("dropped as a stop word"))
    return ", ".join(parts)
