"""What the page of a document shows of its file: made once, when it is asked for, and kept."""

import os
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.utils import timezone

from kb.base.errors import NotVisible, Rejected
from kb.base.files import files_below
from kb.content.models import documents_folder, preview_wanted, previews_folder
from kb.ingest.parser import office
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services import preview_store
from kb.ingest.services.documents import document_add, document_delete, document_held, document_replace_file
from kb.ingest.services.indexing import index_document
from kb.ingest.services.originals import part_of
from kb.ingest.services.preview_store import KEPT_FOR, previews_trim
from kb.ingest.services.previews import (
    Shown,
    page_image,
    page_sizes,
    preview_prepare,
    shown_as,
    structure_of,
)
from kb.models import Chunk
from kb.tasks import purge_search_log
from tests.factories import make_document, make_kb
from tests.kb.ingest.formats.test_pdf_pages import of_one_page
from tests.kb.ingest.parser.documents import make_pdf, make_pptx, make_xlsx

pytestmark = pytest.mark.django_db
needs_impress = pytest.mark.skipif(not office.draws_slides(), reason="LibreOffice is not installed")


@pytest.fixture
def kb():
    return make_kb(language="en")


@pytest.fixture
def wanted():
    """The ids of documents for which a worker was asked."""
    cache.clear()
    asked = []

    def note(document_id, **_):
        asked.append(document_id)

    preview_wanted.connect(note)
    yield asked
    preview_wanted.disconnect(note)


def add(kb, data, name, *, index=False):
    data = data.encode() if isinstance(data, str) else data
    document = document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner)
    if index:
        index_document(document.pk)
        document.refresh_from_db()
    return document


def kept(document):
    """The names of what was made of a document's present file."""
    folder = f"{previews_folder(document)}/{document.sha256}"
    return set(default_storage.listdir(folder)[1]) if default_storage.exists(folder) else set()


def code_of(call):
    with pytest.raises(ParseError) as caught:
        call()
    return caught.value.code


def test_the_first_page_of_many_is_drawn_without_the_others(kb):
    document = add(kb, make_pdf(*[[f"page {number}"] for number in range(300)]), "long.pdf")

    image = page_image(document, 1)

    assert image[:4] == b"RIFF"
    assert page_sizes(document).count == 300
    assert kept(document) == {"sizes.json", "1-1280.webp"}
    assert page_image(document, 1) == image


def test_few_widths_are_drawn(kb):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    for width in (1, 600, 640, 700, 5_000):
        page_image(document, 1, width)
    assert kept(document) == {"sizes.json", "1-640.webp", "1-1280.webp", "1-1920.webp"}


@pytest.mark.sandbox
def test_a_page_that_cannot_be_drawn_costs_its_limits_once(kb, settings):
    document = add(kb, of_one_page(b"0 0 600 800 re 10 10 580 780 re f* " * 3_000_000), "slow.pdf")
    page_sizes(document)
    settings.PARSE_SECONDS = 1
    assert code_of(lambda: page_image(document, 1)) == "timeout"
    assert kept(document) == {"sizes.json", "1-1280.webp.failed"}

    # A child would find no file
    default_storage.delete(document.file.name)
    assert code_of(lambda: page_image(document, 1)) == "timeout"


def test_a_page_that_is_not_there_leaves_nothing(kb):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    for page in (0, 2):
        assert code_of(lambda number=page: page_image(document, number)) == "no_such_page"
    assert kept(document) == {"sizes.json"}


def test_another_file_is_drawn_anew_and_nothing_of_the_former_stays(kb, django_capture_on_commit_callbacks):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    page_image(document, 1)
    with django_capture_on_commit_callbacks(execute=True), document_held(document) as held:
        document_replace_file(document=held, file=ContentFile(make_pdf(["x"], ["y"])), name="b.pdf")
    assert not default_storage.exists(previews_folder(document))
    document.refresh_from_db()
    assert page_sizes(document).count == 2


def test_previews_go_with_their_document(kb, django_capture_on_commit_callbacks):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    page_image(document, 1)
    with django_capture_on_commit_callbacks(execute=True):
        document_delete(document)
    assert not default_storage.exists(previews_folder(document))


def test_a_preview_of_a_document_that_was_deleted_meanwhile_does_not_stay(kb):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    type(document).objects.filter(pk=document.pk).delete()
    page_image(document, 1)
    assert not default_storage.exists(previews_folder(document))


def test_previews_go_when_none_was_made_for_a_while(kb):
    old, new = add(kb, make_pdf(["x"]), "a.pdf"), add(kb, make_pdf(["y"]), "b.pdf")
    for document in (old, new):
        page_image(document, 1)
    former = (timezone.now() - KEPT_FOR - timedelta(days=1)).timestamp()
    for document, names in ((old, kept(old)), (new, {"sizes.json"})):
        for name in names:
            os.utime(default_storage.path(f"{previews_folder(document)}/{document.sha256}/{name}"), (former, former))

    purge_search_log()

    assert not default_storage.exists(previews_folder(old))
    assert kept(new) == {"sizes.json", "1-1280.webp"}
    assert page_image(old, 1)


def bytes_kept(kb):
    """Of all previews of a knowledge base."""
    return sum(file.size for file in files_below(f"{documents_folder(kb.pk)}/previews"))


def used(document, name, ago):
    """Has a preview be one that was used so long ago."""
    place = default_storage.path(f"{previews_folder(document)}/{document.sha256}/{name}")
    os.utime(place, ((timezone.now() - ago).timestamp(),) * 2)


@pytest.fixture
def bound(settings, monkeypatch):
    """Sets the bound on all previews, of a process that has not looked yet."""

    def set_bound(count):
        settings.PREVIEWS_MAX_BYTES = count
        monkeypatch.setattr(preview_store, "_unseen", preview_store._Unseen())

    return set_bound


@pytest.mark.sandbox
def test_a_document_of_three_thousand_pages_does_not_fill_the_disk(kb, bound):
    document = add(kb, make_pdf(*[[f"page {number}"] for number in range(3_000)]), "long.pdf")
    page = len(page_image(document, 1))
    most = bytes_kept(kb) + 4 * page
    bound(most)

    kept_bytes = []
    for number in range(2, 3_001, 250):
        page_image(document, number)
        kept_bytes.append(bytes_kept(kb))

    assert sum(each.endswith(".webp") for each in kept(document)) in (3, 4, 5)
    # A process may write a twentieth of the bound, and the page that passes it, before it looks
    assert max(kept_bytes) <= most * 1.05 + page
    assert "2752-1280.webp" in kept(document)
    assert "1-1280.webp" not in kept(document)
    assert len(page_image(document, 1)) == page, "what was removed is drawn again"


def test_what_was_used_longest_ago_goes_first_whichever_document_it_is_of(kb, bound):
    old, new = add(kb, make_pdf(["x"], ["y"]), "a.pdf"), add(kb, make_pdf(["z"]), "b.pdf")
    page_image(old, 1)
    page_image(old, 2)
    page_image(new, 1)
    for number, name in enumerate(["2-1280.webp", "1-1280.webp", "sizes.json"]):
        used(old, name, timedelta(days=3 - number))
    page_image(old, 1)  # uses it, and the sizes, again

    bound(bytes_kept(kb) - 1)
    previews_trim()

    assert kept(old) == {"sizes.json", "1-1280.webp"}
    assert kept(new) == {"sizes.json", "1-1280.webp"}


def test_what_is_within_the_bound_stays(kb, bound):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    page_image(document, 1)
    bound(bytes_kept(kb))

    assert previews_trim() == 0
    assert kept(document) == {"sizes.json", "1-1280.webp"}


def test_the_preview_that_was_just_made_is_there_whatever_the_bound(kb, bound):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    bound(1)

    page_image(document, 1)

    assert kept(document) == {"1-1280.webp"}


def test_a_use_keeps_previews_for_another_while(kb):
    document = add(kb, make_pdf(["x"]), "a.pdf")
    page_image(document, 1)
    for name in kept(document):
        used(document, name, KEPT_FOR + timedelta(days=1))
    page_image(document, 1)

    purge_search_log()

    assert kept(document) == {"sizes.json", "1-1280.webp"}


def test_a_document_without_a_file_shows_nothing_and_one_whose_file_is_gone_says_so(kb):
    assert shown_as(make_document(kb, "text")) == Shown.NOTHING
    document = add(kb, "words", "a.txt")
    default_storage.delete(document.file.name)
    with pytest.raises(NotVisible):
        structure_of(document)


@needs_impress
def test_slides_are_drawn_by_a_worker_that_is_asked_once(kb, wanted):
    document = add(kb, make_pptx(("One", "a"), ("Two", "b")), "talk.pptx")
    assert shown_as(document) == Shown.SLIDES
    for _look in range(2):
        with pytest.raises(Rejected):
            page_sizes(document)
    assert wanted == [document.pk]

    preview_prepare(document.pk)

    assert page_sizes(document).count == 2
    assert page_image(document, 2)[:4] == b"RIFF"


@needs_impress
def test_slides_that_cannot_be_drawn_say_so(kb, wanted):
    data = make_pptx(("One", "a"))
    document = add(kb, data, "talk.pptx")
    with default_storage.open(document.file.name, "wb") as file:
        file.write(data[: len(data) // 2])
    preview_prepare(document.pk)
    assert code_of(lambda: page_sizes(document)) == "office_failed"
    assert wanted == []


@needs_impress
def test_a_document_for_libreoffice_is_shown_as_text_once_a_worker_has_converted_it(kb, wanted):
    document = add(kb, rb"{\rtf1\ansi The boiler is cleaned.\par}", "a.rtf")
    with pytest.raises(Rejected):
        structure_of(document)
    preview_prepare(document.pk)
    assert [block.said for block in structure_of(document).blocks] == ["The boiler is cleaned."]


def test_without_libreoffice_a_presentation_is_its_text(kb, monkeypatch):
    monkeypatch.setattr(office, "program", lambda: None)
    document = add(kb, make_pptx(("One", "a")), "talk.pptx")
    assert shown_as(document) == Shown.TEXT
    assert [block.said for block in structure_of(document).blocks] == ["One", "a"]


def test_chunks_are_placed_in_the_text(kb):
    text = "# Pump\n\n" + "\n\n".join(
        f"Paragraph {number} speaks of the oil and its level." * 8 for number in range(12)
    )
    document = add(kb, text, "a.md", index=True)
    part = part_of(document)
    chunks = list(Chunk.objects.filter(document=document).order_by("position"))
    placed = {each.chunk_id for block in part.blocks for each in block.chunks}
    assert len(chunks) > 2
    assert placed == {chunk.pk for chunk in chunks}
    last = part.blocks[-1]
    assert [each.chunk_id for each in last.chunks][-1] == chunks[-1].pk


def test_a_long_text_comes_in_parts_and_a_chunk_leads_to_its_own(kb):
    text = "\n\n".join(
        f"Paragraph {number} speaks of the oil number {number} and of its level." * 10 for number in range(80)
    )
    document = add(kb, text, "a.txt", index=True)
    last = Chunk.objects.filter(document=document).latest("position")
    part = part_of(document, chunk_id=last.pk)
    assert part.count > 2
    assert part.number == part.count - 1
    assert last.pk in {each.chunk_id for block in part.blocks for each in block.chunks}
    assert part_of(document, number=99).number == part.count - 1
    assert part_of(document, chunk_id=0).number == 0


def test_an_edited_chunk_stays_where_it_was_cut(kb):
    document = add(kb, "The pump is checked each month.", "a.txt", index=True)
    Chunk.objects.filter(document=document).update(text="Other words.", cut_text="The pump is checked each month.")
    (block,) = part_of(document).blocks
    assert [each.position for each in block.chunks] == [0]


def test_a_part_within_a_table_repeats_its_header(kb):
    rows = [[f"M-{number}", number] for number in range(450)]
    document = add(kb, make_xlsx(["Model", "Price"], *rows), "a.xlsx")
    part = part_of(document, number=1)
    assert part.blocks[0].block.is_header
    assert part.blocks[1].block.text.startswith("Model: M-")
    assert part.count == 3
