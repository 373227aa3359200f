import pytest
from django.urls import reverse

from kb.base.errors import Rejected
from kb.index.admin import install_command
from kb.index.services.tokenizing import TOKENIZING, read_settings, tokenizer_change
from kb.models import ChunkPostings, KnowledgeBase, Membership, TokenizerSettings
from retrieval.errors import DependencyMissing
from retrieval.tokenize import Engine, TokenizerOptions
from tests.factories import make_document, make_kb, make_member
from tests.kb.web.admin.pages import Page


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def shared(curator):
    """A stranger's knowledge base of which the curator is a viewer."""
    kb = make_kb()
    make_document(kb, "违约金过高的，可以请求减少。")
    make_member(kb, user=curator)
    return kb


def url(kb, name=""):
    return reverse(f"admin:kb_knowledgebase_tokenizer{name}", args=[kb.pk])


def post(client, kb, action, **values):
    form = {"engine": "jieba", "dictionary": "", "stop_words": "", "text": "", "action": action, **values}
    return client.post(url(kb), form)


def settings(**changes):
    return read_settings(**{"engine": "jieba", "dictionary": "", "stop_words": "", "simplify": False, **changes})


def errors(response):
    return {name: list(messages) for name, messages in response.context["form"].errors.items()}


def read(kb):
    return KnowledgeBase.objects.get(pk=kb.pk)


class TokenizerPage(Page):
    def tokens(self, side):
        rows = self.tree.xpath(f"//*[@data-testid='tokens-{side}']/li")
        return [(row.text, *sorted(set(row.get("class").split()) - {"kb-token"})) for row in rows]


# -- Who may do what -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["", "_progress"])
def test_a_stranger_s_knowledge_base_does_not_exist(client, foreign, name):
    assert client.get(url(foreign.knowledge_base, name)).status_code == 404


@pytest.mark.parametrize("action", ["try", "save", "confirm"])
def test_a_stranger_can_send_nothing(client, foreign, action):
    assert post(client, foreign.knowledge_base, action).status_code == 404


def test_a_viewer_sees_the_settings_and_cannot_change_them(client, shared):
    page = TokenizerPage(client.get(url(shared)))

    fields = page.tree.xpath("//*[@name='engine' or @name='dictionary' or @name='stop_words' or @name='simplify']")
    assert len(fields) == 5
    assert all(field.get("disabled") is not None for field in fields)
    assert page.tree.xpath("//button[@name='action']/@value") == ["try"]


@pytest.mark.parametrize("action", ["save", "confirm"])
def test_a_viewer_who_saves_all_the_same_is_refused(client, shared, action):
    assert post(client, shared, action, dictionary="违约金额").status_code == 403
    assert read(shared).target_tokenizer_id == ""


def test_a_viewer_tries_texts_under_the_settings_as_they_are(client, shared):
    page = TokenizerPage(post(client, shared, "try", text="违约金", stop_words="违约金"))

    assert page.tokens("lost")[-1] == ("违约金", "word")
    assert not page.has("dry-run")


def test_an_editor_may_save(client, curator):
    kb = make_kb()
    make_member(kb, Membership.Role.EDITOR, curator)

    post(client, kb, "save", stop_words="以及")

    assert read(kb).target_tokenizer_id


def test_a_viewer_cannot_cancel(client, shared):
    tokenizer_change(shared, settings(stop_words="以及"))

    assert client.post(url(shared, "_cancel")).status_code == 403
    assert read(shared).target_tokenizer_id


# -- The token viewer ----------------------------------------------------------------------------------------------------
def test_the_page_opens_with_the_tokens_of_a_chunk(client, kb, document):
    page = TokenizerPage(client.get(url(kb)))

    assert ("违约金", "word") in page.tokens("lost")
    assert not page.has("dry-run")


def test_tokens_show_their_kinds_and_what_is_dropped(client, kb):
    tokenizer_change(kb, settings(dictionary="T恤", stop_words="购买"))
    TOKENIZING.advance(kb)

    response = post(client, kb, "try", text="The running man 购买T恤 TH-01", dictionary="T恤", stop_words="购买")

    assert TokenizerPage(response).tokens("lost") == [
        ("the", "dropped", "stem"),
        ("run", "stem"),
        ("man", "stem"),
        ("购买", "dropped", "word"),
        ("t恤", "dictionary"),
        ("t", "stem"),
        ("恤", "word"),
        ("th-01", "code"),
        ("th", "part"),
        ("01", "part"),
    ]
    words = TokenizerPage(response).tree.xpath("//*[@data-testid='tokens-lost']/li/@title")
    assert words[:2] == ["stem, made of “The”, dropped as a stop word", "stem, made of “running”"]


def test_unsaved_settings_are_compared_with_those_in_use(client, kb):
    page = TokenizerPage(post(client, kb, "try", text="购买T恤", dictionary="T恤"))

    assert page.tokens("lost") == [("购买", "word"), ("t", "stem"), ("恤", "word")]
    assert page.tokens("gained") == [("购买", "word"), ("t恤", "dictionary", "gained"), ("t", "stem"), ("恤", "word")]


def test_a_text_is_shown_as_text(client, kb):
    content = post(client, kb, "try", text="<b>x</b>").content.decode()

    assert "<b>x</b>" not in content


# -- The dry run ---------------------------------------------------------------------------------------------------------
def test_a_dry_run_names_the_chunks_and_changes_nothing(client, kb, document):
    page = TokenizerPage(post(client, kb, "try", stop_words="违约金"))

    chunk = document.chunks.get(position=0)
    assert "1 of 2 chunks would have other terms." in page.text("dry-run")
    assert "违约金" in page.text("dry-run")
    assert page.tree.xpath("//*[@data-testid='dry-run']//a/@href") == [
        reverse("admin:kb_chunk_change", args=[chunk.pk])
    ]
    assert not TokenizerSettings.objects.exists()
    assert read(kb).target_tokenizer_id == ""


def test_a_dry_run_that_was_bounded_says_so(client, kb, document, monkeypatch):
    monkeypatch.setattr("kb.index.services.tokenizing.MAX_CHUNKS_TOKENIZED", 1)

    page = TokenizerPage(post(client, kb, "try", stop_words="违约金"))

    assert "At least 1 of the 1 chunks looked at would have other terms; there are 2 chunks in all." in page.text(
        "dry-run"
    )


@pytest.mark.parametrize(
    ("texts", "words"),
    [((), "There are no chunks yet."), (("违约金",), "None of the 1 chunks would have other terms.")],
    ids=["no chunks", "none affected"],
)
def test_a_dry_run_without_effect_says_so(client, kb, texts, words):
    if texts:
        make_document(kb, *texts)

    assert words in TokenizerPage(post(client, kb, "try", stop_words="香蕉")).text("dry-run")


# -- Errors --------------------------------------------------------------------------------------------------------------
LONG = "长" * 51


@pytest.mark.parametrize(
    ("field", "text", "english", "chinese"),
    [
        (
            "dictionary",
            "\n\n违约金 0",
            "Line 3: the frequency is not a whole number from 1 to 1,000,000,000",
            "第 3 行",
        ),
        ("dictionary", f"好\n{LONG}", "Line 2: the word is too long: write one of at most 50 characters.", "第 2 行"),
        ("dictionary", "好\n……", "Line 2: what has no letter and no digit is never searched", "第 2 行"),
        ("stop_words", f"# 注\r\n{LONG}", "Line 2: the word is too long", "第 2 行"),
        ("stop_words", "的\n" * 50_001, "There are more than 50,000 lines", "50,000 行"),
    ],
    ids=["frequency", "length", "no letters", "stop word", "lines"],
)
def test_a_bad_line_is_named_with_its_remedy_in_both_languages(client, kb, field, text, english, chinese):
    for language, words in (("en", english), ("zh-hans", chinese)):
        client.defaults["HTTP_ACCEPT_LANGUAGE"] = language
        response = post(client, kb, "confirm", **{field: text})
        ((name, (message,)),) = errors(response).items()
        assert name == field
        assert words in message
    assert read(kb).target_tokenizer_id == ""


def test_an_engine_that_is_not_installed_is_refused_with_the_command(client, kb, monkeypatch):
    def missing(engine):
        raise DependencyMissing(engine)

    monkeypatch.setattr("kb.index.admin.engine_versions", missing)

    response = post(client, kb, "confirm", engine="rjieba")

    assert "pip install 'zhiku[rjieba]'" in errors(response)["engine"][0]


def test_simplification_without_opencc_is_refused_with_the_command(client, kb, monkeypatch):
    def missing(name):
        raise DependencyMissing(name)

    monkeypatch.setattr("kb.index.admin.import_dependency", missing)

    response = post(client, kb, "confirm", simplify="on")

    assert "pip install 'zhiku[traditional]'" in errors(response)["simplify"][0]


def test_a_text_that_is_too_long_to_try_is_refused(client, kb):
    assert "text" in errors(post(client, kb, "try", text="长" * 2_001))


def test_an_active_tokenizer_without_its_packages_is_told_of_with_the_remedy(client, kb, monkeypatch):
    monkeypatch.setattr("kb.index.admin.tokenizer", lambda _id: None)

    page = TokenizerPage(client.get(url(kb)))

    assert "Keyword search is off in this knowledge base" in page.text("trouble")
    assert "pip install" in page.text("trouble")
    assert not page.has("preview")


@pytest.mark.parametrize(
    ("options", "missing", "command"),
    [
        (TokenizerOptions(engine=Engine.RJIEBA), ["engine_versions"], "pip install 'zhiku[rjieba]'"),
        (TokenizerOptions(simplify=True), ["import_dependency"], "pip install 'zhiku[traditional]'"),
        (TokenizerOptions(), [], "pip install rank-bm25 pystemmer"),
    ],
    ids=["engine", "simplifier", "others"],
)
def test_the_command_installs_what_is_missing(monkeypatch, options, missing, command):
    def absent(*_args):
        raise DependencyMissing

    for name in missing:
        monkeypatch.setattr(f"kb.index.admin.{name}", absent)

    assert install_command(options) == command


def test_without_the_packages_trying_shows_the_trouble_and_no_tokens(client, kb, monkeypatch):
    monkeypatch.setattr("kb.index.admin.tokenizer", lambda _id: None)

    page = TokenizerPage(post(client, kb, "try", text="违约金"))

    assert page.has("trouble")
    assert not page.has("preview")


def test_settings_that_cannot_be_used_here_are_refused_with_the_reason(client, kb, monkeypatch):
    def refuse(**_settings):
        raise Rejected("bm25_dependencies_missing", "run `pip install pystemmer`")

    monkeypatch.setattr("kb.index.admin.read_settings", refuse)

    assert errors(post(client, kb, "confirm")) == {"__all__": ["run `pip install pystemmer`"]}


def test_chunks_of_another_version_s_tokenizer_are_told_of(client, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="jieba-search-en-snowball:0:0000000000000000")

    assert "reindex --bm25" in TokenizerPage(client.get(url(kb))).text("trouble")


def test_a_working_tokenizer_is_no_trouble(client, kb):
    assert not TokenizerPage(client.get(url(kb))).has("trouble")


# -- Saving --------------------------------------------------------------------------------------------------------------
def test_saving_asks_first_where_there_are_chunks(client, kb, document):
    page = TokenizerPage(post(client, kb, "save", dictionary="违约金额"))

    assert "2 chunks will be tokenised again." in page.text("confirm")
    assert page.tree.xpath("//textarea[@name='dictionary']")[0].text.strip() == "违约金额"
    assert read(kb).target_tokenizer_id == ""


def test_a_confirmed_change_sets_the_target_and_enqueues_the_work(
    client, kb, document, monkeypatch, django_capture_on_commit_callbacks
):
    enqueued = []
    monkeypatch.setattr("kb.signals.enqueue", lambda task, *ids: enqueued.append((task.name, *ids)))

    with django_capture_on_commit_callbacks(execute=True):
        response = post(client, kb, "confirm", dictionary="违约金额", stop_words="以及", simplify="on")

    target = TokenizerSettings.objects.get(knowledge_base=kb)
    assert (target.dictionary, target.stop_words, target.simplify) == ("违约金额", "以及", True)
    assert enqueued == [("kb.tasks.tokenize_knowledge_base", kb.pk)]
    assert response.url == url(kb)


def test_an_empty_knowledge_base_needs_no_confirmation(client, kb):
    post(client, kb, "save", stop_words="以及")

    assert read(kb).target_tokenizer_id


def test_settings_that_are_in_use_start_nothing(client, kb, document):
    response = client.get(post(client, kb, "save").url)

    assert "nothing was changed" in response.content.decode()
    assert read(kb).target_tokenizer_id == ""


def test_the_tokenizer_in_use_shows_in_words(client, kb):
    tokenizer_change(kb, settings(engine="rjieba", dictionary="# own\nT恤", stop_words="以及\n\n的", simplify=True))
    TOKENIZING.advance(kb)

    page = client.get(url(kb)).content.decode()

    assert "rjieba · dictionary words: 1 · stop words: 2 · traditional to simplified" in page


# -- On the way to another tokenizer ---------------------------------------------------------------------------------------
@pytest.fixture
def moving(kb, document):
    tokenizer_change(kb, settings(stop_words="违约金"))
    return kb


def progress(client, kb, target):
    return client.get(url(kb, "_progress"), {"target": target})


def test_the_page_shows_how_far_it_is_and_the_coming_settings(client, moving):
    page = TokenizerPage(client.get(url(moving)))

    assert "0 of 2 chunks" in page.text("change")
    assert "Searches use the present tokenizer" in page.text("change")
    assert page.tree.xpath("//textarea[@name='stop_words']")[0].text.strip() == "违约金"


def test_progress_is_asked_for_again_while_it_goes_on(client, moving):
    ChunkPostings.objects.filter(chunk__position=0).update(tokenizer_id=moving.target_tokenizer_id)

    fragment = progress(client, moving, moving.target_tokenizer_id).content.decode()

    assert "1 of 2 chunks" in fragment
    assert 'aria-valuenow="50"' in fragment
    assert url(moving, "_progress") in fragment


def test_once_it_is_done_the_page_asks_no_more(client, moving):
    target = moving.target_tokenizer_id
    TOKENIZING.advance(moving)

    fragment = progress(client, moving, target).content.decode()

    assert "All chunks use the new tokenizer." in fragment
    assert "stop words: 1" in fragment
    assert "hx-get" not in fragment


def test_a_change_that_ended_otherwise_is_told_of(client, moving):
    target = moving.target_tokenizer_id
    client.post(url(moving, "_cancel"))

    fragment = progress(client, moving, target).content.decode()

    assert "The change has ended" in fragment
    assert "hx-get" not in fragment


def test_cancelling_keeps_the_present_tokenizer(client, moving):
    before = moving.tokenizer_id

    response = client.post(url(moving, "_cancel"), follow=True)

    assert "The change was cancelled" in response.content.decode()
    assert not TokenizerPage(response).has("change")
    assert (read(moving).tokenizer_id, read(moving).target_tokenizer_id) == (before, "")
    assert not ChunkPostings.objects.exclude(tokenizer_id=before).exists()


def test_cancelling_by_a_link_is_impossible(client, moving):
    assert client.get(url(moving, "_cancel")).status_code == 405
    assert read(moving).target_tokenizer_id


def test_the_knowledge_base_s_page_says_that_its_tokenizer_is_being_changed(client, moving):
    page = client.get(reverse("admin:kb_knowledgebase_change", args=[moving.pk])).content.decode()

    assert "tokenizer being changed" in page
