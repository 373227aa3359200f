"""Lines of an archive as rows of the database: every field is checked as a form would, and what follows from it is recomputed.

Also a knowledge base's retrieval profiles in an installation where their names may be taken.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from itertools import count
from typing import Any, Final

import regex
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _, gettext_noop

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import Purpose, lock_until_commit
from kb.base.findings import Remark, RemarkCode
from kb.base.net.addresses import parse_url
from kb.base.net.errors import FetchError
from kb.base.text import normalized_key
from kb.content.models import Chunk, Document
from kb.graph.models import ConceptTerm, EntityName, GraphFact
from kb.ingest.chunkers.matching import hash_content
from kb.operations.services.archives.format import Table
from kb.operations.services.archives.reading import damaged
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, NOT_IN_NAMES, configuration_of
from kb.quality.models import Judgment
from kb.sources.connectors.listing import MOST_PATTERNS, compiled
from kb.sources.models import SearchProvider, WebPage, WebSource
from kb.sources.web.services.pages import hash_of
from retrieval.errors import InvalidConfiguration
from retrieval.eval.judged_sets import anchor_hash


class Profiles:
    """The names that a new knowledge base's profiles get, and which of them it searches by. Belongs inside a transaction."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self._kb = kb
        self._names: dict[str, str] = {}

    def rename(self, profile: RetrievalProfile) -> None:
        """Gives a version a name that no shared profile has; versions of one name stay together.

        Raises:
            Rejected: it is no name of a profile.
        """
        name = profile.name
        if not name.strip() or not name.isprintable() or NOT_IN_NAMES & set(name):
            raise damaged(_("a profile has a name that none can have"))
        if name not in self._names:
            self._names[name] = self._free(name)
        profile.name = self._names[name]

    def chosen(self, wanted: Mapping[str, Any]) -> RetrievalProfile:
        """The profile that an archive's knowledge base has searched by.

        A shared one is used where the installation has it with the same settings, else made the knowledge base's own.

        Raises:
            Rejected: it is said to be among the knowledge base's own profiles, and is not.
        """
        if wanted["is_own"]:
            name = self._names.get(wanted["name"])
            own = RetrievalProfile.objects.filter(knowledge_base=self._kb, name=name, version=wanted["version"]).first()
            if own is None:
                raise damaged(_("the profile in use is not in it"))
            return own
        shared = RetrievalProfile.objects.filter(knowledge_base=None, name=wanted["name"])
        live = shared.live(wanted["name"]) if shared.exists() else None
        if live is not None and live.settings == wanted["settings"]:
            return live
        made = RetrievalProfile(
            name=self._free(wanted["name"]),
            knowledge_base=self._kb,
            description=wanted["description"],
            settings=wanted["settings"],
            published=True,
            published_at=timezone.now(),
            created_by=self._kb.owner,
        )
        made.save()
        return made

    def _free(self, name: str) -> str:
        lock_until_commit(Purpose.PROFILES)
        seen = RetrievalProfile.objects.filter(Q(knowledge_base=None) | Q(knowledge_base=self._kb))
        given = self._names.values()
        return next(each for each in _alternatives(name) if each not in given and not seen.filter(name=each).exists())


def _alternatives(name: str) -> Iterator[str]:
    yield name
    for number in count(2):
        ending = f" ({number})"
        yield name[: MAX_NAME_CHARACTERS - len(ending)] + ending


FAILED_BEFORE: Final = gettext_noop(
    "This document had failed in the knowledge base that the archive was made from: process it again."
)
_TEXT: Final = (str,)
_NUMBER: Final = (int,)
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "ArrayField": (list,),
    "BooleanField": (bool,),
    "CharField": _TEXT,
    "DateTimeField": _TEXT,
    "JSONField": (dict, list),
    "PositiveBigIntegerField": _NUMBER,
    "PositiveIntegerField": _NUMBER,
    "PositiveSmallIntegerField": _NUMBER,
    "TextField": _TEXT,
}


class WrongRow(ValueError):
    """A line that no row can be made of; the message says which field is at fault."""


def checked_fields(model: type[models.Model], names: tuple[str, ...], row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of fields, as the model wants them.

    Raises:
        WrongRow: one is of another type, too long, out of range or none of its choices.
    """
    return {name: _checked(model._meta.get_field(name), row[name]) for name in names}


def instance_of(table: Table, row: Mapping[str, Any], keys: Mapping[str, int | None], kb_id: int) -> Any:
    """A row of the database, unsaved.

    Args:
        table: that the line is of.
        row: the line.
        keys: by the names of `table.refers`, the ids of the rows that it refers to.
        kb_id: of the knowledge base.

    Raises:
        WrongRow: it has other fields than the table, or one of them is wrong.
    """
    if row.keys() != table.keys:
        raise WrongRow(", ".join(sorted(row.keys() ^ table.keys))[:200])
    values = checked_fields(table.model, table.fields, row)
    for name, key in keys.items():
        field = table.model._meta.get_field(name)
        if key is None and not field.null:
            raise WrongRow(name)
        values[field.attname] = key  # type: ignore[union-attr]
    if any(field.name == "knowledge_base" for field in table.model._meta.concrete_fields):
        values["knowledge_base_id"] = kb_id
    made = table.model(**values)
    if complete := _COMPLETE.get(table.model):
        complete(made)
    return made


def _checked(field: Any, value: Any) -> Any:
    if value is None:
        if not field.null:
            raise WrongRow(field.name)
        return None
    kinds = _KINDS[field.get_internal_type()]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise WrongRow(field.name)
    if (
        isinstance(value, list)
        and not isinstance(field, models.JSONField)
        and not all(isinstance(each, str) for each in value)
    ):
        raise WrongRow(field.name)
    if isinstance(field, models.DateTimeField):
        return _moment(field, str(value))
    if field.choices and value not in dict(field.flatchoices):
        raise WrongRow(field.name)
    try:
        field.run_validators(value)
    except ValidationError as error:
        raise WrongRow(field.name) from error
    return value


def _moment(field: Any, value: str) -> Any:
    try:
        moment = parse_datetime(value)
        if moment is None or timezone.is_naive(moment):
            raise WrongRow(field.name)
        return moment.astimezone(UTC)  # PostgreSQL knows no zone as far from Greenwich as may be written
    except (ValueError, OverflowError) as error:
        raise WrongRow(field.name) from error


def _complete_document(document: Document) -> None:
    """A document that waited waits on; one that failed says so, in words of this installation."""
    status = Document.Status
    if document.status == status.PROCESSING:
        document.status = status.PENDING
    elif document.status == status.READY:
        document.progress = 100
    elif document.status == status.FAILED:
        document.error_code, document.error = "failed_before", FAILED_BEFORE
    if not isinstance(document.metadata, dict):
        raise WrongRow("metadata")
    if not isinstance(document.remarks, list):
        raise WrongRow("remarks")
    for remark in document.remarks:
        try:
            params = remark["params"]
            is_plain = all(isinstance(each, str | int) for each in params.values())
            if (
                remark.keys() != {"code", "params"}
                or not is_plain
                or not Remark(RemarkCode(remark["code"]), params).message
            ):
                raise WrongRow("remarks")
        except (TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
            raise WrongRow("remarks") from error


def _complete_chunk(chunk: Chunk) -> None:
    if not chunk.text.strip():
        raise WrongRow("text")
    chunk.content_hash = hash_content(chunk.text)


def _complete_term(term: "ConceptTerm | EntityName") -> None:
    term.key = normalized_key(term.text)


def _complete_fact(fact: GraphFact) -> None:
    fact.subject_key, fact.object_key = normalized_key(fact.subject), normalized_key(fact.object)


def _complete_judgment(judgment: Judgment) -> None:
    judgment.quote_hash = anchor_hash(judgment.quote) if judgment.quote else ""


def _complete_profile(profile: RetrievalProfile) -> None:
    check_profile_settings(profile.settings)


def check_profile_settings(settings: Any) -> None:
    """Returns where they are settings of retrieval.

    Raises:
        WrongRow: one of them is unknown or out of range.
    """
    if not isinstance(settings, dict):
        raise WrongRow("settings")
    try:
        configuration_of(settings)
    except (InvalidConfiguration, TypeError) as error:
        raise WrongRow("settings") from error


def _complete_web_source(source: WebSource) -> None:
    """Switched off: what strangers wrote must not be read, nor asked, before somebody has looked at it."""
    source.enabled = False
    _check_url(source.url)
    if max(len(source.include), len(source.exclude)) > MOST_PATTERNS:
        raise WrongRow("include, exclude")
    for pattern in (*source.include, *source.exclude):
        try:
            compiled(pattern)
        except regex.error as error:
            raise WrongRow("include, exclude") from error


def _check_url(url: str) -> None:
    """Returns where it is a web address: others, such as those that are scripts, would become links all the same."""
    try:
        parse_url(url)
    except FetchError as error:
        raise WrongRow("url") from error


def _complete_web_page(page: WebPage) -> None:
    _check_url(page.url)
    page.url_hash = hash_of(page.url)


def _complete_provider(provider: SearchProvider) -> None:
    provider.enabled = False
    if not isinstance(provider.settings, dict):
        raise WrongRow("settings")


_COMPLETE: Final[dict[type[models.Model], Callable[[Any], None]]] = {
    Chunk: _complete_chunk,
    ConceptTerm: _complete_term,
    Document: _complete_document,
    EntityName: _complete_term,
    GraphFact: _complete_fact,
    Judgment: _complete_judgment,
    RetrievalProfile: _complete_profile,
    SearchProvider: _complete_provider,
    WebPage: _complete_web_page,
    WebSource: _complete_web_source,
}
