"""Code points and their classes: what the hashing embedder and the token estimate read a text as.

Which characters belong to which kind of script, as bodies of regular expressions' character classes.
"""

import math
import re
import unicodedata
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# Sorting the marks of a character takes the square of their number, and looking for them longer than sorting those of a short
# text. Source of the number: Unicode Standard Annex #15, Stream-Safe Text Format.
SHORT_CHARACTERS = 2_000
MOST_MARKS = 30
_MARKS = "".join(filter(unicodedata.combining, map(chr, range(0x20000))))  # the planes beyond have none
_TOO_MANY_MARKS = re.compile(rf"([{_MARKS}]{{{MOST_MARKS}}})[{_MARKS}]+")

_LATIN_CHARS_PER_TOKEN = 4
# Scripts written without spaces between words: Han with its extensions, kana, bopomofo, Hangul.
_CJK_RANGES = (
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3040, 0x318F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF),
    (0x20000, 0x323AF),
)
_CJK_STARTS = np.array([start for start, _ in _CJK_RANGES], dtype=np.uint32)
_CJK_ENDS = np.array([end for _, end in _CJK_RANGES], dtype=np.uint32)


def normal_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    """As `unicodedata.normalize`; in a longer text than SHORT_CHARACTERS a character keeps MOST_MARKS of its marks."""
    return unicodedata.normalize(form, text if len(text) <= SHORT_CHARACTERS else _TOO_MANY_MARKS.sub(r"\1", text))


def code_points(text: str) -> NDArray[np.uint32]:
    """The text's code points, shape (n_chars,); lone surrogates stay as they are."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32, copy=False)


def is_cjk(points: NDArray[np.uint32]) -> NDArray[np.bool_]:
    nearest = np.searchsorted(_CJK_STARTS, points, side="right") - 1
    return np.asarray((nearest >= 0) & (points <= _CJK_ENDS[nearest]), dtype=np.bool_)


def is_word_character(text: str) -> NDArray[np.bool_]:
    """True for letters, digits and marks (so that a Devanagari vowel sign does not split its word)."""
    return np.fromiter((unicodedata.category(char)[0] in "LNM" for char in text), dtype=np.bool_, count=len(text))


def estimate_tokens(text: str) -> int:
    """A model-free token count: one per CJK character, one per four other characters (the usual rule of thumb)."""
    cjk = int(np.count_nonzero(is_cjk(code_points(text))))
    return cjk + math.ceil((len(text) - cjk) / _LATIN_CHARS_PER_TOKEN)


def estimate_token_ends(text: str) -> list[int]:
    """Where each of the tokens that `estimate_tokens` counts ends: behind every CJK character, and every fourth other."""
    cjk = is_cjk(code_points(text))
    others = np.flatnonzero(~cjk)
    fourth = others[_LATIN_CHARS_PER_TOKEN - 1 :: _LATIN_CHARS_PER_TOKEN]
    rest = others[-1:] if len(others) % _LATIN_CHARS_PER_TOKEN else others[:0]
    ends: list[int] = (np.sort(np.concatenate([np.flatnonzero(cjk), fourth, rest])) + 1).tolist()
    return ends


# Chinese, Japanese and Korean. Runs of these go to the segmenter.
CJK = "\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
# One letter or digit of any other script: their words end where these do.
LATIN = rf"[^\W_{CJK}]"
