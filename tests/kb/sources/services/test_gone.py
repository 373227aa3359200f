"""What a source has no longer: marked from the first run that misses it, kept out of searches by choice, deleted at once when asked."""

import pytest

from kb.base.shapes import as_values
from kb.content.models import GONE_SINCE
from kb.ingest.services.chunks import chunks_set_enabled
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document
from kb.search.services.search import response_of
from kb.sources.services.sources import gone_delete, source_delete, source_update
from tests.kb.sources.external.sources import find
from tests.kb.sources.services.places import create, run, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def source(kb, place):
    """Of four files, whose documents can be searched."""
    place.files = {f"{number}.md": text(number) for number in range(4)}
    source = run(create(kb))
    for document in Document.objects.all():
        index_document(document.pk)
    return source


def document_of(path):
    return Document.objects.get(metadata__path=path)


def found(kb):
    """The paths of the results of a search for what all files say, with their marks."""
    outcome = find(kb.owner, kb, query="warranty of the lamp", overrides={"top_k": 10})
    hits = as_values(response_of(outcome))["results"]
    return {hit["metadata"]["path"]: hit["metadata"].get(GONE_SINCE) for hit in hits}


def version(kb):
    return type(kb.version_row).objects.get(knowledge_base=kb).content_version


def test_results_say_from_the_first_run_on_that_the_source_has_it_no_longer(kb, source, place):
    before = version(kb)
    assert set(found(kb).values()) == {None}
    del place.files["2.md"]
    run(source)
    item = source.items.get(key="2.md")
    since = f"{item.gone_at:%Y-%m-%dT%H:%M:%SZ}"
    assert found(kb) == {"0.md": None, "1.md": None, "2.md": since, "3.md": None}
    assert version(kb) > before


def test_the_mark_goes_when_it_is_back(kb, source, place):
    missed = place.files.pop("2.md")
    run(source)
    place.files["2.md"] = missed
    run(source)
    assert found(kb)["2.md"] is None
    assert GONE_SINCE not in document_of("2.md").metadata


def test_a_file_that_moved_is_not_gone(kb, source, place):
    place.files["new.md"] = place.files.pop("2.md")
    run(source)
    assert set(found(kb).values()) == {None}


def test_what_is_gone_is_left_out_of_searches_by_choice_until_it_is_back(kb, source, place):
    source_update(source, hides_gone=True)
    off = Chunk.objects.filter(document=document_of("1.md"))
    off.update(enabled=False)  # by a curator
    missed = {path: place.files.pop(path) for path in ("1.md", "2.md")}
    source_update(source, max_share=100)
    run(source)
    assert set(found(kb)) == {"0.md", "3.md"}
    place.files |= missed
    run(source)
    assert set(found(kb)) == {"0.md", "2.md", "3.md"}
    assert not off.get().enabled


@pytest.mark.parametrize("is_back", [False, True])
def test_what_is_gone_stays_left_out_when_it_is_cut_anew_and_comes_back(kb, source, place, is_back):
    """Cut into one chunk of several, in which those that were on are on again."""
    place.files["2.md"] = text(2) + b"\n\n" + b"The lamp has a long cable. " * 40
    run(source)
    index_document(document_of("2.md").pk)
    assert document_of("2.md").chunks.count() > 1
    source_update(source, hides_gone=True)
    missed = place.files.pop("2.md")
    run(source)
    kb.chunk_size *= 8
    kb.save()
    Document.objects.filter(metadata__path="2.md").update(status="pending")
    index_document(document_of("2.md").pk)
    assert set(found(kb)) == {"0.md", "1.md", "3.md"}
    place.files |= {"2.md": missed} if is_back else {}
    run(source)
    assert ("2.md" in found(kb)) == is_back


def test_what_a_curator_switches_off_while_it_is_gone_stays_off(kb, source, place):
    source_update(source, hides_gone=True)
    missed = place.files.pop("2.md")
    run(source)
    for enabled in (True, False):
        chunks_set_enabled(chunk_ids=Chunk.objects.filter(document=document_of("2.md")).values("pk"), enabled=enabled)
    place.files["2.md"] = missed
    run(source)
    assert set(found(kb)) == {"0.md", "1.md", "3.md"}


def test_the_choice_takes_effect_at_once(kb, source, place):
    del place.files["2.md"]
    run(source)
    source_update(source, hides_gone=True)
    assert set(found(kb)) == {"0.md", "1.md", "3.md"}
    source_update(source, hides_gone=False)
    assert set(found(kb)) == {"0.md", "1.md", "2.md", "3.md"}


def test_documents_that_a_deleted_source_leaves_are_as_before(kb, source, place):
    source_update(source, hides_gone=True)
    del place.files["2.md"]
    run(source)
    source_delete(source, keep_documents=True)
    assert found(kb) == dict.fromkeys(("0.md", "1.md", "2.md", "3.md"))


def test_what_is_gone_is_deleted_when_somebody_says_so(kb, source, place):
    del place.files["2.md"]
    run(source)
    assert gone_delete(source) == 1
    assert set(found(kb)) == {"0.md", "1.md", "3.md"}
    assert gone_delete(source) == 0
    assert run(source).counts == {"unchanged": 3}
