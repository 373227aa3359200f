"""A store's server that takes connections and never answers holds up nobody else, and nobody for long."""

import socket
import threading

import pytest

from kb.index.mirrors.registry import StoreError, asked, mirror
from kb.models import KnowledgeBase
from kb.search.services.search import SearchRequest, search
from retrieval.errors import ChannelUnavailable, DegradationCode
from tests.factories import make_document, make_kb, principal
from tests.interleaving import PATIENCE

SEARCHES = 4


@pytest.fixture
def hanging(chroma, settings):
    """The address of ChromaDB is that of a server to which anybody may connect and which says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        settings.CHROMA_URL, settings.STORE_SECONDS = f"http://127.0.0.1:{server.getsockname()[1]}", 1.0
        yield server


def open_chroma():
    """Searches that do so at once, and the errors that they will have met in the end."""
    errors = []

    def open_it():
        try:
            mirror("chroma")
        except StoreError as error:
            errors.append(error)

    waiting = [threading.Thread(target=open_it) for _ in range(SEARCHES)]
    for thread in waiting:
        thread.start()
    return waiting, errors


@pytest.mark.usefixtures("hanging")
def test_opening_it_ends_in_time_for_all_who_wait_for_it():
    waiting, errors = open_chroma()

    for thread in waiting:
        thread.join(PATIENCE)

    assert len(errors) == SEARCHES


def test_opening_it_keeps_nobody_from_another_store(milvus, hanging, settings):
    mirror("milvus")
    settings.STORE_SECONDS = 10 * PATIENCE
    hanging.settimeout(PATIENCE)
    waiting, errors = open_chroma()
    connection, _address = hanging.accept()

    assert mirror("milvus").ping()
    assert errors == [], "the other store was to answer meanwhile"

    connection.close()
    hanging.close()
    for thread in waiting:
        thread.join(PATIENCE)
    assert len(errors) == SEARCHES


@pytest.mark.usefixtures("hanging")
def test_it_is_not_asked_again_for_a_while():
    for _ in range(2):
        with pytest.raises(ChannelUnavailable):
            asked("chroma", lambda each: each.ping())
    with pytest.raises(ChannelUnavailable, match="repeatedly"):
        asked("chroma", lambda each: each.ping())


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("hanging")
def test_a_search_is_answered_by_postgresql_and_says_so():
    kb = make_kb()
    make_document(kb, "保修期为两年")
    KnowledgeBase.objects.filter(pk=kb.pk).update(store="chroma")
    request = SearchRequest(query="保修期", knowledge_base_ids=[kb.pk], overrides={"score_threshold": 0}, log=False)

    result = search(principal(kb.owner), request).result

    assert [hit.passage.text for hit in result.hits] == ["保修期为两年"]
    assert DegradationCode.STORE_UNAVAILABLE in {each.code for each in result.degraded}
