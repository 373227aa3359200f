"""Vertex AI Search (Google Cloud's Discovery Engine) through its official client library, which is an optional extra.

The library is imported at the first use: it is large, and most installations do without it.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kb.sources.external.providers.fields import Field, InvalidSettings
from kb.sources.external.providers.vertex_faults import in_our_words
from kb.sources.external.providers.vertex_results import hit_of
from retrieval.types import Analysis, ExternalHit

KIND: Final = "vertex_ai_search"
LABEL: Final = gettext_lazy("Vertex AI Search")
EXTRA: Final = "vertex"
GOOGLE: Final = "discoveryengine.googleapis.com"
CREDENTIALS: Final = r"VERTEX_[A-Z0-9_]{1,80}"
CLIENTS: Final = 32
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"

FIELDS: Final = (
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
    Field("serving_config", gettext_lazy("serving config"), default="default_search", pattern=_NAME, is_required=True),
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
        pattern=CREDENTIALS,
    ),
    Field(
        "endpoint",
        gettext_lazy("endpoint"),
        gettext_lazy("Blank: Google’s for the location. Others must stand in the server’s VERTEX_ENDPOINTS."),
    ),
    Field("transport", gettext_lazy("transport"), default="grpc", choices=("grpc", "rest")),
)


def installed() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.discoveryengine_v1") is not None
    except ModuleNotFoundError:
        return False


def check(values: Mapping[str, Any], owner: Callable[[], str]) -> None:
    """Returns where the settings go together.

    Args:
        values: the settings.
        owner: the name of the knowledge base's owner, asked for where an operator has named one.

    Raises:
        InvalidSettings: they do not, or name what an operator has not allowed.
    """
    if bool(values["engine"]) == bool(values["data_store"]):
        raise InvalidSettings("engine", _("Give either the app or the data store."))
    if not _is_open(values, owner):
        message = _(
            "“%(project)s” is not open to this knowledge base: whoever runs the server can add it to VERTEX_PROJECTS, as "
            "PROJECT/STORE@OWNER."
        )
        raise InvalidSettings("project", message % {"project": values["project"]})
    if values["endpoint"] and values["endpoint"] not in (googles(values["location"]), *settings.VERTEX_ENDPOINTS):
        message = _(
            "The endpoint “%(endpoint)s” is not allowed: leave it blank, or let whoever runs the server add it to "
            "VERTEX_ENDPOINTS."
        )
        raise InvalidSettings("endpoint", message % {"endpoint": values["endpoint"]})


def _is_open(values: Mapping[str, Any], owner: Callable[[], str]) -> bool:
    """Whether an operator has opened a store to a knowledge base: by its project, its name in it, or both for one owner."""
    project, store = values["project"], values["engine"] or values["data_store"]
    for entry in settings.VERTEX_PROJECTS:
        place, _at, name = entry.strip().partition("@")  # a user's name may hold a further one
        if place in {project, f"{project}/{store}"} and (not name or name == owner()):
            return True
    return False


def googles(location: str) -> str:
    """Google's endpoint of a location."""
    return GOOGLE if location == "global" else f"{location}-{GOOGLE}"


class VertexSearch:
    """One app or data store.

    Args:
        name: of the source.
        values: checked settings.
    """

    kind = KIND

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self._values = values

    @property
    def serving_config(self) -> str:
        """The full name of what answers."""
        values = self._values
        held = f"engines/{values['engine']}" if values["engine"] else f"dataStores/{values['data_store']}"
        parent = f"projects/{values['project']}/locations/{values['location']}/collections/{values['collection']}"
        return f"{parent}/{held}/servingConfigs/{values['serving_config']}"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Sequence[ExternalHit]:
        with in_our_words(self.name):
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


@lru_cache(maxsize=CLIENTS)
def _client(endpoint: str, transport: str, credentials_env: str) -> Any:
    """One for all sources of the same endpoint and credentials: it keeps its connections.

    An endpoint with "http://" before it, which only an operator can allow, is a server without TLS that asks for no
    credentials: an emulator.
    """
    from google.cloud import discoveryengine_v1 as vertex  # noqa: PLC0415 - see the module's description

    host = endpoint.removeprefix("http://").removeprefix("https://")
    is_plain = endpoint.startswith("http://")
    credentials = _credentials(credentials_env, is_plain=is_plain)
    known = vertex.SearchServiceClient.get_transport_class(transport)
    if is_plain:
        return vertex.SearchServiceClient(transport=_plain(known, transport, host, credentials))
    return vertex.SearchServiceClient(transport=known(host=host, credentials=credentials))


def _plain(known: Any, transport: str, host: str, credentials: Any) -> Any:
    import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - likewise

    if transport == "grpc":
        return known(channel=grpc.insecure_channel(host))
    return known(host=host, credentials=credentials, url_scheme="http")


def _credentials(name: str, *, is_plain: bool) -> Any:
    """None: the library finds the default ones.

    Raises:
        DefaultCredentialsError: there are none where the variable says.
    """
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
    credentials, _project = google.auth.load_credentials_from_file(path, scopes=scopes)  # type: ignore[no-untyped-call]
    return credentials
