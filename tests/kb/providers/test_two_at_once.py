"""Two superusers at once."""

from functools import partial

import pytest

from kb.models import ProviderModel
from kb.providers.recommended import Role
from kb.providers.services import provider_model_create, provider_model_set_default
from tests.factories import make_user
from tests.interleaving import Gate, Running, until_somebody_waits_for_a_lock

pytestmark = pytest.mark.django_db(transaction=True)


def test_of_two_who_choose_a_default_the_last_one_has_it(monkeypatch):
    root = make_user("root", superuser=True)
    _first, second, third = (
        provider_model_create(
            user=root, role=Role.CHAT, name=name, provider="openai", model=name, base_url="https://203.0.114.7/v1"
        )
        for name in ("first", "second", "third")
    )
    gate = Gate(monkeypatch, ProviderModel, "save", after=True)
    one = Running(partial(provider_model_set_default, second, user=root))
    gate.wait()
    other = Running(partial(provider_model_set_default, third, user=root))
    until_somebody_waits_for_a_lock()
    gate.open()

    assert (one.outcome(), other.outcome()) == (None, None)
    assert [each.name for each in ProviderModel.objects.filter(is_default=True)] == ["third"]
