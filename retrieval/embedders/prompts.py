"""Instructions that models want before a text although their configuration does not say so."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Prompts:
    """Text to put before a query and before a document; empty for none."""

    query: str = ""
    document: str = ""


# From the model cards: BAAI/bge-large-zh-v1.5, BAAI/bge-large-en-v1.5, intfloat/multilingual-e5-base.
_BY_NAME = (
    ("bge-*-zh*", Prompts(query="为这个句子生成表示以用于检索相关文章：")),
    ("bge-*-en*", Prompts(query="Represent this sentence for searching relevant passages: ")),
    ("*e5-*-instruct", Prompts()),
    ("e5-*", Prompts(query="query: ", document="passage: ")),
    ("multilingual-e5-*", Prompts(query="query: ", document="passage: ")),
)


def prompts_for(model_name: str) -> Prompts:
    """The prompts of a model known by its name, whatever organisation or folder precedes it."""
    name = model_name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].lower()
    return next((prompts for pattern, prompts in _BY_NAME if fnmatchcase(name, pattern)), Prompts())
