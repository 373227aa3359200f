"""What can be done for a chunk that a search has lost, as buttons and links."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from kb.profiles.admin.setting_labels import setting_label, value_in_words
from kb.quality.why_not.admin.url import remembered, why_not_url
from kb.quality.why_not.services.apply import profile_in_force
from kb.quality.why_not.services.remedies import remedies
from kb.quality.why_not.services.types import Remedy, RemedyCode, Stage, WhyNot
from kb.quality.why_not.services.words import filter_in_words
from retrieval.config import RetrievalConfig

ASKS_FIRST = frozenset({RemedyCode.ADD_WORD, RemedyCode.RETRY_DOCUMENT})
"""What sets a worker to work on more than the chunk."""

READ_ONLY = frozenset({RemedyCode.CHANGE_REQUEST, RemedyCode.SHOW_DOUBLE, RemedyCode.RUN_COMMAND})


@dataclass(frozen=True, slots=True)
class ShownRemedy:
    """A remedy: a form with a button, a link, or a command to copy.

    Attributes:
        id: what the form sends.
        input_label: of the field that is sent with it; blank where there is none.
        suggestions: for that field; the first one stands in it.
    """

    id: str
    label: str
    hint: str
    icon: str
    url: str = ""
    command: str = ""
    input_label: str = ""
    suggestions: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        return next(iter(self.suggestions), "")


def shown_remedies(why: WhyNot, *, may_edit: bool) -> tuple[ShownRemedy, ...]:
    """Those that the caller may use; who may only read keeps the links and the commands."""
    return tuple(_shown(remedy, why) for remedy in remedies(why) if may_edit or remedy.code in READ_ONLY)


def _shown(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    tell = {
        RemedyCode.ENABLE: _enable,
        RemedyCode.INDEX_CHUNK: _index_chunk,
        RemedyCode.RETRY_DOCUMENT: _retry_document,
        RemedyCode.ADD_WORD: _add_word,
        RemedyCode.ADD_QUESTION: _add_question,
        RemedyCode.DRAFT: _draft,
        RemedyCode.CHANGE_REQUEST: _change_request,
        RemedyCode.SHOW_DOUBLE: _show_double,
        RemedyCode.RUN_COMMAND: _run_command,
    }[remedy.code]
    return tell(remedy, why)


def _enable(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    return ShownRemedy(remedy.id, _("Switch the chunk on"), _("Searches find it again at once."), "toggle_on")


def _index_chunk(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("Makes its terms and its vectors again, by the tokenizer and the model in use.")
    return ShownRemedy(remedy.id, _("Index this chunk anew"), hint, "refresh")


def _retry_document(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("A worker makes terms and vectors of all its chunks, as they are: run this again when it is done.")
    return ShownRemedy(remedy.id, _("Index the document’s chunks anew"), hint, "restart_alt")


def _add_word(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _(
        "Query and chunk are both written with it, and cut into other words. In the dictionary it stays whole in both; a "
        "worker tokenises all chunks anew, and searches use it when that is done."
    )
    return ShownRemedy(
        remedy.id,
        _("Add to the dictionary"),
        hint,
        "dictionary",
        input_label=_("Word"),
        suggestions=remedy.suggestions,
    )


def _add_question(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("The question gets a vector of its own: whoever asks alike finds this chunk.")
    return ShownRemedy(
        remedy.id,
        _("Add the question"),
        hint,
        "contact_support",
        input_label=_("A question that this chunk answers"),
        suggestions=remedy.suggestions,
    )


def _draft(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    config = _config_in_force(why)
    changes = ", ".join(
        _("%(setting)s: %(before)s → %(after)s")
        % {
            "setting": setting_label(name),
            "before": value_in_words(name, _effective(config, name, why)),
            "after": value_in_words(name, value),
        }
        for name, value in remedy.settings.items()
    )
    hint = _(
        "Saved as a draft of the profile “%(profile)s”, and the search runs again under it. Other searches change when it "
        "is published."
    ) % {"profile": profile_in_force(why).name}
    return ShownRemedy(remedy.id, _("Try in a draft: %(changes)s") % {"changes": changes}, hint, "tune")


def _config_in_force(why: WhyNot) -> RetrievalConfig:
    scopes = why.outcome.wiring.pipeline.scopes
    own = next((scope.config for scope in scopes if scope.kb_id == why.chunk.knowledge_base_id), None)
    return own if own and why.verdict.stage is Stage.CHANNELS else why.outcome.wiring.config


def _effective(config: RetrievalConfig, name: str, why: WhyNot) -> Any:
    """A setting's value, and what it comes to where it is left to the search."""
    derived: Mapping[str, Any] = {
        "vector_top_k": config.vector_candidates,
        "bm25_top_k": config.bm25_candidates,
        "score_threshold": why.outcome.result.threshold,
        "overlap_threshold": why.outcome.result.threshold,
        "cosine_threshold": why.outcome.result.threshold,
        "rerank_top_k": config.top_k,
    }
    value = getattr(config, name)
    return derived.get(name) if value is None else value


def _change_request(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    request = remedy.request or why.request
    if remedy.key == "knowledge_base":
        label = _("Search “%(name)s” too") % {"name": why.chunk.knowledge_base.name}
    else:
        label = _("Search without the filter: %(filter)s") % {"filter": filter_in_words(remedy.key)}
    url = why_not_url(request, why.chunk.pk, remembered(why))
    return ShownRemedy(remedy.id, label, _("Changes nothing but this search."), "filter_alt_off", url=url)


def _show_double(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    label = _("Ask about chunk %(id)s") % {"id": remedy.chunk_id}
    hint = _("Of several chunks of the same content a search shows one. To change that, change or delete one of them.")
    return ShownRemedy(remedy.id, label, hint, "content_copy", url=why_not_url(why.request, remedy.chunk_id))


def _run_command(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("Run it on the server if other chunks of the knowledge base lack the same; searches go on meanwhile.")
    return ShownRemedy(remedy.id, "", hint, "terminal", command=remedy.command)


def done_in_words(remedy: Remedy, text: str) -> str:
    """What to say when a remedy was applied."""
    return {
        RemedyCode.ENABLE: _("The chunk is switched on."),
        RemedyCode.INDEX_CHUNK: _("The chunk was indexed anew."),
        RemedyCode.RETRY_DOCUMENT: _("The document waits for a worker: run this again when it is done."),
        RemedyCode.ADD_WORD: _(
            "“%(word)s” was added to the dictionary. A worker tokenises the chunks: run this again when it is done."
        )
        % {"word": text},
        RemedyCode.ADD_QUESTION: _("The question was added."),
        RemedyCode.DRAFT: _("The change was saved as a draft, and this search ran under it."),
    }.get(remedy.code, "")
