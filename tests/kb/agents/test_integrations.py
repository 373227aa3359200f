import json

import lxml.html
import pytest
from django.urls import reverse

from tests.factories import make_kb, make_user

pytestmark = pytest.mark.django_db
ENGLISH = {"accept-language": "en"}


def page_of(client, user):
    client.force_login(user)
    return lxml.html.fromstring(client.get(reverse("admin:integrations"), headers=ENGLISH).content.decode())


def texts(page):
    return {each.get("aria-label"): each.text_content() for each in page.xpath("//pre")}


def test_snippets_are_filled_in_with_the_current_knowledge_base(client):
    kb = make_kb(name="manuals")
    make_kb(kb.owner, "a first one by name")
    kb.owner.last_knowledge_base = kb
    kb.owner.save()

    found = texts(page_of(client, kb.owner))

    assert found["External Knowledge ID"] == str(kb.pk)
    assert f'"knowledge_base_ids": [{kb.pk}]' in found["curl"]
    assert f"knowledge_base_id={kb.pk}" in found["LangChain"]
    assert found["Dify: API Endpoint"] == "http://testserver/api/dify"


def test_clients_of_mcp_find_what_they_read(client, settings):
    settings.LOCAL = True
    found = texts(page_of(client, make_user()))
    assert json.loads(found["Cursor"])["mcpServers"]["zhiku"]["url"] == "http://testserver:81/mcp"
    settings.LOCAL = False
    found = texts(page_of(client, make_user()))
    assert json.loads(found["Cursor"])["mcpServers"]["zhiku"]["url"] == "http://testserver/mcp"


def test_only_superusers_read_where_it_is_installed(client, settings):
    def desktop(user):
        return json.loads(texts(page_of(client, user))["Claude Desktop"])["mcpServers"]["zhiku"]["args"][0]

    assert desktop(make_user()) == "/path/to/zhiku/manage.py"
    assert desktop(make_user(superuser=True)) == f"{settings.BASE_DIR}/manage.py"


def test_a_knowledge_base_out_of_sight_is_not_named(client):
    other = make_kb(name="secret")

    page = page_of(client, make_user())

    assert "secret" not in page.text_content()
    assert f"[{other.pk}]" not in texts(page)["curl"] or other.pk == 1


def test_the_button_begins_a_key_for_it(client):
    kb = make_kb()
    (link,) = [each for each in page_of(client, kb.owner).xpath("//main//a/@href") if "apikey/add" in each]

    form = lxml.html.fromstring(client.get(link).content.decode())

    assert form.xpath("//input[@name='knowledge_bases'][@checked]/@value") == [str(kb.pk)]
