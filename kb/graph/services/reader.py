"""Asks the language model about passages, several at a time; nothing here touches the database."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from kb.graph.services.answers import Found, FoundConcept, UnusableAnswer, read_concepts_answer, read_passage_answer
from kb.graph.services.prompts import concepts_prompt, passage_prompt, repair_prompt
from retrieval.errors import GenerationFailed
from retrieval.messages import message_of
from retrieval.protocols import Generator
from retrieval.trace import DegradationCode
from retrieval.types import Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Passage:
    content_hash: str
    text: str


@dataclass(frozen=True, slots=True)
class GraphReader:
    """A language model that reads passages in a language.

    Attributes:
        timeout_s: for one answer, the repair of it apart.
        concurrency: how many are asked for at a time.
    """

    model: Generator
    language: str
    timeout_s: float
    concurrency: int

    def read(self, passages: Sequence[Passage]) -> Iterator[tuple[Passage, Found | None]]:
        """What each passage says, in their order; None where the model gives no usable answer, asked twice.

        Raises:
            GenerationFailed: the model cannot be asked; those that were answered before it have been handed out.
        """
        with ThreadPoolExecutor(max_workers=self.concurrency, thread_name_prefix="graph") as executor:
            asked = [executor.submit(self._passage, passage) for passage in passages]
            failure: GenerationFailed | None = None
            try:
                for passage, answer in zip(passages, asked, strict=True):
                    if answer.cancelled():
                        continue
                    try:
                        found = answer.result()
                    except GenerationFailed as error:
                        failure = failure or error
                        executor.shutdown(wait=False, cancel_futures=True)
                        continue
                    yield passage, found
            finally:
                executor.shutdown(cancel_futures=True)
            if failure is not None:
                raise failure

    def concepts(self, existing: Sequence[str], beginning: str) -> tuple[FoundConcept, ...] | None:
        """The concepts of a document; None without a usable answer. Raises as `read`."""
        return self._asked(concepts_prompt(self.language, existing, beginning), read_concepts_answer)

    def _passage(self, passage: Passage) -> Found | None:
        asked = passage_prompt(self.language, passage.text)
        return self._asked(asked, lambda answer: read_passage_answer(answer, passage.text))

    def _asked(self, prompt: tuple[Turn, ...], read: Callable[[str], T]) -> T | None:
        answer = ""
        try:
            answer = self._complete(prompt)
            return read(answer)
        except UnusableAnswer as error:
            reason = message_of(error)
        try:
            return read(self._complete(repair_prompt(prompt, answer or "-", reason)))
        except UnusableAnswer:
            return None

    def _complete(self, prompt: Sequence[Turn]) -> str:
        try:
            return self.model.complete(prompt, timeout_s=self.timeout_s, as_json=True)
        except GenerationFailed as error:
            if error.code == DegradationCode.LLM_UNUSABLE:
                raise UnusableAnswer("the answer was empty") from error
            raise
