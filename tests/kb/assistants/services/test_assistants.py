import pytest
from django.db import DatabaseError, transaction

from kb.assistants.services.assistants import (
    assistant_close,
    assistant_create,
    assistant_update,
    checked_origin,
    draft_of,
    version_create,
    version_publish,
)
from kb.assistants.settings import SETTINGS, AssistantSettings
from kb.base.errors import NotAllowed, Rejected
from kb.models import Assistant, AssistantVersion, AuditEntry, KnowledgeBase, Membership
from tests.factories import make_kb, make_user, principal
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db


def test_owners_and_editors_of_all_its_knowledge_bases_make_one(owner, kb):
    editor, viewer, other = make_user(), make_user(), make_kb()
    Membership.objects.create(user=editor, knowledge_base=kb, role="editor")
    Membership.objects.create(user=viewer, knowledge_base=kb, role="viewer")
    assert make_assistant(editor, kb).publisher == editor
    for user, bases in ((viewer, [kb]), (editor, [kb, other]), (owner, [other]), (make_user(), [kb])):
        with pytest.raises(NotAllowed):
            make_assistant(user, *bases, name="Refused")
    with pytest.raises(NotAllowed):
        assistant_create(principal(owner, can_write=False), name="Refused", knowledge_base_ids=[kb.pk])
    with pytest.raises(Rejected):
        make_assistant(owner, name="Refused")
    assert not Assistant.objects.filter(name="Refused").exists()


def test_who_edits_all_its_knowledge_bases_may_edit_it(owner, kb):
    second, editor = make_kb(owner), make_user()
    assistant = make_assistant(owner, kb, second)
    editable = Assistant.objects.editable_by
    assert list(editable(principal(owner))) == [assistant]
    Membership.objects.create(user=editor, knowledge_base=kb, role="editor")
    assert not editable(principal(editor)).exists()
    Membership.objects.create(user=editor, knowledge_base=second, role="editor")
    assert list(editable(principal(editor))) == [assistant]
    assert not editable(principal(owner, kb_ids=frozenset({kb.pk}))).exists()


def test_an_assistant_whose_knowledge_bases_are_gone_is_its_publishers_and_superusers(owner, kb):
    assistant, root = make_assistant(owner, kb), make_user(superuser=True)
    editable = Assistant.objects.editable_by
    KnowledgeBase.objects.filter(pk=kb.pk).delete()
    assert list(editable(principal(owner))) == list(editable(principal(root))) == [assistant]
    for other in (principal(make_user()), principal(owner, can_write=False), principal(root, kb_ids=frozenset())):
        assert not editable(other).exists()


def test_settings_that_are_saved_take_no_other_change_back(assistant, owner):
    read = Assistant.objects.get(pk=assistant.pk)
    assistant_close(assistant)
    assistant_update(principal(owner), read, access="link", password="correct horse")
    assistant.refresh_from_db()
    assert (assistant.published, assistant.publisher, assistant.access) == (None, None, "link")
    assert assistant.password


def test_a_version_never_changes_and_equal_settings_make_none(assistant, owner):
    version = draft_of(assistant)
    assert version_create(principal(owner), assistant, AssistantSettings()) == version
    changed = version_create(principal(owner), assistant, AssistantSettings(opening="Hello."))
    assert (changed.number, changed.settings) == (2, {"opening": "Hello."})
    with pytest.raises(DatabaseError), transaction.atomic():
        AssistantVersion.objects.update(settings={})


def test_settings_come_back_as_they_were_stored():
    settings = AssistantSettings(suggested_questions=("One?", "Two?"), temperature=0.5, shows="nothing")
    assert AssistantSettings.of(settings.stored()) == settings
    assert AssistantSettings.of({"of_a_later_release": 1}) == AssistantSettings()
    assert SETTINGS.keys() == set(AssistantSettings.__slots__)


def test_publishing_makes_its_publisher_the_one_whose_rights_hold(assistant, owner, kb):
    editor = make_user()
    Membership.objects.create(user=editor, knowledge_base=kb, role="editor")
    draft = version_create(principal(editor), assistant, AssistantSettings(opening="Hello."))
    version_publish(principal(editor), draft)
    assistant.refresh_from_db()
    assert (assistant.publisher, assistant.published) == (editor, draft)
    with pytest.raises(NotAllowed):
        version_publish(principal(make_user()), draft)


def test_an_address_is_made_of_the_name_and_stays_free(owner, kb):
    slugs = [make_assistant(owner, kb, name=name).slug for name in ("Heater FAQ", "Heater FAQ", "取暖器", "取暖器")]
    assert slugs == ["heater-faq", "heater-faq-2", "chat", "chat-2"]
    with pytest.raises(Rejected):
        make_assistant(owner, kb, slug="chat")


@pytest.mark.parametrize(
    "field", [{"slug": "不行"}, {"name": ""}, {"name": "x" * 81}, {"total_questions": 0}, {"access": "all"}]
)
def test_what_cannot_be_is_refused_by_its_name(assistant, owner, field):
    with pytest.raises(Rejected) as refused:
        assistant_update(principal(owner), assistant, **field)
    assert refused.value.code in field


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://www.example.com/", "https://www.example.com"),
        (" HTTPS://Example.com:8443 ", "https://example.com:8443"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("https://知库.cn", "https://xn--dxto77c.cn"),
        ("https://Bücher.example:8443", "https://xn--bcher-kva.example:8443"),
    ],
)
def test_an_origin_is_kept_as_browsers_write_it(given, kept):
    assert checked_origin(given) == kept


@pytest.mark.parametrize(
    "given", ["", "*", "https://*", "example.com", "javascript:alert(1)", "https://a.example/path", "https://u@a.example",
              "https://a.example;script-src *", "https://a.example 'self'", "https://知库 .cn", "https://a.example/知"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(given):
    with pytest.raises(Rejected):
        checked_origin(given)


def test_changes_are_in_the_audit_log_and_no_password_is(assistant, owner, kb):
    assistant_update(principal(owner), assistant, access="link", password="correct horse")
    entries = AuditEntry.objects.filter(object_type="assistant", object_id=str(assistant.pk))
    assert {"create", "update", "bind"} <= set(entries.values_list("action", flat=True))
    assert entries.filter(action="bind").get().knowledge_base_id == kb.pk
    assert entries.filter(changes__access=["public", "link"], changes__password=[None, None]).exists()
    assert "md5$" not in str(list(entries.values()))
