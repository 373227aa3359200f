"""Text of a language model as text: nothing in it makes a program that shows it load or open anything.

A document may ask the model for an image whose address carries what else the model was shown. In Markdown and in HTML that
is sent as soon as the answer is shown, without a click; so the marks of both are taken apart and the words stay.
"""

import re

_ELEMENTS = (
    "a|applet|audio|base|body|button|embed|form|frame|frameset|iframe|image|img|input|link|math|meta|object|picture|portal|"
    "script|source|style|svg|track|video"
)
_ACTIVE = re.compile(
    r"\](?=[(:])"  # [text](address), ![image](address) and [name]: address
    rf"|<(?=/?(?:{_ELEMENTS})(?![\w-]))"
    r"|<(?=[a-z][a-z0-9+.-]{1,31}:)",  # <https://address>
    re.IGNORECASE,
)
_HELD = re.compile(r"(?:\]|<[/a-zA-Z0-9+.-]{0,33})\Z")
_INSTEAD = {"]": "] ", "<": "\u2039"}


class InertStream:
    """Takes links, images and HTML of a text apart that comes in pieces; what leaves it does not depend on how it was cut.

    "[manual](https://a.example)" becomes "[manual] (https://a.example)", and the bracket of an element a single quotation
    mark. Only what may be the beginning of such a mark is held back, at most some 35 characters.
    """

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, piece: str) -> str:
        """The part of the text so far that is certain and was not returned before."""
        self._pending += piece
        held = _HELD.search(self._pending)
        end = held.start() if held else len(self._pending)
        # A mark before the end is judged with all that follows it.
        text = _inert(self._pending, end)
        self._pending = self._pending[end:]
        return text

    def finish(self) -> str:
        """The rest, once the text has ended."""
        rest, self._pending = self._pending, ""
        return _inert(rest, len(rest))


def inert(text: str) -> str:
    """The text with its links, images and HTML taken apart; see `InertStream`."""
    return _inert(text, len(text))


def _inert(text: str, end: int) -> str:
    """The first `end` characters, each mark judged by what follows it in the whole."""
    parts, done = [], 0
    for match in _ACTIVE.finditer(text):
        if match.start() >= end:
            break
        parts += [text[done : match.start()], _INSTEAD[match[0]]]
        done = match.end()
    return "".join([*parts, text[done:end]])
