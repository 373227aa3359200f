"""Every page, list, filter, button, action and deletion of every registered model, with rows present: none may fail."""

from dataclasses import dataclass, field
from urllib.parse import urldefrag, urlencode

import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.test import Client
from django.urls import reverse

from tests.factories import make_api_key, make_user
from tests.isolation.admin_rules import MODEL_KINDS
from tests.isolation.test_admin import ADDRESSES, kinds_of, with_content_type
from tests.kb.web.admin.forms import links_in, submissions_in

MODEL_ADMINS = list(admin.site._registry.values())
ROLES = ("superuser", "owner", "viewer")
ODD_VALUES = ("", "1", "-1", "x'", "99999999999999999999", "2020-01-01")
"""What somebody may write into the address of a list."""
MOST_SUBMISSIONS = 12
DIFFERENT_EACH_TIME = {"csrfmiddlewaretoken"}
"""Fields of a form which do not make it another submission."""
TERMS = ("bicycle", "a'b\"c%_\\", "章")


@pytest.fixture(scope="module")
def _standing(django_db_setup, django_db_blocker, tmp_path_factory):
    from django.test import override_settings

    from tests.isolation.world import make_world
    from tests.standing import standing

    media = tmp_path_factory.mktemp("media")
    with override_settings(MEDIA_ROOT=media, LANGUAGE_CODE="en"), standing(django_db_blocker):
        yield _with_everyone(make_world()), media


def _with_everyone(world):
    """Adds a superuser, and to the viewer what no membership gives: an API key, which only its user sees."""
    tenant = world.mine
    viewer = type(tenant.user).objects.get(pk=tenant.ids["member"])
    make_api_key(viewer, tenant.kb)
    tenant.ids["user"] = make_user("zqleaving").pk  # who owns a knowledge base cannot be deleted
    for model_admin in MODEL_ADMINS:
        LogEntry.objects.create(
            user=tenant.user,
            content_type=ContentType.objects.get_for_model(model_admin.model),
            object_id=str(tenant.ids[MODEL_KINDS[model_admin.opts.model_name]]),
            object_repr="changed",
            action_flag=CHANGE,
        )
    world.users = {"superuser": make_user("zqroot", superuser=True), "owner": tenant.user, "viewer": viewer}
    return world


@pytest.fixture
def world(_standing, settings):
    world, settings.MEDIA_ROOT = _standing
    settings.LANGUAGE_CODE = "en"
    return world


@pytest.fixture(autouse=True)
def _settled(db):
    from kb.search.services import search_log
    from tests.kb.index.searching import settle

    yield
    search_log.flush()
    settle()


@dataclass
class Session:
    """Of a logged-in user; `sent` are the requests that were answered, which are not sent again.

    As each request is taken back, the same one would find the same rows.
    """

    cookie: str
    sent: set[tuple] = field(default_factory=set)


@pytest.fixture(scope="module")
def sessions(_standing):
    world, _media = _standing
    return {role: Session(_cookie_of(user)) for role, user in world.users.items()}


def _cookie_of(user):
    client = Client()
    client.force_login(user)
    return client.cookies[django_settings.SESSION_COOKIE_NAME].value


class Browser(Client):
    def __init__(self, session):
        super().__init__()
        self.cookies[django_settings.SESSION_COOKIE_NAME] = session.cookie
        self._sent = session.sent

    def ask(self, method, url, data=None):
        """One request whose changes are taken back.

        An exception of a view is raised by the client; a server error is one of middleware.
        """
        self._sent.add(_request(method, url, data))
        with transaction.atomic():
            response = getattr(self, method)(url, data or {})
            if response.streaming:
                list(response)  # which closes the file
            transaction.set_rollback(True)
        assert response.status_code < 500, (method, url, data)
        return response

    def ask_once(self, method, url, data=None):
        """None if this was asked before."""
        return None if _request(method, url, data) in self._sent else self.ask(method, url, data)

    def press_everything(self, response, url):
        """Submits the forms of a page by their buttons, and those of the answers, which may ask for confirmation."""
        pages, pressed = [(response, url)], 0
        while pages:
            for method, target, values in submissions_in(*pages.pop()):
                if "logout" in target or (answer := self.ask_once(method, target, values)) is None:
                    continue
                pressed += 1
                if method == "post" and pressed < MOST_SUBMISSIONS:
                    pages.append((answer, target))


def _request(method, url, data):
    """What tells one request from another."""
    url = urldefrag(url).url
    if method == "get" and data:  # which replace the query
        return method, f"{url.partition('?')[0]}?{urlencode(data, doseq=True)}"
    ignored = DIFFERENT_EACH_TIME | ({"next"} if url == reverse("set_language") else set())
    return method, url, repr(sorted((name, value) for name, value in (data or {}).items() if name not in ignored))


@pytest.fixture(params=ROLES)
def role(request):
    return request.param


@pytest.fixture
def browser(sessions, role, world):
    return Browser(sessions[role])


def row_of(world, model_admin):
    return world.mine.ids[MODEL_KINDS[model_admin.opts.model_name]]


def list_url(model_admin):
    return reverse(f"admin:kb_{model_admin.opts.model_name}_changelist")


by_model = pytest.mark.parametrize("model_admin", MODEL_ADMINS, ids=lambda each: each.opts.model_name)


@by_model
def test_a_model_has_a_row_which_a_superuser_sees(world, rf, model_admin):
    request = rf.get("/")
    request.user = world.users["superuser"]

    assert model_admin.get_queryset(request).filter(pk=row_of(world, model_admin)).exists()


@by_model
def test_the_urls_of_a_model_are_among_those_that_are_opened(model_admin):
    own = {str(each.name) for each in model_admin.get_urls() if each.name}

    assert own <= {each.name for each in ADDRESSES}


@pytest.mark.parametrize("route", ADDRESSES, ids=lambda each: each.path)
def test_a_page_and_its_buttons(world, browser, route):
    ids = with_content_type(world.mine.ids)
    url = route.url(dict(zip(route.parameters, [ids[kind] for kind in kinds_of(route)], strict=True)))
    response = browser.ask("get", url)
    for data in ({}, {"post": "yes"}):
        browser.ask("post", url, data)

    browser.press_everything(response, url)


@by_model
def test_a_list_by_its_links_and_each_search_order_and_filter(world, browser, role, model_admin):
    url = list_url(model_admin)
    response = browser.ask("get", url)
    asked = [{"q": term} for term in TERMS]
    changes = response.context and response.context.get("cl")
    if changes and role != "viewer":
        values = ODD_VALUES if role == "owner" else (row_of(world, model_admin), world.mine.kb.pk)
        columns = range(len(changes.list_display) + 1) if role == "superuser" else ()
        asked += [{"o": f"{column}.-1"} for column in columns]
        asked += [
            {parameter: value}
            for spec in changes.filter_specs
            for parameter in spec.expected_parameters()
            for value in values
        ]
    links = [link for link in links_in(response, url) if link.startswith(f"{url}?")]
    for query in asked:
        browser.ask_once("get", url, query)
    for link in links if role == "superuser" else ():  # who has all of them
        browser.ask_once("get", link)


@by_model
def test_an_action_and_its_confirmation(world, browser, role, model_admin, rf):
    url, chosen = list_url(model_admin), [row_of(world, model_admin)]
    request = rf.get(url)
    request.user = world.users[role]
    declared = {each if isinstance(each, str) else each.__name__ for each in model_admin.actions or ()}
    for action in {*model_admin.get_actions(request), *declared, "delete_selected"}:
        data = {"action": action, "_selected_action": chosen}
        browser.press_everything(browser.ask("post", url, data), url)
        browser.ask_once("post", url, {**data, "post": "yes"})
        browser.ask_once("post", url, {**data, "_selected_action": []})
        browser.ask_once("post", url, {**data, "_selected_action": [0]})
        browser.ask_once("post", url, {**data, "_selected_action": ["x'"]})


@by_model
def test_a_deletion_names_what_goes_with_it(world, model_admin, rf):
    browser, key = Client(), row_of(world, model_admin)
    browser.force_login(world.users["superuser"])
    request = rf.get("/")
    request.user = world.users["superuser"]
    row = model_admin.get_object(request, str(key))
    if not model_admin.has_delete_permission(request, row):
        pytest.skip("nobody deletes one in the admin")
    url = reverse(f"admin:kb_{model_admin.opts.model_name}_delete", args=[key])
    with transaction.atomic():
        page = browser.get(url)
        before = rows_by_name()
        browser.post(url, {"post": "yes", "name": str(row)})
        after = rows_by_name()
        is_left = model_admin.model._default_manager.filter(pk=key).exists()
        transaction.set_rollback(True)

    own = str(model_admin.opts.verbose_name_plural)
    gone = {name: number - after[name] - (name == own) for name, number in before.items()}
    assert not is_left
    assert dict(page.context["model_count"]) == {name: number for name, number in gone.items() if number > 0}


def rows_by_name():
    models = [
        each for each in apps.get_app_config("kb").get_models() if "verbose_name_plural" in each._meta.original_attrs
    ]
    return {
        str(each._meta.verbose_name_plural): each._default_manager.count()
        for each in models
        if not getattr(each, "is_derived", False)
    }
