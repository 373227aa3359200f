"""The key of an installation is replaced, or another one's backup restored."""

import json

import pytest
from django.core.management import CommandError, call_command

from kb.base.encryption import decrypted
from kb.operations.services.secrets import Unreadable, secrets_rotate, unreadable_secrets
from kb.providers.services import provider_model_create
from kb.sources.models import Source
from tests.factories import make_kb, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]


@pytest.fixture
def rows():
    root = make_user("root", superuser=True)
    model = provider_model_create(
        user=root,
        role="chat",
        name="Ours",
        provider="openai",
        model="one",
        base_url="https://203.0.114.7/v1",
        api_key="sk-1",
    )
    source = Source(knowledge_base=make_kb(root), name="Shelf", kind=Source.Kind.WEBDAV, secrets={"password": "p"})
    source.save()
    source.refresh_from_db()
    return model, source


def test_all_secrets_move_to_the_new_key(rows, settings):
    former = settings.SECRET_KEY
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the new one", [former]

    done = secrets_rotate()
    assert (done.renewed, done.current, done.unreadable) == (2, 0, [])
    assert secrets_rotate().current == 2

    settings.SECRET_KEY_FALLBACKS = []
    for row in rows:
        row.refresh_from_db()
    assert [decrypted(row.secrets) for row in rows] == [{"api_key": "sk-1"}, {"password": "p"}]


def test_what_no_key_opens_is_named_and_stays(rows, settings, capsys):
    former = settings.SECRET_KEY
    settings.SECRET_KEY = "the new one"
    lost = [Unreadable("provider_model", rows[0].pk, "Ours"), Unreadable("source", rows[1].pk, "Shelf")]

    assert sorted(unreadable_secrets(), key=lambda each: each.kind) == lost
    with pytest.raises(CommandError, match="SECRET_KEY_FALLBACKS"):
        call_command("rotate_secrets", json=True)
    assert json.loads(capsys.readouterr().out)["renewed"] == 0

    settings.SECRET_KEY = former
    assert unreadable_secrets() == []
