"""A bucket, read from a real HTTP server that speaks S3."""

import hashlib
import json
import os
from io import BytesIO

import boto3
import pytest
from moto.core import set_initial_no_auth_action_count
from moto.server import ThreadedMotoServer

from kb.base.errors import Rejected
from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.sources.connectors.protocol import UNAVAILABLE
from kb.sources.connectors.s3 import connector
from kb.sources.connectors.s3.connector import S3
from tests.web_server import Page

MOST = 10_000_000


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint):
    made = boto3.resource(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="owner",
        aws_secret_access_key="owner",
    ).Bucket("manuals")
    made.create()
    made.objects.all().delete()  # all servers of a process hold the same buckets
    yield made
    made.objects.all().delete()
    made.delete()


@pytest.fixture(autouse=True)
def loopback(settings):
    settings.WEB_ALLOWED_HOSTS = ["127.0.0.1"]


def reading(endpoint, guard=None, **values):
    return S3(
        {"endpoint": endpoint, "bucket": "manuals", "access_key": "reader", "secret_key": "secret", **values}, guard
    )


def items_of(endpoint, **values):
    with reading(endpoint, **values) as s3:
        return list(s3.items())


def fetched(s3, item, most=MOST):
    into = BytesIO()
    return s3.fetch(item, into, most), into.getvalue()


def code_of(call):
    with pytest.raises(FetchError) as caught:
        call()
    return caught.value.code


def test_objects_are_listed_and_read(endpoint, bucket):
    bucket.put_object(Key="手册/说明 #1?.md", Body="安装".encode())
    bucket.put_object(Key="a+b%20c&d.txt", Body=b"plain")
    bucket.put_object(Key="folder/", Body=b"")
    bucket.put_object(Key="picture.bin", Body=b"x")

    with reading(endpoint) as s3:
        items = list(s3.items())
        contents = [fetched(s3, item) for item in items]

    assert [item.key for item in items] == ["a+b%20c&d.txt", "手册/说明 #1?.md"]
    assert [content for _, content in contents] == [b"plain", "安装".encode()]
    assert [item.version for item, _ in contents] == [item.version for item in items]
    assert (items[1].name, items[1].size, items[1].modified.tzname()) == ("说明 #1?.md", 6, "UTC")


def test_more_than_one_page_is_listed(endpoint, bucket):
    for number in range(1_005):
        bucket.put_object(Key=f"{number:05}.md", Body=b"x")

    assert [item.key for item in items_of(endpoint)] == [f"{number:05}.md" for number in range(1_005)]


def test_a_listing_goes_on_where_it_stopped(endpoint, bucket):
    for number in range(1_005):
        bucket.put_object(Key=f"{number:05}.md", Body=b"x")
    with reading(endpoint) as s3:
        first = next(s3.portions(None))
    with reading(endpoint) as s3:
        (last,) = s3.portions(json.loads(json.dumps(first.position)))
    assert len(first.items) == 1_000
    assert ([item.key for item in last.items], last.position) == (
        [f"{number:05}.md" for number in range(1_000, 1_005)],
        None,
    )


def test_a_listing_that_goes_round_in_a_circle_ends(web):
    body = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    page = Page(f"<ListBucketResult>{body}</ListBucketResult>", type="application/xml")
    web.pages = {LISTING: page, LISTING.replace("&encoding", "&continuation-token=t&encoding"): page}
    assert code_of(lambda: items_of(web.url(""))) == "broken_response"


def test_a_listing_ends_that_is_longer_than_a_place_may_be_though_nothing_in_it_is_taken(endpoint, bucket, monkeypatch):
    monkeypatch.setattr(connector, "MOST_FILES", 2)
    for number in range(2):
        bucket.put_object(Key=f"{number}.bin", Body=b"x")
    assert items_of(endpoint) == []
    bucket.put_object(Key="2.bin", Body=b"x")
    assert code_of(lambda: items_of(endpoint)) == "too_many_items"


def test_prefix_and_patterns_choose(endpoint, bucket):
    for key in ("docs/a.md", "docs/drafts/b.md", "docs/.hidden.md", "docsx/c.md", "other/d.md"):
        bucket.put_object(Key=key, Body=b"x")

    assert [each.key for each in items_of(endpoint, prefix="docs/")] == ["docs/a.md", "docs/drafts/b.md"]
    assert [each.key for each in items_of(endpoint, prefix="docs/", exclude="/drafts")] == ["docs/a.md"]
    assert [each.key for each in items_of(endpoint, include="other/**")] == ["other/d.md"]


def test_an_object_that_changed_since_the_listing_comes_with_its_own_version(endpoint, bucket):
    bucket.put_object(Key="a.md", Body=b"one")
    with reading(endpoint) as s3:
        (listed,) = s3.items()
        bucket.put_object(Key="a.md", Body=b"other")
        read, content = fetched(s3, listed)
        (after,) = s3.items()

    assert content == b"other"
    assert (read.version, read.size) == (after.version, 5)
    assert read.version != listed.version


def test_an_object_deleted_since_the_listing_is_gone(endpoint, bucket):
    bucket.put_object(Key="a.md", Body=b"one")
    with reading(endpoint) as s3:
        (listed,) = s3.items()
        bucket.Object("a.md").delete()

        assert code_of(lambda: fetched(s3, listed)) == "gone"


def test_a_stored_checksum_gives_the_digest(endpoint, bucket):
    bucket.put_object(Key="a.md", Body=b"one", ChecksumAlgorithm="SHA256")
    with reading(endpoint) as s3:
        (listed,) = s3.items()

        assert fetched(s3, listed)[0].digest == hashlib.sha256(b"one").hexdigest()


def test_more_than_the_most_bytes_are_refused(endpoint, bucket):
    bucket.put_object(Key="a.md", Body=b"x" * 1_000)
    with reading(endpoint) as s3:
        (item,) = s3.items()

        assert len(fetched(s3, item, most=1_000)[1]) == 1_000
        assert code_of(lambda: fetched(s3, item, most=999)) == "too_large"
        assert len(fetched(s3, item)[1]) == 1_000


def test_wrong_credentials_are_said(endpoint, bucket):
    @set_initial_no_auth_action_count(0)
    def listed():
        items_of(endpoint, access_key="AKIANOBODY", secret_key="wrong")

    assert code_of(listed) == "bad_credentials"
    assert "bad_credentials" in UNAVAILABLE


def test_a_public_bucket_is_read_without_a_key_and_never_with_the_servers(endpoint, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "owner")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "owner")
    bucket.put_object(Key="a.md", Body=b"one")
    sent = []
    with reading(endpoint, access_key="", secret_key="") as s3:
        s3._client.meta.events.register_first("before-send.s3", lambda request, **_: sent.append(dict(request.headers)))
        (item,) = s3.items()

    assert item.key == "a.md"
    assert sent
    assert not any("Authorization" in headers for headers in sent)


def test_a_bucket_that_is_missing_is_the_places_fault(endpoint, bucket):
    assert code_of(lambda: items_of(endpoint, bucket="nowhere")) == "no_bucket"
    assert "no_bucket" in UNAVAILABLE


SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
LISTING = "/manuals?list-type=2&prefix=&encoding-type=url"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (503, SLOW_DOWN, "too_many_requests"),
        (429, b"", "too_many_requests"),
        (500, b"", "bad_status"),
        (200, b"<html>Welcome", "bad_status"),
        (200, b"<html><body>Welcome to the hotel</body></html>", "broken_response"),
        (200, b"", "broken_response"),
        (301, b"<Error><Code>PermanentRedirect</Code></Error>", "no_bucket"),
        (403, b"<Error><Code>AccessDenied</Code></Error>", "bad_credentials"),
        (403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>", "bad_credentials"),
    ],
)
def test_a_store_that_does_not_answer_as_one_is_no_empty_bucket(web, status, body, code):
    web.pages[LISTING] = Page(body, status=status, type="application/xml")

    assert code_of(lambda: items_of(web.url(""))) == code


def test_how_long_a_store_asks_to_wait_is_passed_on(web):
    web.pages[LISTING] = Page(SLOW_DOWN, status=503, type="application/xml", headers={"Retry-After": "17"})

    with pytest.raises(FetchError) as caught:
        items_of(web.url(""))
    assert caught.value.params["retry_after"] == 17


def test_a_listing_without_end_in_one_page_is_cut_off(web):
    web.pages[LISTING] = Page(b"<ListBucketResult>" + b" " * 9_000_000, type="application/xml")

    assert code_of(lambda: items_of(web.url(""))) == "too_large"


def test_a_redirect_to_another_host_is_not_followed(endpoint, web):
    web.pages[LISTING] = Page(status=307, headers={"Location": f"{endpoint}/manuals"})

    assert code_of(lambda: items_of(web.url(""))) == "bad_status"


def test_addresses_inside_are_reached_only_where_the_operator_allows_it(endpoint, bucket, settings):
    settings.WEB_ALLOWED_HOSTS = []

    assert code_of(lambda: items_of(endpoint)) == "forbidden_address"


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(web):
    """A name that only the guard's resolver knows, and knows once."""
    answers = [["127.0.0.1"]]
    guard = Guard(AllowList.parse(["store.example.org"]), lambda host, port: answers.pop())
    found = "<Key>a.md</Key><ETag>1</ETag><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified>"
    web.pages[LISTING] = Page(
        f"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{found}</Contents></ListBucketResult>"
    )

    with reading(web.url("", "store.example.org"), guard) as s3:
        assert [item.key for item in s3.items()] == ["a.md"]
    assert answers == []


def test_a_store_that_is_down_is_out_of_reach():
    assert code_of(lambda: items_of("http://127.0.0.1:9")) == "unreachable"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"endpoint": "ftp://store.example.org"}, "endpoint_invalid"),
        ({"endpoint": "https://user:word@store.example.org"}, "endpoint_invalid"),
        ({"endpoint": "https://store.example.org/bucket"}, "endpoint_invalid"),
        ({"secret_key": ""}, "secret_key_invalid"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values, code):
    with pytest.raises(Rejected) as caught:
        S3.check({"endpoint": "", "access_key": "a", "secret_key": "b", **values})
    assert caught.value.code == code


def test_nothing_of_the_servers_own_setup_is_used(endpoint, bucket, monkeypatch, tmp_path):
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\n[other]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.fspath(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    bucket.put_object(Key="a.md", Body=b"one")

    assert [item.key for item in items_of(endpoint)] == ["a.md"]
