"""What a query says, found before anything is searched for: its tokens, keywords, concepts, intent and parts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from retrieval.characters import CJK, LATIN
from retrieval.config import RetrievalConfig
from retrieval.errors import Degradation, DegradationCode, GenerationFailed, _, message_of
from retrieval.keywords import query_keywords
from retrieval.protocols import ConceptStore, Tokenizer
from retrieval.rewrite import LlmRewriter, core_intent, split_questions
from retrieval.tokenize import normalize
from retrieval.types import Analysis, ConceptMention, Rewritten, Turn

STAGE = "analysis"
MOST_NAMES_A_CONCEPT = 4
MOST_VARIANTS_A_KB = 8

# Controls that are no white space, soft hyphens, zero-width and direction marks, and halves of surrogate pairs.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff]"
)
_CHINESE_LETTER = re.compile(rf"(?![\W\d_])[{CJK}]")
_LATIN_WORD = re.compile(rf"{LATIN}+")


@dataclass(frozen=True, slots=True)
class Analyser:
    """Analyses the queries to some knowledge bases, whose tokenizers are in the caller's order.

    A knowledge base without a tokenizer at hand is missing; `concept_kb_ids` are those that have concepts.
    """

    tokenizers: Mapping[int, Tokenizer]
    concepts: ConceptStore | None = None
    concept_kb_ids: tuple[int, ...] = ()
    rewriter: LlmRewriter | None = None  # None where there is no chat model

    def analyse(
        self, query: str, history: Sequence[Turn], config: RetrievalConfig, deadline: float
    ) -> tuple[Analysis, tuple[Degradation, ...], bool]:
        """The analysis, what could not be done for it, and whether a chat model has rewritten the query.

        A query that is not rewritten is split where it plainly consists of several questions. `history` are the earlier
        turns of its conversation, oldest first; rewriting ends at the deadline (of `time.monotonic`).
        """
        text = normalise_query(query)
        degradations: tuple[Degradation, ...] = ()
        rewritten = None
        try:
            rewritten = self._rewrite(text, history, config, deadline)
        except GenerationFailed as error:
            degradations = (Degradation(STAGE, error.code, message_of(error)),)
        is_rewritten = rewritten is not None
        if rewritten is None:
            rewritten = Rewritten(text, split_questions(_without_invisible(query)))
        wanted = dict.fromkeys(filter(None, map(normalise_query, [rewritten.text, *rewritten.sub_queries])))
        analysis, *sub_queries = self._analyse_all(list(wanted)[: config.max_retrieval_queries] or [text])
        return replace(analysis, sub_queries=tuple(sub_queries)), degradations, is_rewritten

    def _rewrite(
        self, text: str, history: Sequence[Turn], config: RetrievalConfig, deadline: float
    ) -> Rewritten | None:
        """The query as a chat model has rewritten it; None where it is to stay as it is.

        Raises GenerationFailed without a usable answer, or without a model although the configuration asks for one.
        """
        is_wanted = config.rewrite == "always" or (config.rewrite == "conversation" and bool(history))
        if not text or not is_wanted:
            return None
        if self.rewriter is None:
            if config.rewrite != "always":
                return None
            raise GenerationFailed(
                DegradationCode.LLM_NOT_CONFIGURED,
                _("no chat model is configured to rewrite queries: configure one, or set rewrite to 'off'"),
            )
        rewritten = self.rewriter.rewrite(text, history, config.max_retrieval_queries, deadline)
        return replace(rewritten, text=normalise_query(rewritten.text) or text)

    def _analyse_all(self, texts: Sequence[str]) -> list[Analysis]:
        """Analyses the query and its sub-queries with one look-up of concepts and one cut of each text by each tokenizer."""
        mentions: tuple[ConceptMention, ...] = ()
        if self.concepts is not None and self.concept_kb_ids and texts[0]:
            # No mention reaches over a line break.
            mentions = self.concepts.mentions(self.concept_kb_ids, "\n".join(texts))
        cuts: dict[tuple[str, str], tuple[str, ...]] = {}

        def cut(tokenizer: Tokenizer, text: str) -> tuple[str, ...]:
            key = (tokenizer.id, text)
            if key not in cuts:
                cuts[key] = tuple(tokenizer(text))
            return cuts[key]

        return [self._analyse_one(text, _mentions_in(text, mentions), cut) for text in texts]

    def _analyse_one(
        self, text: str, mentions: Sequence[ConceptMention], cut: Callable[[Tokenizer, str], tuple[str, ...]]
    ) -> Analysis:
        tokens = {kb_id: cut(tokenizer, text) for kb_id, tokenizer in self.tokenizers.items()}
        variants = {}
        for kb_id, tokenizer in self.tokenizers.items():
            if own := [mention for mention in mentions if mention.kb_id == kb_id]:
                variants[kb_id] = tuple(
                    cut(tokenizer, other) for other in islice(_variants(text, own), MOST_VARIANTS_A_KB)
                )
        return Analysis(
            text=text,
            tokens_by_kb=tokens,
            variants_by_kb=variants,
            language=language_of(text),
            keywords=query_keywords(text, next(iter(tokens.values()), ())),
            concepts=tuple(mentions),
            intent=core_intent(text),
        )


def normalise_query(query: str) -> str:
    """The query without characters that nobody sees, white space collapsed; else byte for byte as it was typed.

    Full-width punctuation and case stay, because embedding models were trained on texts as people write them; the
    tokenizers fold both.
    """
    return " ".join(_without_invisible(query).split())


def language_of(text: str) -> str:
    """The language of a query: "zh" where it has at least as many Chinese characters as words of other scripts, else "en"."""
    chinese = len(_CHINESE_LETTER.findall(text))
    return "zh" if chinese and chinese >= len(_LATIN_WORD.findall(text)) else "en"


def _without_invisible(text: str) -> str:
    # Looking for the characters is several times as fast as replacing.
    return _INVISIBLE.sub("", text) if _INVISIBLE.search(text) else text


def _mentions_in(text: str, mentions: Sequence[ConceptMention]) -> list[ConceptMention]:
    if not mentions:
        return []
    folded = normalize(text).casefold()
    return [mention for mention in mentions if normalize(mention.mention).casefold() in folded]


def _variants(text: str, mentions: Sequence[ConceptMention]) -> Iterator[str]:
    """The text with the mention of a concept replaced by its other names, in turn; each concept's first name first."""
    plain = normalize(text)
    for turn in range(MOST_NAMES_A_CONCEPT):
        for mention in mentions:
            if turn < len(mention.names):
                template = mention.names[turn].replace("\\", r"\\")
                variant, count = _mention_pattern(normalize(mention.mention)).subn(template, plain)
                if count:
                    yield variant


@lru_cache(maxsize=1_024)
def _mention_pattern(mention: str) -> re.Pattern[str]:
    """Finds a mention in any case, but not within a longer word of Latin letters."""
    before = rf"(?<!{LATIN})" if _LATIN_WORD.match(mention[:1]) else ""
    after = rf"(?!{LATIN})" if _LATIN_WORD.match(mention[-1:]) else ""
    return re.compile(f"{before}{re.escape(mention)}{after}", re.IGNORECASE)
