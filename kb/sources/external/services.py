"""Search services elsewhere that a knowledge base's queries are sent to; another kind is a module, named in KINDS."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import get_language, gettext as _, gettext_noop, override

from kb.access.models import User
from kb.base.errors import Rejected
from kb.base.findings import Finding, broken, check, degraded, ok
from kb.sources.external.providers.answers import unanswered
from kb.sources.external.providers.vertex import VertexSearch
from kb.sources.fields import checked_values
from kb.sources.models import SearchProvider
from retrieval.errors import ChannelUnavailable, DegradationCode, Message, message_of
from retrieval.protocols import ExternalProvider
from retrieval.types import Analysis, ExternalHit

TEST_SECONDS: Final = 10.0
TEST_RESULTS: Final = 5
NO_PROJECTS: Final = Message(
    gettext_noop("{kind} is allowed, and VERTEX_PROJECTS opens no project, so none can be asked"),
    kind=VertexSearch.kind,
)
NAME_PROJECTS: Final = gettext_noop(
    "set VERTEX_PROJECTS to PROJECT, PROJECT/STORE or PROJECT/STORE@OWNER, separated by commas"
)


KINDS: Final = {VertexSearch.kind: VertexSearch}


def checked_settings(kind: str, values: Mapping[str, Any], knowledge_base_id: int | None = None) -> dict[str, Any]:
    """The settings of a source, complete; raises Rejected, which says which cannot be used and why.

    The owner of the knowledge base decides which stores are open to it; without one, those that are open to all are.
    """
    known = KINDS.get(kind)
    if known is None:
        raise Rejected(
            "kind_invalid",
            _("There is no kind “%(kind)s” of external source: choose from %(kinds)s."),
            kind=kind,
            kinds=", ".join(KINDS),
        )
    if kind not in settings.EXTERNAL_PROVIDERS:
        raise Rejected("kind_invalid", not_allowed(kind))
    checked = checked_values(known.fields, values)
    # Asked of the database each time: a knowledge base may be another's by now.
    owner = User.objects.filter(knowledge_bases=knowledge_base_id)
    known.check(checked, lambda: owner.values_list("username", flat=True).first() or "")
    return checked


def provider_of(source: SearchProvider) -> ExternalProvider:
    """What answers for a source; raises ChannelUnavailable (EXTERNAL_NOT_CONFIGURED), which says what to do."""
    try:
        values = checked_settings(source.kind, source.settings, source.knowledge_base_id)
    except Rejected as error:
        raise unanswered(DegradationCode.EXTERNAL_NOT_CONFIGURED, source.name, reason=message_of(error)) from error
    kind = KINDS[source.kind]
    if not kind.installed():
        raise unanswered(DegradationCode.EXTERNAL_NOT_CONFIGURED, source.name, reason=not_installed(kind))
    return kind(source.name, values)


def not_installed(kind: type[VertexSearch]) -> str:
    message = _("The client library of %(kind)s is not installed: run `pip install 'zhiku[%(extra)s]'`.")
    return message % {"kind": kind.label, "extra": kind.extra}


def not_allowed(kind: str) -> str:
    return _(
        "This server may not send queries to “%(kind)s”: whoever runs it can allow it by EXTERNAL_PROVIDERS=%(kind)s."
    ) % {"kind": kind}


def external_source_check(source: SearchProvider) -> None:
    """Completes the settings of a source.

    Raises Rejected, whose code begins with a field's name, where the source cannot be stored.
    """
    source.settings = checked_settings(source.kind, source.settings, source.knowledge_base_id)
    for name in ("name", "timeout_ms", "weight"):
        field = SearchProvider._meta.get_field(name)
        try:
            field.clean(getattr(source, name), source)  # type: ignore[union-attr]
        except ValidationError as error:
            raise Rejected(f"{name}_invalid", " ".join(error.messages)) from error
    named = SearchProvider.objects.filter(knowledge_base=source.knowledge_base, name=source.name)
    if named.exclude(pk=source.pk).exists():
        raise Rejected(
            "name_taken",
            _("This knowledge base has an external source named “%(name)s” already: choose another name."),
            name=source.name,
        )


def external_source_update(*, source: SearchProvider, **changes: Any) -> None:
    """Changes a source, or stores a new one, where the caller has checked that the user may.

    Raises as `external_source_check`. Switching one off needs no check, so that it works where the kind is no longer
    allowed.
    """
    with transaction.atomic():
        if source.pk is not None:
            source.refresh_from_db(from_queryset=SearchProvider.objects.select_for_update(no_key=True))
        for name, value in changes.items():
            setattr(source, name, value)
        if set(changes) != {"enabled"} or source.enabled:
            external_source_check(source)
        source.save(update_fields=None if source.pk is None else {*changes, "settings"})


def external_source_test(source: SearchProvider, query: str, *, seconds: float = TEST_SECONDS) -> dict[str, Any]:
    """The "hits" of a query from a source with checked settings, saved or not, and its "milliseconds".

    Where it does not answer, "error" says why and what to do, and "code" is stable. Nothing is stored, and the query
    leaves the server.
    """
    started = time.monotonic()
    tested: dict[str, Any]
    language = get_language() or "en"

    def ask() -> Sequence[ExternalHit]:
        with override(language):
            return provider_of(source).search(Analysis(text=query), TEST_RESULTS, started + seconds)

    # A library that looks for credentials may take longer than it is told to.
    thread = ThreadPoolExecutor(max_workers=1)
    try:
        tested = {"hits": thread.submit(ask).result(timeout=seconds + 1)}
    except ChannelUnavailable as error:
        tested = {"error": message_of(error), "code": error.code.value}
    except TimeoutError:
        message = _("The source did not answer within %(seconds)d seconds: check its endpoint and credentials.")
        tested = {"error": message % {"seconds": round(seconds)}, "code": "external_timeout"}
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
    milliseconds = round((time.monotonic() - started) * 1_000)
    return {"hits": (), "error": None, "code": "", **tested, "milliseconds": milliseconds}


def state_text(source: SearchProvider) -> str:
    """Why a source cannot be asked as this server is set up; blank: it can."""
    if source.kind not in settings.EXTERNAL_PROVIDERS:
        return not_allowed(source.kind)
    kind = KINDS.get(source.kind)
    if kind is not None and not kind.installed():
        return not_installed(kind)
    try:
        checked_settings(source.kind, source.settings, source.knowledge_base_id)
    except Rejected as error:
        return str(error)
    return ""


@check("external sources")
def external_sources() -> Finding:
    """Whether the search services that this server may ask can be asked."""
    allowed = list(settings.EXTERNAL_PROVIDERS)
    if unknown := [kind for kind in allowed if kind not in KINDS]:
        remedy = Message(gettext_noop("correct EXTERNAL_PROVIDERS: choose from {kinds}"), kinds=", ".join(KINDS))
        return broken(Message(gettext_noop("there is no kind {kind!r}"), kind=unknown[0]), remedy)
    if missing := [KINDS[kind] for kind in allowed if not KINDS[kind].installed()]:
        template = gettext_noop("run `pip install 'zhiku[{extra}]'`, or take the kind out of EXTERNAL_PROVIDERS")
        detail = gettext_noop("the client library of an allowed kind is not installed")
        return degraded(detail, Message(template, extra=missing[0].extra))
    if VertexSearch.kind in allowed and not settings.VERTEX_PROJECTS:
        return degraded(NO_PROJECTS, NAME_PROJECTS)
    enabled = SearchProvider.objects.filter(enabled=True)
    if refused := enabled.exclude(kind__in=allowed).count():
        return degraded(
            Message(gettext_noop("{count} switched on, of kinds that are not allowed"), count=refused),
            gettext_noop("allow their kinds in EXTERNAL_PROVIDERS, or switch them off"),
        )
    if not allowed:
        return ok(gettext_noop("none may be asked: no query leaves this server"))
    template = gettext_noop("{count} switched on; allowed: {kinds}")
    return ok(Message(template, count=enabled.count(), kinds=", ".join(allowed)))
