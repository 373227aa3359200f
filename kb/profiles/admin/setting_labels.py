"""What the pages call the settings of RetrievalConfig: labels, one sentence each, values and changes in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kb.profiles.services import SettingDifference


@dataclass(frozen=True, slots=True)
class SettingWords:
    """What a setting is called, and what it does in one sentence."""

    label: Promise
    meaning: Promise


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """Settings that belong together, by their names."""

    title: Promise
    names: tuple[str, ...]


WORDS: Mapping[str, SettingWords] = {
    "rewrite": SettingWords(
        gettext_lazy("Rewrite"),
        gettext_lazy(
            "Whether a language model rewrites the query before the search: never, in conversations only, or always."
        ),
    ),
    "max_retrieval_queries": SettingWords(
        gettext_lazy("Queries at most"),
        gettext_lazy("How many queries are searched for at most, sub-queries included."),
    ),
    "candidate_floor": SettingWords(
        gettext_lazy("Candidate floor"),
        gettext_lazy(
            "The least number of chunks that each channel proposes, so that asking for more results does not reorder the first."
        ),
    ),
    "vector_top_k": SettingWords(
        gettext_lazy("Vector candidates"),
        gettext_lazy(
            "How many chunks the vector channel proposes; auto: three times Top K, and no fewer than the floor."
        ),
    ),
    "bm25_top_k": SettingWords(
        gettext_lazy("Keyword candidates"),
        gettext_lazy(
            "How many chunks the keyword channel proposes; auto: three times Top K, and no fewer than the floor."
        ),
    ),
    "vector_timeout_ms": SettingWords(
        gettext_lazy("Vector time limit, ms"),
        gettext_lazy("After so long the search goes on without the vector channels; auto: when its time is up."),
    ),
    "keyword_timeout_ms": SettingWords(
        gettext_lazy("Keyword time limit, ms"),
        gettext_lazy("After so long the search goes on without the keyword channels; auto: when its time is up."),
    ),
    "enable_fts": SettingWords(
        gettext_lazy("Full text as stand-in"),
        gettext_lazy("PostgreSQL’s full text answers where the keyword index cannot."),
    ),
    "lexical_fallback": SettingWords(
        gettext_lazy("N-grams as stand-in"),
        gettext_lazy("Character n-grams answer where keywords find next to nothing or the embedding model is out."),
    ),
    "fusion": SettingWords(
        gettext_lazy("Fusion"),
        gettext_lazy(
            "How the channels’ lists become one: RRF looks at ranks only, the weighted sum also at how much better a score is."
        ),
    ),
    "vector_weight": SettingWords(
        gettext_lazy("Vector weight"), gettext_lazy("How much the vector channel counts in RRF.")
    ),
    "keyword_weight": SettingWords(
        gettext_lazy("Keyword weight"), gettext_lazy("How much the keyword channel counts in RRF.")
    ),
    "question_weight": SettingWords(
        gettext_lazy("Question weight"),
        gettext_lazy(
            "How much the questions count that chunks are said to answer, in either fusion; 0: they are not searched."
        ),
    ),
    "external": SettingWords(
        gettext_lazy("Ask elsewhere"),
        gettext_lazy(
            "Live pages, feeds and search services of the knowledge base join the query. Off: nothing is asked."
        ),
    ),
    "external_top_k": SettingWords(
        gettext_lazy("Results of each source"), gettext_lazy("How many results of each live or external source count.")
    ),
    "external_timeout_ms": SettingWords(
        gettext_lazy("Time of each source"),
        gettext_lazy("Milliseconds after which the search goes on without a source that has no limit of its own."),
    ),
    "external_weight": SettingWords(
        gettext_lazy("Weight of each source"),
        gettext_lazy("How much a live or external source counts in the fusion that has no weight of its own."),
    ),
    "rrf_k": SettingWords(
        gettext_lazy("RRF constant k"),
        gettext_lazy("The larger it is, the less it matters to stand first rather than tenth."),
    ),
    "hybrid_vector_weight": SettingWords(
        gettext_lazy("Vector share"), gettext_lazy("How much the vector channel counts in the weighted sum.")
    ),
    "hybrid_text_weight": SettingWords(
        gettext_lazy("Keyword share"), gettext_lazy("How much the keyword channel counts in the weighted sum.")
    ),
    "keyword_vector_share": SettingWords(
        gettext_lazy("Keyword vector share"),
        gettext_lazy("The part, from 0 to 1, of a chunk’s keyword vector in its similarity, where it has one."),
    ),
    "use_rerank": SettingWords(
        gettext_lazy("Rerank"),
        gettext_lazy("Off: the results of the vector channel are returned as they are, without the rest."),
    ),
    "rerankers": SettingWords(
        gettext_lazy("Rerankers"),
        gettext_lazy(
            "Tried in this order until one answers: cross_encoder, http (a rerank server), overlap (of words), cosine; "
            "none: the fused order stays."
        ),
    ),
    "rerank_candidates": SettingWords(
        gettext_lazy("Candidates reranked"), gettext_lazy("How many of the fused candidates the reranker scores.")
    ),
    "rerank_top_k": SettingWords(
        gettext_lazy("Left by the reranker"),
        gettext_lazy("How many candidates leave the reranker; auto: as many as Top K."),
    ),
    "score_threshold": SettingWords(
        gettext_lazy("Threshold"),
        gettext_lazy(
            "The least score of a result, on the scale of the first reranker; 0: no gate; auto: the scale’s own cut, below."
        ),
    ),
    "similarity_threshold": SettingWords(
        gettext_lazy("Cut of cross-encoders"),
        gettext_lazy("The least score where a cross-encoder or a rerank server has answered."),
    ),
    "cosine_threshold": SettingWords(
        gettext_lazy("Cut of cosines"),
        gettext_lazy("The least score where the cosine has reranked; auto: the calibrated one."),
    ),
    "overlap_threshold": SettingWords(
        gettext_lazy("Cut of overlap"),
        gettext_lazy("The least score where the overlap of words has reranked; auto: the calibrated one."),
    ),
    "top_k": SettingWords(
        gettext_lazy("Top K"), gettext_lazy("How many results a search gives that does not ask for a number.")
    ),
    "general_retrieval": SettingWords(
        gettext_lazy("Select by score alone"), gettext_lazy("Off: each kind of source has a cap of its own, below.")
    ),
    "general_final_count": SettingWords(
        gettext_lazy("Results at most"), gettext_lazy("The most results of a search that selects by score alone.")
    ),
    "max_books": SettingWords(
        gettext_lazy("From books"), gettext_lazy("The most results from books, where kinds of sources have caps.")
    ),
    "max_videos": SettingWords(
        gettext_lazy("From videos"), gettext_lazy("The most results from videos, where kinds of sources have caps.")
    ),
    "max_qa": SettingWords(
        gettext_lazy("From Q&A"), gettext_lazy("The most results from Q&A, where kinds of sources have caps.")
    ),
    "max_web": SettingWords(
        gettext_lazy("From the web"), gettext_lazy("The most results from the web, where kinds of sources have caps.")
    ),
    "neighbours": SettingWords(
        gettext_lazy("Neighbours"), gettext_lazy("How many chunks before and after each result come along with it.")
    ),
    "graph_facts": SettingWords(
        gettext_lazy("Graph facts"), gettext_lazy("Facts about what the query names come along, beside the results.")
    ),
    "max_graph_facts": SettingWords(gettext_lazy("Facts at most"), gettext_lazy("How many facts come along at most.")),
    "context_tokens": SettingWords(
        gettext_lazy("Context, tokens"),
        gettext_lazy("How much of the results the language model is given to answer from."),
    ),
    "max_chunk_chars": SettingWords(
        gettext_lazy("Characters a passage"),
        gettext_lazy("Longer passages are cut before the language model gets them."),
    ),
    "max_source_count": SettingWords(
        gettext_lazy("Sources named"), gettext_lazy("How many sources an answer names in its last line at most.")
    ),
}

GROUPS = (
    SettingGroup(gettext_lazy("Query"), ("rewrite", "max_retrieval_queries")),
    SettingGroup(
        gettext_lazy("Candidates"),
        (
            "candidate_floor",
            "vector_top_k",
            "bm25_top_k",
            "vector_timeout_ms",
            "keyword_timeout_ms",
            "enable_fts",
            "lexical_fallback",
        ),
    ),
    SettingGroup(
        gettext_lazy("Fusion"),
        (
            "fusion",
            "vector_weight",
            "keyword_weight",
            "rrf_k",
            "hybrid_vector_weight",
            "hybrid_text_weight",
            "question_weight",
            "keyword_vector_share",
        ),
    ),
    SettingGroup(
        gettext_lazy("Live and external sources"),
        ("external", "external_top_k", "external_timeout_ms", "external_weight"),
    ),
    SettingGroup(gettext_lazy("Reranking"), ("use_rerank", "rerankers", "rerank_candidates", "rerank_top_k")),
    SettingGroup(
        gettext_lazy("Gate"), ("score_threshold", "similarity_threshold", "cosine_threshold", "overlap_threshold")
    ),
    SettingGroup(
        gettext_lazy("Results"),
        (
            "top_k",
            "general_retrieval",
            "general_final_count",
            "max_books",
            "max_videos",
            "max_qa",
            "max_web",
            "neighbours",
        ),
    ),
    SettingGroup(
        gettext_lazy("Facts and answers"),
        ("graph_facts", "max_graph_facts", "context_tokens", "max_chunk_chars", "max_source_count"),
    ),
)


def setting_label(name: str) -> str:
    """What a setting is called; its own name where it is none of this version."""
    words = WORDS.get(name)
    return str(words.label) if words else name


def choices_of(name: str) -> dict[str, str]:
    """The values of a setting that is one of a few words, in words."""
    return {
        "fusion": {"rrf": _("RRF"), "weighted": _("weighted sum")},
        "rewrite": {"off": _("off"), "conversation": _("in conversations"), "always": _("always")},
    }.get(name, {})


def reranker_label(name: str) -> str:
    return {
        "cross_encoder": _("cross-encoder"),
        "http": _("rerank server"),
        "overlap": _("overlap of words"),
        "cosine": _("cosine"),
    }.get(name, name)


def value_in_words(name: str, value: Any) -> str:
    """A setting's value as a page shows it; None is the value that the search works out by itself."""
    if value is None:
        return _("auto")
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, list | tuple):
        return ", ".join(map(reranker_label, value)) or _("none")
    if isinstance(value, float):
        return f"{value:g}"
    return choices_of(name).get(str(value), str(value))


def change_in_words(difference: SettingDifference) -> str:
    """As in “Vector weight: 0.6 → 0.4”."""
    before, after = (value_in_words(difference.name, value) for value in (difference.before, difference.after))
    return _("%(setting)s: %(before)s → %(after)s") % {
        "setting": setting_label(difference.name),
        "before": before,
        "after": after,
    }


def in_order(names: Iterable[str]) -> list[str]:
    """The names of settings in the order of the form, unknown ones last."""
    places = {name: place for place, name in enumerate(name for group in GROUPS for name in group.names)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def changes_in_words(differences: Iterable[SettingDifference]) -> list[str]:
    """One line a setting, in the order of the form."""
    found = {each.name: each for each in differences}
    return [change_in_words(found[name]) for name in in_order(found)]
