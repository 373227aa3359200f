"""What a query is about, without how it is asked, and whether it asks several things at once."""

import re
from itertools import pairwise
from typing import Final

from retrieval.function_words import (
    CHINESE_COURTESIES,
    CHINESE_PARTICLES,
    CHINESE_QUESTION_WORDS,
    CHINESE_THANKS,
    ENGLISH_COURTESIES,
    ENGLISH_FUNCTION_WORDS,
    ENGLISH_QUESTION_OPENINGS,
    ENGLISH_QUESTION_WORDS,
    ENGLISH_THANKS,
)
from retrieval.scripts import CJK, LATIN

# Titles and quotations; what stands in them is a name, whatever its words.
QUOTED: Final = r"《[^《》]*》|〈[^〈〉]*〉|“[^“”]*”|「[^「」]*」|『[^『』]*』|\"[^\"]*\""
# Characters; Latin ones count a quarter. What is longer tells a story, and its questions ask about it.
LONGEST_SUB_QUERY: Final = 20

_GAP = r"[\s,，.。!！:：;；~\uff5e、]*"
_OPENING = re.compile(
    rf"(?:(?:{'|'.join(CHINESE_COURTESIES)}|(?:{'|'.join(ENGLISH_COURTESIES)})(?![\w']|-\w)){_GAP})+", re.IGNORECASE
)
_ENDING = re.compile(rf"(?:(?<=[\s,，.。!！?？])(?:{ENGLISH_THANKS})|{CHINESE_THANKS})[\s.。!！]*$", re.IGNORECASE)
_CHINESE_QUESTION = re.compile(
    rf"(?P<quoted>{QUOTED})|{'|'.join(CHINESE_QUESTION_WORDS)}|(?:{CHINESE_PARTICLES})(?=[\s,，.。!！?？;；（(]|$)"
)
_ENGLISH_QUESTION = re.compile(rf"(?:{''.join(ENGLISH_QUESTION_WORDS)})\b(?![-'])", re.IGNORECASE)
_ENGLISH_YES_OR_NO = re.compile(rf"(?:{ENGLISH_QUESTION_OPENINGS})\b(?![-'])", re.IGNORECASE)
_ENGLISH_QUESTION_AT_END = re.compile(r"\b(?:what|who|whom|where|when|why|how|which)$", re.IGNORECASE)
_EDGES = " \t,，.。!！?？;；:：、~\uff5e"

_LATIN_WORD = re.compile(rf"{LATIN}+")
_CHINESE_RUN = re.compile(rf"[{CJK}]+")

_QUESTION_PART = re.compile(r"(?<=[？?])|[；;\n]")
_ASKS = re.compile(
    rf"{'|'.join(CHINESE_QUESTION_WORDS)}|哪|几[个种条年月天次]|吗|呢|(?P<verb>[{CJK}])不(?P=verb)"
    r"|^(?:what|which|who|whom|whose|where|when|why|how|is|are|was|were|do|does|did|can|could|should|would|will)\b",
    re.IGNORECASE,
)
# Asides, narratives and references to another part: such a part cannot be searched for alone.
_LEANS = re.compile(
    r"[（）()/]|[我你您他她它这那该此其]|上述|前者|后者|\b(?:i|me|my|he|she|it|its|they|them|their|this|that|these|those|there|one)\b",
    re.IGNORECASE,
)
# A part that begins with these has left out its subject, or continues the part before.
_HEADLESS = re.compile(
    r"(?:在|对|对于|具体)?(?:谁|怎么|怎样|如何|能|会|可|是否|是不是|需|要|应|有没有|有什么|为什么|为何|多少|几|包括|何|若|如果|但|且|而|并|还|又|也"
    r"|然后|接着|另|再|否则|因此|所以)|(?:and|or|but|if|so|then|also|otherwise)\b",
    re.IGNORECASE,
)


def core_intent(text: str) -> str:
    """The query without courtesies and question words, in both languages; quotations stay as they are.

    Returns:
        The text itself where nothing else is left of it; blank only where the text is.
    """
    rest = _ENDING.sub("", text)
    rest = _without_opening(_OPENING, rest)
    stripped = rest.rstrip(_EDGES)
    has_question_mark = "?" in rest[len(stripped) :]
    rest = _without_opening(_ENGLISH_QUESTION, stripped)
    if has_question_mark:
        rest = _ENGLISH_QUESTION_AT_END.sub("", _without_opening(_ENGLISH_YES_OR_NO, rest))
    rest = _CHINESE_QUESTION.sub(lambda found: found["quoted"] or "", rest)
    rest = " ".join(rest.strip(_EDGES).split())
    return rest if any(map(str.isalnum, rest)) else text.strip()


def _without_opening(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.match(text)
    return text[found.end() :] if found else text


def split_questions(text: str) -> tuple[str, ...]:
    """The questions of a compound query, where they certainly ask for different things; else none.

    A part that leaves out its subject would lose its topic alone, and questions about one topic are one search: split, 49
    such queries of stard-law fell from NDCG@10 .639 to .605 under BM25.

    Args:
        text: a query, with its line breaks.
    """
    if not any(mark in text for mark in "？?；;\n"):
        return ()
    parts = tuple(part for piece in _QUESTION_PART.split(text) if (part := piece.strip()))
    if len(parts) < 2 or any(map(_HEADLESS.match, parts[1:])) or not all(map(_stands_alone, parts)):
        return ()
    seen: set[str] = set()
    for part in parts:
        topics = _topics(part)
        if not topics or topics & seen:
            return ()
        seen |= topics
    return parts


def _stands_alone(part: str) -> bool:
    length = len(part) / (4 if part.isascii() else 1)
    return length <= LONGEST_SUB_QUERY and bool(_ASKS.search(part)) and not _LEANS.search(part)


def _topics(part: str) -> frozenset[str]:
    """Latin words and pairs of Chinese characters of what a question is about."""
    intent = core_intent(part).casefold()
    words = frozenset(_LATIN_WORD.findall(intent)) - ENGLISH_FUNCTION_WORDS
    return words.union(*(map("".join, pairwise(run)) for run in _CHINESE_RUN.findall(intent)))
