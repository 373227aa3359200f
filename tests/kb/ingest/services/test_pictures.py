import hashlib
import itertools
from datetime import timedelta

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import connection
from django.utils import timezone

from kb.base.errors import NotVisible
from kb.base.findings import RemarkCode
from kb.base.messages import shown as in_words
from kb.content.services import knowledge_base_delete
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Picture as ReadPicture, Region, Section
from kb.ingest.services.chunks import chunk_split, chunks_merge
from kb.ingest.services.documents import document_add, document_delete, document_replace_file, document_requeue
from kb.ingest.services.indexing import index_document
from kb.ingest.services.pictures import (
    MAX_ATTEMPTS,
    check_pictures,
    describe_pictures,
    documents_to_describe,
    picture_response,
    pictures_of_chunks,
    store_picture_files,
    waits_for_description,
)
from kb.models import Chunk, Document, Picture, Principal
from kb.search.services.search import SearchRequest, respond
from tests.factories import make_kb, make_user
from tests.kb.ingest.parser.documents import data_address, make_picture
from tests.servers import ModelServer, Reply

pytestmark = pytest.mark.django_db
_numbers = itertools.count(1)


@pytest.fixture
def kb():
    return make_kb(language="en")


def shown(number, alternative=""):
    return f"![{alternative}]({data_address(make_picture(number))})"


PARAGRAPHS = ("The pump stands in the hall. " * 12, "The valve stands in the yard. " * 12)
TEXT = f"# Plant\n\n{PARAGRAPHS[0]}\n\n{shown(1, 'A pump')}\n\nFigure 1: The pump\n\n{PARAGRAPHS[1]}\n\n{shown(2)}"


def add(kb, text=TEXT):
    return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="plant.md", user=kb.owner)


def index(document):
    index_document(document.pk)
    document.refresh_from_db()
    assert document.status == Document.Status.READY, document.error
    return document


def files(kb):
    """The names of all files of pictures of a knowledge base."""
    root = f"documents/{kb.pk}/pictures"
    if not default_storage.exists(root):
        return set()
    folders, _ = default_storage.listdir(root)
    return {name for folder in folders for name in default_storage.listdir(f"{root}/{folder}")[1]}


def chunk_with(document, words):
    return next(chunk for chunk in document.chunks.all() if words in chunk.text)


def test_pictures_become_files_and_rows_and_the_chunks_that_show_them_know(kb):
    document = index(add(kb))
    first, second = document.pictures.all()
    assert (first.caption, first.alternative, first.number) == ("Figure 1: The pump", "A pump", 0)
    assert first.sha256 in chunk_with(document, "Figure 1").pictures
    assert second.sha256 in chunk_with(document, "valve").pictures
    assert document.picture_bytes == first.size + second.size
    with default_storage.open(first.file_name) as file:
        assert hashlib.sha256(file.read()).hexdigest() == first.sha256
    assert pictures_of_chunks([chunk_with(document, "Figure 1").pk]) != {}


def test_results_show_their_pictures_in_one_query_and_knowledge_bases_without_any_ask_none(
    kb, django_assert_max_num_queries
):
    index(add(kb))
    found = respond(Principal(kb.owner), SearchRequest(query="pump", knowledge_base_ids=[kb.pk]))
    [picture] = next(result.pictures for result in found.results if "Figure 1" in result.text)
    assert (picture.caption, picture.alternative, picture.page) == ("Figure 1: The pump", "A pump", None)
    assert picture.url == f"/api/v1/pictures/{picture.id}/"


def test_processing_again_keeps_rows_and_files(kb):
    document = index(add(kb))
    before = [*document.pictures.values_list("pk", "sha256")], files(kb)
    document_requeue(document)
    index(document)
    assert ([*document.pictures.values_list("pk", "sha256")], files(kb)) == before


def test_processing_again_brings_a_file_back_that_is_gone(kb):
    document = index(add(kb))
    before = files(kb)
    default_storage.delete(document.pictures.first().file_name)
    assert files(kb) != before
    document_requeue(document)
    index(document)
    assert files(kb) == before


def test_a_new_file_brings_its_own_pictures(kb, django_capture_on_commit_callbacks):
    document = index(add(kb))
    kept = document.pictures.first()
    text = f"# Plant\n\nOnly one is left of them.\n\n{shown(1, 'Another word')}"
    with django_capture_on_commit_callbacks(execute=True):
        document_replace_file(document=document, file=ContentFile(text.encode()), name="plant.md")
        index(document)
    [picture] = document.pictures.all()
    assert (picture.pk, picture.alternative) == (kept.pk, "Another word")
    assert files(kb) == {f"{kept.sha256}.png"}


def test_files_go_with_their_document_and_with_the_knowledge_base(kb, django_capture_on_commit_callbacks):
    document = index(add(kb))
    with django_capture_on_commit_callbacks(execute=True):
        document_delete(document)
    assert (files(kb), Picture.objects.count()) == (set(), 0)
    index(add(kb))
    with django_capture_on_commit_callbacks(execute=True):
        knowledge_base_delete(kb)
    assert Picture.objects.count() == 0
    assert not default_storage.exists(f"documents/{kb.pk}")


def test_files_whose_rows_a_killed_worker_did_not_write_go_with_the_document(kb, django_capture_on_commit_callbacks):
    document = add(kb)
    store_picture_files(document, [ReadPicture(make_picture(1), "image/png", 90, 60)])
    assert files(kb) != set()
    with django_capture_on_commit_callbacks(execute=True):
        document_delete(document)
    assert files(kb) == set()


def test_merged_chunks_show_the_pictures_of_all_and_parts_those_whose_words_they_hold(kb):
    document = index(add(kb))
    digests = [*document.pictures.values_list("sha256", flat=True)]
    whole = chunks_merge(document=document, chunk_ids=document.chunks.values_list("pk", flat=True))
    assert sorted(whole.pictures) == sorted(digests)
    parts = chunk_split(chunk=whole, at=[whole.text.index("The valve")])
    assert [digests[0] in part.pictures for part in parts] == [True, False]
    document_requeue(document)
    index(document)
    assert sorted({each for chunk in document.chunks.all() for each in chunk.pictures}) == sorted(digests)
    assert Chunk.objects.filter(document=document, own_cut=True).count() == 2


def test_who_may_see_the_document_sees_its_pictures_and_nobody_else(kb):
    picture = index(add(kb)).pictures.first()
    response = picture_response(Principal(kb.owner), picture.pk)
    assert (response.status_code, response["Content-Type"]) == (200, "image/png")
    assert (response["X-Content-Type-Options"], response["Cache-Control"]) == ("nosniff", "private, no-cache")
    assert hashlib.sha256(response.content).hexdigest() == picture.sha256
    again = picture_response(Principal(kb.owner), picture.pk, response["ETag"])
    assert (again.status_code, again.content) == (304, b"")
    with pytest.raises(NotVisible):
        picture_response(Principal(make_user()), picture.pk, response["ETag"])
    default_storage.delete(picture.file_name)
    with pytest.raises(NotVisible):
        picture_response(Principal(kb.owner), picture.pk)


PNG = make_picture()


@pytest.mark.parametrize(
    "picture",
    [
        ReadPicture(b"<html><script>alert(1)</script>", "image/png", 90, 60),
        ReadPicture(PNG, "text/html", 90, 60),
        ReadPicture(b"RIFF\x24\0\0\0WAVEfmt ", "image/webp", 90, 60),
        ReadPicture(PNG, "image/png", 0, 60),
        ReadPicture(PNG, "image/png", 90, 60, recognised="x" * 5_000),
    ],
)
def test_what_a_parser_that_was_taken_over_calls_a_picture_is_refused(picture):
    with pytest.raises(ParseError):
        check_pictures(ParsedDocument("", (Section("Text"),), pictures=(picture,)))


def test_regions_of_pictures_that_are_not_there_are_refused():
    with pytest.raises(ParseError):
        check_pictures(ParsedDocument("", (Section("Text", regions=(Region(picture=3),)),)))


# -- Descriptions ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def vision(settings):
    with ModelServer() as server:
        settings.LLM_BASE_URL, settings.LLM_API_KEY, settings.LLM_SECONDS = server.base_url, "", 5.0
        settings.VISION_MODEL = f"vision-{next(_numbers)}"
        yield server


def test_without_a_vision_model_no_picture_waits(kb, settings):
    document = index(add(kb))
    assert not waits_for_description(document.pk)
    assert documents_to_describe() == []
    assert describe_pictures(document.pk) is False


def test_a_vision_model_describes_pictures_and_the_chunks_say_that_a_model_did(kb, vision, settings):
    document = index(add(kb))
    assert documents_to_describe() == [document.pk]
    vision.always("chat", Reply("A blue zeppelin over a rectangle."))
    describe_pictures(document.pk)
    assert index(document).remarks == []
    picture = document.pictures.first()
    assert (picture.description, picture.described_by) == ("A blue zeppelin over a rectangle.", settings.VISION_MODEL)
    chunk = chunk_with(document, "Figure 1")
    assert (
        "Figure 1: The pump\n\n> A pump\n\n> (Picture described by a model) A blue zeppelin over a rectangle."
        in chunk.text
    )
    found = respond(Principal(kb.owner), SearchRequest(query="zeppelin", knowledge_base_ids=[kb.pk]))
    assert found.results[0].pictures[0].described_by == settings.VISION_MODEL
    assert not waits_for_description(document.pk)


def test_the_model_gets_the_picture_and_the_words_beside_it(kb, vision, settings):
    document = index(add(kb))
    describe_pictures(document.pk)
    body = vision.requests[0].body
    assert body["model"] == settings.VISION_MODEL
    text, picture = body["messages"][-1]["content"]
    assert "Caption: Figure 1: The pump" in text["text"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")


def test_a_model_that_fails_is_noted_and_asked_again_later_and_the_document_stays_ready(kb, vision):
    document = index(add(kb))
    vision.always("chat", Reply(status=500))
    describe_pictures(document.pk)
    document.refresh_from_db()
    [remark] = document.remarks
    assert (document.status, remark["code"], remark["params"]["count"]) == (
        "ready",
        RemarkCode.PICTURES_NOT_DESCRIBED,
        2,
    )
    Picture.objects.update(asked_at=None)
    vision.always("chat", Reply("A pump."))
    describe_pictures(document.pk)
    document.refresh_from_db()
    assert (document.status, document.remarks) == ("pending", [])


def test_one_that_the_model_refuses_stops_no_other_and_is_given_up_after_a_stated_number_of_attempts(kb, vision):
    document = index(add(kb))
    refused, other = document.pictures.order_by("number")
    refusal = Reply(status=400, raw=b'{"error": {"message": "the picture is too small"}}')
    vision.once("chat", refusal, Reply("A pump."))
    describe_pictures(document.pk)
    other.refresh_from_db()
    assert other.description == "A pump."

    document = index(document)
    vision.always("chat", refusal)
    asked = vision.calls["chat"]
    for _time in range(MAX_ATTEMPTS + 2):
        describe_pictures(document.pk)
        Picture.objects.update(asked_at=timezone.now() - timedelta(days=30))
    assert vision.calls["chat"] - asked == MAX_ATTEMPTS
    assert documents_to_describe() == []
    document.refresh_from_db()
    [remark] = document.remarks
    assert "the picture is too small" in in_words(remark["params"]["reason"])
    refused.refresh_from_db()
    document_requeue(document)
    index(document)
    assert documents_to_describe() == [document.pk]


def test_each_attempt_is_later_and_those_with_the_fewest_come_first(kb, vision):
    document = index(add(kb))
    first, second = document.pictures.order_by("number")
    an_hour = timedelta(hours=1)
    Picture.objects.filter(pk=first.pk).update(attempts=3, asked_at=timezone.now() - 3 * an_hour)
    Picture.objects.filter(pk=second.pk).update(attempts=1, asked_at=timezone.now() - 2 * an_hour)
    vision.always("chat", Reply(status=400))
    describe_pictures(document.pk)
    assert dict(Picture.objects.values_list("pk", "attempts")) == {first.pk: 3, second.pk: 2}
    Picture.objects.update(asked_at=timezone.now() - 5 * an_hour)
    seen = len(vision.requests)
    describe_pictures(document.pk)
    files = [each.body["messages"][-1]["content"][1]["image_url"]["url"] for each in vision.requests[seen:]]
    assert len(files) == 2
    assert Picture.objects.get(pk=second.pk).asked_at < Picture.objects.get(pk=first.pk).asked_at


def test_one_that_failed_after_others_leaves_those_described(kb, vision):
    document = index(add(kb))
    vision.once("chat", Reply("A pump."))
    vision.always("chat", Reply("not an answer", raw=b"nonsense"))
    describe_pictures(document.pk)
    index(document)
    assert [bool(each.description) for each in document.pictures.all()] == [True, False]
    assert "described by a model) A pump." in chunk_with(document, "Figure 1").text


@pytest.mark.django_db(transaction=True)
def test_two_workers_do_not_describe_a_picture_twice(kb, vision):
    document = index(add(kb))
    asked = []

    def answer(_body):
        asked.append(len(asked))
        if len(asked) == 1:
            describe_pictures(document.pk)  # another worker, while the first one waits for its answer
            connection.close()
        return "A pump."

    vision.always("chat", Reply(answer))
    describe_pictures(document.pk)
    assert len(asked) == 2
