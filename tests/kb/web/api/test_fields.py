"""Lists of requests are measured before their items are looked at."""

import pytest
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

import kb.api  # noqa: F401 - all serializers of the API
from kb.agents.dify import NamesField
from kb.web.api.fields import MOST_UNKNOWN, ListField, StrictCharField, StrictSerializer


class Counted(serializers.Field):
    """Counts the items that it was given."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def to_internal_value(self, data):
        self.seen += 1
        return data


def test_a_list_that_is_too_long_is_refused_unread():
    field = ListField(child=Counted(), max_length=3)
    assert field.run_validation([1, 2, 3]) == [1, 2, 3]
    field.child.seen = 0
    with pytest.raises(ValidationError) as refused:
        field.run_validation([1, 2, 3, 4])
    assert refused.value.get_codes() == ["max_length"]
    assert field.child.seen == 0


def test_names_of_dify_are_counted_before_they_are_looked_at():
    class Names(list):
        def __iter__(self):
            raise AssertionError("they were looked at")

    with pytest.raises(ValidationError):
        NamesField().run_validation(Names(["a"] * 1_000))


def test_an_error_names_some_of_many_unknown_fields():
    class Body(StrictSerializer):
        name = StrictCharField()

    body = Body(data={"name": "x", **{f"field{number}": 1 for number in range(1_000)}})
    assert not body.is_valid()
    assert len(body.errors) == MOST_UNKNOWN


def subclasses(of):
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


def test_all_bounded_lists_of_the_api_are_of_this_kind():
    kinds = {*subclasses(serializers.Serializer)}
    lists = [
        (kind.__qualname__, name, field)
        for kind in kinds
        if kind.__module__.startswith("kb.")
        for name, field in kind._declared_fields.items()
        if isinstance(field, serializers.ListField) and field.max_length is not None
    ]
    assert len(lists) > 10
    assert [each for each in lists if not isinstance(each[2], ListField)] == []
