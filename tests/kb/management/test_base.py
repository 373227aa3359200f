import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import translation

from kb.base.errors import Rejected
from kb.management.base import JSON, KnowledgeBaseCommand, kb_arguments
from retrieval.errors import ModelUnavailable
from tests.factories import make_kb, make_user


class Doing(KnowledgeBaseCommand):
    """Runs a function as a command."""

    def __init__(self, work, **add_kb):
        super().__init__()
        self.work, self.arguments = work, (*kb_arguments(**add_kb), JSON)

    def handle(self, *_, **options):
        return self.work(self, options)


def run(work, *arguments, **add_kb):
    output = StringIO()
    call_command(Doing(work, **add_kb), *arguments, stdout=output)
    return output.getvalue()


@pytest.mark.parametrize("error", [Rejected("code", "do this instead"), ModelUnavailable("do this instead")])
def test_an_error_of_a_service_or_of_retrieval_ends_the_command_with_its_message(error):
    def work(command, options):
        raise error

    with pytest.raises(CommandError, match="do this instead") as caught:
        run(work, required=False)
    assert caught.value.returncode == 1


def test_other_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run(lambda *_: 1 / 0, required=False)


def test_speaks_english_whatever_the_language_of_the_site():
    seen = []
    with translation.override("zh-hans"):
        run(lambda *_: seen.append(translation.get_language()), required=False)
    assert seen == [None]


def test_json_is_all_that_stdout_holds():
    def work(command, options):
        command.answer(options, {"查询": ["保修"]}, ["words for people"])

    output = run(work, "--json", required=False)
    assert json.loads(output) == {"查询": ["保修"]}
    assert "保修" in output


def test_without_json_stdout_holds_the_lines():
    work = lambda command, options: command.answer(options, {}, iter(["one", "two"]))  # noqa: E731
    assert run(work, required=False) == "one\ntwo\n"


def test_progress_passes_the_items_on_and_shows_them_on_stderr(capsys):
    seen = []
    output = run(lambda command, _: seen.extend(command.progress_bar("abc", unit="letters")), required=False)
    assert seen == ["a", "b", "c"]
    assert output == ""
    assert "letters/s" in capsys.readouterr().err


@pytest.mark.django_db
def test_finds_the_knowledge_base_named():
    kb, found = make_kb(name="faq"), []
    run(lambda command, options: found.append(command.knowledge_base(options)), "--kb", "faq")
    assert found == [kb]


@pytest.mark.django_db
def test_the_owner_tells_two_of_one_name_apart():
    make_kb(make_user("ann"), "faq")
    his, found = make_kb(make_user("bob"), "faq"), []

    def work(command, options):
        found.append(command.knowledge_base(options))

    with pytest.raises(CommandError, match="--owner"):
        run(work, "--kb", "faq")
    run(work, "--kb", "faq", "--owner", "bob")
    assert found == [his]


@pytest.mark.django_db
def test_a_repeatable_option_keeps_the_order_given():
    one, two, found = make_kb(name="one"), make_kb(name="two"), []
    work = lambda command, options: found.extend(command.knowledge_bases(options))  # noqa: E731
    run(work, "--kb", "two", "--kb", "one", repeatable=True)
    assert found == [two, one]


@pytest.mark.django_db
def test_the_first_superuser_stands_in_for_a_user_that_is_not_named():
    make_user("ann")
    first, found = make_user("root", superuser=True), []
    make_user("later", superuser=True)
    run(lambda command, _: found.append(command.user(None)), required=False)
    assert found == [first]
