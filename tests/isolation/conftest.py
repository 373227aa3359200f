from datetime import timedelta

import pytest


@pytest.fixture(autouse=True)
def _settings(settings, monkeypatch):
    from tests.parser import run_in_process

    run_in_process(monkeypatch)
    settings.LANGUAGE_CODE = "en"


@pytest.fixture(autouse=True)
def _settled(db):
    """Logs are written and indexes are published in the background: neither may outlive its test's database."""
    from kb.search.services import search_log
    from tests.kb.index.searching import settle

    yield
    search_log.flush()
    settle()


@pytest.fixture
def world(db):
    """Two tenants with one object of each kind."""
    from tests.isolation.world import make_world

    return make_world()


@pytest.fixture(scope="module")
def _world_of_the_file(django_db_setup, django_db_blocker, tmp_path_factory):
    from django.test import override_settings

    from tests.isolation.world import make_world
    from tests.standing import standing

    media = tmp_path_factory.mktemp("media")
    with override_settings(MEDIA_ROOT=media, LANGUAGE_CODE="en"), standing(django_db_blocker):
        yield make_world(), media


@pytest.fixture(scope="module")
def world_of_the_file(_world_of_the_file):
    """What fixtures add to it stands as long."""
    world, _media = _world_of_the_file
    return world


@pytest.fixture
def standing_world(_world_of_the_file, settings):
    """One world for all tests of a file, which take back each request."""
    world, settings.MEDIA_ROOT = _world_of_the_file
    return world


@pytest.fixture
def callers(world):
    return make_callers(world)


def make_callers(world):
    """Clients of the first tenant by how they authenticate; the scope of the last forbids writing."""
    from django.utils import timezone
    from rest_framework.test import APIClient

    from kb.models import ApiKey
    from tests.factories import make_api_key

    session = APIClient()
    session.force_login(world.mine.user)
    keys = {
        "unbound key": make_api_key(world.mine.user, scope="write"),
        "bound key": make_api_key(world.mine.user, world.mine.kb, scope="write"),
        "read key": make_api_key(world.mine.user, scope="read"),
    }
    # The first use of a key is written, and each request is rolled back.
    used_at = timezone.now() + timedelta(hours=1)
    ApiKey.objects.filter(pk__in=[key.pk for key, _secret in keys.values()]).update(last_used_at=used_at)
    headers = {name: {"Authorization": f"Bearer {secret}"} for name, (_key, secret) in keys.items()}
    return {"session": session, **{name: APIClient(headers=each) for name, each in headers.items()}}


@pytest.fixture
def browser(world, client):
    """The first tenant in the admin."""
    client.force_login(world.mine.user)
    return client
