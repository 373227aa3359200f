"""What the pages call the settings of RetrievalConfig, their values and their changes; see `retrieval.config.Setting`."""

from collections.abc import Iterable
from typing import Any

from django.utils.translation import gettext as _

from kb.profiles.services import SettingDifference
from retrieval.config import SETTINGS


def groups() -> dict[str, list[str]]:
    """The names of the settings by the title of their group, in the order of the forms."""
    found: dict[str, list[str]] = {}
    for name, declared in SETTINGS.items():
        found.setdefault(_(declared.group), []).append(name)
    return found


def setting_label(name: str) -> str:
    """What a setting is called; its own name where it is none of this version."""
    return _(SETTINGS[name].label) if name in SETTINGS else name


def choices_of(name: str) -> dict[str, str]:
    """The labels of the values of a setting that is one of a few words."""
    return {value: _(label) for value, label in SETTINGS[name].choices.items()} if name in SETTINGS else {}


def reranker_label(name: str) -> str:
    return {
        "cross_encoder": _("cross-encoder"),
        "http": _("rerank server"),
        "overlap": _("overlap of words"),
        "cosine": _("cosine"),
    }.get(name, name)


def value_in_words(name: str, value: Any) -> str:
    """A setting's value as a page shows it; None is the value that the search works out by itself."""
    if value is None:
        return _("auto")
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, list | tuple):
        return ", ".join(map(reranker_label, value)) or _("none")
    if isinstance(value, float):
        return f"{value:g}"
    return choices_of(name).get(str(value), str(value))


def change_in_words(difference: SettingDifference) -> str:
    """As in “Vector weight: 0.6 → 0.4”."""
    before, after = (value_in_words(difference.name, value) for value in (difference.before, difference.after))
    return _("%(setting)s: %(before)s → %(after)s") % {
        "setting": setting_label(difference.name),
        "before": before,
        "after": after,
    }


def in_order(names: Iterable[str]) -> list[str]:
    """The names of settings in the order of the form, unknown ones last."""
    places = {name: place for place, name in enumerate(SETTINGS)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def changes_in_words(differences: Iterable[SettingDifference]) -> list[str]:
    """One line a setting, in the order of the form."""
    found = {each.name: each for each in differences}
    return [change_in_words(found[name]) for name in in_order(found)]
