import json
import re

import pytest

from kb.assistants.services.assistants import assistant_update
from kb.models import Assistant
from tests.factories import principal
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db

ORIGIN = "https://www.example.com"


def policy(response):
    parts = (part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
    return {name: rest[0] if rest else "" for name, *rest in parts}


def test_the_page_tells_a_name_and_a_language_and_nothing_else(client, owner, kb):
    make_assistant(owner, kb, access="private", settings={"opening": "Secret words", "instructions": "Secret rules"})
    page = client.get("/chat/heaters/", headers={"Accept-Language": "en"}).content.decode()
    assert "Heaters" in page
    assert 'lang="en"' in page
    for secret in ("Secret", kb.name, owner.username):
        assert secret not in page


def test_the_language_is_the_browsers_or_the_chosen_one(client, assistant):
    assert 'lang="zh-hans"' in client.get("/chat/heaters/", headers={"Accept-Language": "zh"}).content.decode()
    chosen = client.get("/chat/heaters/?language=en", headers={"Accept-Language": "zh"})
    assert 'lang="en"' in chosen.content.decode()


def test_a_name_is_text_in_the_page_and_in_the_script(client, owner, assistant):
    assistant_update(principal(owner), assistant, name="</script><img src=x>")
    for path in ("", "frame/", "embed.js"):
        assert b"<img src=x>" not in client.get(f"/chat/heaters/{path}").content


def test_the_page_may_load_what_is_of_this_server_alone_and_stands_in_no_frame(client, assistant):
    response = client.get("/chat/heaters/")
    told = policy(response)
    assert told["default-src"] == "'none'"
    assert told["script-src"].startswith("'self' 'nonce-")
    assert told["frame-ancestors"] == "'none'"
    assert response.headers["X-Frame-Options"] == "DENY"
    assert not any("http" in value or "unsafe" in value for value in told.values())


def test_only_the_websites_that_the_assistant_names_may_frame_it(client, owner, assistant):
    response = client.get("/chat/heaters/frame/")
    assert policy(response)["frame-ancestors"] == "'none'"
    assert response.headers["X-Frame-Options"] == "DENY"
    assistant_update(principal(owner), assistant, origins=[ORIGIN, "https://intra.example.org:8443"])
    response = client.get("/chat/heaters/frame/")
    assert policy(response)["frame-ancestors"] == f"{ORIGIN} https://intra.example.org:8443"
    assert "X-Frame-Options" not in response.headers
    assert policy(client.get("/chat/heaters/"))["frame-ancestors"] == "'none'"


@pytest.mark.parametrize("access", Assistant.Access.values)
def test_what_needs_a_session_is_not_for_frames(client, owner, assistant, access):
    assistant_update(principal(owner), assistant, access=access, origins=[ORIGIN])
    page = client.get("/chat/heaters/frame/").content.decode()
    setup = json.loads(page.split('<script id="setup" type="application/json">')[1].split("</script>")[0])
    assert setup["is_embeddable"] is (access in {"link", "public"})


def test_the_script_of_the_widget_is_a_script_with_the_assistants_words(client, assistant):
    response = client.get("/chat/heaters/embed.js")
    assert response.headers["Content-Type"].startswith("text/javascript")
    assert response.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
    assert "Open the chat: Heaters" in response.content.decode()
    again = client.get("/chat/heaters/embed.js", headers={"If-None-Match": response.headers["ETag"]})
    assert again.status_code == 304


def test_a_picture_is_served_where_there_is_one(client, owner, assistant):
    assert client.get("/chat/heaters/picture/").status_code == 404
    assistant_update(principal(owner), assistant, picture=b"\x89PNG\r\n\x1a\n....")
    response = client.get("/chat/heaters/picture/")
    assert (response.headers["Content-Type"], response.content[:4]) == ("image/png", b"\x89PNG")


@pytest.mark.parametrize("path", ["", "frame/", "embed.js", "picture/"])
def test_what_is_not_there_is_not_found(client, db, path):
    assert client.get(f"/chat/nowhere/{path}").status_code == 404


def test_an_installation_has_its_own_name_colour_and_logo(client, assistant, settings, tmp_path):
    assert client.get("/chat/site.logo").status_code == 404
    logo = tmp_path / "logo.svg"
    logo.write_text("<svg/>")
    settings.SITE_NAME, settings.SITE_COLOR, settings.SITE_LOGO = "Acme", "#0f766e", str(logo)
    page = client.get("/chat/heaters/").content.decode()
    assert "· Acme</title>" in page
    assert "--brand: #0f766e" in page
    response = client.get("/chat/site.logo")
    assert (response.content, response.headers["Content-Type"]) == (b"<svg/>", "image/svg+xml")


def test_scripts_and_styles_together_are_small(client, assistant):
    from pathlib import Path

    from django.contrib.staticfiles import finders

    page = client.get("/chat/heaters/").content.decode()
    loaded = set(re.findall(r'(?:src|href)="/static/([^"]+\.(?:js|css))"', page))
    assert {"kb/chat/chat.css", "kb/chat/chat.js", "kb/event_stream.js"} <= loaded
    assert sum(Path(finders.find(name)).stat().st_size for name in {*loaded, "kb/chat/embed.js"}) < 150_000


def test_a_website_of_another_script_opens_the_frame_to_nobody_else(client, owner, assistant):
    assistant_update(principal(owner), assistant, origins=["https://知库.cn"])
    assert policy(client.get("/chat/heaters/frame/"))["frame-ancestors"] == "https://xn--dxto77c.cn"
    Assistant.objects.update(origins=["https://知库.cn"])  # as an earlier version may have stored it
    response = client.get("/chat/heaters/frame/")
    assert policy(response)["frame-ancestors"] == "'none'"
    assert response.headers["X-Frame-Options"] == "DENY"
