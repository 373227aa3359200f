import pytest
from django.urls import reverse

from kb.models import Concept, Document, GraphFact, Membership
from tests.factories import make_document, make_kb, make_member, make_user

PAGES = ("change", "delete", "history")


MODELS = ("knowledgebase", "document", "chunk", "concept", "graphfact")


@pytest.fixture
def strange(foreign):
    """The keys of a stranger's objects, by model."""
    kb = foreign.knowledge_base
    fact = GraphFact.objects.create(knowledge_base=kb, subject="stranger-a", predicate="is", object="stranger-b")
    return {
        "knowledgebase": kb.pk,
        "document": foreign.pk,
        "chunk": foreign.chunks.first().pk,
        "concept": Concept.objects.create(knowledge_base=kb, name="stranger-idea").pk,
        "graphfact": fact.pk,
    }


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("model", MODELS)
def test_an_object_of_a_stranger_does_not_exist(client, foreign, strange, model, page):
    url = reverse(f"admin:kb_{model}_{page}", args=[strange[model]])

    assert client.get(url).status_code == 404
    assert client.post(url, {"post": "yes", "title": "mine", "text": "mine", "name": "mine"}).status_code == 404
    assert Document.objects.get(pk=foreign.pk).title == "stranger-title"


@pytest.mark.parametrize("page", PAGES)
def test_an_object_that_never_existed_is_answered_the_same(client, page):
    assert client.get(reverse(f"admin:kb_document_{page}", args=[999_999])).status_code == 404


@pytest.mark.parametrize("page", PAGES)
def test_an_id_that_is_none_is_not_found(client, page):
    assert client.get(reverse(f"admin:kb_document_{page}", args=["none"])).status_code == 404


@pytest.mark.parametrize("model", [*MODELS, "searchlog", "apikey"])
def test_lists_and_their_filters_hold_nothing_of_a_stranger(client, document, strange, model):
    page = client.get(reverse(f"admin:kb_{model}_changelist")).content.decode()

    assert "stranger" not in page
    assert "Secret text" not in page


@pytest.mark.parametrize("model", ["document", "chunk", "concept", "graphfact"])
def test_a_filter_for_a_stranger_s_knowledge_base_finds_and_names_nothing(client, document, foreign, strange, model):
    url = reverse(f"admin:kb_{model}_changelist")

    page = client.get(url, {"knowledge_base__id__exact": foreign.knowledge_base_id}).content.decode()

    assert "stranger" not in page
    assert "result_list" not in page


def test_the_document_filter_does_not_name_a_stranger_s_document(client, document, foreign):
    page = client.get(reverse("admin:kb_chunk_changelist"), {"document__id__exact": foreign.pk}).content.decode()

    assert "stranger" not in page


def test_searching_finds_nothing_of_a_stranger(client, document, foreign):
    page = client.get(reverse("admin:kb_chunk_changelist"), {"q": "Secret"}).content.decode()

    assert "Secret text" not in page


def test_autocomplete_offers_only_visible_documents(client, document, foreign):
    parameters = {"app_label": "kb", "model_name": "chunk", "field_name": "document", "term": ""}

    results = client.get(reverse("admin:autocomplete"), parameters).json()["results"]

    assert [each["text"] for each in results] == ["Contracts"]


def test_a_superuser_sees_everything(client, document, foreign):
    client.force_login(make_user(superuser=True))

    page = client.get(reverse("admin:kb_document_changelist")).content.decode()

    assert "Contracts" in page
    assert "stranger-title" in page
    assert client.get(reverse("admin:kb_document_change", args=[foreign.pk])).status_code == 200


def test_a_user_who_is_not_staff_stays_outside(client, document):
    client.force_login(make_user(staff=False))

    assert client.get(reverse("admin:kb_document_changelist")).status_code == 302


@pytest.mark.parametrize("model", MODELS)
def test_a_viewer_reads_and_cannot_edit(client, curator, foreign, strange, model):
    make_member(foreign.knowledge_base, user=curator)
    url = reverse(f"admin:kb_{model}_change", args=[strange[model]])

    page = client.get(url)

    assert page.status_code == 200
    assert 'name="_save"' not in page.content.decode()
    assert client.post(url, {"title": "mine", "text": "mine", "name": "mine"}).status_code == 403


@pytest.mark.parametrize("model", MODELS)
def test_a_viewer_cannot_delete(client, curator, foreign, strange, model):
    make_member(foreign.knowledge_base, user=curator)

    url = reverse(f"admin:kb_{model}_delete", args=[strange[model]])

    assert client.post(url, {"post": "yes"}).status_code == 403


def test_an_editor_edits_but_does_not_delete_the_knowledge_base(client, curator, foreign):
    make_member(foreign.knowledge_base, Membership.Role.EDITOR, curator)

    page = client.get(reverse("admin:kb_knowledgebase_change", args=[foreign.knowledge_base_id])).content.decode()
    deletion = client.post(reverse("admin:kb_knowledgebase_delete", args=[foreign.knowledge_base_id]), {"post": "yes"})

    assert 'name="_save"' in page
    assert "/sharing/" not in page
    assert deletion.status_code == 403


def test_a_bulk_deletion_passes_over_what_the_user_may_not_delete(client, curator, document, foreign):
    make_member(foreign.knowledge_base, user=curator)
    chosen = {"action": "delete_selected", "_selected_action": [document.pk, foreign.pk]}

    page = client.post(reverse("admin:kb_document_changelist"), chosen)
    client.post(reverse("admin:kb_document_changelist"), {**chosen, "post": "yes"})

    assert f'value="{foreign.pk}"' not in page.content.decode()
    assert list(Document.objects.all()) == [foreign]


def test_a_bulk_deletion_of_nothing_that_is_allowed_says_so(client, curator, foreign):
    make_member(foreign.knowledge_base, user=curator)
    chosen = {"action": "delete_selected", "_selected_action": [foreign.pk], "post": "yes"}

    page = client.post(reverse("admin:kb_document_changelist"), chosen, follow=True, headers={"accept-language": "en"})

    assert "1 selected row was passed over" in page.content.decode()
    assert Document.objects.filter(pk=foreign.pk).exists()


@pytest.mark.parametrize("model", MODELS)
def test_a_long_list_takes_few_queries(client, kb, django_assert_max_num_queries, model):
    for number in range(8):
        make_document(kb, f"text {number}", f"more {number}", title=f"title {number}")
        make_kb(kb.owner, f"base {number}")
        Concept.objects.create(knowledge_base=kb, name=f"concept {number}")
        GraphFact.objects.create(knowledge_base=kb, subject=f"subject {number}", predicate="is", object="x")

    with django_assert_max_num_queries(12):
        client.get(reverse(f"admin:kb_{model}_changelist"))
