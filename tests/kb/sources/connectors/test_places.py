"""Folders and buckets as sources: what a run makes of what is there, over a real file system and a real server."""

import os

import boto3
import pytest
from moto.server import ThreadedMotoServer

from kb.models import Document, Source, SourceItem
from kb.sources.services.sources import source_create
from kb.sources.services.working import run_source
from tests.factories import make_kb

pytestmark = pytest.mark.django_db(transaction=True)


class FolderPlace:
    def __init__(self, root):
        self.root = root
        self.settings, self.secrets = {"path": str(root), "exclude": "drafts/"}, {}

    def put(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def move(self, name, to):
        (self.root / name).rename(self.root / to)

    def delete(self, name):
        (self.root / name).unlink()


class Bucket:
    def __init__(self, endpoint):
        resource = boto3.resource(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        self.bucket = resource.Bucket("manuals")
        self.bucket.create()
        self.settings = {"endpoint": endpoint, "bucket": "manuals", "access_key": "x", "exclude": "drafts/"}
        self.secrets = {"secret_key": "x"}

    def put(self, name, text):
        self.bucket.put_object(Key=name, Body=text.encode())

    def move(self, name, to):
        self.bucket.Object(to).copy_from(CopySource=f"manuals/{name}")
        self.delete(name)

    def delete(self, name):
        self.bucket.Object(name).delete()


@pytest.fixture(params=["folder", "s3"])
def place(request, tmp_path, settings):
    if request.param == "folder":
        settings.SOURCE_FOLDERS = [os.fspath(tmp_path)]
        yield FolderPlace(tmp_path / "docs")
        return
    settings.WEB_ALLOWED_HOSTS = ["127.0.0.1"]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Bucket(f"http://{host}:{port}")
    server.stop()


def run(source):
    Source.objects.filter(pk=source.pk).update(
        status="waiting", started_at=None, counts={}, lease=None, lease_until=None
    )
    run_source(source.pk)
    source.refresh_from_db()
    assert source.status == "done", source.error
    return {name: count for name, count in source.counts.items() if count}


def documents():
    return dict(SourceItem.objects.exclude(document=None).values_list("key", "document_id"))


def test_a_source_follows_its_place(place, request):
    for name, text in {"a.md": "one", "b/c.md": "two", "d.md": "three", "drafts/x.md": "no"}.items():
        place.put(name, text)
    kind = "folder" if isinstance(place, FolderPlace) else "s3"
    source = source_create(
        knowledge_base=make_kb(), user=None, name="docs", kind=kind, settings=place.settings, secrets=place.secrets,
        enabled=False,
    )  # fmt: skip
    assert run(source) == {"added": 3}
    before = documents()
    assert run(source) == {"unchanged": 3}

    place.put("a.md", "one, changed")
    place.move("b/c.md", "moved.md")
    place.delete("d.md")
    counts = run(source)
    assert (counts["changed"], counts["moved"]) == (1, 1)
    assert documents() == {"a.md": before["a.md"], "moved.md": before["b/c.md"], "d.md": before["d.md"]}

    assert run(source)["deleted"] == 1  # missed twice
    assert documents() == {"a.md": before["a.md"], "moved.md": before["b/c.md"]}
    assert Document.objects.count() == 2
