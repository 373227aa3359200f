"""A knowledge base out and in again, here or elsewhere, finds the same."""

import hashlib
import json
import sys
import zipfile

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.base.files import replace_file
from kb.content.models import GONE_SINCE
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import (
    Chunk,
    ChunkEmbedding,
    ChunkParent,
    ChunkPostings,
    Concept,
    Document,
    GraphFact,
    KnowledgeBase,
    Picture,
    RetrievalProfile,
    SearchProvider,
    Source,
    SourceItem,
    TokenizerSettings,
)
from kb.operations.services.archives.export import export_open
from kb.operations.services.archives.restore import restore_kb
from retrieval.tokenize import engine_versions
from tests.factories import make_member, make_user, principal
from tests.kb.ingest.parser.documents import data_address, make_picture
from tests.kb.operations.services.archives.bases import (
    delete_everything,
    figures,
    lines_of,
    part_of,
    results,
    rewritten,
)
from tests.kb.operations.services.archives.test_hostile import signed

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("vectors", [True, False])
def test_the_same_is_found_beside_the_original(kb, archive, vectors):
    expected = results(kb)
    restored = restore_kb(archive(kb, vectors=vectors), owner=kb.owner, name="copy").knowledge_base
    assert any(hits for hits, _facts, _degraded in expected.values())
    assert results(restored) == expected
    assert figures(restored) == figures(kb)


@pytest.mark.parametrize("vectors", [True, False])
def test_the_same_is_found_in_an_empty_installation(kb, archive, vectors):
    path, expected, measured = archive(kb, vectors=vectors), results(kb), figures(kb)
    delete_everything()
    restored = restore_kb(path, owner=make_user()).knowledge_base
    assert restored.name == "约定"
    assert results(restored) == expected
    assert figures(restored) == measured


def test_vectors_of_an_archive_are_taken_as_they_are(kb, archive, monkeypatch):
    path = archive(kb, vectors=True)
    monkeypatch.setattr("kb.operations.services.archives.vectors.embed", None)
    restored = restore_kb(path, owner=kb.owner, name="copy").knowledge_base

    def stored(base):
        rows = ChunkEmbedding.objects.filter(knowledge_base=base).order_by("chunk_id", "kind", "ordinal")
        return [(row.kind, row.ordinal, row.enabled, list(row.vector)) for row in rows]

    assert stored(restored) == stored(kb)
    assert {kind for kind, *_ in stored(kb)} == {"content", "question"}


def test_questions_are_tokenised_again(kb, archive):
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base

    def packed(base):
        rows = ChunkPostings.objects.filter(knowledge_base=base, tokenizer_id=restored.tokenizer_id).order_by(
            "chunk_id"
        )
        return [row.questions and list(map(bytes, row.questions)) for row in rows]

    assert packed(restored) == packed(kb)
    assert any(packed(kb))


def test_what_curators_made_is_there(kb, archive):
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base

    def curated(base):
        fields = ("text", "cut_text", "enabled", "questions", "keywords", "own_keywords", "own_questions", "own_cut")
        return list(Chunk.objects.filter(knowledge_base=base).order_by("pk").values_list(*fields, "parent__text"))

    def documents(base):
        fields = ("title", "metadata", "tags", "created_at", "status", "chunking", "concepts__name")
        return list(Document.objects.filter(knowledge_base=base).order_by("pk").values_list(*fields))

    assert curated(restored) == curated(kb)
    assert documents(restored) == documents(kb)
    assert Concept.objects.get(knowledge_base=restored, name="租赁合同").parent.name == "法律"
    fact = GraphFact.objects.get(knowledge_base=restored)
    assert (fact.origin, fact.source_chunk.knowledge_base_id) == ("import", restored.pk)
    assert ChunkParent.objects.filter(knowledge_base=restored).count() == 2
    assert (restored.no_answer, restored.chunk_strategy) == ("没有找到。", "parent_child")
    assert restored.word_parts == ["comments"]


def test_originals_come_with_their_documents(kb, archive):
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base
    ours, theirs = (Document.objects.get(knowledge_base=base, source="a.md") for base in (restored, kb))
    assert ours.file.name != theirs.file.name
    with ours.file.open() as copy, theirs.file.open() as original:
        assert copy.read() == original.read()


def with_picture(kb):
    text = f"一段文字。\n\n![水泵]({data_address(make_picture())})\n\n图 1 水泵"
    document = document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="p.md", user=kb.owner)
    index_document(document.pk)
    document.pictures.update(description="一台水泵", described_by="vision")
    return document.pictures.get()


def stored(picture):
    with default_storage.open(picture.file_name) as file:
        return file.read()


def test_pictures_come_with_their_documents(kb, archive):
    picture = with_picture(kb)
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base
    copy = Picture.objects.get(knowledge_base=restored)
    words = ("sha256", "caption", "alternative", "description", "described_by", "width", "height", "mime")
    assert [getattr(copy, name) for name in words] == [getattr(picture, name) for name in words]
    assert copy.file_name != picture.file_name
    assert stored(copy) == stored(picture)
    assert copy.document.picture_bytes == picture.size
    [chunk] = [each for each in Chunk.objects.filter(document=copy.document) if each.pictures]
    assert chunk.pictures == [picture.sha256]


def test_a_file_that_is_no_picture_is_refused(kb, archive):
    picture = with_picture(kb)
    page = b"<script>alert(1)</script>"
    digest = hashlib.sha256(page).hexdigest()
    replace_file(picture.file_name, ContentFile(page))
    Picture.objects.filter(pk=picture.pk).update(size=len(page))
    Picture.objects.filter(pk=picture.pk).update(sha256=digest)
    picture.refresh_from_db()
    replace_file(picture.file_name, ContentFile(page))
    with pytest.raises(Rejected, match="pictures/0"):
        restore_kb(archive(kb), owner=kb.owner, name="copy")
    assert KnowledgeBase.objects.count() == 1


def test_an_archive_without_pictures_of_an_earlier_release_is_read(kb, archive, tmp_path):
    former = tmp_path / "former.zip"
    with zipfile.ZipFile(archive(kb)) as source, zipfile.ZipFile(former, "w") as target:
        manifest = json.loads(source.read("manifest.json"))
        del manifest["parts"]["pictures.jsonl"]
        for name in source.namelist():
            if name not in ("manifest.json", "pictures.jsonl"):
                target.writestr(name, source.read(name))
        target.writestr("manifest.json", json.dumps(manifest))
    restored = restore_kb(former, owner=kb.owner, name="copy").knowledge_base
    assert (
        Document.objects.filter(knowledge_base=restored).count() == Document.objects.filter(knowledge_base=kb).count()
    )


def test_all_versions_of_a_profile_come_under_its_name_whoever_else_has_one_of_it(kb, archive):
    before = list(RetrievalProfile.objects.filter(knowledge_base=kb).values())
    restored = restore_kb(archive(kb), owner=make_user("mallory"), name="copy")
    ours = RetrievalProfile.objects.filter(knowledge_base=restored.knowledge_base).order_by("version")
    assert [(row.name, row.version, row.published) for row in ours] == [("法务", 1, False), ("法务", 2, True)]
    assert restored.knowledge_base.profile == ours[1]
    assert not any("法务" in note for note in restored.notes)
    assert list(RetrievalProfile.objects.filter(knowledge_base=kb).values()) == before


def test_all_versions_of_a_profile_come_under_a_free_name_where_a_shared_one_has_theirs(kb, archive):
    path = archive(kb)
    delete_everything()
    RetrievalProfile.objects.create(name="法务", published=True)
    restored = restore_kb(path, owner=make_user(), name="copy")
    ours = RetrievalProfile.objects.filter(knowledge_base=restored.knowledge_base).order_by("version")
    assert [(row.name, row.version, row.published) for row in ours] == [("法务 (2)", 1, False), ("法务 (2)", 2, True)]
    assert restored.knowledge_base.profile == ours[1]
    assert any("法务 (2)" in note for note in restored.notes)


def test_a_shared_profile_of_other_settings_becomes_its_own(kb, archive):
    shared = RetrievalProfile.objects.create(name="house", settings={"rrf_k": 20}, published=True)
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=shared)
    path = archive(kb)
    RetrievalProfile.objects.filter(pk=shared.pk).update(published=False)
    RetrievalProfile.objects.create(name="house", version=2, settings={"rrf_k": 90}, published=True)
    restored = restore_kb(path, owner=kb.owner, name="copy").knowledge_base
    assert (restored.profile.name, restored.profile.settings) == ("house (2)", {"rrf_k": 20})
    assert restored.profile.knowledge_base == restored


def test_a_profile_that_new_ones_do_not_start_with_is_kept(kb, archive):
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=RetrievalProfile.objects.live("default"))
    assert restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base.profile.name == "default"


def test_what_would_be_read_elsewhere_is_switched_off(kb, archive):
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy")
    source = Source.objects.get(knowledge_base=restored.knowledge_base)
    assert (source.enabled, source.next_run_at, source.url) == (False, None, "https://example.org/")
    assert SourceItem.objects.get(source=source).document.knowledge_base == restored.knowledge_base
    provider = SearchProvider.objects.get(knowledge_base=restored.knowledge_base)
    assert (provider.enabled, provider.settings, provider.weight) == (False, {"project": "p"}, 0.4)


def test_a_document_that_waits_or_has_failed_stays_so(kb, archive):
    Document.objects.filter(source="a.md").update(status="processing")
    Document.objects.filter(source="manual.txt").update(status="failed", error="%(boom)s", error_code="x")
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base
    states = dict(Document.objects.filter(knowledge_base=restored).values_list("source", "status"))
    assert states == {"a.md": "pending", "manual.txt": "failed"}
    assert "boom" not in Document.objects.get(knowledge_base=restored, source="manual.txt").error


def test_another_model_may_be_chosen_and_the_chunks_are_embedded_for_it(kb, archive):
    path = archive(kb, vectors=True)
    restored = restore_kb(path, owner=kb.owner, name="copy", embedding_model="hashing").knowledge_base
    assert restored.embedding_model == "hashing"
    with pytest.raises(Rejected) as refused:
        restore_kb(path, owner=kb.owner, name="third", embedding_model="/etc/passwd")
    assert refused.value.code == "unknown_model"


def test_a_taken_name_is_told_before_anything_is_read(kb, archive):
    with pytest.raises(Rejected) as refused:
        restore_kb(archive(kb), owner=kb.owner)
    assert refused.value.code == "name_taken"


def test_a_tokenizer_that_is_not_installed_is_named_before_rows_are_read(kb, archive, monkeypatch):
    TokenizerSettings.objects.update_or_create(knowledge_base=kb, defaults={"engine": "rjieba"})
    path = archive(kb)
    done = []
    engine_versions.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rjieba", None)
        with pytest.raises(Rejected) as refused:
            restore_kb(path, owner=kb.owner, name="copy", on_progress=lambda *progress: done.append(progress))
    engine_versions.cache_clear()

    assert refused.value.code == "bm25_dependencies_missing"
    assert "rjieba" in str(refused.value)
    assert not done
    assert list(KnowledgeBase.objects.all()) == [kb]


def test_progress_is_told_to_the_end(kb, archive):
    told = []
    restore_kb(archive(kb), owner=kb.owner, name="copy", on_progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_editors_export_and_viewers_do_not(kb):
    with export_open(principal(make_member(kb, "editor")), kb) as stream:
        assert stream.read(2) == b"PK"
    with pytest.raises(NotAllowed):
        export_open(principal(make_member(kb, "viewer")), kb)
    with pytest.raises(NotVisible):
        export_open(principal(make_user()), kb)


REGIONS = [{"page": 3, "box": [0.1, 0.2, 0.3, 0.4]}, {"page": 4, "box": None}]


def test_chunks_and_longer_passages_stand_where_they_did(kb, archive):
    Chunk.objects.filter(knowledge_base=kb).update(regions=REGIONS, seconds=75, parent_spans=[0, 0, 4, 9])
    ChunkParent.objects.filter(knowledge_base=kb).update(regions=REGIONS)
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base
    chunks = Chunk.objects.filter(knowledge_base=restored)
    assert chunks.count() == chunks.filter(regions=REGIONS, seconds=75, parent_spans=[0, 0, 4, 9]).count() > 0
    assert all(each.regions == REGIONS for each in ChunkParent.objects.filter(knowledge_base=restored))


def test_what_was_hidden_since_a_source_of_files_has_it_no_longer_is_shown(kb, archive):
    """The source is not in the archive, so that nothing would show it again."""
    document = Document.objects.filter(knowledge_base=kb, source_item=None, chunks__enabled=True).first()
    before = Chunk.objects.filter(knowledge_base=kb, enabled=True).count()
    Chunk.objects.filter(document=document, enabled=True).update(enabled=False, is_hidden=True)
    Document.objects.filter(pk=document.pk).update(metadata=document.metadata | {GONE_SINCE: "2026-01-01T00:00:00Z"})
    restored = restore_kb(archive(kb), owner=kb.owner, name="copy").knowledge_base
    assert Chunk.objects.filter(knowledge_base=restored, enabled=True, is_hidden=False).count() == before
    assert not Document.objects.filter(knowledge_base=restored, metadata__has_key=GONE_SINCE).exists()


def test_an_archive_of_a_release_without_regions_is_read(kb, archive):
    def older(entries):
        changed = {}
        for name in ("chunks", "parents"):
            rows = lines_of(entries[f"{name}.jsonl"])
            changed[name] = part_of(
                [{key: row[key] for key in row if key not in ("regions", "seconds", "parent_spans")} for row in rows]
            )
        signed(entries, **changed)

    restored = restore_kb(rewritten(archive(kb), older), owner=kb.owner, name="copy").knowledge_base
    assert {
        (str(each.regions), each.seconds, each.parent_spans) for each in Chunk.objects.filter(knowledge_base=restored)
    } == {("[]", None, None)}
    assert results(restored) == results(kb)
