"""Which fields of a record hold a question and which its answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

QUESTION_NAMES: Final = ("question", "questions", "q", "query", "instruction", "prompt", "问题", "标准问题", "问")
ANSWER_NAMES: Final = ("answer", "answers", "a", "response", "output", "completion", "答案", "回答", "答")
ALTERNATIVE_NAMES: Final = ("alternatives", "similar_questions", "similar questions", "相似问题", "相似问", "扩展问题")


def pair_of(value: Any) -> tuple[tuple[str, ...], str] | None:
    """The questions (the first is the main one) and the answer of a decoded JSON object; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    fields = {str(name).strip().lower(): content for name, content in value.items()}
    questions = _texts(_first(fields, QUESTION_NAMES))
    answers = _texts(_first(fields, ANSWER_NAMES))
    if not questions or not answers:
        return None
    if extra := _texts(fields.get("input")):  # instruction, input and output, as models are trained with
        questions = (f"{questions[0]}\n{extra[0]}", *questions[1:])
    return (*questions, *_texts(_first(fields, ALTERNATIVE_NAMES))), "\n".join(answers)


def pair_columns(header: Sequence[str]) -> tuple[int, int] | None:
    """Where a table holds questions and answers, if its header says so."""
    names = [name.strip().lower() for name in header]
    question = next((names.index(name) for name in QUESTION_NAMES if name in names), None)
    answer = next((names.index(name) for name in ANSWER_NAMES if name in names), None)
    return None if question is None or answer is None else (question, answer)


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name)), None)


def _texts(value: Any) -> tuple[str, ...]:
    """One text or a list of them; numbers, objects and blank texts are none."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        return ()
    return tuple(each.strip() for each in values if each.strip())
