"""What goes and what stays when rows are deleted, read from the models: counts, so that no row is loaded."""

from collections.abc import Iterator
from typing import Any

from django.db.models import CASCADE, SET_NULL, Count, ForeignKey, Model, Q, Value

from kb.base.models import InternalRow


def deleted_with(model: type[Model], chosen: list[Any]) -> dict[str, int]:
    """How many rows a deletion takes along, by what they are called; the nearest first."""
    gone = _with_own_followers(model, chosen)
    conditions: dict[type[Model], Q] = {}
    for follower, path in _cascades(model, (), frozenset({model})):
        conditions[follower] = conditions.get(follower, Q()) | Q(**{f"{path}__in": gone})
    counts = _counted({each: condition for each, condition in conditions.items() if _has_name(each)})
    followers = len(gone) - len(chosen)
    return ({_name(model): followers} if followers else {}) | counts


def left_behind_by(model: type[Model], chosen: list[Any]) -> dict[str, int]:
    """How many rows stay and only lose what they refer to, by what they are called."""
    gone = {follower for follower, _path in _cascades(model, (), frozenset({model}))}
    conditions: dict[type[Model], Q] = {}
    for key in _keys_to(model):
        if key.remote_field.on_delete is SET_NULL and _has_name(key.model) and key.model not in gone:
            conditions[key.model] = conditions.get(key.model, Q()) | Q(**{f"{key.name}__in": chosen})
    for relation in model._meta.related_objects:
        if relation.many_to_many and _has_name(relation.related_model):
            conditions[relation.related_model] = Q(**{f"{relation.field.name}__in": chosen})
    return _counted(conditions)


def _cascades(
    model: type[Model], path: tuple[str, ...], above: frozenset[type[Model]]
) -> Iterator[tuple[type[Model], str]]:
    """Every model whose rows go with those of another one, with the lookup that leads from the one to the other."""
    for key in _keys_to(model):
        if key.remote_field.on_delete is CASCADE and key.model not in above:
            lookup = (key.name, *path)
            yield key.model, "__".join(lookup)
            yield from _cascades(key.model, lookup, above | {key.model})


def _keys_to(model: type[Model]) -> Iterator["ForeignKey[Any, Any]"]:
    """The foreign keys to a model, but those of the tables between two sides of a choice of many."""
    for relation in model._meta.get_fields(include_hidden=True):
        key = getattr(relation, "field", None)
        if relation.auto_created and isinstance(key, ForeignKey) and not key.model._meta.auto_created:
            yield key


def _with_own_followers(model: type[Model], ids: list[Any]) -> list[Any]:
    """The ids of rows and of the rows of the same model that go with them, as keys go with the key that made them."""
    own = [key.name for key in _keys_to(model) if key.model is model and key.remote_field.on_delete is CASCADE]
    found, newest = list(ids), list(ids)
    while newest and own:
        follows = Q.create([(f"{name}__in", newest) for name in own], connector=Q.OR)
        newest = list(model._default_manager.filter(follows).exclude(pk__in=found).values_list("pk", flat=True))
        found += newest
    return found


def _counted(conditions: dict[type[Model], Q]) -> dict[str, int]:
    queries = [
        model._default_manager.filter(condition)
        .order_by()
        .annotate(called=Value(_name(model)))
        .values("called")
        .annotate(amount=Count("pk", distinct=True))
        .values_list("called", "amount")
        for model, condition in conditions.items()
    ]
    if not queries:
        return {}
    found = dict(queries[0].union(*queries[1:], all=True))
    return {_name(model): found[_name(model)] for model in conditions if found.get(_name(model))}


def _has_name(model: type[Model]) -> bool:
    """False for tables that are an implementation's own, which no page shows, and for what is built from the rest."""
    return "verbose_name_plural" in model._meta.original_attrs and not issubclass(model, InternalRow)


def _name(model: type[Model]) -> str:
    return str(model._meta.verbose_name_plural)
