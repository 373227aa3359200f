import json
import zipfile

import pytest
from django.core.management import CommandError, call_command

from kb.models import EvalQuery, EvalSet
from kb.quality.eval_sets.services.files import judged_set
from kb.quality.eval_sets.services.sets import eval_set_named, judge, mark_unanswerable, queries_add
from tests.factories import make_document, make_kb, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb(name="handbook")


@pytest.fixture
def eval_set(kb):
    me = principal(kb.owner)
    eval_set = eval_set_named(me, kb, "mine")
    judge(me, eval_set, "年假", make_document(kb, "五天带薪年假").chunks.select_related("document").get(), 2)
    queries_add(me, eval_set, ["病假"])
    mark_unanswerable(me, eval_set, "股价", True)
    return eval_set


def run(capsys, *arguments):
    call_command("eval_set", *arguments)
    return capsys.readouterr().out


def test_the_sets_are_listed_with_their_counts(kb, eval_set, capsys):
    assert "mine: 3 queries, 1 with judgments, 1 without an answer" in run(capsys, "list", "--kb", "handbook")
    printed = json.loads(run(capsys, "list", "--kb", "handbook", "--json"))
    assert printed == [{"name": "mine", "queries": 3, "judged": 1, "unanswerable": 1}]


def test_a_knowledge_base_without_sets_says_where_they_come_from(kb, capsys):
    assert "eval_set import --help" in run(capsys, "list", "--kb", "handbook")


@pytest.mark.parametrize("layout", ["beir", "trec"])
@pytest.mark.parametrize("name", ["folder", "set.zip"])
def test_what_is_exported_is_imported(kb, eval_set, tmp_path, capsys, layout, name):
    path, before = str(tmp_path / name), judged_set(eval_set)
    run(capsys, "export", "--kb", "handbook", "--eval-set", "mine", "--format", layout, path)
    output = run(capsys, "import", "--kb", "handbook", "--replace", path)
    assert "evaluation set mine: 3 queries, 1 judgments" in output
    assert judged_set(eval_set) == before
    run(capsys, "import", "--kb", "handbook", "--eval-set", "copy", "--format", layout, path)
    assert EvalSet.objects.count() == 2


def test_the_documents_can_be_left_out(kb, eval_set, tmp_path, capsys):
    path = tmp_path / "set.zip"
    run(capsys, "export", "--kb", "handbook", "--eval-set", "mine", "--without-documents", str(path))
    assert "corpus.jsonl" not in zipfile.ZipFile(path).namelist()


def test_judgments_without_their_document_are_counted(eval_set, tmp_path, capsys):
    run(capsys, "export", "--kb", "handbook", "--eval-set", "mine", str(tmp_path / "set"))
    make_kb(name="empty")
    output = run(capsys, "import", "--kb", "empty", str(tmp_path / "set"))
    assert "1 judgments are of documents that 'empty' does not have" in output


def test_a_set_that_is_there_is_not_replaced_unasked(kb, eval_set, tmp_path, capsys):
    run(capsys, "export", "--kb", "handbook", "--eval-set", "mine", str(tmp_path / "set"))
    with pytest.raises(CommandError, match="replace it"):
        run(capsys, "import", "--kb", "handbook", str(tmp_path / "set"))


def test_nothing_is_overwritten(kb, eval_set, tmp_path):
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(CommandError, match="there already"):
            call_command("eval_set", "export", "--kb", "handbook", "--eval-set", "mine", str(path))


def test_what_is_not_there_is_named(kb, eval_set, tmp_path):
    with pytest.raises(CommandError, match="mine"):
        call_command("eval_set", "export", "--kb", "handbook", "--eval-set", "other", str(tmp_path / "set"))
    with pytest.raises(CommandError, match="does not exist"):
        call_command("eval_set", "import", "--kb", "handbook", str(tmp_path / "none"))


def test_a_bad_file_is_an_error_with_the_place(kb, tmp_path):
    (tmp_path / "topics.tsv").write_text("no tab\n")
    (tmp_path / "qrels.txt").write_text("")
    with pytest.raises(CommandError, match=r"topics\.tsv:1: not a topic"):
        call_command("eval_set", "import", "--kb", "handbook", str(tmp_path))
    assert not EvalQuery.objects.exists()
