"""Vertex AI Search (Google Cloud's Discovery Engine) by its client library, an extra that is imported at first use."""

import html
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

from django.conf import settings
from django.utils.translation import gettext as _, gettext_lazy

from kb.base.errors import Rejected
from kb.base.net.addresses import open_to
from kb.sources.external.providers.answers import unanswered
from kb.sources.fields import Field
from retrieval.errors import DegradationCode
from retrieval.types import Analysis, ExternalHit


@contextmanager
def map_errors(source: str) -> Iterator[None]:
    """Raises the library's errors as ChannelUnavailable, with one of the codes EXTERNAL_..."""
    import requests  # noqa: PLC0415 - they come with the library, which is an optional extra
    from google.api_core import exceptions as google  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    timeouts = (requests.Timeout, google.DeadlineExceeded, google.GatewayTimeout, google.RetryError)
    codes: tuple[tuple[Any, DegradationCode], ...] = (
        (timeouts, DegradationCode.EXTERNAL_TIMEOUT),
        (google.TooManyRequests, DegradationCode.EXTERNAL_QUOTA),  # ResourceExhausted is one
        (requests.RequestException, DegradationCode.EXTERNAL_UNAVAILABLE),
        # The second of the file of the credentials; PermissionDenied and Unauthenticated are of the last two.
        ((GoogleAuthError, OSError, google.Forbidden, google.Unauthorized), DegradationCode.EXTERNAL_REFUSED),
        # InvalidArgument and FailedPrecondition are such
        ((google.BadRequest, google.NotFound), DegradationCode.EXTERNAL_NOT_CONFIGURED),
        (google.GoogleAPIError, DegradationCode.EXTERNAL_UNAVAILABLE),
    )
    try:
        yield
    except (OSError, GoogleAuthError, google.GoogleAPIError) as error:
        code = next(code for kinds, code in codes if isinstance(error, kinds))
        reason = type(error).__name__
        if code == DegradationCode.EXTERNAL_NOT_CONFIGURED:
            reason += ": " + " ".join(str(getattr(error, "message", "")).split())[:300]
        raise unanswered(code, source, reason=reason) from error


_TAGS: Final = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_TEXTS: Final = ("content", "text", "body", "description", "abstract", "summary")
_TITLES: Final = ("title", "name", "headline")
_URLS: Final = ("link", "url", "uri")
_DATES: Final = ("published", "published_at", "date", "datePublished", "update_time")
_MOST_CHARACTERS: Final = 8_000


def hit_of(result: Any) -> ExternalHit | None:
    """A `SearchResponse.SearchResult` of a document or of a chunk; None for one without any text or title."""
    if result.chunk and result.chunk.content:
        return _of_chunk(result)
    document = result.document
    derived, own = _as_dict(document, "derived_struct_data"), _as_dict(document, "struct_data")
    title = _first(derived, _TITLES) or _first(own, _TITLES)
    text = _passage(derived) or _first(own, _TEXTS) or _raw(document) or _snippet(derived) or title
    if not text:
        return None
    return ExternalHit(
        url=_first(derived, _URLS) or _first(own, _URLS) or str(document.content.uri or ""),
        title=title,
        text=text[:_MOST_CHARACTERS],
        id=str(result.id or document.id or document.name),
        score=_score(result),
        published=_first(own, _DATES) or _first(derived, _DATES),
    )


def _of_chunk(result: Any) -> ExternalHit:
    chunk = result.chunk
    about = chunk.document_metadata
    own = _as_dict(about, "struct_data")
    return ExternalHit(
        url=str(about.uri or "") or _first(own, _URLS),
        title=str(about.title or "") or _first(own, _TITLES),
        text=str(chunk.content)[:_MOST_CHARACTERS],
        id=str(chunk.id or result.id),
        score=float(chunk.relevance_score) if chunk.relevance_score else _score(result),
        published=_first(own, _DATES),
    )


def _passage(derived: Mapping[str, Any]) -> str:
    """Segments are whole passages, answers the sentences in them."""
    for name in ("extractive_segments", "extractive_answers"):
        if text := "\n\n".join(filter(None, [_cleaned(part.get("content")) for part in _parts(derived, name)])):
            return text
    return ""


def _snippet(derived: Mapping[str, Any]) -> str:
    snippets = (
        _cleaned(part.get("snippet"))
        for part in _parts(derived, "snippets")
        if part.get("snippet_status", "SUCCESS") == "SUCCESS" and part.get("snippet") != "NO_SNIPPET_AVAILABLE"
    )
    return " … ".join(filter(None, snippets))


def _parts(derived: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    found = derived.get(name)
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, list) else []


def _raw(document: Any) -> str:
    content = document.content
    if not content.raw_bytes or not str(content.mime_type).startswith("text/"):
        return ""
    return _cleaned(bytes(content.raw_bytes).decode("utf-8", "replace"))


def _first(values: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((_cleaned(values[name]) for name in names if isinstance(values.get(name), str) and values[name]), "")


def _score(result: Any) -> float | None:
    scores = result.model_scores
    for name in ("relevance_score", *scores):
        if name in scores and scores[name].values:
            return float(scores[name].values[0])
    relevance = getattr(result.rank_signals, "relevance_score", None) if result.rank_signals else None
    return float(relevance) if relevance else None


def _cleaned(text: Any) -> str:
    return html.unescape(_TAGS.sub("", text)).strip() if isinstance(text, str) else ""


def _as_dict(message: Any, name: str) -> dict[str, Any]:
    from google.protobuf import json_format  # type: ignore[import-untyped]  # noqa: PLC0415 - it comes with the library, which is an optional extra

    return cast(dict[str, Any], json_format.MessageToDict(getattr(type(message).pb(message), name)))


KIND: Final = "vertex_ai_search"
GOOGLE: Final = "discoveryengine.googleapis.com"
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"


def googles(location: str) -> str:
    return GOOGLE if location == "global" else f"{location}-{GOOGLE}"


class VertexSearch:
    """One app or data store, by checked settings: those of `fields`, which pages show in their order."""

    kind = KIND
    label = gettext_lazy("Vertex AI Search")
    extra = "vertex"
    fields = (
        Field(
            "project",
            gettext_lazy("project"),
            gettext_lazy("The id or number of the Google Cloud project."),
            pattern=_NAME,
            is_required=True,
        ),
        Field(
            "location",
            gettext_lazy("location"),
            gettext_lazy("global, us, eu or a region such as us-central1."),
            default="global",
            pattern=r"[a-z]{2,12}(-[a-z]+\d{1,2})?",
            is_required=True,
        ),
        Field("collection", gettext_lazy("collection"), default="default_collection", pattern=_NAME, is_required=True),
        Field(
            "engine",
            gettext_lazy("app"),
            gettext_lazy("The id of the app (engine); give this or the data store."),
            pattern=_NAME,
        ),
        Field(
            "data_store",
            gettext_lazy("data store"),
            gettext_lazy("The id of the data store; give this or the app."),
            pattern=_NAME,
        ),
        Field(
            "serving_config", gettext_lazy("serving config"), default="default_search", pattern=_NAME, is_required=True
        ),
        Field(
            "extractive",
            gettext_lazy("extractive segments"),
            gettext_lazy("Ask for whole passages, not only snippets. Needs the Enterprise edition of the app."),
            default=False,
            is_flag=True,
        ),
        Field(
            "credentials_env",
            gettext_lazy("credentials from"),
            gettext_lazy(
                "The name of an environment variable, VERTEX_…, that holds the path of a service account’s key file. "
                "Blank: the server’s application default credentials."
            ),
            pattern=r"VERTEX_[A-Z0-9_]{1,80}",
        ),
        Field(
            "endpoint",
            gettext_lazy("endpoint"),
            gettext_lazy("Blank: Google’s for the location. Others must stand in the server’s VERTEX_ENDPOINTS."),
        ),
        Field("transport", gettext_lazy("transport"), default="grpc", choices=("grpc", "rest")),
    )

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self._values = values

    @staticmethod
    def installed() -> bool:
        try:
            return importlib.util.find_spec("google.cloud.discoveryengine_v1") is not None
        except ModuleNotFoundError:
            return False

    @staticmethod
    def check(values: Mapping[str, Any], owner: Callable[[], str]) -> None:
        """Raises Rejected where the settings do not go together, or an operator has not allowed them to `owner`."""
        if bool(values["engine"]) == bool(values["data_store"]):
            raise Rejected("engine_invalid", _("Give either the app or the data store."))
        # An operator opens a project, or one store in it; both to everybody or to one owner.
        places = {values["project"], f"{values['project']}/{values['engine'] or values['data_store']}"}
        if places.isdisjoint(open_to(owner, settings.VERTEX_PROJECTS)):
            raise Rejected(
                "project_invalid",
                _(
                    "“%(project)s” is not open to this knowledge base: whoever runs the server can add it to VERTEX_PROJECTS, as "
                    "PROJECT/STORE@OWNER."
                ),
                project=values["project"],
            )
        if values["endpoint"] and values["endpoint"] not in (googles(values["location"]), *settings.VERTEX_ENDPOINTS):
            raise Rejected(
                "endpoint_invalid",
                _(
                    "The endpoint “%(endpoint)s” is not allowed: leave it blank, or let whoever runs the server add it to "
                    "VERTEX_ENDPOINTS."
                ),
                endpoint=values["endpoint"],
            )

    @property
    def serving_config(self) -> str:
        values = self._values
        held = f"engines/{values['engine']}" if values["engine"] else f"dataStores/{values['data_store']}"
        parent = f"projects/{values['project']}/locations/{values['location']}/collections/{values['collection']}"
        return f"{parent}/{held}/servingConfigs/{values['serving_config']}"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Sequence[ExternalHit]:
        with map_errors(self.name):
            client = _client(
                self._values["endpoint"] or googles(self._values["location"]),
                self._values["transport"],
                self._values["credentials_env"],
            )
            left = max(0.001, deadline - time.monotonic())
            # No retries: the search does not wait for a second answer.
            answered = client.search(self._request(analysis.text, k), timeout=left, retry=None)
            return [hit for result in islice(answered.results, k) if (hit := hit_of(result)) is not None]

    def _request(self, query: str, k: int) -> Any:
        from google.cloud import discoveryengine_v1 as vertex  # noqa: PLC0415 - see the module's description

        wanted = vertex.SearchRequest.ContentSearchSpec(
            snippet_spec=vertex.SearchRequest.ContentSearchSpec.SnippetSpec(return_snippet=True)
        )
        if self._values["extractive"]:
            wanted.extractive_content_spec = vertex.SearchRequest.ContentSearchSpec.ExtractiveContentSpec(
                max_extractive_answer_count=1, max_extractive_segment_count=1
            )
        return vertex.SearchRequest(
            serving_config=self.serving_config, query=query, page_size=k, content_search_spec=wanted
        )


@lru_cache(maxsize=32)
def _client(endpoint: str, transport: str, credentials_env: str) -> Any:
    """One for all sources of the same endpoint and credentials, which keeps its connections.

    An endpoint with "http://" before it, which only an operator can allow, is an emulator: no TLS, and no credentials.
    """
    import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - see the module's description
    from google.cloud import discoveryengine_v1 as vertex  # noqa: PLC0415 - see the module's description

    host = endpoint.removeprefix("http://").removeprefix("https://")
    is_plain = endpoint.startswith("http://")
    credentials = _credentials(credentials_env, is_plain=is_plain)
    known = vertex.SearchServiceClient.get_transport_class(transport)
    if not is_plain:
        return vertex.SearchServiceClient(transport=known(host=host, credentials=credentials))
    if transport == "grpc":
        return vertex.SearchServiceClient(transport=known(channel=grpc.insecure_channel(host)))
    return vertex.SearchServiceClient(transport=known(host=host, credentials=credentials, url_scheme="http"))


def _credentials(name: str, *, is_plain: bool) -> Any:
    """None: the library finds the default ones. Raises DefaultCredentialsError where the variable names none."""
    import google.auth  # noqa: PLC0415
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
    from google.auth.exceptions import DefaultCredentialsError  # noqa: PLC0415

    if is_plain:
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    if not name:
        return None
    path = os.environ.get(name, "")
    if not path:
        raise DefaultCredentialsError(f"the environment variable {name} is not set")  # type: ignore[no-untyped-call]
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    return google.auth.load_credentials_from_file(path, scopes=scopes)[0]  # type: ignore[no-untyped-call]
