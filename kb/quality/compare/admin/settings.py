"""Settings that differ between two sides, in words."""

from collections.abc import Iterable
from dataclasses import dataclass

from kb.profiles.admin.setting_labels import in_order, setting_label, value_in_words
from kb.profiles.services import SettingDifference


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting with its values on both sides; an arrow between them would be one more in a chain of rerankers."""

    label: str
    before: str
    after: str


def setting_changes(differences: Iterable[SettingDifference]) -> tuple[SettingChange, ...]:
    """One a setting, in the order of the form."""
    found = {each.name: each for each in differences}
    return tuple(
        SettingChange(
            setting_label(each.name), value_in_words(each.name, each.before), value_in_words(each.name, each.after)
        )
        for each in (found[name] for name in in_order(found))
    )
