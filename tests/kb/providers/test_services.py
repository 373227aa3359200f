"""Models as rows: who may write them, what they must be, and what of them is never told."""

import pytest
from django.db import connection

from kb.access.models import AuditEntry, KnowledgeBase
from kb.access.services.attribution import How, acting
from kb.base.encryption import decrypted
from kb.base.errors import NotAllowed, Rejected
from kb.providers import endpoints
from kb.providers.embedding_models import (
    default_embedding_model,
    embedding_choices,
    generator,
    label_of,
    require_embedding_model,
)
from kb.providers.endpoints import endpoint_of
from kb.providers.models import ProviderModel
from kb.providers.recommended import Role
from kb.providers.services import (
    environment_models_sync,
    provider_model_create,
    provider_model_delete,
    provider_model_set_default,
    provider_model_update,
)
from tests.factories import make_kb, make_user

KEY = "sk-very-secret-0123456789"

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]


@pytest.fixture(autouse=True)
def no_environment(settings):
    settings.EMBEDDING_MODEL = "hashing"
    settings.RERANKER_MODEL = settings.RERANK_BASE_URL = settings.VISION_MODEL = settings.LLM_API_KEY = ""
    settings.LLM_BASE_URL_IS_SET = False


@pytest.fixture
def root():
    return make_user("root", superuser=True)


def create(user, role=Role.CHAT, **fields):
    given = {
        "name": "Ours",
        "provider": "openai",
        "model": "org/Model One",
        "base_url": "https://203.0.114.7/v1",
        "api_key": KEY,
    }
    return provider_model_create(user=user, role=role, **given | fields)


def refusal(*args, **fields):
    with pytest.raises(Rejected) as refused:
        create(*args, **fields)
    return refused.value


# -- Rights ------------------------------------------------------------------------------------------------------------
def test_only_superusers_write_models(root):
    row, owner = create(root), make_user("owner")
    make_kb(owner)

    with pytest.raises(NotAllowed):
        create(owner, name="Mine")
    with pytest.raises(NotAllowed):
        provider_model_update(row, user=owner, base_url="https://203.0.114.8/v1")
    with pytest.raises(NotAllowed):
        provider_model_set_default(row, user=owner)
    with pytest.raises(NotAllowed):
        provider_model_delete(row, user=owner)
    assert ProviderModel.objects.get().base_url == "https://203.0.114.7/v1"


# -- Keys --------------------------------------------------------------------------------------------------------------
def test_the_key_is_encrypted_and_shows_nowhere(root):
    with acting(How.ADMIN, user=root):
        row = create(root)
        provider_model_update(row, user=root, api_key="sk-another-secret")

    stored = ProviderModel.objects.get()
    with connection.cursor() as cursor:
        cursor.execute("SELECT kb_providermodel::text FROM kb_providermodel")
        assert "secret" not in cursor.fetchone()[0]
    assert decrypted(stored.secrets) == {"api_key": "sk-another-secret"}
    assert "another-secret" not in repr(endpoint_of(stored)) + repr(stored.__dict__)
    entries = list(AuditEntry.objects.filter(object_type="provider_model").order_by("pk"))
    assert [each.action for each in entries] == ["create", "update"]
    assert entries[1].changes == {"secrets": [None, None]}
    assert KEY not in str(entries[0].changes)


def test_a_key_goes_to_the_server_that_it_was_given_for(root):
    row = create(root)

    with pytest.raises(Rejected) as refused:
        provider_model_update(row, user=root, base_url="https://203.0.114.9/v1")
    assert refused.value.code == "api_key_needed"

    provider_model_update(row, user=root, base_url="https://203.0.114.9/v1", api_key="sk-new")
    provider_model_update(row, user=root, base_url="https://203.0.114.9/v2")  # the same server
    assert endpoint_of(ProviderModel.objects.get()).api_key == "sk-new"


def test_a_key_of_another_secret_key_is_asked_for_again(root, settings):
    row = create(root, Role.EMBEDDING)
    kept = row.secrets
    settings.SECRET_KEY = "another one"
    endpoints.forget()

    [choice] = [each for each in embedding_choices() if each.slug == row.slug]
    assert not choice.usable
    assert "enter it again" in choice.reason
    with pytest.raises(Rejected):
        require_embedding_model(row.slug)

    provider_model_update(row, user=root, api_key=KEY)
    assert row.secrets != kept
    assert require_embedding_model(row.slug) == f"model:{row.slug}"


# -- What a row must be ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("http://169.254.169.254/latest", "base_url_refused"),
        ("http://[fd00:ec2::254]/v1", "base_url_refused"),
        ("http://100.100.100.200/v1", "base_url_refused"),
        ("http://[::ffff:169.254.169.254]/v1", "base_url_refused"),
        ("http://0.0.0.0:8000/v1", "base_url_refused"),
        ("http://Metadata.Google.Internal./v1", "base_url_refused"),
        ("http://2852039166/v1", "base_url_refused"),
        ("ftp://example.org/", "base_url_refused"),
        ("https://user:pass@203.0.114.7/v1", "base_url_refused"),
        ("", "base_url_refused"),
    ],
)
def test_addresses_that_no_model_may_have(root, address, code):
    assert refusal(root, base_url=address, allows_private=True).code == code


@pytest.mark.parametrize("address", ["http://127.0.0.1:11434/v1", "http://192.168.3.4:8000/v1", "http://[fd12::1]/v1"])
def test_a_private_address_is_confirmed_first(root, address):
    assert refusal(root, base_url=address).code == "allows_private_needed"
    assert create(root, base_url=address, allows_private=True).base_url == address


def test_a_key_is_not_sent_over_http_to_a_public_address(root):
    assert refusal(root, base_url="http://203.0.114.7/v1").code == "base_url_plain"
    assert create(root, base_url="http://203.0.114.7/v1", api_key="").pk


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": " "}, "name_invalid"),
        ({"model": " "}, "model_invalid"),
        ({"role": "poet"}, "role_invalid"),
        ({"provider": "local"}, "role_invalid"),
        ({"provider": "local", "role": Role.RERANK, "model": "/etc/passwd", "api_key": ""}, "model_invalid"),
        ({"options": {"temperature": 5}}, "options_invalid"),
        ({"options": {"fields": {"messages": []}}}, "options_invalid"),
        ({"options": {"form": "jina"}}, "options_invalid"),
        ({"role": Role.RERANK, "options": {"form": "none"}}, "options_invalid"),
        ({"role": Role.EMBEDDING, "options": {"dimensions": 4_001}}, "options_invalid"),
        ({"role": Role.EMBEDDING, "options": {"batch_size": True}}, "options_invalid"),
        ({"api_key": "sk-ключ"}, "api_key_invalid"),
    ],
)
def test_a_row_that_cannot_be_asked_is_refused(root, fields, code):
    assert refusal(root, **fields).code == code


def test_names_are_once_for_a_role(root):
    create(root)
    assert refusal(root).code == "name_taken"
    assert create(root, Role.RERANK).name == "Ours"


def test_what_vectors_depend_on_does_not_change(root):
    row = create(root, Role.EMBEDDING, options={"batch_size": 10})

    for changes in ({"model": "another"}, {"provider": "ollama"}, {"options": {"dimensions": 256}}, {"role": "rerank"}):
        with pytest.raises(Rejected) as refused:
            provider_model_update(row, user=root, **changes)
        assert refused.value.code == "model_fixed"
    provider_model_update(row, user=root, name="Renamed", options={"batch_size": 25})
    assert label_of(f"model:{row.slug}") == "Renamed"


def test_a_chat_model_may_become_another(root):
    row = create(root)
    provider_model_update(row, user=root, model="two")
    assert generator(row.slug).model == "two"


# -- In use ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("column", ["embedding_model", "target_embedding_model", "previous_embedding_model"])
def test_a_model_that_is_used_stays(root, column):
    row = create(root, Role.EMBEDDING)
    kb = make_kb(root, name="Handbook")
    KnowledgeBase.objects.filter(pk=kb.pk).update(**{column: f"model:{row.slug}"})

    with pytest.raises(Rejected, match="Handbook") as refused:
        provider_model_delete(row, user=root)
    assert refused.value.code == "in_use"
    with pytest.raises(Rejected, match="Handbook"):
        provider_model_update(row, user=root, is_enabled=False)
    assert ProviderModel.objects.get().is_enabled


def test_a_slug_is_never_given_again(root):
    first = create(root, Role.EMBEDDING)
    provider_model_delete(first, user=root)
    assert create(root, Role.EMBEDDING).slug != first.slug


# -- Defaults ----------------------------------------------------------------------------------------------------------
def test_the_first_model_of_a_role_is_its_default(root):
    first, second = create(root), create(root, name="Second", model="second")
    assert generator().model == "org/Model One"
    provider_model_set_default(second, user=root)
    assert generator().model == "second"
    assert generator(first.slug).model == "org/Model One"
    assert list(ProviderModel.objects.filter(is_default=True)) == [second]


def test_a_model_of_the_environment_stays_the_default_until_another_is_chosen(root, settings):
    settings.LLM_API_KEY, settings.LLM_BASE_URL, settings.LLM_MODEL = "sk-env", "https://203.0.114.1/v1", "env-chat"
    row = create(root)
    assert generator().model == "env-chat"

    provider_model_set_default(row, user=root)
    assert generator().model == "org/Model One"

    environment_models_sync()
    provider_model_set_default(ProviderModel.objects.get(variable="LLM_MODEL"), user=root)
    assert generator().model == "env-chat"


def test_new_knowledge_bases_start_on_the_default_embedding_model(root):
    assert default_embedding_model() == "hashing"
    row = create(root, Role.EMBEDDING)
    assert default_embedding_model() == f"model:{row.slug}"


def test_a_model_that_is_switched_off_is_no_default(root):
    row = create(root)
    provider_model_update(row, user=root, is_enabled=False)
    assert generator() is None
    with pytest.raises(Rejected):
        provider_model_set_default(row, user=root)


# -- The environment's -------------------------------------------------------------------------------------------------
def test_rows_of_the_environment_follow_it_and_hold_no_key(root, settings):
    settings.LLM_API_KEY, settings.LLM_BASE_URL, settings.LLM_MODEL = KEY, "https://user:pw@203.0.114.1/v1", "env-chat"
    settings.RERANK_BASE_URL, settings.RERANK_MODEL = "http://127.0.0.1:9/v1", "ranker"
    environment_models_sync()

    rows = {row.variable: row for row in ProviderModel.objects.all()}
    assert {name: row.model for name, row in rows.items()} == {"LLM_MODEL": "env-chat", "RERANK_BASE_URL": "ranker"}
    assert (rows["LLM_MODEL"].secrets, rows["LLM_MODEL"].base_url) == ("", "https://203.0.114.1/v1")
    assert endpoint_of(rows["LLM_MODEL"]).api_key == KEY
    with pytest.raises(Rejected, match="LLM_MODEL"):
        provider_model_update(rows["LLM_MODEL"], user=root, name="Mine")
    with pytest.raises(Rejected, match="LLM_MODEL"):
        provider_model_delete(rows["LLM_MODEL"], user=root)

    ProviderModel.objects.filter(variable="LLM_MODEL").update(test_ok=True)
    settings.RERANK_BASE_URL, settings.LLM_MODEL = "", "env-other"
    environment_models_sync()
    [row] = ProviderModel.objects.all()
    assert (row.model, row.test_ok) == ("env-other", None)
    assert not AuditEntry.objects.filter(object_type="provider_model").exists()
