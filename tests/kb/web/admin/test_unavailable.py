import pytest
from django.db import OperationalError, connection
from django.db.models.signals import pre_save
from django.urls import reverse

from kb.base.errors import NotAllowed, NotVisible
from kb.graph.admin.entities import EntityAdmin
from kb.graph.services.entities import entity_update
from kb.models import Entity, EvalSet, KnowledgeBase
from tests.factories import make_kb, make_user
from tests.interleaving import Running

pytestmark = pytest.mark.django_db


@pytest.fixture
def out_of_reach():
    """Statements that fail as those of a database that was stopped."""

    def refuse(*_arguments):
        raise OperationalError("terminating connection due to administrator command")

    with connection.execute_wrapper(refuse):
        yield


@pytest.mark.parametrize("name", ["admin:index", "admin:kb_document_changelist", "admin:search_debug"])
def test_a_page_without_a_database_says_when_to_come_back(client, out_of_reach, name):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"
    client.cookies["sessionid"] = "of-somebody"

    response = client.get(reverse(name))

    assert response.status_code == 503
    assert response.headers["Retry-After"] == "30"
    assert "The database is out of reach" in response.content.decode()
    assert "manage.py doctor" in response.content.decode()


def test_with_its_database_the_page_is_there(client):
    client.force_login(make_user(superuser=True))
    assert client.get(reverse("admin:index")).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_form_whose_knowledge_base_is_deleted_at_the_same_moment_may_be_sent_again(client):
    kb = make_kb()
    client.force_login(kb.owner)
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"

    def delete_first(**_signal):
        assert Running(KnowledgeBase.objects.filter(pk=kb.pk).delete).outcome() is None

    pre_save.connect(delete_first, sender=EvalSet)
    try:
        response = client.post(reverse("admin:kb_evalset_add"), {"knowledge_base": kb.pk, "name": "questions"})
    finally:
        pre_save.disconnect(delete_first, sender=EvalSet)

    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert "was deleted at the same moment, and nothing was changed" in response.content.decode()
    assert not EvalSet.objects.exists()


@pytest.fixture
def sent(client, monkeypatch):
    """Sends the form of an entity, before whose saving something happens; returns status and text of the answer."""

    def send(before):
        entity = entity_update(Entity(knowledge_base=make_kb()), name="IBM")
        client.force_login(entity.knowledge_base.owner)
        client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"
        real = EntityAdmin.save_model

        def save(*arguments):
            before(entity)
            real(*arguments)

        monkeypatch.setattr(EntityAdmin, "save_model", save)
        form = {"name": "ibm", "kind": "", "aliases": "", "description": ""}
        response = client.post(reverse("admin:kb_entity_change", args=[entity.pk]), form)
        return response.status_code, response.content.decode()

    return send


def test_a_row_that_is_deleted_while_its_form_is_sent_is_not_found(sent):
    status, page = sent(lambda entity: entity.delete())
    assert (status, "This page does not exist" in page) == (404, True)
    assert Entity.objects.get().name == "IBM"  # the deletion here was part of what was undone


@pytest.mark.parametrize(("error", "status"), [(NotVisible, 404), (NotAllowed, 403)])
def test_a_right_that_ends_while_a_form_is_sent_is_told(sent, error, status):
    def refuse(_entity):
        raise error

    assert sent(refuse)[0] == status
    assert Entity.objects.get().name == "IBM"
