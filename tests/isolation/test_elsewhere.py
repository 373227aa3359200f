"""Callers that come by no route: Python, LangChain, agents' tools, commands; and the caches below all of them."""

import io
import json
import zipfile

import pytest
from django.core.management import CommandError, call_command

from kb.agents.mcp import outputs
from kb.answers.services.answers import AskRequest, answer
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.base.shapes import as_values
from kb.index.bm25 import BM25Store
from kb.models import ApiKey, Chunk, Membership, SearchLog, SearchProvider
from kb.operations.services.archives.export import export_open
from kb.rag import RAGService
from kb.search.services.replay import replay
from kb.search.services.search import SearchRequest, respond
from tests.factories import make_document, make_kb, make_user, principal
from tests.isolation.world import STRANGER
from tests.kb.index.searching import find

pytestmark = pytest.mark.django_db
REFUSALS = (NotVisible, NotAllowed, Rejected)
QUERY = "Who rents a bicycle?"


def refused(call):
    with pytest.raises(REFUSALS) as error:
        call()
    assert STRANGER not in str(error.value)
    return str(error.value)


def texts(found):
    return json.dumps(found, ensure_ascii=False, default=str)


# -- Python, LangChain, agents -------------------------------------------------------------------------------------------


def by_python(service, ids, user_id):
    kb = ids["kb"]
    return {
        "search": lambda: service.search(QUERY, kb, user_id),
        "search several": lambda: service.search_multiple_knowledge_bases(QUERY, [kb], user_id),
        "ask": lambda: service.ask(QUERY, [kb], user_id),
        "continue": lambda: service.ask(QUERY, [], user_id, conversation_id=ids["conversation"]),
        "vector store": lambda: service.get_vector_store(user_id, kb),
        "retriever": lambda: service.get_retriever(user_id, kb, 3),
    }


@pytest.mark.parametrize("name", ["search", "search several", "ask", "continue", "vector store", "retriever"])
def test_python_callers_are_told_what_a_missing_object_is_told(world, name):
    before = world.state()
    user_id = world.mine.user.pk

    found = refused(by_python(RAGService(), world.theirs.ids, user_id)[name])
    other = refused(by_python(RAGService(), world.missing, user_id)[name])

    assert found.replace(str(world.theirs.ids["kb"]), "#") == other.replace(str(world.missing["kb"]), "#")
    assert world.state() == before


def test_a_profile_of_another_is_none(world):
    for ids in (world.theirs.ids, world.missing):
        service = RAGService(profile=str(ids["profile_name"]))
        with pytest.raises(NotVisible):
            service.search(QUERY, world.mine.kb.pk, world.mine.user.pk)


def test_a_vector_store_reads_and_deletes_its_own_texts_only(world):
    store = RAGService().get_vector_store(world.mine.user.pk, world.mine.kb.pk)
    ids = [str(world.theirs.ids[kind]) for kind in ("document", "chunk")]
    before = world.state()

    assert store.get_by_ids(ids) == []
    store.delete(ids)

    assert world.state() == before


@pytest.mark.parametrize("scope", [{}, {"kb_ids": True}, {"can_write": False}])
def test_the_tools_of_agents_open_what_the_key_opens(world, scope):
    kb_ids = frozenset([world.mine.kb.pk]) if "kb_ids" in scope else None
    caller = principal(world.mine.user, kb_ids=kb_ids, can_write=scope.get("can_write", True))

    listed = outputs.list_knowledge_bases(caller, 0, 100)

    assert STRANGER not in listed.model_dump_json()
    refused(lambda: outputs.read_document(caller, world.theirs.ids["document"], 0, 20))
    refused(lambda: outputs.search(caller, SearchRequest(query=QUERY, knowledge_base_ids=[world.theirs.ids["kb"]])))


# -- Caches --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_sources(world):
    """Responses that tell of a source which could not be asked are not kept."""
    SearchProvider.objects.update(enabled=False)


def response(user, *kbs, **fields):
    request = SearchRequest(query=QUERY, knowledge_base_ids=[kb.pk for kb in kbs], **fields)
    return as_values(respond(principal(user), request))


@pytest.mark.usefixtures("without_sources")
def test_the_same_query_of_two_tenants_finds_each_one_s_own(world):
    first, again = (response(world.theirs.user, world.theirs.kb) for _ in range(2))
    mine, mine_again = (response(world.mine.user, world.mine.kb) for _ in range(2))

    assert STRANGER in texts(first)
    assert [each["cached"] for each in (first, again, mine, mine_again)] == [False, True, False, True]
    assert STRANGER not in texts([mine, mine_again])


@pytest.mark.usefixtures("without_sources")
def test_a_cached_response_is_not_served_once_the_right_is_gone(world):
    member = Membership.objects.create(user=world.mine.user, knowledge_base=world.theirs.kb)
    assert STRANGER in texts(response(world.mine.user, world.theirs.kb))
    assert response(world.mine.user, world.theirs.kb)["cached"]

    member.delete()

    with pytest.raises(NotVisible):
        response(world.mine.user, world.theirs.kb)


@pytest.mark.usefixtures("without_sources")
def test_a_cached_response_of_several_is_not_served_to_who_sees_one(world):
    Membership.objects.create(user=world.theirs.user, knowledge_base=world.mine.kb)
    for is_cached in (False, True):
        assert response(world.theirs.user, world.mine.kb, world.theirs.kb)["cached"] is is_cached

    with pytest.raises(NotVisible):
        response(world.mine.user, world.mine.kb, world.theirs.kb)
    assert STRANGER not in texts(response(world.mine.user, world.mine.kb))


@pytest.mark.usefixtures("without_sources")
def test_a_cached_response_is_not_served_to_a_key_bound_elsewhere(world):
    for is_cached in (False, True):
        assert response(world.theirs.user, world.theirs.kb)["cached"] is is_cached
    caller = principal(world.theirs.user, kb_ids=frozenset([world.theirs.ids["kb2"]]))

    with pytest.raises(NotVisible):
        respond(caller, SearchRequest(query=QUERY, knowledge_base_ids=[world.theirs.kb.pk]))


def test_the_keyword_indexes_of_two_knowledge_bases_hold_their_own_chunks(world):
    for tenant in (world.theirs, world.mine, world.theirs, world.mine):  # built, then taken from a tier
        chunks = Chunk.objects.filter(knowledge_base=tenant.kb)
        with_the_word = set(chunks.filter(text__contains="bicycle").values_list("pk", flat=True))

        assert set(find(tenant.kb, "bicycle")) == with_the_word


def test_dropping_ones_own_index_leaves_the_other_s(world):
    before = world.state()

    BM25Store().invalidate(world.mine.kb.pk)

    assert world.state() == before


# -- What is kept of searches ------------------------------------------------------------------------------------------


def test_a_search_of_another_is_not_replayed(world):
    for ids in (world.theirs.ids, world.missing):
        with pytest.raises(NotVisible):
            replay(principal(world.mine.user), ids["trace"])


def test_ones_own_search_is_not_replayed_where_the_right_is_gone(world):
    member = Membership.objects.create(user=world.mine.user, knowledge_base=world.theirs.kb)
    found = response(world.mine.user, world.theirs.kb, explain=True)
    member.delete()

    assert SearchLog.objects.filter(pk=found["trace_id"], user=world.mine.user).exists()
    with pytest.raises(NotVisible):
        replay(principal(world.mine.user), found["trace_id"])


def test_a_conversation_of_another_is_not_continued(world):
    for ids in (world.theirs.ids, world.missing):
        request = AskRequest(query=QUERY, knowledge_base_ids=[world.mine.kb.pk], conversation_id=ids["conversation"])
        with pytest.raises(NotVisible):
            answer(principal(world.mine.user), request)


# -- Exports and commands -------------------------------------------------------------------------------------------------


def test_an_export_holds_its_own_knowledge_base_only(world):
    with export_open(principal(world.mine.user), world.mine.kb, vectors=True) as file:
        archive = zipfile.ZipFile(io.BytesIO(file.read()))

    for name in archive.namelist():
        assert STRANGER not in name
        assert STRANGER.encode() not in archive.read(name), name


def test_a_knowledge_base_of_another_is_not_exported(world):
    refused(lambda: export_open(principal(world.mine.user), world.theirs.kb))


def run(name, *arguments):
    out = io.StringIO()
    call_command(name, *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_a_command_with_an_owner_means_that_owner_s_knowledge_base(world):
    same = make_kb(world.mine.user, world.theirs.kb.name)
    make_document(same, "My own bicycle.")
    before = world.state()

    with pytest.raises(CommandError, match="--owner"):
        run("invalidate_cache", "--kb", same.name)
    run("invalidate_cache", "--kb", same.name, "--owner", world.mine.user.username)

    assert world.state() == before


@pytest.mark.parametrize("command", [("search", QUERY), ("why_not", QUERY, "--text", "bicycle")])
def test_a_command_for_a_user_has_that_user_s_rights(world, command):
    name, *arguments = command

    with pytest.raises(CommandError) as error:
        run(name, *arguments, "--kb", world.theirs.kb.name, "--user", world.mine.user.username)

    assert "bicycle in Vienna" not in str(error.value)


def test_a_key_that_a_command_makes_opens_only_what_its_user_sees(world):
    with pytest.raises(CommandError):
        run("create_api_key", "--name", "mine", "--user", world.mine.user.username, "--kb", world.theirs.kb.name)

    assert not ApiKey.objects.filter(user=world.mine.user, name="mine").exists()


def test_a_user_of_nothing_sees_nothing(world):
    stranger = principal(make_user())

    assert outputs.list_knowledge_bases(stranger, 0, 100).knowledge_bases == []
