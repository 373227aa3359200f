"""Entities from a file: a row whose name or alias is known is that entity, and adds to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.text import normalized_key
from kb.graph.models import Entity, EntityName, Origin
from kb.graph.services.entities import KIND_CHARACTERS, MAX_ALIASES, NAME_CHARACTERS
from kb.graph.services.facts import BATCH, facts_with, rewrite_facts
from kb.graph.services.import_plan import Effect, PlannedRow
from kb.graph.services.tables import CELL_CHARACTERS, Row


@dataclass(slots=True)
class _Planned:
    """An entity as it will be; `names` are those that it is given, by their keys."""

    entity: Entity
    names: dict[str, str] = field(default_factory=dict)
    is_changed: bool = False


def plan_entities(kb: KnowledgeBase, rows: Sequence[Row]) -> tuple[list[PlannedRow], Callable[[], None]]:
    """What the rows do, and what does it."""
    keys = {normalized_key(text) for row in rows for text in (row["name"], *row.listed("aliases"))}
    held = EntityName.objects.filter(knowledge_base=kb, key__in=keys).select_related("entity")
    entities: dict[int, _Planned] = {}
    owners: dict[str, _Planned] = {}
    for name in held:
        owners[name.key] = entities.setdefault(name.entity_id, _Planned(name.entity))
    new: list[_Planned] = []
    planned = [_plan_row(kb, row, owners, new) for row in rows]
    changed = [each for each in entities.values() if each.is_changed]
    return planned, lambda: _apply(kb, new, changed)


def _plan_row(kb: KnowledgeBase, row: Row, owners: dict[str, _Planned], new: list[_Planned]) -> PlannedRow:
    given = [row["name"], *row.listed("aliases")]
    texts = {normalized_key(text): text for text in reversed(given)}
    texts = {key: texts[key] for key in dict.fromkeys(map(normalized_key, given))}
    shown = row["name"]
    if error := _error(row, texts):
        return PlannedRow(row.line, shown, Effect.ERROR, error)
    known = {id(owners[key]): owners[key] for key in texts if key in owners}
    if len(known) > 1:
        names = "”, “".join(sorted(each.entity.name for each in known.values()))
        message = _("Its names belong to several entities (“%(names)s”): merge them first, or leave a name out.")
        return PlannedRow(row.line, shown, Effect.ERROR, message % {"names": names})
    if known:
        target = next(iter(known.values()))
        effect = Effect.SAME
    else:
        target = _Planned(Entity(knowledge_base=kb, name=shown, origin=Origin.IMPORT))
        new.append(target)
        effect = Effect.NEW
    added = {key: text for key, text in texts.items() if key not in owners}
    target.names |= added
    owners |= dict.fromkeys(added, target)
    fields = {name: row[name] for name in ("kind", "description") if row[name]}
    differing = [name for name, value in fields.items() if getattr(target.entity, name) != value]
    for name in differing:
        setattr(target.entity, name, fields[name])
    if effect is Effect.SAME and (added or differing):
        effect, target.is_changed = Effect.CHANGED, True
    others = [text for text in added.values() if text != target.entity.name]
    return PlannedRow(row.line, shown, effect, " · ".join([*others, *(fields[name][:80] for name in differing)]))


def _error(row: Row, texts: dict[str, str]) -> str:
    if not normalized_key(row["name"]):
        return _("The name is missing.")
    long = next((text for text in texts.values() if len(text) > NAME_CHARACTERS), "")
    if long or len(row["kind"]) > KIND_CHARACTERS or len(row["description"]) > CELL_CHARACTERS:
        return _("A name has %(name)d characters at most, and a kind %(kind)d: shorten it.") % {
            "name": NAME_CHARACTERS,
            "kind": KIND_CHARACTERS,
        }
    if len(texts) > MAX_ALIASES + 1:
        return _("An entity can have %(most)d other names at most: leave some out.") % {"most": MAX_ALIASES}
    if any("\0" in value for value in row.values.values()):
        return _("It holds a character that cannot be stored: delete it.")
    return ""


def _apply(kb: KnowledgeBase, new: Sequence[_Planned], changed: Sequence[_Planned]) -> None:
    Entity.objects.bulk_create([each.entity for each in new], batch_size=BATCH)
    for each in changed:
        if each.entity.origin == Origin.LLM:
            each.entity.origin = Origin.IMPORT
    Entity.objects.bulk_update([each.entity for each in changed], ["kind", "description", "origin"], batch_size=BATCH)
    names = [
        EntityName(entity=each.entity, knowledge_base=kb, text=text, key=key)
        for each in [*new, *changed]
        for key, text in sorted(each.names.items(), key=lambda pair: pair[1] != each.entity.name)
    ]
    EntityName.objects.bulk_create(names, batch_size=BATCH)
    given = {name.key: name.entity for name in names if name.text != name.entity.name}
    stated = facts_with(kb.pk, given).values_list("subject_key", "object_key")
    touched = {given[key].pk for pair in stated for key in pair if key in given}
    keys: dict[int, list[str]] = {}
    for key, entity in given.items():
        keys.setdefault(entity.pk, []).append(key)
    names_of = {entity.pk: entity.name for entity in given.values()}
    for pk in touched:
        rewrite_facts(kb.pk, keys[pk], names_of[pk])
