"""What kind a source may become, and which kinds are read by a schedule."""

import pytest

from kb.base.errors import Rejected
from kb.models import Source
from kb.sources.push.services import push_sync
from kb.sources.services.sources import source_update, sweep_sources
from tests.kb.sources.services.places import create, run, text

pytestmark = pytest.mark.django_db


def test_a_source_of_files_becomes_none_of_pages_once_it_has_read_some(kb, place):
    place.files = {"a.md": text(1)}
    source = create(kb)
    source_update(source, kind="page", url="https://example.org/")
    source_update(source, kind="git", settings={"root": "r"})
    run(source)
    with pytest.raises(Rejected) as caught:
        source_update(source, kind="page", url="https://example.org/")
    assert caught.value.code == "kind_invalid"
    source.refresh_from_db()
    assert source.kind == "git"


def test_a_folder_that_is_synced_is_never_due(kb):
    push_sync(knowledge_base=kb, user=kb.owner, name="docs", files=[])
    source = Source.objects.get()
    source_update(source, every_minutes=5)
    assert source.next_run_at is None
    assert sweep_sources() == []
