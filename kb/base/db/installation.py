from functools import lru_cache

from kb.base.models import Installation


@lru_cache(maxsize=1)
def _stored_id() -> str:
    return str(Installation.objects.values_list("pk", flat=True).get())


def installation_id() -> str:
    """The id of this installation, read once a process."""
    return _stored_id()


def forget_installation() -> None:
    """Reads it anew, after a restore."""
    _stored_id.cache_clear()
