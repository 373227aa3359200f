import pytest

from kb.assistants.services.assistants import draft_of, version_create
from kb.assistants.settings import AssistantSettings
from kb.models import Assistant, AssistantVersion, Conversation, ShareLink, Visitor
from tests.factories import principal
from tests.kb.web.admin.pages import Page, words

pytestmark = pytest.mark.django_db


@pytest.fixture
def drafted(assistant, owner):
    version_create(principal(owner), assistant, AssistantSettings(opening="Hello.", remembers=False))
    return assistant


def rows(page, assistant):
    found = Page(page("versions", assistant.pk)).tree.xpath("//tr[@data-version]")
    return [words(row) for row in found]


def test_versions_say_what_changed_and_by_whom(page, owner, drafted):
    newest, first = rows(page, drafted)
    assert "Opening words : blank → Hello." in newest
    assert "Remembers the conversation : on → off" in newest
    assert f"by {owner}" in newest
    assert "draft" in newest
    assert "Every setting has its default." in first


def test_a_version_is_published_and_an_earlier_one_again(page, drafted):
    for number in (2, 1):
        page("versions", drafted.pk, data={"number": number})
        drafted.refresh_from_db()
        assert drafted.published.number == number
    assert "Publish again" in rows(page, drafted)[0]


def test_a_version_that_there_is_not_is_not_found(page, drafted):
    for number in ("3", "x", ""):
        assert page("versions", drafted.pk, data={"number": number}).status_code == 404


def test_after_an_earlier_version_a_save_goes_on_from_the_newest(page, drafted):
    assert draft_of(drafted).number == 2
    assert 'value="Hello."' not in page("change", drafted.pk).content.decode()  # it is a text area
    assert "Hello." in page("change", drafted.pk).content.decode()


def test_taken_back_it_answers_nobody(page, assistant):
    assert Page(page("close", assistant.pk)).has("confirm")
    page("close", assistant.pk, data={})
    assistant.refresh_from_db()
    assert (assistant.published, assistant.publisher) == (None, None)


def test_deletion_asks_for_the_name_and_says_what_goes(page, assistant, kb):
    visitor = Visitor.objects.create(assistant=assistant)
    for _ in range(2):
        Conversation.objects.create(visitor=visitor, knowledge_base_ids=[kb.pk])
    assert "2 conversations of visitors" in Page(page("delete", assistant.pk)).text("delete-assistant")
    page("delete", assistant.pk, data={"name": "heaters"})
    assert Assistant.objects.exists()
    page("delete", assistant.pk, data={"name": assistant.name})
    for model in (Assistant, AssistantVersion, ShareLink, Visitor, Conversation):
        assert not model.objects.exists()
