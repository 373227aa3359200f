import pytest

from kb.providers.usage.counting import counted_for, flush
from retrieval.usage import Use, report
from tests.factories import make_api_key, make_kb, make_user

pytestmark = pytest.mark.django_db
URL = "/api/v1/models/usage/"


def ask(client, user, query="", *bases):
    _key, secret = make_api_key(user, *bases)
    return client.get(URL + query, headers={"authorization": f"Bearer {secret}"})


def test_superusers_see_what_models_were_asked(client):
    root = make_user("root", superuser=True)
    kb = make_kb(name="handbook")
    with counted_for(kb.pk):
        report(Use("chat", "m", 10, 2))
    flush()

    assert ask(client, root).json() == [
        {
            "role": "chat",
            "model": "m",
            "requests": 1,
            "input_tokens": 10,
            "output_tokens": 2,
            "estimated_tokens": 0,
            "knowledge_base_id": kb.pk,
            "knowledge_base": "handbook",
        }
    ]
    assert ask(client, root, "?days=0").status_code == 400


def test_nobody_else_does(client):
    root = make_user("root", superuser=True)

    assert ask(client, make_user("other")).status_code == 403
    assert ask(client, root, "", make_kb(owner=root)).status_code == 403
    assert client.get(URL).status_code == 401
