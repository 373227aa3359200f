"""Values of cells as a sheet shows them, by their number formats (ECMA-376, part 1, section 18.8.31)."""

import math
import re
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

# Excel shows these as the reader's country writes dates, so that day and month would be anyone's guess.
_LOCAL_DATES: Final = frozenset({"mm-dd-yy", "m/d/yy", "m/d/yyyy", "mm/dd/yy", "m/d/yy h:mm", "m/d/yyyy h:mm"})
_TOKEN: Final = re.compile(
    r"""
    "(?P<quoted>[^"]*)" | \\(?P<escaped>.) | [_*](?P<filling>.) | \[\$(?P<currency>[^\]-]*)[^\]]*\]
    | (?P<elapsed>\[(?:h+|m+|s+)\]) | \[(?P<condition>[^\]]*)\]
    | (?P<half>AM/PM|A/P|上午/下午) | (?P<general>General) | (?P<date>[ymdhsaeg]+) | (?P<number>[0\#?][0\#?,.]*|\.[0\#?]+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_LONGEST_FORMAT: Final = 255  # Excel's own limit
_MOST_DIGITS: Final = 15  # which is all that Excel knows of a number
_GENERAL: Final = ("General", "@", "")
_TIME_FORMS: Final = {"h": "{0.hour}", "hh": "{0.hour:02}", "s": "{0.second}", "ss": "{0.second:02}"}
_DATE_FORMS: Final = {
    "yyyy": "{0.year:04}",
    "yyy": "{0.year:04}",
    "yy": "{0:%y}",
    "mmmm": "{0:%B}",
    "mmm": "{0:%b}",
    "mm": "{0.month:02}",
    "m": "{0.month}",
    "dddd": "{0:%A}",
    "ddd": "{0:%a}",
    "dd": "{0.day:02}",
    "d": "{0.day}",
}

Token = tuple[str, str]


def shown(value: Any, number_format: str) -> str:
    """The text of a cell; one without a value shows nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return _number(value, number_format)
    if isinstance(value, timedelta):
        hours, seconds = divmod(round(value.total_seconds()), 3600)
        return f"{hours}:{seconds // 60:02}:{seconds % 60:02}"
    if isinstance(value, date | time):
        return _date(value, number_format) or _iso(value)
    return str(value)


def _iso(value: date | time) -> str:
    if isinstance(value, datetime):
        return value.isoformat(" ", "minutes") if value.time() != time() else value.date().isoformat()
    return value.isoformat()


def _date(value: date | time, number_format: str) -> str:
    """Blank where the format shows no date that everyone reads alike."""
    if number_format.lower() in _LOCAL_DATES:
        return ""
    tokens = _sections(number_format)[0]
    has_half = any(kind == "half" for kind, _ in tokens)
    dates = [text.lower() for kind, text in tokens if kind == "date"]
    parts, place = [], 0
    for kind, text in tokens:
        if kind == "date":
            part = _date_part(value, dates, place, has_half=has_half)
            if part is None:
                return ""
            parts.append(part)
            place += 1
        elif kind == "half":
            parts.append(f"{value:%p}")
        elif kind in ("literal", "other"):
            parts.append(text)
        elif kind != "filling":
            return ""
    return "".join(parts).strip() if dates else ""


def _date_part(value: date | time, dates: list[str], place: int, *, has_half: bool) -> str | None:
    code = dates[place]
    around = (dates[place - 1][0] if place else "", dates[place + 1][0] if place + 1 < len(dates) else "")
    is_minute = code in ("m", "mm") and (around[0] == "h" or around[1] == "s")
    if is_minute or code in _TIME_FORMS:
        if not isinstance(value, datetime | time):
            value = datetime.combine(value, time())
        if is_minute:
            return f"{value.minute:0{len(code)}}"
        if code[0] == "h" and has_half:
            return f"{value.hour % 12 or 12:0{len(code)}}"
        return _TIME_FORMS[code].format(value)
    form = _DATE_FORMS.get(code)
    return form.format(value) if form and isinstance(value, date) else None


def _number(value: float, number_format: str) -> str:
    general = str(value) if isinstance(value, int) else f"{value:.{_MOST_DIGITS}g}"
    if number_format in _GENERAL or (isinstance(value, float) and not math.isfinite(value)):
        return general
    sections = _sections(number_format)
    if any(kind == "condition" and text[:1] in "<>=" for tokens in sections for kind, text in tokens):
        return general
    number = Decimal(general)
    if number.adjusted() >= _MOST_DIGITS:
        return general
    if number == 0 and len(sections) > 2:
        tokens = sections[2]
    elif number < 0 and len(sections) > 1:
        tokens, number = sections[1], -number
    else:
        tokens = sections[0]
    return _by_tokens(number, tokens, general)


def _by_tokens(number: Decimal, tokens: tuple[Token, ...], general: str) -> str:
    kinds = [kind for kind, _ in tokens]
    others = "".join(text for kind, text in tokens if kind == "other")
    # Fractions, exponents, dates of numbers that are none, and texts in place of the number
    if kinds.count("number") + kinds.count("general") != 1 or "date" in kinds or re.search(r"[/E@]", others):
        return general if "number" in kinds or "date" in kinds or "@" in others else _joined(tokens, "") or general
    if "general" in kinds:
        return _joined(tokens, general)
    percents = min(2, others.count("%"))
    pattern = next(text for kind, text in tokens if kind == "number")
    text = _digits(abs(number) * 100**percents, pattern)
    sign = "-" if number < 0 and text.strip("0.,") else ""
    return sign + _joined(tokens, text)


def _joined(tokens: tuple[Token, ...], number: str) -> str:
    parts = [
        number if kind in ("number", "general") else text
        for kind, text in tokens
        if kind in ("number", "general", "literal", "other")
    ]
    return "".join(parts).strip()


def _digits(number: Decimal, pattern: str) -> str:
    whole, _, fraction = pattern.partition(".")
    scaled = len(whole) - len(whole.rstrip(","))
    places = sum(1 for sign in fraction if sign in "0#?")
    needed = sum(1 for sign in fraction if sign == "0")
    number = (number / 1000**scaled).quantize(Decimal(1).scaleb(-min(places, _MOST_DIGITS)), ROUND_HALF_UP)
    grouping = "," if "," in whole.rstrip(",") else ""
    left, _, right = f"{number:{grouping}f}".partition(".")
    while len(right) > needed and right.endswith("0"):
        right = right[:-1]
    least = whole.count("0")
    left = left.zfill(least) if not grouping else left
    if left == "0" and not least:
        left = ""
    return f"{left}.{right}" if right else left


@lru_cache(maxsize=1_000)
def _sections(number_format: str) -> tuple[tuple[Token, ...], ...]:
    """The parts for positive and negative numbers, zero and text, each as its tokens."""
    sections: list[list[Token]] = [[]]
    for match in _TOKEN.finditer(number_format[:_LONGEST_FORMAT]):
        kind, text = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "other" and text == ";":
            sections.append([])
        elif kind in ("quoted", "escaped", "currency"):
            sections[-1].append(("literal", text))
        elif kind == "filling":
            sections[-1].append((kind, ""))
        elif kind == "date" and not any(name == "date" for name, _ in sections[-1]) and text.lower() in ("e", "g"):
            sections[-1].append(("other", text.upper()))
        else:
            sections[-1].append((kind, text))
    return tuple(tuple(_with_units(section)) for section in sections)


def _with_units(tokens: list[Token]) -> list[Token]:
    """Brackets that hold a colour or a language show nothing."""
    named = re.compile(
        r"(black|blue|cyan|green|magenta|red|white|yellow|color\s*\d+|dbnum\d|颜色\s*\d+|红色|蓝色)", re.I
    )
    shown_tokens = [
        ("filling", "") if kind == "condition" and named.fullmatch(text) else (kind, text) for kind, text in tokens
    ]
    # 0.00E+00: the letter makes no date
    return [
        ("other", "E") if kind == "date" and text.lower() == "e" and before[0] == "number" else (kind, text)
        for before, (kind, text) in pairwise([("", ""), *shown_tokens])
    ]
