"""What the page of models says of each: whether it can be asked, who uses it, and how much."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from kb.base.messages import shown
from kb.providers.admin.forms import ROLES
from kb.providers.embedding_models import problem_of
from kb.providers.endpoints import Endpoint, defaults, endpoint_of
from kb.providers.models import ProviderModel
from kb.providers.presets import preset_of
from kb.providers.recommended import Role
from kb.providers.services import USERS, knowledge_bases_using
from kb.providers.usage.figures import WEEK, days, used_since
from retrieval.model_files import local_path

USERS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Card:
    """A model. `state` is "good", "bad" or blank; `problem` says what is wrong, and what to do.

    `fault` is what its last test found.
    """

    row: ProviderModel
    provider: str | Promise
    is_serving: bool
    users: Sequence[str]
    more_users: int
    tokens: int
    problem: str = ""
    fault: str = ""

    @property
    def state(self) -> str:
        if self.problem:
            return "bad"
        return {None: "", True: "good", False: "bad"}[self.row.test_ok]


@dataclass(frozen=True, slots=True)
class Group:
    """The models of a role; `nothing` says what is done without one."""

    role: Role
    label: str | Promise
    cards: Sequence[Card]
    nothing: str


def groups() -> list[Group]:
    """Every role with its models; the default one first."""
    rows = list(ProviderModel.objects.order_by("name", "pk"))
    week: dict[tuple[str, str], int] = defaultdict(int)
    for used in used_since(days(WEEK)[0]):
        week[used.role, used.model] += used.tokens
    found = []
    for role, label in ROLES.items():
        cards = [_card(row, endpoint_of(row), week) for row in rows if row.role == role]
        cards.sort(key=lambda card: not card.is_serving)
        found.append(Group(role, label, cards, _nothing(role)))
    return found


def users_of(row: ProviderModel) -> list[str]:
    """Who uses a model, by name: of embeddings those who keep vectors of it, also on the way to another model or back."""
    everybody = [_("all knowledge bases")] if row.role != Role.EMBEDDING and _is_serving(endpoint_of(row)) else []
    named = knowledge_bases_using(row).order_by("name").values_list("name", flat=True)
    return [*everybody, *named, *(name for users in USERS for name in users(row))]


def _is_serving(endpoint: Endpoint) -> bool:
    serving = [(each.slug, each.variable) for each in defaults(endpoint.role)]
    return (endpoint.slug, endpoint.variable) in serving


def _card(row: ProviderModel, endpoint: Endpoint, week: Any) -> Card:
    names = users_of(row)
    return Card(
        row,
        preset_of(row.provider).name,
        _is_serving(endpoint),
        names[:USERS_SHOWN],
        max(0, len(names) - USERS_SHOWN),
        week.get((row.role, endpoint.id), 0),
        shown(problem_of(endpoint) or "") or _lack(endpoint),
        shown(row.test_message),
    )


def _lack(endpoint: Endpoint) -> str:
    """What a model that runs on this server lacks; blank: nothing."""
    if endpoint.is_served or local_path(endpoint.model) is not None:
        return ""
    return _("Its weights are not on this server: download them below. Until then searches do without it.")


def _nothing(role: Role) -> str:
    return {
        Role.CHAT: _(
            "Without a chat model Ask shows the passages as they are. DeepSeek, for example, needs a key only."
        ),
        Role.EMBEDDING: _(
            "Without an embedding model knowledge bases are searched by words. BGE-M3, for example, runs on this server."
        ),
        Role.RERANK: _(
            "Without a reranker results are in the order of shared words and vectors. BGE Reranker, for example, runs on this server."
        ),
    }[role]
