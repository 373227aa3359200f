"""A place in memory that a source reads, which can be made to lie and to fail."""

import hashlib
from contextlib import contextmanager
from datetime import timedelta

from django.utils import timezone

from kb.models import Source
from kb.sources.connectors import registry
from kb.sources.connectors.protocol import Connector, Item, Portion
from kb.sources.fields import Field
from kb.sources.services.sources import source_create, source_request
from kb.sources.services.working import run_source


class Place(Connector):
    """Files by their keys; `version` and `fault` say what the place answers otherwise than a good one would.

    It is listed in portions of as many files as `portion` says, None: all at once; `listed` has the keys of each that was asked
    for, after which `on_portion` is called.
    """

    fields = (
        Field("root", "root", is_required=True),
        Field("password", "password", is_secret=True),
        Field("glob", "glob", is_filter=True),
    )

    def __init__(self):
        self.files, self.fetched, self.values = {}, [], None
        self.versions, self.faults = {}, {}
        self.gives_digest = False
        self.listing_fault = None
        self.portion, self.listed, self.on_portion = None, [], lambda: None

    def __call__(self, values, *, owner):
        self.values = values
        return self

    def check(self, values, owner):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def portions(self, position):
        keys, size = list(self.files), self.portion or len(self.files) or 1
        for start in range(position or 0, len(keys) or 1, size):
            self.listed.append(keys[start : start + size])
            items = [self.item(key, self.files[key]) for key in self.listed[-1]]
            yield Portion(items, start + size if start + size < len(keys) else None)
            self.on_portion()
        if self.listing_fault is not None:
            raise self.listing_fault

    def item(self, key, data):
        digest = hashlib.sha256(data).hexdigest()
        version = self.versions.get(key, digest[:8])
        return Item(key, version=version, digest=digest if self.gives_digest else "", size=len(data))

    def fetch(self, item, into, most):
        self.fetched.append(item.key)
        if (fault := self.faults.get(item.key)) is not None:
            if isinstance(fault, BaseException):
                raise fault
            fault()
        data = self.files[item.key]
        into.write(data)
        return self.item(item.key, data)


@contextmanager
def opened(monkeypatch):
    place = Place()
    monkeypatch.setitem(registry.KINDS, "git", registry.Kind(Source.Kind.GIT, place))
    yield place


def create(kb, **fields):
    values = {"name": "files", "kind": "git", "settings": {"root": "r"}} | fields
    return source_create(knowledge_base=kb, user=kb.owner, **values)


def run(source, **fields):
    """A whole run, from the request for it to its end; what was fetched before is forgotten."""
    source_request(source)
    while run_source(source.pk, **fields):
        pass
    source.refresh_from_db()
    return source


def lose_the_worker(source):
    """As if the process that has a source had been killed, and its lease had ended."""
    Source.objects.filter(pk=source.pk).update(lease_until=timezone.now() - timedelta(minutes=1))


def text(number):
    return f"# Page {number}\n\nThe lamp {number} has a warranty of {number} years.".encode()
