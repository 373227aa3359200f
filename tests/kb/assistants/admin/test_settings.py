import io
import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from PIL import Image

from kb.assistants.models import PICTURE_BYTES
from kb.assistants.services.assistants import draft_of, version_create, version_publish
from kb.assistants.settings import SETTINGS, AssistantSettings
from kb.models import Assistant, AssistantUse, Conversation
from kb.providers.services import provider_model_create
from tests.factories import make_document, make_kb, principal
from tests.kb.assistants.making import WARRANTY
from tests.kb.providers.language_model import prompts
from tests.kb.web.admin.pages import Page
from tests.servers import Reply

pytestmark = pytest.mark.django_db

QUESTION = "How long does the warranty last?"


def fields(assistant, **changed):
    """What the form sends where nothing else is changed."""
    values = AssistantSettings.of(draft_of(assistant).settings)
    sent = {name: getattr(values, name) for name in SETTINGS}
    sent["suggested_questions"] = "\n".join(values.suggested_questions)
    sent |= {"name": assistant.name, "knowledge_bases": [kb.pk for kb in assistant.knowledge_bases.all()], **changed}
    return {name: value for name, value in sent.items() if value is not False}


def picture(size=(900, 400), kind="JPEG"):
    stream = io.BytesIO()
    Image.effect_noise(size, 90).save(stream, kind)
    return SimpleUploadedFile("logo", stream.getvalue())


def asked(response):
    blocks = [block.split("\n") for block in b"".join(response).decode().removesuffix("\n\n").split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


# -- The form ------------------------------------------------------------------------------------------------------


def test_the_form_has_a_field_for_every_setting_with_its_help(page, assistant):
    opened = page("change", assistant.pk).content.decode()
    for name, declared in SETTINGS.items():
        assert f'id="id_{name}"' in opened
        assert declared.help.partition(":")[0] in opened


def test_a_save_is_a_draft_and_visitors_get_what_was_published(page, assistant):
    page("change", assistant.pk, data=fields(assistant, opening="Hello.", temperature="0.5", draft=""))
    assistant.refresh_from_db()
    assert (draft_of(assistant).number, assistant.published.number) == (2, 1)
    differs = Page(page("change", assistant.pk)).text("draft-differs")
    assert "Opening words : blank → Hello." in differs
    assert "Temperature : 0 → 0.5" in differs


def test_save_and_publish_is_one_press(page, assistant):
    page("change", assistant.pk, data=fields(assistant, shows="passage", remembers=False, publish=""))
    assistant.refresh_from_db()
    published = AssistantSettings.of(assistant.published.settings)
    assert (assistant.published.number, published.shows, published.remembers) == (2, "passage", False)
    assert not Page(page("change", assistant.pk)).has("draft-differs")


def test_equal_settings_make_no_version(page, assistant):
    page("change", assistant.pk, data=fields(assistant, name="Boilers", draft=""))
    assistant.refresh_from_db()
    assert (assistant.name, assistant.versions.count()) == ("Boilers", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "3"),
        ("answer_tokens", "1"),
        ("answer_tokens", ""),
        ("shows", "everything"),
        ("model", "none-such"),
        ("profile", "none-such"),
        ("opening", "x" * 1_001),
        ("suggested_questions", "\n".join("123456789")),
        ("suggested_questions", "x" * 201),
        ("name", ""),
        ("knowledge_bases", []),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(page, assistant, name, value):
    refused = page("change", assistant.pk, data=fields(assistant, **{name: value}))
    assert refused.status_code == 400
    assert list(refused.context["form"].errors) == [name]
    assert assistant.versions.count() == 1


def test_a_picture_becomes_a_small_png(page, assistant):
    page("change", assistant.pk, data=fields(assistant, picture=picture(), draft=""))
    shown = page("picture", assistant.pk)
    with Image.open(io.BytesIO(shown.content)) as image:
        assert (image.format, max(image.size) <= 256) == ("PNG", True)
    assert len(shown.content) <= PICTURE_BYTES
    page("change", assistant.pk, data=fields(assistant, no_picture="on", draft=""))
    assert page("picture", assistant.pk).status_code == 404


def test_what_is_no_picture_is_refused(page, assistant):
    sent = fields(assistant, picture=SimpleUploadedFile("logo.png", b"<svg onload=alert(1)>"))
    refused = page("change", assistant.pk, data=sent)
    assert refused.status_code == 400
    assert "PNG, JPEG or WebP" in str(refused.context["form"].errors["picture"])
    assert not Assistant.objects.get().picture


def test_other_knowledge_bases_are_offered_only_where_they_may_be_edited(page, owner, assistant):
    make_kb(name="secret-base")
    make_kb(owner, "Pumps")
    opened = page("change", assistant.pk).content.decode()
    assert "Pumps" in opened
    assert "secret-base" not in opened


# -- The preview ---------------------------------------------------------------------------------------------------


def test_a_page_says_where_its_chat_model_does_not_answer(page, assistant, owner, admin_user):
    def is_said():
        return Page(page("change", assistant.pk)).has("no-model")

    assert is_said()
    fields = {
        "user": admin_user,
        "role": "chat",
        "provider": "openai",
        "base_url": "https://models.example/v1",
        "api_key": "k",
    }
    provider_model_create(name="Default", model="m", **fields)
    own = provider_model_create(name="Own", model="n", **fields)
    assert not is_said()
    version_publish(principal(owner), version_create(principal(owner), assistant, AssistantSettings(model=own.slug)))
    assert not is_said()
    own.delete()
    assert is_said()


def test_the_preview_answers_by_what_the_form_says(page, assistant, llm):
    llm.always("chat", Reply(["Two ", "years", " [1]."]))
    sent = fields(assistant, instructions="Answer like a pirate.", answer_tokens="200", question=QUESTION)
    events = asked(page("preview", assistant.pk, data=sent))
    assert next(name for name, _data in events) == "sources"
    assert "".join(data["text"] for name, data in events if name == "delta") == "Two years [1]."
    name, done = events[-1]
    assert (name, done["text"]) == ("done", "Two years [1].")
    assert "ProductFAQ.md" in done["html"]
    assert "pirate" in str(prompts(llm)[-1])
    assert llm.requests[-1].body["max_tokens"] == 200


def test_the_preview_keeps_and_counts_nothing(page, assistant, llm):
    asked(page("preview", assistant.pk, data=fields(assistant, opening="Hello.", question=QUESTION)))
    assert not Conversation.objects.exists()
    assert not AssistantUse.objects.exists()
    assert assistant.versions.count() == 1


def test_the_preview_shows_no_sources_where_citations_open_nothing(page, assistant, llm):
    llm.always("chat", Reply("Two years [1]."))
    _name, done = asked(page("preview", assistant.pk, data=fields(assistant, shows="nothing", question=QUESTION)))[-1]
    assert "Two years" in done["html"]
    assert "ProductFAQ.md" not in done["html"]


def test_the_preview_goes_on_with_its_conversation(page, assistant, llm):
    history = [
        {"role": "user", "text": QUESTION},
        {"role": "assistant", "text": "Two years."},
        {"role": "system", "text": "x"},
        7,
    ]
    sent = fields(assistant, question="And the warranty of pumps?", history=json.dumps(history))
    asked(page("preview", assistant.pk, data=sent))
    _system, *before, _question = prompts(llm)[-1]
    assert before == [("user", QUESTION), ("assistant", "Two years.")]


@pytest.mark.parametrize("history", ["{", '{"role": "user", "text": "x"}', ""])
def test_the_preview_begins_its_conversation_where_what_was_sent_of_it_is_none(page, assistant, llm, history):
    asked(page("preview", assistant.pk, data=fields(assistant, question=QUESTION, history=history)))
    assert [role for role, _text in prompts(llm)[-1]] == ["system", "user"]


def test_the_preview_says_where_nothing_can_be_searched(page, assistant, kb, llm, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "enable_fts": False, "lexical_fallback": False}
    type(kb).objects.filter(pk=kb.pk).update(embedding_model="no/such-model", tokenizer_id="", lacks_postings=True)
    refused = page("preview", assistant.pk, data=fields(assistant, question=QUESTION))
    assert refused.status_code == 503
    assert refused.json()["detail"].startswith("No channel could answer: ")
    assert llm.requests == []


def test_the_preview_searches_the_knowledge_bases_of_the_form(page, owner, assistant, llm):
    other = make_kb(owner, language="en")
    make_document(other, "The warranty of pumps lasts a day.", source="Pumps.md")
    sent = fields(assistant, knowledge_bases=[other.pk], question=QUESTION)
    _name, done = asked(page("preview", assistant.pk, data=sent))[-1]
    assert "ProductFAQ.md" not in done["html"]
    assert WARRANTY not in str(prompts(llm)[-1])
    assert "Pumps.md" in done["html"]


@pytest.mark.parametrize("changed", [{"question": ""}, {"question": "x" * 2_001}, {"temperature": "9"}])
def test_what_cannot_be_asked_is_an_error_with_a_sentence(page, assistant, llm, changed):
    refused = page("preview", assistant.pk, data=fields(assistant, **{"question": QUESTION, **changed}))
    assert (refused.status_code, bool(refused.json()["detail"])) == (400, True)
    assert llm.requests == []


def test_the_preview_does_not_search_knowledge_bases_of_others(page, assistant, llm):
    foreign = make_kb()
    refused = page("preview", assistant.pk, data=fields(assistant, knowledge_bases=[foreign.pk], question=QUESTION))
    assert refused.status_code == 400
