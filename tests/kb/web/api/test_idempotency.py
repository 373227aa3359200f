import threading
import uuid
from datetime import timedelta

import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.urls import resolve
from django.utils import timezone
from rest_framework.test import APIClient

from kb import tasks
from kb.base.errors import Rejected
from kb.models import Document, IdempotencyKey, IngestBatch
from kb.web import services as idempotency
from kb.web.services import answer_once
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/documents/"


@pytest.fixture
def send(client, url):
    def post(text="Five days.", key="one", client=client, **fields):
        return client.post(url, {"text": text, **fields}, format="json", headers={"Idempotency-Key": key})

    return post


def _file(name="a.txt", content=b"Five days."):
    return SimpleUploadedFile(name, content)


def test_the_same_request_again_has_the_first_answer(send):
    first, again = send(), send()

    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert (again.headers["Idempotent-Replayed"], "Idempotent-Replayed" in first.headers) == ("true", False)
    assert Document.objects.count() == 1


def test_the_answer_is_the_first_one_whatever_became_of_the_document(send, client):
    first = send()
    client.delete(f"/api/v1/documents/{first.json()['id']}/")

    assert send().json() == first.json()
    assert not Document.objects.exists()


def test_a_form_is_the_same_whatever_its_boundary(client, url, kb):
    def post(path, **body):
        return client.post(path, body, format="multipart", headers={"Idempotency-Key": "form"})

    first, again = post(url, file=_file(), title="a"), post(url, file=_file(), title="a")
    other = post(url, file=_file(content=b"Six days."), title="a")

    assert (first.status_code, again.headers.get("Idempotent-Replayed")) == (201, "true")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_an_upload_of_many_files_is_done_once(client, kb):
    url = f"/api/v1/knowledge-bases/{kb.pk}/batches/"

    def post():
        files = [_file("a.txt"), _file("b.txt", b"Six days.")]
        return client.post(url, {"files": files}, format="multipart", headers={"Idempotency-Key": "batch"})

    first, again = post(), post()

    assert (first.status_code, again.content) == (201, first.content)
    assert (IngestBatch.objects.count(), Document.objects.count()) == (1, 2)
    more = f"/api/v1/batches/{first.json()['id']}/files/"
    sent = [
        client.post(more, {"files": [_file("c.txt", b"c")]}, format="multipart", headers={"Idempotency-Key": "more"})
        for _ in range(2)
    ]
    assert (sent[0].status_code, sent[1].content) == (200, sent[0].content)


def test_another_request_with_the_same_key_is_422(send, client, kb):
    send()
    response = send("Six days.")

    assert (response.status_code, response.json()["code"]) == (422, "idempotency_key_reused")
    elsewhere = f"/api/v1/knowledge-bases/{factories.make_kb(kb.owner, 'other').pk}/documents/"
    again = client.post(elsewhere, {"text": "Five days."}, format="json", headers={"Idempotency-Key": "one"})
    assert again.status_code == 422


def test_the_order_of_the_fields_does_not_matter(client, url):
    bodies = ('{"text": "a", "title": "b"}', '{"title": "b", "text": "a"}')
    answers = [
        client.generic("POST", url, body, content_type="application/json", HTTP_IDEMPOTENCY_KEY="k") for body in bodies
    ]

    assert [answer.status_code for answer in answers] == [201, 201]


def test_keys_are_each_callers_own(send, client_of, client_with, owner, kb):
    editor = factories.make_member(kb, "editor")
    _, secret = factories.make_api_key(owner, scope="write")

    answers = [send("a"), send("b", client=client_of(editor)), send("c", client=client_with(secret))]

    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert IdempotencyKey.objects.count() == 3


def test_who_may_no_longer_write_gets_no_earlier_answer(send, kb, owner):
    send()
    kb.owner = factories.make_user()
    kb.save()

    assert send().status_code == 404


def test_what_failed_has_done_nothing_and_may_be_sent_again(send, client, settings):
    settings.MAX_UPLOAD_BYTES = 5
    refused = send()
    settings.MAX_UPLOAD_BYTES = 50

    assert (refused.status_code, send().status_code) == (413, 201)
    assert send("").status_code == 422


def test_a_first_request_under_way_is_409_with_retry_after(send):
    send()
    IdempotencyKey.objects.update(status=None, claimed_at=timezone.now())

    response = send()

    assert (response.status_code, response.json()["code"]) == (409, "idempotency_in_progress")
    assert int(response.headers["Retry-After"]) > 0


def test_a_process_that_died_half_way_leaves_the_request_to_the_next(send):
    send()
    Document.objects.all().delete()  # as its transaction did
    IdempotencyKey.objects.update(status=None, claimed_at=timezone.now() - 2 * idempotency.LEASE)

    response = send()

    assert (response.status_code, Document.objects.count()) == (201, 1)
    assert send().content == response.content


def test_a_key_past_its_time_is_a_new_one(send):
    send()
    IdempotencyKey.objects.update(created_at=timezone.now() - idempotency.KEPT - timedelta(minutes=1))

    assert send("Six days.").status_code == 201
    assert Document.objects.count() == 2


def test_keys_past_their_time_are_deleted_by_the_task(send):
    send(key="old")
    IdempotencyKey.objects.update(created_at=timezone.now() - idempotency.KEPT - timedelta(minutes=1))
    send("Six days.", key="new")

    tasks.purge_search_log()

    assert [row.key for row in IdempotencyKey.objects.all()] == ["new"]


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "钥匙", "a\tb"])
def test_a_key_that_is_none_is_400(client, url, key):
    response = client.generic("POST", url, '{"text": "a"}', content_type="application/json", HTTP_IDEMPOTENCY_KEY=key)

    assert (response.status_code, [*response.json()["fields"]]) == (400, ["Idempotency-Key"])


# -- Several at once ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_of_several_at_once_one_does_the_work(owner, kb, url):
    answers, begin = [], threading.Barrier(4)

    def post():
        client = APIClient()
        client.force_login(owner)
        try:
            begin.wait(30)
            answers.append(
                client.post(url, {"text": "Five days."}, format="json", headers={"Idempotency-Key": "k"}).status_code
            )
        finally:
            connection.close()

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(answers) <= {201, 409}
    assert 201 in answers
    assert Document.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_page_is_read_once_and_before_the_transaction_begins(client, url, monkeypatch):
    """It may take half a minute, during which no lock is to be held."""
    in_transaction = []

    def read(**_):
        in_transaction.append(connection.in_atomic_block)
        return {"file": ContentFile(b"Five days."), "name": "page.txt"}

    monkeypatch.setitem(resolve(url).func.initkwargs, "read_url", read)
    body = {"url": "https://example.org/"}
    answers = [client.post(url, body, format="json", headers={"Idempotency-Key": "page"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert in_transaction == [False]


@pytest.mark.django_db(transaction=True)
def test_who_took_so_long_that_another_began_again_undoes_its_work(owner, kb):
    asked = IdempotencyKey(user=owner, credential="", key="k", fingerprint="0" * 64)

    def work():
        factories.make_document(kb, "work")
        if IdempotencyKey.objects.filter(status=None).exists():
            IdempotencyKey.objects.update(claim=uuid.uuid4())
        return 201, "{}"

    with pytest.raises(Rejected) as refused:
        answer_once(asked, work)

    assert refused.value.code == "idempotency_in_progress"
    assert not Document.objects.exists()
