"""Keywords and questions that chunks are indexed by beside their text: extracted, or read by a language model."""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from kb.base.remarks import Remark, RemarkCode
from kb.index.llm_keywords import LlmReader, Read
from retrieval.errors import DependencyMissing, GenerationFailed
from retrieval.execution import InlineExecutor
from retrieval.keywords import Method, extract_keywords
from retrieval.messages import Message, gettext_noop, message_of

logger = logging.getLogger(__name__)

KEYWORD_LENGTH = 300
READ_AT_ONCE = 4
NOT_CONFIGURED = Message(
    gettext_noop(
        "no language model is set up: set LLM_BASE_URL (for example https://api.deepseek.com/v1) and LLM_MODEL, or let the "
        "knowledge base take its keywords by TF-IDF and ask no questions"
    )
)


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a knowledge base has looked for in its chunks.

    Attributes:
        language: of most of its chunks.
        keywords: whether they are wanted.
        method: of extraction; also what stands in where the language model fails.
        by_model: whether the language model gives the keywords.
        questions: whether it asks questions.
        reader: the language model; None: none is set up.
    """

    language: str
    keywords: bool = True
    method: Method = Method.TFIDF
    by_model: bool = False
    questions: bool = False
    reader: LlmReader | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """Of a chunk.

    Attributes:
        keywords: most telling first.
        questions: which it answers.
        problem: why the language model did not give what was wanted of it; blank: it did.
    """

    keywords: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """What of a chunk's terms is given already; None: to be looked for."""

    text: str
    keywords: tuple[str, ...] | None
    questions: tuple[str, ...] | None


def find_terms(
    chunks: Sequence[Given], extraction: Extraction | None, on_read: Callable[[], None] = lambda: None
) -> list[Terms]:
    """The terms of chunks: what is given stays, the rest is extracted, and a few are read by the model at a time.

    Args:
        chunks: in their order.
        extraction: None: what is not given is not looked for.
        on_read: told of every chunk that the language model has read; what it raises ends the work.
    """
    if extraction is None:
        return [Terms(each.keywords or (), each.questions or ()) for each in chunks]
    is_slow = extraction.reader is not None and (extraction.by_model or extraction.questions)
    executor: Executor = InlineExecutor()
    if is_slow:
        executor = ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="terms")
    found = []
    try:
        for future in [executor.submit(_terms, each, extraction) for each in chunks]:
            found.append(future.result())
            if is_slow:
                on_read()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    return found


def unread(problems: Iterable[str]) -> tuple[Remark, ...]:
    """Tells of the chunks that the language model did not read, with the reason of the first; nothing where it read all."""
    told = [problem for problem in problems if problem]
    if not told:
        return ()
    return (Remark(RemarkCode.MODEL_DID_NOT_READ, {"count": len(told), "reason": told[0]}),)


def extract(text: str, extraction: Extraction) -> tuple[str, ...]:
    """Keywords as they can be stored; none where what cuts the text into words is not installed."""
    try:
        words = extract_keywords(text, extraction.language, method=extraction.method)
    except DependencyMissing as error:
        logger.warning("a chunk got no keywords: %s", error)
        return ()
    return tuple(word for word in words if len(word) <= KEYWORD_LENGTH)


def _terms(chunk: Given, extraction: Extraction) -> Terms:
    wants_keywords = extraction.keywords and chunk.keywords is None
    wants_questions = extraction.questions and chunk.questions is None
    read, problem = _read(
        chunk.text, extraction, keywords=wants_keywords and extraction.by_model, questions=wants_questions
    )
    keywords = chunk.keywords or ()
    if wants_keywords:
        keywords = read.keywords if extraction.by_model and not problem else extract(chunk.text, extraction)
    return Terms(keywords, chunk.questions or read.questions, problem)


def _read(text: str, extraction: Extraction, *, keywords: bool, questions: bool) -> tuple[Read, str]:
    """What the language model finds, and what kept it from that."""
    if not keywords and not questions:
        return Read(), ""
    if extraction.reader is None:
        return Read(), NOT_CONFIGURED
    try:
        return extraction.reader.read(text, keywords=keywords, questions=questions), ""
    except GenerationFailed as error:
        logger.warning("a language model did not read a chunk: %s", error)
        return Read(), message_of(error)
