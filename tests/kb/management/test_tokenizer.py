import json
import threading
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from kb.base.db.transactions import Purpose, try_lock
from kb.jobs import moves
from kb.models import ChunkPostings, KnowledgeBase
from tests.factories import make_document, make_kb

PATIENCE = 20

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    kb = make_kb(name="faq")
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源", "顯示器")
    return kb


@pytest.fixture
def words(tmp_path):
    """Writes a file of words."""

    def write(text, encoding="utf-8"):
        path = tmp_path / "words.txt"
        path.write_bytes(text.encode(encoding))
        return str(path)

    return write


def tokenizer(*arguments, **options):
    output = StringIO()
    call_command("tokenizer", "--kb", "faq", *arguments, stdout=output, **options)
    return output.getvalue()


def stored(kb):
    return KnowledgeBase.objects.get(pk=kb.pk)


def test_shows_the_settings_and_changes_nothing(kb):
    output = tokenizer()
    assert f"faq: {kb.tokenizer_id}" in output
    assert "engine      jieba" in output
    assert "dictionary  none" in output
    assert "on its way" not in output
    assert stored(kb).target_tokenizer_id == ""


def test_shows_the_tokens_of_a_text(kb):
    lines = tokenizer("--text", "The TH-01 cables").splitlines()[-5:]
    assert [line.split() for line in lines] == [
        ["stem", "the", "of", "The", "dropped:", "a", "stop", "word"],
        ["code", "th-01", "of", "TH-01"],
        ["part", "th", "of", "TH"],
        ["part", "01"],
        ["stem", "cabl", "of", "cables"],
    ]


def test_a_change_is_tokenised_at_once_and_then_in_use(kb, words, capsys):
    output = tokenizer("--dictionary", words("智能温控器 100\n# comment\n保修期\n"), "--text", "智能温控器")
    assert stored(kb).tokenizer_id != kb.tokenizer_id
    assert stored(kb).target_tokenizer_id == ""
    assert ChunkPostings.objects.filter(tokenizer_id=stored(kb).tokenizer_id).count() == 3
    assert "dictionary  2 words: 智能温控器 100, 保修期" in output
    assert "dictionary  智能温控器\n" in output
    assert "3/3" in capsys.readouterr().err


def test_settings_that_are_not_named_stay(kb, words):
    tokenizer("--stop-words", words("保修期\n"), "--simplify")
    state = json.loads(tokenizer("--engine", "rjieba", "--json"))
    assert (state["engine"], state["stop_words"], state["simplify"]) == ("rjieba", "保修期", True)


def test_an_empty_file_and_no_simplify_take_settings_back(kb, words):
    tokenizer("--dictionary", words("智能温控器\n"), "--simplify")
    tokenizer("--dictionary", words(""), "--no-simplify")
    assert stored(kb).tokenizer_id == kb.tokenizer_id


def test_without_waiting_the_change_is_left_to_a_worker(kb, words):
    output = tokenizer("--stop-words", words("保修期"), "--no-wait")
    assert "0 of 3 chunks; a worker goes on" in output
    assert stored(kb).tokenizer_id == kb.tokenizer_id
    assert stored(kb).target_tokenizer_id in output


def test_prints_nothing_but_json_when_asked(kb):
    state = json.loads(tokenizer("--json", "--text", "顯示器", "--simplify"))
    assert (state["simplify"], state["target_id"], state["progress"]) == (True, None, None)
    assert state["id"] == state["tokenizer"] == stored(kb).tokenizer_id
    assert [token["term"] for token in state["tokens"]] == ["显示", "显示器"]


def test_a_list_in_gb18030_is_read(kb, words):
    assert "智能温控器" in tokenizer("--dictionary", words("智能温控器\n保修期\n", "gb18030"))


@pytest.mark.django_db(transaction=True)
def test_waits_for_a_worker_that_was_faster(kb, words, monkeypatch):
    """The worker is done as soon as the command waits for it."""
    taken, waited_for = threading.Event(), threading.Event()

    def work():
        try:
            with try_lock(Purpose.TOKENIZE, kb.pk) as is_taken:
                assert is_taken
                taken.set()
                assert waited_for.wait(PATIENCE)
        finally:
            connections.close_all()

    monkeypatch.setattr(moves, "time", SimpleNamespace(sleep=lambda _: waited_for.set()))
    worker = threading.Thread(target=work)
    worker.start()
    assert taken.wait(PATIENCE)
    tokenizer("--stop-words", words("保修期"))
    worker.join(PATIENCE)
    assert waited_for.is_set()
    assert stored(kb).tokenizer_id != kb.tokenizer_id


@pytest.mark.parametrize(
    ("content", "message"),
    [("保修期 0\n".encode(), "Line 1: the frequency is not"), (b"\xff\xfe\xff", "save it as UTF-8")],
)
def test_a_list_that_cannot_be_used_is_an_error_with_a_remedy(kb, tmp_path, content, message):
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=message):
        tokenizer("--dictionary", str(path))
    assert stored(kb).target_tokenizer_id == ""


def test_a_file_that_is_not_there_is_an_error_with_a_remedy(kb, tmp_path):
    with pytest.raises(CommandError, match="name a text file"):
        tokenizer("--stop-words", str(tmp_path / "nowhere.txt"))
