"""A chat model is set up, tested and used by Ask in a real browser, with a real server of the protocol."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import Clicks, post_texts
from tests.servers import ModelServer, Reply

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

SAID = "Fifteen days [1]."


@pytest.fixture
def model():
    with ModelServer() as server:
        server.always("chat", Reply(SAID, usage={"prompt_tokens": 120, "completion_tokens": 4}))
        yield server


def wait_for(admin, document_id):
    """Until a worker has made a document searchable."""
    while (state := admin.call("GET", f"documents/{document_id}/").json()["status"]) != "ready":
        assert state != "failed"
        admin.page.wait_for_timeout(100)


@pytest.mark.parametrize("language", ["zh-CN", "en"])
def test_a_chat_model_is_set_up_and_tested_in_five_clicks_and_answers(visit, admin_session, model, language):
    admin = visit(language=language, storage_state=admin_session)
    page, clicks = admin.page, Clicks(admin)
    admin.open("system/status/")

    page.locator("a[href$='/admin/kb/providermodel/']").first.click()
    page.get_by_test_id("preset-ollama").click()
    page.fill("#id_base_url", model.base_url)
    page.fill("#id_api_key", "sk-secret")
    page.fill("#id_model", f"chat-{language}")
    page.locator("#id_allows_private").check()
    page.get_by_test_id("test").click()
    expect(page.get_by_test_id("passed")).to_contain_text(SAID)
    page.get_by_test_id("save").click()

    made = page.get_by_test_id("role-chat").get_by_test_id("model").filter(has_text=f"chat-{language}")
    expect(made.get_by_test_id("last-test")).to_contain_text("ms" if language == "en" else "20")
    assert clicks.count <= 5
    assert "sk-secret" not in page.content()

    if made.get_by_test_id("make-default").count():
        with page.expect_navigation():
            made.get_by_test_id("make-default").click()
    kb_id = admin.call("POST", "knowledge-bases/", {"name": f"leave {language}", "language": "en"}).json()["id"]
    wait_for(admin, *post_texts(admin, kb_id, "Annual leave is fifteen days."))
    answer = admin.call("POST", "ask/", {"query": "annual leave fifteen days", "knowledge_base_ids": [kb_id]}).json()
    assert answer["model"] == f"chat-{language}", answer
    assert "Fifteen days" in answer["answer"]


def test_another_embedding_model_is_chosen_and_in_use_in_four_clicks_and_the_wait(admin, model):
    page = admin.page
    admin.open("kb/providermodel/add/?provider=ollama&role=embedding")
    page.fill("#id_base_url", model.base_url)
    page.fill("#id_model", "vectors")
    page.fill("#id_name", "vectors of meaning")
    page.locator("#id_allows_private").check()
    page.get_by_test_id("save").click()
    expect(page.get_by_test_id("role-embedding")).to_contain_text("vectors of meaning")
    kb_id = admin.call("POST", "knowledge-bases/", {"name": "moves", "embedding_model": "hashing"}).json()["id"]
    wait_for(admin, *post_texts(admin, kb_id, "Annual leave is fifteen days."))
    clicks = Clicks(admin)
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")

    page.locator(f"a[href$='/{kb_id}/change/']").first.click()
    page.locator(f".kb-tabs.second a[href$='/{kb_id}/embedding-model/']").click()
    page.get_by_text("vectors of meaning").click()
    page.locator("[name=action][value=start]").click()

    expect(page.get_by_test_id("in-use")).to_contain_text("vectors of meaning")
    assert clicks.count <= 4
    used = admin.call("GET", f"knowledge-bases/{kb_id}/").json()["embedding_model"]
    assert used.startswith("model:vectors")
