"""System → Models: a model is set up, tested, made the default, changed and deleted, by superusers only."""

from html import unescape

import lxml.html
import pytest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import override

from kb.base.encryption import decrypted
from kb.base.messages import shown
from kb.base.net.addresses import FetchError
from kb.models import AuditEntry, ModelDownload, ProviderModel, User
from kb.providers.admin.forms import ModelForm, signed_result
from kb.providers.clients import message_of_fetch
from kb.providers.presets import preset_of
from kb.providers.probes import Probe
from kb.providers.recommended import Role
from kb.providers.services import environment_models_sync, provider_model_create
from kb.providers.usage.counting import counted_for, flush
from kb.providers.usage.figures import days
from kb.providers.usage.models import ModelUse
from retrieval.errors import Message
from retrieval.usage import Use, report
from tests.factories import make_kb, make_member, make_user
from tests.hub import reachable
from tests.kb.assistants.making import make_assistant
from tests.kb.web.admin.pages import words
from tests.servers import ModelServer, Reply

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]

KEY = "sk-very-secret-key"
LIST = "admin:kb_providermodel_changelist"


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def root(client):
    user = make_user("root", superuser=True)
    client.force_login(user)
    return user


@pytest.fixture
def given(server):
    def fields(**changed):
        return {
            "provider": "openai",
            "role": "chat",
            "base_url": server.base_url,
            "allows_private": "on",
            "api_key": KEY,
            "model": "m",
            "name": "Mine",
            "temperature": "0",
            **changed,
        }

    return fields


@pytest.fixture
def row(root, server):
    return provider_model_create(
        user=root,
        role="chat",
        name="Mine",
        provider="openai",
        model="m",
        base_url=server.base_url,
        api_key=KEY,
        allows_private=True,
    )


def page(client, name, *args, **query):
    return client.get(reverse(f"admin:kb_providermodel_{name}", args=args), query).content.decode()


def post(client, name, data=None, *args):
    return client.post(reverse(f"admin:kb_providermodel_{name}", args=args), data or {}, follow=True)


def test_a_preset_fills_the_form_for_the_role_that_is_asked(client, root):
    assert 'value="https://api.deepseek.com/v1"' in page(client, "add", provider="deepseek")
    rerank = page(client, "add", provider="dashscope", role="rerank")
    assert 'value="https://dashscope.aliyuncs.com/api/v1"' in rerank
    assert '<option value="dashscope" selected>' in rerank
    for wrong in ({}, {"provider": "nobody"}, {"provider": "deepseek", "role": "rerank"}):
        assert client.get(reverse("admin:kb_providermodel_add"), wrong).status_code == 404


def test_a_model_is_tested_before_it_is_saved_and_the_result_is_kept_with_it(client, root, server, given):
    tested = post(client, "test", given())
    assert "An answer from the model." in tested.content.decode()
    assert KEY not in tested.content.decode()
    assert not ProviderModel.objects.exists()
    signed = tested.context["signed"]

    shown = post(client, "add", given(tested=signed))

    made = ProviderModel.objects.get()
    assert (made.name, made.role, made.is_default, made.test_ok) == ("Mine", "chat", True, True)
    assert made.test_latency_ms > 0
    assert decrypted(made.secrets) == {"api_key": KEY}
    assert shown.redirect_chain[-1][0] == reverse(LIST)
    assert KEY not in shown.content.decode()


def test_the_message_of_a_failed_test_is_read_in_the_language_of_each_reader(client, root, given):
    """Whoever tests it may have another than whoever looks at the list later."""
    form = ModelForm(given(), preset=preset_of("openai"), role=Role.CHAT)
    assert form.is_valid()
    late = message_of_fetch(FetchError("timeout", host="models", seconds=15))
    with override("zh-hans"):
        signed = signed_result(form.endpoint, Probe(error=late))
    post(client, "add", given(tested=signed))

    made = ProviderModel.objects.get()
    assert made.test_ok is False
    assert isinstance(made.test_message, Message)
    seen = {}
    for language in ("zh-hans", "en"):
        client.defaults["HTTP_ACCEPT_LANGUAGE"] = language
        with override(language):
            seen[language] = shown(made.test_message)
        assert seen[language] in unescape(page(client, "changelist"))
    assert seen["zh-hans"] != seen["en"]


@pytest.mark.parametrize("changed", [{"model": "other"}, {"api_key": "another"}, {"temperature": ""}])
def test_the_result_of_another_test_is_not_kept(client, root, given, changed):
    signed = post(client, "test", given()).context["signed"]

    post(client, "add", given(tested=signed, **changed))

    assert ProviderModel.objects.get().test_ok is None
    post(client, "add", given(name="Two", tested="made-up"))
    assert ProviderModel.objects.get(name="Two").test_ok is None


def test_what_the_provider_says_is_shown_as_it_came_with_what_to_do(client, root, server, given):
    server.always(
        "chat", Reply(status=401, raw=b'{"error": {"message": "Incorrect API key <b>sk-very-secret-key</b>"}}')
    )

    shown = post(client, "test", given()).content.decode()

    assert "HTTP 401: Incorrect API key &lt;b&gt;***&lt;/b&gt;" in shown
    assert "The key is refused" in shown


def test_a_private_address_has_to_be_confirmed(client, root, server, given):
    unconfirmed = given()
    del unconfirmed["allows_private"]

    assert "data-md-private" in post(client, "test", unconfirmed).content.decode()
    refused = post(client, "add", unconfirmed)

    assert refused.context["form"].errors["allows_private"]
    assert not server.requests
    assert not ProviderModel.objects.exists()


def test_the_server_s_models_fill_the_suggestions(client, root, given):
    listed = post(client, "names", given(model="")).content.decode()

    assert "<option>chat-model</option>" in listed
    assert "embedding" not in listed
    assert "HTTP 404" in post(client, "names", given(base_url=given()["base_url"] + "/none")).content.decode()


def test_a_provider_that_needs_a_key_is_not_saved_without(client, root):
    shown = post(
        client, "add", {"provider": "deepseek", "role": "chat", "base_url": "https://api.deepseek.com/v1", "model": "m"}
    )

    assert "Enter the key" in shown.content.decode()
    assert not ProviderModel.objects.exists()


def test_a_stored_key_stays_until_another_is_entered_and_goes_to_no_other_server(client, row, server, given):
    form = given(api_key="", name="Renamed", row=row.pk, is_enabled="on")
    assert KEY not in page(client, "change", row.pk)

    post(client, "change", form, row.pk)
    row.refresh_from_db()
    assert (row.name, decrypted(row.secrets)) == ("Renamed", {"api_key": KEY})

    post(client, "test", form)
    assert f"Bearer {KEY}" in server.requests[-1].headers.values()
    with ModelServer() as other:
        post(client, "test", {**form, "base_url": other.base_url})
        assert f"Bearer {KEY}" not in other.requests[-1].headers.values()
        refused = post(client, "change", {**form, "base_url": other.base_url}, row.pk)
    assert "enter the key again" in refused.content.decode()

    post(client, "change", {**form, "api_key": "another"}, row.pk)
    row.refresh_from_db()
    assert decrypted(row.secrets) == {"api_key": "another"}


@pytest.mark.parametrize("button", ["test", "names", "test_row"])
def test_a_test_waits_for_its_server_only_where_requests_may(client, row, server, given, crowded, button):
    answer = post(client, button, *((None, row.pk) if button == "test_row" else (given(),)))
    assert answer.status_code == 503
    assert "wait for other servers" in answer.content.decode()
    assert server.requests == []


def test_a_test_from_the_list_is_stored_with_its_fault(client, row, server):
    post(client, "test_row", None, row.pk)
    row.refresh_from_db()
    assert row.test_ok

    server.always("chat", Reply(status=429))
    shown = post(client, "test_row", None, row.pk).content.decode()

    row.refresh_from_db()
    assert (row.test_ok, str(row.test_message)) == (False, "HTTP 429: scripted 429")
    assert "wait, or top it up" in shown
    assert "HTTP 429: scripted 429" in page(client, "changelist")


def test_the_fault_of_a_test_from_the_list_is_in_the_reader_s_language(client, row):
    ProviderModel.objects.filter(pk=row.pk).update(allows_private=False)

    url = reverse("admin:kb_providermodel_test_row", args=[row.pk])
    shown = client.post(url, follow=True, headers={"accept-language": "zh-hans"}).content.decode()

    row.refresh_from_db()
    assert str(row.test_message) not in unescape(shown)


def test_another_model_becomes_the_default_by_a_click(client, root, row, server):
    other = provider_model_create(
        user=root,
        role="chat",
        name="Other",
        provider="openai",
        model="m2",
        base_url=server.base_url,
        allows_private=True,
    )
    assert not other.is_default

    post(client, "default", None, other.pk)

    assert list(ProviderModel.objects.filter(is_default=True)) == [other]
    assert client.get(reverse("admin:kb_providermodel_default", args=[row.pk])).status_code == 404


def cards(markup):
    return {each.get("data-name"): each for each in lxml.html.fromstring(markup).xpath("//*[@data-testid='model']")}


def test_before_a_chat_model_is_deleted_who_uses_it_is_named(client, row, server):
    unused = provider_model_create(
        user=User.objects.get(username="root"),
        role="chat",
        name="Other",
        provider="openai",
        model="m2",
        base_url=server.base_url,
        allows_private=True,
    )
    kb = make_kb()
    make_assistant(kb.owner, kb, name="Support", settings={"model": row.slug})
    make_assistant(kb.owner, kb, name="Draft", settings={"model": row.slug}, published=False)

    assert "all knowledge bases, Support" in words(cards(page(client, "changelist"))[row.name])
    (used,) = lxml.html.fromstring(page(client, "delete", row.pk)).xpath("//*[@data-testid='used-by']")
    assert "all knowledge bases, Support" in words(used)
    assert "Draft" not in words(used)
    assert "used-by" not in page(client, "delete", unused.pk)


def test_an_address_that_is_confirmed_after_a_test_is_not_failed_any_more(client, root, given, server):
    form = given(allows_private="")
    shown = post(client, "test", form).content.decode()
    assert "superuser" not in shown
    assert "tick the box" in shown
    (signed,) = lxml.html.fromstring(shown).xpath("//input[@name='tested']/@value")

    post(client, "add", {**form, "allows_private": "on", "tested": signed})

    assert ProviderModel.objects.get().test_ok is None


@pytest.mark.parametrize(
    ("changed", "ok"),
    [
        ({"name": "Renamed"}, False),
        ({"model": "m3"}, None),
        ({"api_key": "another"}, None),
        ({"temperature": "1"}, None),
    ],
    ids=str,
)
def test_a_test_is_forgotten_once_the_settings_it_tested_are_changed(client, row, given, changed, ok):
    ProviderModel.objects.filter(pk=row.pk).update(test_ok=False, test_message="HTTP 401", tested_at=timezone.now())

    post(client, "change", given(row=row.pk, is_enabled="on", **changed), row.pk)

    row.refresh_from_db()
    assert (row.test_ok, bool(row.test_message)) == (ok, ok is False)


@pytest.mark.parametrize("field", ["embedding_model", "target_embedding_model", "previous_embedding_model"])
def test_a_model_that_is_used_is_not_deleted(client, root, server, field):
    made = provider_model_create(
        user=root,
        role="embedding",
        name="Vectors",
        provider="openai",
        model="e",
        base_url=server.base_url,
        allows_private=True,
    )
    kb = make_kb(name="handbook")
    type(kb).objects.filter(pk=kb.pk).update(**{field: f"model:{made.slug}"})

    assert "handbook" in words(cards(page(client, "changelist"))["Vectors"])
    shown = page(client, "delete", made.pk)
    assert "handbook" in shown
    assert "Choose another embedding model" in shown
    assert "account" not in lxml.html.fromstring(shown).xpath("string(//*[@id='content'])")
    post(client, "delete", {"post": "yes"}, made.pk)
    assert ProviderModel.objects.filter(pk=made.pk).exists()

    kb.delete()
    post(client, "delete", {"post": "yes"}, made.pk)
    assert not ProviderModel.objects.filter(pk=made.pk).exists()


def test_what_the_environment_sets_is_shown_and_locked(client, root, settings):
    settings.RERANKER_MODEL = "cross-encoder/one"
    environment_models_sync()
    locked = ProviderModel.objects.get(variable="RERANKER_MODEL")

    assert "RERANKER_MODEL" in page(client, "changelist")
    form = page(client, "change", locked.pk)
    assert "RERANKER_MODEL" in form
    assert "<form method" not in form.replace("logout", "") or 'data-testid="model-form"' not in form
    assert client.get(reverse("admin:kb_providermodel_delete", args=[locked.pk])).status_code == 403
    post(client, "change", {"name": "x"}, locked.pk)
    assert ProviderModel.objects.get(pk=locked.pk).name == locked.name


def test_a_key_of_another_secret_key_is_red_and_says_what_to_do(client, row, settings):
    settings.SECRET_KEY = "another"
    settings.SECRET_KEY_FALLBACKS = []
    client.force_login(make_user("root2", superuser=True))

    assert "enter it again" in page(client, "changelist")


def test_use_for_a_knowledge_base_that_was_deleted_says_so(client, row):
    kb = make_kb(name="handbook")
    with counted_for(kb.pk):
        report(Use("chat", f"model:{row.slug}", 1_200, 34))
    flush()
    kb.delete()
    url = reverse("admin:kb_providermodel_usage")
    shown = client.get(url, headers={"accept-language": "zh-hans"}).content.decode()
    (use,) = lxml.html.fromstring(shown).xpath("//*[@data-testid='use']")
    assert "已删除的知识库" in words(use)


def test_use_is_shown_by_model_and_knowledge_base(client, row):
    kb = make_kb(name="handbook")
    with counted_for(kb.pk):
        report(Use("chat", f"model:{row.slug}", 1_200, 34))
    flush()

    assert "1234" in page(client, "changelist").replace(",", "")
    shown = page(client, "usage")
    assert "handbook" in shown
    assert "Mine" in shown


def test_weights_are_fetched_cancelled_and_added(client, root, settings, monkeypatch, tmp_path):
    model = "BAAI/bge-small-zh-v1.5"
    with reachable(monkeypatch, tmp_path, {model: {"config.json": b"{}", "model.safetensors": b"w"}}) as hub:
        settings.HF_ENDPOINT = hub.url
        post(client, "weights", {"model": model, "mirror": hub.url})
        row = ModelDownload.objects.get()
        assert "hx-trigger" in page(client, "weights")
        post(client, "weights_cancel", None, row.pk)
        row.refresh_from_db()
        assert row.status == "cancelled"
        assert "Resume" in page(client, "weights")
        assert (
            "Choose one of the mirrors"
            in post(client, "weights", {"model": model, "mirror": "http://x"}).content.decode()
        )


PAGES = ["changelist", "add", "test", "names", "usage", "weights"]
ROW_PAGES = ["change", "delete", "default", "test_row", "history"]


@pytest.mark.parametrize("method", ["get", "post"])
def test_nobody_but_superusers_gets_anywhere(client, row, server, given, method):
    download = ModelDownload.objects.create(model="a/b")
    client.force_login(make_user("staff"))
    addresses = [reverse(f"admin:kb_providermodel_{name}") for name in PAGES]
    addresses += [reverse(f"admin:kb_providermodel_{name}", args=[row.pk]) for name in ROW_PAGES]
    addresses.append(reverse("admin:kb_providermodel_weights_cancel", args=[download.pk]))

    for address in addresses:
        assert getattr(client, method)(address, given()).status_code == 403, address

    assert not server.requests
    assert ModelDownload.objects.get().status == "waiting"


def test_the_audit_log_has_no_key(client, root, given):
    post(client, "add", given())

    entries = AuditEntry.objects.filter(object_type="provider_model")
    assert entries.exists()
    assert KEY not in str(list(entries.values()))


# -- Use of models -----------------------------------------------------------------------------------------------------------
def use(kb, model, *counts):
    with counted_for(*([kb.pk] if kb else [])):
        report(Use("chat", model, *counts))
    flush()


def use_page(client, kb):
    return client.get(reverse("admin:kb_knowledgebase_usage", args=[kb.pk]))


def test_a_knowledge_base_shows_its_own_use_by_model_and_day_and_its_total(client, row):
    kb, other = make_kb(name="handbook"), make_kb(name="other")
    for base, model, counts in [
        (kb, f"model:{row.slug}", (1_200, 34)),
        (kb, "second", (10, 5)),
        (other, "third", (7, 7)),
        (None, "fourth", (9, 9)),
    ]:
        use(base, model, *counts)
    ModelUse.objects.create(
        day=days(31)[0], role="chat", model="long ago", knowledge_base_id=kb.pk, input_tokens=1_000_000
    )
    ModelUse.objects.create(
        day=days(30)[0], role="chat", model="second", knowledge_base_id=kb.pk, requests=1, input_tokens=51
    )
    client.force_login(make_member(kb, "editor"))

    answer = use_page(client, kb)

    assert answer.context["usage"].chart.verdict == "1,300 tokens in 30 days"
    chart = answer.context["usage"].chart
    assert len(chart.labels) == 30
    assert [(each.label, each.values[0], each.values[-1]) for each in chart.series] == [
        ("Mine", 0, 1_234),
        ("second", 51, 15),
    ]
    table = lxml.html.fromstring(answer.content.decode()).xpath("//table[@data-testid='use']")[0]
    assert [words(line) for line in table.xpath(".//tr")] == [
        "Model Role Requests Read Written",
        "Mine Chat 1 1,200 34",
        "second Chat 2 61 5",
        "Total 3 1,261 39",
    ]


def test_owners_and_editors_see_the_use_of_models_and_viewers_do_not(client):
    kb = make_kb(name="handbook")
    address, documents = (reverse(f"admin:kb_knowledgebase_{name}", args=[kb.pk]) for name in ("usage", "change"))
    seen = {}
    for role, user in {
        "owner": kb.owner,
        "editor": make_member(kb, "editor"),
        "viewer": make_member(kb),
        "stranger": make_user("stranger"),
    }.items():
        client.force_login(user)
        seen[role] = (client.get(address).status_code, f'href="{address}"' in client.get(documents).content.decode())

    assert seen == {"owner": (200, True), "editor": (200, True), "viewer": (403, False), "stranger": (404, False)}


def test_a_knowledge_base_for_which_no_model_was_asked_says_so(client):
    kb = make_kb(name="handbook")
    client.force_login(kb.owner)

    answer = use_page(client, kb)

    assert "No model was asked yet." in answer.content.decode()
    assert not lxml.html.fromstring(answer.content.decode()).xpath("//table[@data-testid='use']")
