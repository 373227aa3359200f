"""Rows below the form of another one."""

from typing import Any

from django.forms import BaseInlineFormSet, ModelChoiceField


class OwnRowsFormSet(BaseInlineFormSet):  # type: ignore[type-arg]
    """Knows the rows of its object only: Django's looks the key of a row up among all rows that there are."""

    def add_fields(self, form: Any, index: int | None) -> None:
        super().add_fields(form, index)
        key = form.fields.get("id")
        if isinstance(key, ModelChoiceField):
            key.queryset = self.get_queryset()
