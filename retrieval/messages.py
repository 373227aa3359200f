"""Sentences for readers, which are translated when they are shown and not when they are made.

Nothing here knows a language: whoever shows a message passes the function that translates its template.
"""

from collections.abc import Callable, Mapping
from typing import Any

Argument = str | int | float


def gettext_noop(message: str) -> str:
    """Marks a template for makemessages."""
    return message


class Message(str):
    """A sentence in English that keeps what it was made of.

    Attributes:
        template: with fields as `str.format` has them; the identifier under which translations are found.
        arguments: of the fields; another message is translated with this one.
    """

    __slots__ = ("arguments", "template")

    template: str
    arguments: Mapping[str, Argument]

    def __new__(cls, template: str, /, **arguments: Argument) -> "Message":
        plain = {name: storable(value) if isinstance(value, str) else value for name, value in arguments.items()}
        made = super().__new__(cls, template.format(**plain))
        made.template = template
        made.arguments = plain
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Argument]]:
        return (self.template,), dict(self.arguments)

    def translated(self, translate: Callable[[str], str]) -> str:
        """The sentence in the language of `translate`, which maps a template to a template."""
        arguments = {
            name: value.translated(translate) if isinstance(value, Message) else value
            for name, value in self.arguments.items()
        }
        return translate(self.template).format(**arguments)

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold of it, for `from_dict`."""
        arguments = {
            name: value.as_dict() if isinstance(value, Message) else value for name, value in self.arguments.items()
        }
        return {"template": self.template, "arguments": arguments}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Message":
        arguments = {
            name: cls.from_dict(value) if isinstance(value, dict) else value
            for name, value in stored["arguments"].items()
        }
        return cls(stored["template"], **arguments)


def message_of(error: BaseException) -> str:
    """What an error says: its message, if it was raised with one, which `str` would turn into plain English."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, Message) else str(error)


def storable(text: str) -> str:
    """The text without what no database and no response can hold: a server that is quoted may send anything."""
    return text if isinstance(text, Message) else text.replace("\0", "").encode("utf-8", "replace").decode()
