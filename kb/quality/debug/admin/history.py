"""The searches that a user has run, to be run again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from kb.access.models.accounts import User
from kb.access.models.knowledge import KnowledgeBase
from kb.quality.debug.admin.log import debug_url
from kb.search.admin.stage_labels import listed
from kb.search.models import SearchLog

MOST_LISTED = 20
# Of the newest, among which there are as many different ones as are listed, unless someone repeats the same few.
ROWS_READ = 60


@dataclass(frozen=True, slots=True)
class PastSearch:
    """A search of the log; `kb_names` are those of the knowledge bases that its user may still search."""

    query: str
    url: str
    kb_names: str
    profile: str
    result_count: int
    at: datetime


def past_searches(user: User, bases: Mapping[int, KnowledgeBase]) -> list[PastSearch]:
    """The last different searches of a user, the newest first, in one query.

    Those whose words the log does not keep cannot be run again and are left out, and so are those in knowledge bases that
    are gone or closed to the user.

    Args:
        user: whose searches.
        bases: those that the user may search, by id.
    """
    rows = (
        SearchLog.objects.filter(user=user)
        .exclude(query="")
        .order_by("-created_at")
        .values_list(
            "query",
            "knowledge_base_ids",
            "profile",
            "profile_version",
            "result_count",
            "created_at",
            F("trace__request"),
        )[:ROWS_READ]
    )
    found: dict[str, PastSearch] = {}
    for query, kb_ids, profile, version, result_count, at, asked in rows:
        searched = [kb_id for kb_id in kb_ids if kb_id in bases]
        url = debug_url(searched, query, asked)
        if searched and url not in found:
            names = listed(bases[kb_id].name for kb_id in searched)
            found[url] = PastSearch(query, url, names, f"{profile} v{version}", result_count, at)
    return list(found.values())[:MOST_LISTED]
