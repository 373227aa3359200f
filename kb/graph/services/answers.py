"""What a language model is asked for about a passage or a document, and what of its answer is taken.

Of an answer that can be read at all, each item is taken or refused by itself. What an entity or a fact names has to stand in
the passage: what the model knows from elsewhere, or makes up, has no source.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb.base.text import normalized_key
from kb.graph.services.facts import Triple
from retrieval.tokenize import normalize

MAX_ENTITIES = 30
MAX_FACTS = 30
MAX_ALIASES = 5
MAX_CONCEPTS = 5
NAME_CHARACTERS = 120
PREDICATE_CHARACTERS = 80
KIND_CHARACTERS = 40
ANSWER_CHARACTERS = 100_000

_TEXT = {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS}
PASSAGE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["entities", "facts"],
    "properties": {
        "entities": {
            "type": "array",
            "maxItems": MAX_ENTITIES,
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": _TEXT,
                    "kind": {"type": "string", "maxLength": KIND_CHARACTERS},
                    "aliases": {"type": "array", "maxItems": MAX_ALIASES, "items": _TEXT},
                },
            },
        },
        "facts": {
            "type": "array",
            "maxItems": MAX_FACTS,
            "items": {
                "type": "object",
                "required": ["subject", "predicate", "object"],
                "properties": {
                    "subject": _TEXT,
                    "predicate": {"type": "string", "minLength": 1, "maxLength": PREDICATE_CHARACTERS},
                    "object": _TEXT,
                },
            },
        },
    },
}
CONCEPTS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["concepts"],
    "properties": {
        "concepts": {
            "type": "array",
            "maxItems": MAX_CONCEPTS,
            "items": {"type": "object", "required": ["name"], "properties": {"name": _TEXT, "wider": _TEXT}},
        }
    },
}


class UnusableAnswer(Exception):
    """Nothing of an answer can be taken; the message tells the model why."""


@dataclass(frozen=True, slots=True)
class FoundEntity:
    name: str
    kind: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundConcept:
    name: str
    wider: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a passage says; `refused` counts the items that were not taken."""

    entities: tuple[FoundEntity, ...] = ()
    facts: tuple[Triple, ...] = ()
    refused: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "entities": [[each.name, each.kind, list(each.aliases)] for each in self.entities],
            "facts": [[each.subject, each.predicate, each.object] for each in self.facts],
            "refused": self.refused,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Found":
        return cls(
            tuple(FoundEntity(name, kind, tuple(aliases)) for name, kind, aliases in value["entities"]),
            tuple(Triple(*each) for each in value["facts"]),
            value["refused"],
        )


def read_passage_answer(answer: str, passage: str) -> Found:
    """What an answer says of a passage.

    Raises:
        UnusableAnswer: it is no JSON object of the schema's shape.
    """
    value = _object(answer)
    entities, facts = (_items(value, name) for name in ("entities", "facts"))
    text = folded(passage)
    read_entities = [_entity(item, text) for item in entities[:MAX_ENTITIES]]
    read_facts = [_fact(item, text) for item in facts[:MAX_FACTS]]
    taken_entities = tuple(dict.fromkeys(entity for entity in read_entities if entity is not None))
    taken_facts = tuple({fact.identity: fact for fact in read_facts if fact is not None}.values())
    lost = sum(item is None for item in [*read_entities, *read_facts])
    beyond = max(0, len(entities) - MAX_ENTITIES) + max(0, len(facts) - MAX_FACTS)
    return Found(taken_entities, taken_facts, lost + beyond)


def read_concepts_answer(answer: str) -> tuple[FoundConcept, ...]:
    """The concepts that an answer assigns to a document.

    Raises:
        UnusableAnswer: it is no JSON object of the schema's shape.
    """
    found: dict[str, FoundConcept] = {}
    for item in _items(_object(answer), "concepts"):
        if isinstance(item, Mapping) and (name := _text(item.get("name"), NAME_CHARACTERS)):
            wider = _text(item.get("wider"), NAME_CHARACTERS)
            is_own = normalized_key(wider) == normalized_key(name)
            found.setdefault(normalized_key(name), FoundConcept(name, "" if is_own else wider))
    return tuple(found.values())[:MAX_CONCEPTS]


def folded(text: str) -> str:
    """A text in which the keys of names can be looked for."""
    return " ".join(normalize(text).casefold().split())


def _object(answer: str) -> Mapping[str, Any]:
    """The JSON object of an answer, also where words or a code fence stand around it."""
    start, end = answer.find("{"), answer.rfind("}")
    if len(answer) > ANSWER_CHARACTERS or start < 0 or end < start:
        raise UnusableAnswer("the answer is not one JSON object")
    try:
        value = json.loads(answer[start : end + 1])
    except (ValueError, RecursionError) as error:
        raise UnusableAnswer("the answer is not valid JSON") from error
    if not isinstance(value, Mapping):
        raise UnusableAnswer("the answer is not one JSON object")
    return value


def _items(value: Mapping[str, Any], name: str) -> Sequence[Any]:
    items = value.get(name)
    if not isinstance(items, list):
        raise UnusableAnswer(f'the answer has no list "{name}"')
    return items


def _entity(item: Any, text: str) -> FoundEntity | None:
    if not isinstance(item, Mapping):
        return None
    name = _text(item.get("name"), NAME_CHARACTERS)
    if not name or not _stands_in(name, text):
        return None
    given = item.get("aliases")
    aliases = [_text(alias, NAME_CHARACTERS) for alias in (given if isinstance(given, list) else [])]
    others = {normalized_key(alias): alias for alias in aliases if alias and _stands_in(alias, text)}
    others.pop(normalized_key(name), None)
    return FoundEntity(name, _text(item.get("kind"), KIND_CHARACTERS), tuple(others.values())[:MAX_ALIASES])


def _fact(item: Any, text: str) -> Triple | None:
    if not isinstance(item, Mapping):
        return None
    subject, object_ = _text(item.get("subject"), NAME_CHARACTERS), _text(item.get("object"), NAME_CHARACTERS)
    predicate = _text(item.get("predicate"), PREDICATE_CHARACTERS)
    triple = Triple(subject, predicate, object_)
    if not (subject and predicate and object_) or triple.identity[0] == triple.identity[2]:
        return None
    return triple if _stands_in(subject, text) and _stands_in(object_, text) else None


def _stands_in(name: str, text: str) -> bool:
    key = normalized_key(name)
    return bool(key) and key in text


def _text(value: Any, most: int) -> str:
    """A text of an answer in one line; blank for what is none, is too long, or holds what the database cannot."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or "\0" in value:
        return ""
    line = " ".join(value.split())
    return line if len(line) <= most and normalized_key(line) and line.isprintable() else ""
