import pytest
from django.urls import reverse

from kb.models import Assistant, AssistantUse, Membership
from tests.factories import make_kb, make_user
from tests.kb.assistants.making import make_assistant
from tests.kb.web.admin.pages import Page

pytestmark = pytest.mark.django_db

NAMES = (
    "changelist add change preview picture share use conversations versions close delete".split()  # noqa: SIM905 - shorter
)


def test_the_list_has_what_the_user_may_edit(page, owner, kb):
    foreign = make_kb(name="secret-base")
    make_assistant(foreign.owner, foreign, name="secret-chat")
    shared = make_kb()
    Membership.objects.create(user=owner, knowledge_base=shared, role="viewer")
    make_assistant(shared.owner, shared, name="viewed-chat")
    assistant = make_assistant(owner, kb, name="Heaters", access="link", total_questions=40)
    AssistantUse.objects.create(assistant=assistant, day="2026-01-01", questions=9)
    listed = Page(page("changelist")).text("assistants")
    assert "Heaters" in listed
    assert kb.name in listed
    assert "0 / 40" in listed
    assert "secret" not in listed
    assert "viewed" not in listed


def test_the_list_is_searched_and_narrowed(page, owner, kb):
    other = make_kb(owner, "Pumps")
    make_assistant(owner, kb, name="Heaters")
    make_assistant(owner, other, name="Pump help")
    assert "Heaters" not in Page(page("changelist", q="pump")).text("assistants")
    assert "Pump help" not in Page(page("changelist", kb=kb.pk)).text("assistants")
    assert "No assistant matches" in page("changelist", q="nobody").content.decode()


def test_an_empty_list_says_what_an_assistant_is(page, owner):
    assert "by a link" in Page(page("changelist")).text("no-assistant")


def test_the_head_of_a_knowledge_base_leads_editors_to_a_new_one(client, kb):
    url = reverse("admin:kb_knowledgebase_documents", args=[kb.pk])
    add = f"{reverse('admin:kb_assistant_add')}?kb={kb.pk}"
    assert add in client.get(url).content.decode()
    viewer = make_user()
    Membership.objects.create(user=viewer, knowledge_base=kb, role="viewer")
    client.force_login(viewer)
    assert add not in client.get(url).content.decode()


def test_a_new_one_has_the_knowledge_base_and_its_name(page, kb):
    opened = Page(page("add", kb=kb.pk))
    assert opened.tree.xpath("//input[@name='name']/@value") == [kb.name]
    assert opened.tree.xpath("//input[@name='knowledge_bases'][@checked]/@value") == [str(kb.pk)]
    assert opened.tree.xpath("//input[@name='access'][@checked]/@value") == ["link"]
    assert not opened.has("shared")


def test_what_is_shared_already_is_said_where_a_new_one_is_made(page, owner, kb):
    make_assistant(owner, kb, name="Heaters")
    assert "Heaters" in Page(page("add", kb=kb.pk)).text("shared")


def test_create_and_publish_leads_to_the_link(page, client, kb):
    made = page("add", data={"name": "", "knowledge_bases": [kb.pk], "access": "link", "publish": ""})
    assistant = Assistant.objects.get()
    assert made.headers["Location"] == reverse("admin:kb_assistant_share", args=[assistant.pk])
    assert (assistant.name, assistant.published.number, assistant.links.count()) == (kb.name, 1, 1)
    (address,) = Page(page("share", assistant.pk)).tree.xpath("//input[@data-testid='address']/@value")
    assert address.startswith(f"http://testserver/chat/{assistant.slug}/?key=")


def test_a_draft_answers_nobody(page, kb):
    page("add", data={"name": "Draft", "knowledge_bases": [kb.pk], "access": "public", "draft": ""})
    assistant = Assistant.objects.get()
    assert (assistant.published, assistant.links.count()) == (None, 0)
    assert "nobody is answered" in Page(page("share", assistant.pk)).text("not-open")


def test_knowledge_bases_of_others_are_not_taken(page, kb):
    foreign = make_kb()
    refused = page("add", data={"name": "x", "knowledge_bases": [foreign.pk], "access": "public", "publish": ""})
    assert refused.status_code == 400
    assert not Assistant.objects.exists()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"changelist", "add"}])
def test_who_may_not_edit_all_its_knowledge_bases_finds_no_page(page, client, owner, kb, name):
    other = make_kb(owner)
    assistant, editor = make_assistant(owner, kb, other), make_user()
    Membership.objects.create(user=editor, knowledge_base=kb, role="editor")
    Membership.objects.create(user=editor, knowledge_base=other, role="viewer")
    client.force_login(editor)
    assert page(name, assistant.pk, data={"name": assistant.name}).status_code in {404, 405}
    assert page(name, assistant.pk).status_code in {404, 405}
    assert Assistant.objects.filter(pk=assistant.pk).exists()
