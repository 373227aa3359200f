"""Choosing an embedding model by name, with those that cannot be used greyed, and why."""

import re
from collections.abc import Sequence
from typing import Any

from unfold.widgets import UnfoldAdminSelectWidget

from kb.providers.embedding_models import Choice

_FIRST_CLAUSE = re.compile(r"[:：]")


class EmbeddingModelSelect(UnfoldAdminSelectWidget):  # type: ignore[misc]
    """One line each; a reason by its first clause."""

    def __init__(self, models: Sequence[Choice]) -> None:
        self._reasons = {each.id: each.reason for each in models}
        super().__init__(choices=[(each.id, _in_a_line(each)) for each in models])

    def create_option(self, name: str, value: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        option: dict[str, Any] = super().create_option(name, value, *args, **kwargs)
        if reason := self._reasons.get(str(value)):
            option["attrs"] |= {"disabled": True, "title": reason}
        return option


def _in_a_line(model: Choice) -> str:
    reason = _FIRST_CLAUSE.split(model.reason)[0].strip()
    return f"{model.name} · {reason}" if reason else model.name
