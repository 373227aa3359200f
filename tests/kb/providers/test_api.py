import pytest

from kb.providers.services import provider_model_create
from tests.factories import make_kb, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]
KEY = "sk-very-secret-0123456789"


@pytest.fixture
def model(settings):
    settings.EMBEDDING_MODEL = "hashing"
    settings.RERANKER_MODEL = settings.LLM_API_KEY = ""
    settings.LLM_BASE_URL_IS_SET = False
    return provider_model_create(
        user=make_user("root", superuser=True),
        role="embedding",
        name="Ours",
        provider="openai",
        model="one",
        base_url="https://203.0.114.7/v1",
        api_key=KEY,
    )


def test_models_are_listed_without_address_and_key(client, model):
    client.force_login(make_user(staff=False))
    response = client.get("/api/v1/models/")

    assert response.status_code == 200
    assert [(each["id"], each["name"], each["usable"], each["is_default"]) for each in response.json()] == [
        (f"model:{model.slug}", "Ours", True, True),
        ("hashing", "By words (no model needed)", True, False),
    ]
    assert KEY not in response.text
    assert "203.0.114.7" not in response.text


def test_nobody_lists_models_without_signing_in(client, model):
    assert client.get("/api/v1/models/").status_code == 401


@pytest.mark.parametrize("spelling", ["{slug}", "model:{slug}"])
def test_a_knowledge_base_takes_a_slug(client, model, spelling):
    client.force_login(make_user())
    body = {"name": "Handbook", "embedding_model": spelling.format(slug=model.slug)}
    response = client.post("/api/v1/knowledge-bases/", body, content_type="application/json")
    assert response.status_code == 201
    assert response.json()["embedding_model"] == f"model:{model.slug}"


def test_a_model_that_is_unknown_here_is_refused_with_the_remedy(client, model):
    client.force_login(make_user())
    body = {"name": "Handbook", "embedding_model": "model:of-another-installation"}
    response = client.post("/api/v1/knowledge-bases/", body, content_type="application/json")
    assert response.status_code == 400
    assert "choose another one" in response.text


def test_owners_see_names_and_no_address_on_the_page_of_the_move(client, model):
    kb = make_kb()
    client.force_login(kb.owner)
    page = client.get(f"/admin/kb/knowledgebase/{kb.pk}/embedding-model/").content.decode()
    assert 'value="model:' + model.slug in page
    assert "Ours" in page
    assert KEY not in page
    assert "203.0.114.7" not in page
