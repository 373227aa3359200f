"""A writer in another process while Redis is up, dead, emptied or lying: the next search here is right, and runs nothing."""

import logging

import pytest
from django.conf import settings as django_settings
from django.core.cache import caches

from kb.index.bm25 import BM25Store, RedisTier
from kb.models import BM25Index
from retrieval.payload import PayloadCodec
from tests.factories import make_document, make_kb
from tests.kb.index.other_process import OtherProcess
from tests.kb.index.searching import assert_as_built, find, key, load, new_process, settle, tier, version
from tests.own_redis import OwnRedis

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = OwnRedis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis(server, settings):
    """The server, up and empty, as this process's second tier."""
    server.start()
    settings.CACHES = {**settings.CACHES, "bm25": {**settings.CACHES["bm25"], "LOCATION": server.url()}}
    caches["bm25"].clear()
    new_process()
    yield server
    settle()


@pytest.fixture(scope="module")
def _writer(server, django_db_setup):
    from django.db import connection

    writer = OtherProcess(connection.settings_dict["NAME"], CACHE_URL=server.url())
    yield writer
    writer.close()


@pytest.fixture
def writer(_writer, redis, db):
    _writer.ask("forget")
    return _writer


class Harmless:
    """Pickles to a call that would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def pickled_call(path):
    import pickle

    return pickle.dumps(Harmless(path))


def warnings(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def own_codec():
    return PayloadCodec(django_settings.SECRET_KEY.encode())


def entry(kb):
    return caches["bm25"].get(str(key(kb)))


def set_entry(kb, payload):
    caches["bm25"].set(str(key(kb)), payload)


def set_pointer(kb, pointer):
    caches["bm25"].set(RedisTier._pointer(kb.pk), pointer)


def put_another_bases_payload(kb):
    other = make_kb(kb.owner)
    make_document(other, "保修期 保修期")
    load(other)
    settle()
    set_entry(kb, entry(other))


def point_to_another_base(kb):
    other = make_kb(kb.owner)
    make_document(other, "保修期 保修期")
    load(other)
    settle()
    set_pointer(kb, str(key(other)).encode())


def put_an_older_versions_payload_under_a_newer_key(kb):
    newer = str(key(kb, version(kb) + 1))
    caches["bm25"].set(newer, entry(kb))
    set_pointer(kb, newer.encode())


def put_a_list_where_the_pointer_was(kb):
    cache = caches["bm25"]
    client, name = cache.client.get_client(write=True), cache.client.make_key(RedisTier._pointer(kb.pk))
    client.delete(name)
    client.rpush(name, "not", "a", "string")


# -- Redis up and down -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("fault", ["none", "killed", "killed before the write", "restarted empty"])
def test_the_next_search_after_another_processs_write_is_right(kb, writer, redis, caplog, fault, warm):
    load(kb)
    settle()
    if fault == "killed before the write":
        redis.kill()
    writer.ask("add", kb.pk, "延长保修期可以另外购买")
    if fault == "killed":
        redis.kill()
    elif fault == "restarted empty":
        redis.restart_empty()
    if not warm:
        new_process()

    loaded = load(kb)
    settle()

    assert loaded.detail["cache_tier"] == ("process" if warm else "redis" if fault == "none" else "database")
    assert loaded.detail["changed_chunks"] == 1
    assert_as_built(loaded, kb)
    killed = fault.startswith("killed")
    assert len(warnings(caplog)) == (1 if killed and not warm else 0)


def test_without_redis_a_cold_base_is_built_and_lands_in_postgresql(kb, redis, caplog):
    redis.kill()
    assert tier(kb) == "build"
    settle()
    assert len(warnings(caplog)) == 1
    new_process()
    assert tier(kb) == "database"


def test_while_redis_is_away_one_warning_is_enough_and_its_return_is_told(kb, redis, caplog):
    caplog.set_level(logging.INFO)
    redis.kill()
    for text in ("一", "二", "三"):
        make_document(kb, text)
        BM25Store().merge(kb.pk, kb.tokenizer_id)
    assert len(warnings(caplog)) == 1
    redis.start()
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    assert len(warnings(caplog)) == 1
    assert "cache tier redis is back" in caplog.text


def test_what_redis_missed_while_it_could_not_be_reached_is_not_undone_by_its_return(kb, writer, settings):
    """Redis keeps its old base through an interruption between it and this process."""
    load(kb)
    settle()
    reachable = settings.CACHES
    settings.CACHES = {**reachable, "bm25": {**reachable["bm25"], "LOCATION": "redis://127.0.0.1:1/1"}}
    make_document(kb, "延长保修期可以另外购买")
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    settings.CACHES = reachable
    new_process()
    loaded = load(kb)
    assert loaded.detail["cache_tier"] == "database"
    assert_as_built(loaded, kb)
    assert len(writer.ask("search", kb.pk, "保修期")["found"]) == 2


def test_a_write_here_is_seen_there(kb, writer):
    assert len(writer.ask("search", kb.pk, "保修期")["found"]) == 1
    make_document(kb, "延长保修期可以另外购买")
    there = writer.ask("search", kb.pk, "保修期")
    assert (there["tier"], sorted(there["found"])) == ("process", sorted(find(kb, "保修期")))
    assert len(there["found"]) == 2


# -- Redis lying -----------------------------------------------------------------------------------------------------
LIES = {
    "garbage": lambda kb, mark: set_entry(kb, b"\x00garbage" * 50),
    "an empty payload": lambda kb, mark: set_entry(kb, b""),
    "a truncated payload": lambda kb, mark: set_entry(kb, entry(kb)[: len(entry(kb)) // 2]),
    "a flipped bit": lambda kb, mark: set_entry(kb, entry(kb)[:-1] + bytes([entry(kb)[-1] ^ 1])),
    "an older format": lambda kb, mark: set_entry(kb, b"\x00" + entry(kb)[1:]),
    "a state of an older format": lambda kb, mark: set_entry(kb, own_codec().seal(str(key(kb)), {"format": 0})),
    "a payload signed with another key": lambda kb, mark: set_entry(
        kb, PayloadCodec(b"another secret").seal(str(key(kb)), {})
    ),
    "a bare pickle that runs code": lambda kb, mark: set_entry(kb, pickled_call(mark)),
    "a foreign pickle that runs code": lambda kb, mark: set_entry(
        kb, PayloadCodec(b"another secret").seal(str(key(kb)), Harmless(mark))
    ),
    "a pickle that runs code, signed with our key": lambda kb, mark: set_entry(
        kb, own_codec().seal(str(key(kb)), Harmless(mark))
    ),
    "another base's payload": lambda kb, mark: put_another_bases_payload(kb),
    "an older version's payload": lambda kb, mark: put_an_older_versions_payload_under_a_newer_key(kb),
    "a pointer of garbage": lambda kb, mark: set_pointer(kb, b"\xff\xfe"),
    "a pointer of another form": lambda kb, mark: set_pointer(kb, b"a|b|c"),
    "a pointer to another base": lambda kb, mark: point_to_another_base(kb),
    "a pointer to nothing": lambda kb, mark: caches["bm25"].delete(str(key(kb))),
    "a pointer of another type": lambda kb, mark: put_a_list_where_the_pointer_was(kb),
}
QUIET = {"a pointer to another base", "a pointer to nothing"}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_redis_is_a_miss_with_one_warning_and_runs_nothing(kb, writer, caplog, tmp_path, lie):
    load(kb)
    settle()
    LIES[lie](kb, tmp_path / "ran")
    writer.ask("add", kb.pk, "延长保修期可以另外购买")
    new_process()
    caplog.clear()

    loaded = load(kb)
    settle()

    assert loaded.detail["cache_tier"] == "database"
    assert_as_built(loaded, kb)
    assert len(warnings(caplog)) == (0 if lie in QUIET else 1)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("lie", sorted(LIES))
def test_after_a_lie_in_redis_a_newer_base_gets_in(kb, redis, tmp_path, lie):
    load(kb)
    settle()
    LIES[lie](kb, tmp_path / "ran")
    for text in ("一", "二"):
        make_document(kb, text)
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    new_process()
    loaded = load(kb)
    assert_as_built(loaded, kb)
    assert loaded.detail["cache_tier"] == "redis"


def test_a_lie_in_both_shared_tiers_leads_to_a_build_that_replaces_it(kb, redis, caplog, tmp_path):
    load(kb)
    settle()
    forged = own_codec().seal(str(key(kb)), Harmless(tmp_path / "ran"))
    set_entry(kb, forged)
    BM25Index.objects.update(payload=forged)
    new_process()
    caplog.clear()

    tiers = [tier(kb)]
    settle()
    assert len(warnings(caplog)) == 2  # one for each tier
    new_process()
    tiers.append(tier(kb))
    caches["bm25"].clear()
    new_process()
    tiers.append(tier(kb))

    assert tiers == ["build", "redis", "database"]
    assert not (tmp_path / "ran").exists()


def test_a_damaged_pointer_does_not_keep_a_base_from_being_invalidated(kb, redis):
    load(kb)
    settle()
    set_pointer(kb, b"\xff\xfe")
    BM25Store().invalidate(kb.pk)
    assert tier(kb) == "build"
