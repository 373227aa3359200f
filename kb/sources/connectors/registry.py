"""The kinds of places that a source can have. Another one is a line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _, gettext_noop

from kb.base.encryption import decrypted
from kb.base.errors import Rejected
from kb.base.net.addresses import Owner
from kb.sources.connectors.folder.connector import Folder
from kb.sources.connectors.git.connector import GitBranch
from kb.sources.connectors.protocol import Connector
from kb.sources.connectors.s3.connector import S3
from kb.sources.connectors.webdav.connector import WebDav
from kb.sources.fields import Field, checked_values
from kb.sources.models import Source


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source.

    Attributes:
        connector: None: of the web, whose reader is in `connectors/web`, or without a place to read from.
        is_open: whether this server may read such places.
        closed: what to do where it may not.
        trusts_versions: a version is a hash of the content, so that it need not be checked whether the place lies.
    """

    kind: Source.Kind
    connector: type[Connector] | None = None
    is_open: Callable[[], bool] = lambda: True
    closed: str = ""
    trusts_versions: bool = False

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.connector.fields if self.connector is not None else ()


KINDS: Final[dict[str, Kind]] = {
    str(each.kind): each
    for each in (
        Kind(Source.Kind.PAGE),
        Kind(Source.Kind.SITEMAP),
        Kind(Source.Kind.CRAWL),
        Kind(Source.Kind.FEED),
        Kind(
            Source.Kind.FOLDER,
            Folder,
            is_open=lambda: bool(settings.SOURCE_FOLDERS),
            closed=gettext_noop(
                "Folders of the server are not read here: an administrator can name some in SOURCE_FOLDERS."
            ),
        ),
        Kind(
            Source.Kind.S3,
            S3,
            is_open=S3.installed,
            closed=gettext_noop("The client of S3 is not installed: an administrator can install “zhiku[s3]”."),
        ),
        Kind(Source.Kind.WEBDAV, WebDav),
        Kind(Source.Kind.GIT, GitBranch, trusts_versions=True),
        Kind(Source.Kind.PUSH),
    )
}


def kind_of(source: Source) -> Kind:
    """Raises Rejected where there is no such kind, or this server may not read such places."""
    kind = KINDS.get(source.kind)
    if kind is None:
        raise Rejected(
            "kind_invalid",
            _("There is no kind “%(kind)s” of source: choose from %(kinds)s."),
            kind=source.kind,
            kinds=", ".join(KINDS),
        )
    if not kind.is_open():
        raise Rejected("kind_invalid", _(kind.closed))
    return kind


def connector_of(source: Source) -> Connector:
    """A connector to the place of a source; raises Rejected where its kind or settings cannot be used on this server."""
    kind = kind_of(source)
    if kind.connector is None:
        raise Rejected("kind_invalid", _("A source of this kind has no place to read from."))
    owner = owner_of(source)
    return kind.connector(checked_settings(kind, source.settings, decrypted(source.secrets), owner), owner=owner)


def owner_of(source: Source) -> Owner:
    """The name of the user whom an operator may have opened a place to."""
    return lambda: source.knowledge_base.owner.username


def checked_settings(
    kind: Kind, settings: Mapping[str, Any], secrets: Mapping[str, str], owner: Owner
) -> dict[str, Any]:
    """A value for each field of a kind; raises Rejected, whose code begins with the name of a field."""
    values = checked_values(kind.fields, {**settings, **secrets})
    if kind.connector is not None:
        kind.connector.check(values, owner)
    return values


def secret_names(kind: Kind) -> frozenset[str]:
    return frozenset(field.name for field in kind.fields if field.is_secret)
