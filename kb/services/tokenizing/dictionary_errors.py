"""What is wrong with a dictionary, said to people."""

from collections.abc import Mapping

from django.utils.translation import gettext as _

from retrieval.dictionary import MAX_CHARACTERS, MAX_FREQUENCY, MAX_LINES, MAX_WORD_CHARACTERS, DictionaryProblem
from retrieval.errors import DictionaryError


def problem_in_words(error: DictionaryError) -> str:
    """What is wrong with a line of a dictionary or of stop words, and the remedy, in the reader's language."""
    sentences: Mapping[str, str] = {
        DictionaryProblem.EMPTY_WORD: _("Line %(line)d: there is no word before the frequency: write one."),
        DictionaryProblem.NO_LETTERS: _(
            "Line %(line)d: what has no letter and no digit is never searched: take the line out."
        ),
        DictionaryProblem.WORD_TOO_LONG: _(
            "Line %(line)d: the word is too long: write one of at most %(characters)s characters."
        ),
        DictionaryProblem.BAD_FREQUENCY: _(
            "Line %(line)d: the frequency is not a whole number from 1 to %(frequency)s: correct it, or add a frequency "
            "if the word ends in this number."
        ),
        DictionaryProblem.TOO_MANY_LINES: _("There are more than %(lines)s lines: leave out words that seldom occur."),
        DictionaryProblem.TOO_MANY_CHARACTERS: _(
            "The words have more than %(all_characters)s characters in all: leave out words that seldom occur."
        ),
    }
    return sentences[error.problem] % {
        "line": error.line,
        "characters": MAX_WORD_CHARACTERS,
        "frequency": f"{MAX_FREQUENCY:,}",
        "lines": f"{MAX_LINES:,}",
        "all_characters": f"{MAX_CHARACTERS:,}",
    }
