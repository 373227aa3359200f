"""Every page of the admin, as the URLs are configured, given the ids of another tenant in path, query and form."""

import difflib
import re

import lxml.html
import pytest
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.test import Client

from kb.models import Document
from tests.isolation.admin_rules import FIELDS, MODEL_KINDS, PAGE_QUERIES, PATH, PLAIN_FIELDS, TEXTS
from tests.isolation.routes import foreign_values, routes
from tests.isolation.world import STRANGER

PREFIX = "admin/"
ADDRESSES = [each for each in routes(PREFIX) if not each.path.endswith("$")]
ROWS = [each for each in ADDRESSES if each.parameters]
PAGES = [each for each in ADDRESSES if not each.parameters]
ANY_ID = re.compile(rb"(?<!\d)[89]\d{8}(?!\d)")
PER_REQUEST = re.compile(rb'name="csrfmiddlewaretoken" value="[^"]*"|X-CSRFToken[^}]*|nonce="[^"]*"|\d+[.,]\d+')


@pytest.fixture
def world(standing_world):
    return standing_world


@pytest.fixture(scope="module")
def _session(world_of_the_file):
    client = Client()
    client.force_login(world_of_the_file.mine.user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.fixture
def browser(client, _session):
    """The first tenant in the admin."""
    client.cookies[settings.SESSION_COOKIE_NAME] = _session
    return client


@pytest.fixture(scope="module")
def _forms():
    return {}


@pytest.fixture
def forms(world, browser, _forms):
    """The forms of each page by its path, as somebody finds them who opens one page after the other."""
    if not _forms:
        with transaction.atomic():
            _forms |= {route.path: forms_of(browser, own_url(world, route)) for route in ADDRESSES}
            transaction.set_rollback(True)
    return _forms


def kinds_of(route):
    """What the parameters of an address are ids of.

    Raises:
        KeyError: one has no rule.
    """
    return [PATH[name] if name in PATH else _kind_of_model(route) for name in route.parameters]


def ask(world, browser, method, url, data=None):
    """One request whose changes are taken back; it may neither fail, nor show or change anything of the other tenant."""
    browser.cookies.pop("messages", None)  # which tell of the request before
    with transaction.atomic():
        response = getattr(browser, method)(url, data or {})
        content = b"".join(response) if response.streaming else response.content
        changed = world.changes()
        transaction.set_rollback(True)
    assert response.status_code < 500, (method, url)
    sent = f"{url} {data}"
    told = content.replace(f"{STRANGER}-profile".encode(), b"") if f"{STRANGER}-profile" in sent else content
    assert STRANGER.encode() not in told, (method, url, data)
    assert not changed, (method, url, data)
    return response.status_code, response.headers.get("Location", "").encode() + PER_REQUEST.sub(b"?", content)


def assert_same(found, foreign, other, absent, about=None):
    """Two answers are equal up to the ids that were asked for."""
    assert found[0] == other[0], (about, found, other)
    pair = [_without(each, ids).decode().splitlines() for each, ids in ((found[1], foreign), (other[1], absent))]
    assert not list(difflib.unified_diff(*pair, lineterm="", n=0)), about


@pytest.mark.parametrize("route", ROWS, ids=lambda route: route.path)
@pytest.mark.parametrize("method", ["get", "post"])
def test_ids_in_the_path(world, browser, route, method):
    if route.name == "view_on_site":
        pytest.skip("it asks for a type and then a row; see test_view_on_site_leads_nowhere")
    kinds = kinds_of(route)
    mine, theirs, missing = (with_content_type(ids) for ids in (world.mine.ids, world.theirs.ids, world.missing))
    chosen = zip(
        foreign_values(route.parameters, kinds, mine, theirs),
        foreign_values(route.parameters, kinds, mine, missing),
        strict=True,
    )
    for foreign, absent in chosen:
        if set(map(str, foreign.values())) == {str(mine["content_type"])}:
            continue
        found = ask(world, browser, method, route.url(foreign), {"post": "yes"})
        other = ask(world, browser, method, route.url(absent), {"post": "yes"})

        assert found[0] in {301, 302, 403, 404, 405}, found
        assert_same(found, foreign, other, absent)


def test_view_on_site_leads_nowhere(world, browser):
    own, theirs, missing = (with_content_type(ids) for ids in (world.mine.ids, world.theirs.ids, world.missing))
    for kind in ("document", "kb", "trace"):
        asked = [
            ask(world, browser, "get", f"/admin/r/{own['content_type']}/{ids[kind]}/") for ids in (theirs, missing)
        ]
        assert_same(asked[0], theirs, asked[1], missing)
        assert asked[0][0] == 404


@pytest.mark.parametrize("route", PAGES, ids=lambda route: route.path)
def test_ids_in_the_query(world, browser, route):
    for parameter, kind in queries_of(route).items():
        foreign, absent = ({parameter: ids[kind]} for ids in (world.theirs.ids, world.missing))
        found = ask(world, browser, "get", f"/{route.path}?{parameter}={foreign[parameter]}")
        other = ask(world, browser, "get", f"/{route.path}?{parameter}={absent[parameter]}")

        assert_same(found, world.theirs.ids, other, world.missing, parameter)


@pytest.mark.parametrize("route", ADDRESSES, ids=lambda route: route.path)
def test_ids_in_forms(world, browser, forms, route):
    for target, method, values in forms[route.path]:
        for name in values:
            if name in PLAIN_FIELDS or (target, name) in TEXTS or (kind := FIELDS.get(name)) is None:
                continue
            foreign, absent = (
                ask(world, browser, method, target, {**values, name: ids[kind]})
                for ids in (world.theirs.ids, world.missing)
            )
            assert_same(foreign, world.theirs.ids, absent, world.missing, (target, name))


@pytest.mark.parametrize("model_admin", admin.site._registry.values(), ids=lambda each: each.opts.model_name)
def test_actions_on_rows_of_another_tenant_do_nothing(world, browser, model_admin):
    kind = MODEL_KINDS[model_admin.opts.model_name]
    url = f"/admin/kb/{model_admin.opts.model_name}/"
    for action in _actions(model_admin):
        foreign, absent = (
            ask(world, browser, "post", url, {"action": action, "_selected_action": [ids[kind]], "post": "yes"})
            for ids in (world.theirs.ids, world.missing)
        )
        assert_same(foreign, world.theirs.ids, absent, world.missing, action)


def test_every_address_has_a_rule():
    for route in ROWS:
        kinds_of(route)
    for route in PAGES:
        queries_of(route)


def test_every_field_that_takes_a_row_has_a_rule(world, forms):
    ids = {str(value) for kind, value in world.mine.ids.items() if kind not in {"tag", "concept_name"}}
    for path, found in forms.items():
        for _target, _method, values in found:
            for name, value in values.items():
                named = bool(ids & set([value] if isinstance(value, str) else value)) or name.endswith(("_id", "-id"))
                assert not named or name in FIELDS or name in PLAIN_FIELDS, f"{path}: {name}={value} has no rule"


def queries_of(route):
    """The parameters of a page's query that name rows, with what they name.

    Raises:
        KeyError: the page has no rule.
    """
    model = route.name.removeprefix("kb_").removesuffix("_changelist")
    registered = {each.opts.model_name: each for each in admin.site._registry.values()}
    if route.name.endswith("_changelist") and model in registered:
        return _filters(registered[model]) | PAGE_QUERIES.get(route.name, {})
    return PAGE_QUERIES[route.name]


def own_url(world, route):
    own = with_content_type(world.mine.ids)
    return route.url(dict(zip(route.parameters, [own[kind] for kind in kinds_of(route)], strict=True)))


def forms_of(browser, url):
    """The forms of a page: where they lead, how, and the values that they would send."""
    response = browser.get(url)
    if response.streaming:
        list(response)  # which closes the file
    if response.status_code != 200 or "text/html" not in response.headers["Content-Type"]:
        return []
    page = lxml.html.fromstring(response.content.decode() or "<html></html>")
    page.make_links_absolute(f"http://testserver{url}")
    found = []
    for form in page.forms:
        if "logout" not in (target := form.get("hx-post") or form.action or url):
            values = {name: _as_sent(form.inputs[name]) for name in set(form.inputs.keys())}
            is_post = form.get("hx-post") or form.method == "POST"
            found.append((target.removeprefix("http://testserver"), "post" if is_post else "get", values))
    return found


def with_content_type(ids):
    return {**ids, "content_type": ContentType.objects.get_for_model(Document).pk}


def _as_sent(element):
    value = element.value if hasattr(element, "value") else None
    if value is None or isinstance(value, str):
        return value or ""
    return [str(each) for each in value]


def _kind_of_model(route):
    model = route.path.removeprefix(PREFIX).removeprefix("kb/").split("/")[0]
    return MODEL_KINDS[model]


def _filters(model_admin):
    """The filters of a list that choose a related row, by the parameter that they read."""
    found = {}
    for each in model_admin.list_filter:
        if isinstance(each, tuple) and (kind := MODEL_KINDS.get(_related(model_admin.model, each[0]))):
            found[f"{each[0]}__id__exact"] = kind
    return found


def _related(model, path):
    for name in path.split("__"):
        model = getattr(model._meta.get_field(name), "related_model", None)
        if model is None:
            return ""
    return model._meta.model_name


def _actions(model_admin):
    return [each if isinstance(each, str) else each.__name__ for each in model_admin.actions or ModelAdmin.actions]


def _without(content, ids):
    """A body without the ids that it may repeat, nor any other: what is made and taken back takes a new one each time."""
    for value in sorted((str(value) for value in ids.values()), key=len, reverse=True):
        if len(value) > 1:
            content = content.replace(value.encode(), b"#")
    return ANY_ID.sub(b"#", content)
