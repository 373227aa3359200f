import sys

import pytest
from django.core import checks
from django.core.management import call_command

from kb.checks import embedded_servers, keyword_packages, model_libraries, secret_key


def ids(messages):
    return [message.id for message in messages]


@pytest.mark.parametrize("package", ["rank_bm25", "jieba", "Stemmer"])
def test_warns_when_a_package_of_keyword_search_is_missing(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    [warning] = keyword_packages(None)
    assert warning.id == "zhiku.W001"
    assert package in warning.msg
    assert "pip install" in warning.hint


@pytest.mark.parametrize("package", ["sentence_transformers", "torch"])
def test_warns_when_no_model_can_run(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    [warning] = model_libraries(None)
    assert warning.id == "zhiku.W002"
    assert "zhiku[models]" in warning.hint


def test_warns_of_a_key_from_a_file_in_production(settings, monkeypatch):
    monkeypatch.delenv("SECRET_KEY", raising=False)
    settings.DEBUG = False
    assert ids(secret_key(None)) == ["zhiku.W003"]


def test_accepts_a_key_from_the_environment_in_production(settings, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "x" * 60)
    settings.DEBUG = False
    assert secret_key(None) == []


def test_accepts_a_key_from_a_file_in_development(settings, monkeypatch):
    monkeypatch.delenv("SECRET_KEY", raising=False)
    settings.DEBUG = True
    assert secret_key(None) == []


@pytest.mark.parametrize(
    ("debug", "embedded", "expected"),
    [(False, True, ["zhiku.E001"]), (True, True, []), (False, False, [])],
)
def test_refuses_embedded_servers_in_production(settings, debug, embedded, expected):
    settings.DEBUG, settings.EMBEDDED = debug, embedded
    assert ids(embedded_servers(None)) == expected


def test_the_checks_run_with_every_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    assert "zhiku.W001" in ids(checks.run_checks())


def test_a_complete_installation_has_nothing_to_remark(settings):
    settings.DEBUG = True
    call_command("check", fail_level="WARNING")
