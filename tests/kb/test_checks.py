import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core import checks
from django.core.management import call_command

from kb.checks import (
    embedded_servers,
    external_projects,
    hosts_of_this_machine,
    keyword_packages,
    known_forms,
    model_libraries,
    retrieval_settings,
    secret_key,
    signing_in,
    stores_of_one_process,
)

ROOT = Path(__file__).parents[2]


def ids(messages):
    return [message.id for message in messages]


@pytest.mark.parametrize("package", ["rank_bm25", "jieba", "Stemmer"])
def test_warns_when_a_package_of_keyword_search_is_missing(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    [warning] = keyword_packages()
    assert warning.id == "zhiku.W001"
    assert package in warning.msg
    assert "pip install" in warning.hint


@pytest.mark.parametrize("package", ["sentence_transformers", "torch"])
def test_warns_when_a_model_that_was_chosen_cannot_run(settings, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert list(model_libraries()) == []
    settings.MODELS_CHOSEN = ("EMBEDDING_MODEL",)
    [warning] = model_libraries()
    assert warning.id == "zhiku.W002"
    assert f"EMBEDDING_MODEL={settings.EMBEDDING_MODEL}" in warning.msg
    assert "zhiku[models]" in warning.hint


def test_warns_of_a_key_from_a_file_in_production(settings, monkeypatch):
    monkeypatch.delenv("SECRET_KEY", raising=False)
    settings.LOCAL = False
    assert ids(secret_key()) == ["zhiku.W003"]


def test_accepts_a_key_from_the_environment_in_production(settings, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "x" * 60)
    settings.LOCAL = False
    assert list(secret_key()) == []


def test_accepts_a_key_from_a_file_in_a_local_installation(settings, monkeypatch):
    monkeypatch.delenv("SECRET_KEY", raising=False)
    settings.LOCAL = True
    assert list(secret_key()) == []


@pytest.mark.parametrize(
    ("local", "embedded", "expected"),
    [(False, True, ["zhiku.E001"]), (True, True, []), (False, False, []), (True, False, [])],
)
def test_refuses_embedded_servers_where_others_are_served(settings, local, embedded, expected):
    settings.LOCAL, settings.EMBEDDED = local, embedded
    assert ids(embedded_servers()) == expected


@pytest.mark.parametrize("host", ["*", "zhiku.example", ".example", "192.0.2.1", "0.0.0.0", "localhost.example"])
@pytest.mark.parametrize(("debug", "local"), [(True, True), (True, False), (False, True)])
def test_refuses_hosts_of_others_with_debug_and_in_a_local_installation(settings, host, debug, local):
    settings.DEBUG, settings.LOCAL, settings.ALLOWED_HOSTS = debug, local, ["localhost", host]
    [error] = hosts_of_this_machine()
    assert error.id == "zhiku.E007"
    assert f"ALLOWED_HOSTS names {host}, and" in error.msg
    assert ("DEBUG is on" in error.msg) is debug


@pytest.mark.parametrize(
    ("debug", "local", "hosts"),
    [
        (True, True, ["localhost", "127.0.0.1", "[::1]", "127.8.9.1", ".localhost", "zhiku.localhost"]),
        (False, False, ["*"]),
    ],
)
def test_accepts_hosts_of_this_machine_and_any_where_others_are_served(settings, debug, local, hosts):
    settings.DEBUG, settings.LOCAL, settings.ALLOWED_HOSTS = debug, local, hosts
    assert list(hosts_of_this_machine()) == []


@pytest.mark.parametrize(
    ("name", "value", "variable"),
    [
        ("fusion", "sum", "HYBRID_FUSION"),
        ("rewrite", "sometimes", "REWRITE"),
        ("rerankers", ("cross-encoder",), "RERANKERS"),
        ("top_k", 0, "TOP_K"),
        ("general_final_count", 0, "GENERAL_RETRIEVAL_FINAL_COUNT"),
    ],
)
def test_refuses_a_setting_that_no_search_could_use(settings, name, value, variable):
    settings.RETRIEVAL = settings.RETRIEVAL | {name: value}
    [error] = retrieval_settings()
    assert error.id == "zhiku.E002"
    assert error.msg.startswith(f"{variable} cannot be used: ")
    assert variable in error.hint


def test_names_every_setting_that_is_wrong(settings):
    settings.RETRIEVAL = settings.RETRIEVAL | {"top_k": 0, "fusion": "sum"}
    assert ids(retrieval_settings()) == ["zhiku.E002"] * 2


def test_refuses_settings_that_are_wrong_together(settings):
    settings.RETRIEVAL = settings.RETRIEVAL | {"vector_weight": 0.0, "keyword_weight": 0.0}
    [error] = retrieval_settings()
    assert "give at least one channel a weight" in error.msg
    assert "RRF_KEYWORD_WEIGHT" in error.hint


@pytest.mark.parametrize(("form", "expected"), [("jina", []), ("tei", []), ("openai", ["zhiku.E003"])])
def test_refuses_a_form_that_no_known_forms_is_asked_in(settings, form, expected):
    settings.RERANK_FORM = form
    assert ids(known_forms()) == expected


def test_a_command_names_the_variables_that_it_cannot_run_with():
    wrong = {
        "HYBRID_FUSION": "sum",
        "RRF_VECTOR_WEIGHT": "-1",
        "RRF_KEYWORD_WEIGHT": "-1",
        "GENERAL_RETRIEVAL_FINAL_COUNT": "0",
        "REWRITE": "sometimes",
        "RERANKERS": "none",
        "RERANK_FORM": "openai",
        "API_RATE_LIMIT": "often",
        "API_ASK_RATE_LIMIT": "0/minute",
        "API_FAILURE_RATE_LIMIT": "60",
    }
    command = [sys.executable, "manage.py", "check"]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | wrong, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert [name for name in wrong if name not in run.stderr] == []


def test_the_checks_run_with_every_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    assert "zhiku.W001" in ids(checks.run_checks())


def test_a_complete_installation_has_nothing_to_remark(settings):
    settings.ALLOWED_HOSTS = ["localhost"]  # without the one that the test client has added
    call_command("check", fail_level="WARNING")


@pytest.mark.parametrize(
    ("local", "milvus", "chroma", "variables"),
    [
        (False, "/data/milvus.db", "", ["MILVUS_URI"]),
        (False, "milvus.db", "chroma", ["MILVUS_URI", "CHROMA_URL"]),
        (False, "http://milvus:19530", "https://chroma", []),
        (False, "", "", []),
        (True, "milvus.db", "chroma", []),
    ],
)
def test_warns_of_a_store_that_one_process_may_open_in_production(settings, local, milvus, chroma, variables):
    settings.LOCAL, settings.MILVUS_URI, settings.CHROMA_URL = local, milvus, chroma

    warnings = list(stores_of_one_process())

    assert ids(warnings) == ["zhiku.W005"] * len(variables)
    assert [each.hint.split()[1] for each in warnings] == variables


def test_warns_when_a_search_service_is_allowed_and_none_of_its_projects(settings):
    settings.EXTERNAL_PROVIDERS, settings.VERTEX_PROJECTS = ["vertex_ai_search"], []
    [warning] = external_projects()
    assert "VERTEX_PROJECTS" in warning.msg
    settings.VERTEX_PROJECTS = ["ours"]
    assert list(external_projects()) == []


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, []),
        ({"OIDC_ISSUER": "https://id.example.org", "OIDC_CLIENT_ID": "zhiku"}, []),
        ({"OIDC_ISSUER": "https://id.example.org"}, ["zhiku.E011"]),
        ({"OIDC_SCOPES": "profile email"}, ["zhiku.E012"]),
        ({"PASSWORD_LOGIN": False}, ["zhiku.W009"]),
        ({"OIDC_ISSUER": "https://id.example.org", "OIDC_CLIENT_ID": "zhiku", "PASSWORD_LOGIN": False}, []),
        ({"OIDC_ISSUER": "https://accounts.google.com", "OIDC_CLIENT_ID": "zhiku"}, ["zhiku.W010"]),
        (
            {"OIDC_ISSUER": "https://gitlab.com", "OIDC_CLIENT_ID": "zhiku", "OIDC_ALLOWED_GROUPS": ["ours"]},
            [],
        ),
    ],
)
def test_signing_in_locks_nobody_out_and_lets_not_everybody_in(settings, variables, found):
    for name, value in variables.items():
        setattr(settings, name, value)

    assert ids(signing_in()) == found
