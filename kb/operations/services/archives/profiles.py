"""A knowledge base's retrieval profiles in an installation where their names may be taken."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import Purpose, lock_until_commit
from kb.operations.services.archives.reading import damaged
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, NOT_IN_NAMES


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
