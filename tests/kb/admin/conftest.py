"""The fixtures of pages of the admin."""

import pytest
from django.core.cache import cache

from tests.kb.admin_fixtures import *  # noqa: F403


@pytest.fixture
def empty_cache():
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def superuser(client):
    from tests.factories import make_user

    user = make_user("root", superuser=True)
    client.force_login(user)
    return user
