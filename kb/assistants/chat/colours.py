"""Colours that can be read: contrast as WCAG 2.2 defines it (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""

from typing import Final

LEAST_CONTRAST: Final = 4.5
# The darkest and the lightest of what text stands on in the light page, and in the dark one.
LIGHT, DARK = "#f1f1f4", "#25242c"
BLACK, WHITE = "#000000", "#ffffff"
_STEPS: Final = 50


def contrast(one: str, other: str) -> float:
    """From 1 to 21, of two colours such as #7c3aed."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever is read more easily on a colour."""
    return max((WHITE, BLACK), key=lambda ink: contrast(ink, colour))


def readable(colour: str, *, on: str) -> str:
    """The colour, as much lighter or darker as text in it needs to be to be read on another."""
    towards = ink_on(on)
    mixed = (_mixed(colour, towards, step / _STEPS) for step in range(_STEPS + 1))
    return next((each for each in mixed if contrast(each, on) >= LEAST_CONTRAST), towards)


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    shares = [each / 255 for each in _channels(colour)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _mixed(colour: str, other: str, share: float) -> str:
    both = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(one + (two - one) * share):02x}" for one, two in both)
