from urllib.parse import parse_qs, urlsplit

import lxml.html
import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

from kb.models import Conversation, EvalQuery, EvalSet, FailedQuery, Membership, Visitor
from kb.search.services.search import SearchRequest, search
from tests.factories import make_kb, make_member, make_user, principal
from tests.kb.assistants.making import make_assistant
from tests.kb.web.admin.pages import words

LIST = "admin:kb_failedquery_changelist"
CHANGE = "admin:kb_failedquery_change"
TO_SET = "admin:kb_failedquery_to_set"
State = FailedQuery.State


def make_failed(*bases, query="违约金", **fields):
    return FailedQuery.objects.create(
        key=f"key-{FailedQuery.objects.count()}",
        knowledge_base_ids=[kb.pk for kb in bases],
        query=query,
        **{"reasons": {"nothing": 1}, "count": 1, "first_seen": timezone.now(), "last_seen": timezone.now(), **fields},
    )


@pytest.fixture
def failed(kb):
    return make_failed(kb, reasons={"nothing": 3, "disliked": 1}, count=4)


@pytest.fixture
def open_list(client):
    def get(**chosen):
        return client.get(reverse(LIST), chosen, headers={"accept-language": "en"})

    return get


def queries(response):
    return {row.query for row in response.context["cl"].result_list}


def tree(response):
    return lxml.html.fromstring(response.content.decode())


# -- The list ------------------------------------------------------------------------------------------------------------
def test_a_row_tells_why_how_often_and_where_it_failed(open_list, failed):
    row = words(tree(open_list()).xpath("//*[@id='result_list']//tbody")[0])

    for told in ("违约金", "nothing found ×3", "not helpful", "4", "legal", "open"):
        assert told in row


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, {"open", "in_progress"}),
        ({"state": "resolved"}, {"resolved"}),
        ({"state": "all"}, set(State.values)),
        ({"state": "moon"}, {"open", "in_progress"}),
    ],
    ids=["unasked", "resolved", "all", "unknown"],
)
def test_what_waits_is_listed_unless_other_states_are_asked_for(open_list, kb, chosen, found):
    for state in State.values:
        make_failed(kb, query=state, state=state)

    assert queries(open_list(**chosen)) == found


def test_the_list_is_filtered_by_reason(open_list, kb):
    make_failed(kb, query="a", reasons={"nothing": 1, "degraded": 2})
    make_failed(kb, query="b", reasons={"gated": 1})

    assert queries(open_list(reason="degraded")) == {"a"}
    assert queries(open_list(reason="gated")) == {"b"}


def test_the_list_is_filtered_by_assignee(open_list, kb, curator):
    for query, user in {"a": curator, "b": None, "c": make_user(superuser=True)}.items():
        make_failed(kb, query=query, assignee=user)

    found = {chosen: queries(open_list(assignee=chosen)) for chosen in ("mine", "nobody", "others")}

    assert found == {"mine": {"a"}, "nobody": {"b"}, "others": {"c"}}


def test_the_list_is_filtered_by_knowledge_base(open_list, kb, curator, failed):
    assert queries(open_list(kb=kb.pk)) == {failed.query}
    assert not queries(open_list(kb=make_kb(curator).pk))


def test_an_empty_inbox_says_what_comes_in(open_list, kb):
    assert "come in here by themselves" in open_list().content.decode()


def test_what_may_not_be_seen_is_not_there(client, open_list, kb, foreign):
    hidden = make_failed(foreign.knowledge_base, query="hidden-query")
    make_failed(kb, foreign.knowledge_base, query="half-hidden-query")

    assert not queries(open_list(state="all"))
    assert client.get(reverse(CHANGE, args=[hidden.pk])).status_code == 404
    assert client.get(reverse(TO_SET, args=[hidden.pk])).status_code == 404


def test_many_rows_take_few_queries(open_list, curator, django_assert_max_num_queries):
    for number in range(8):
        make_failed(make_kb(curator), query=f"{number}", assignee=curator)

    with django_assert_max_num_queries(10):
        open_list()


# -- One query -----------------------------------------------------------------------------------------------------------
def test_it_opens_in_search_debug_as_it_was_searched(client, kb):
    asked = SearchRequest(query="违约金", knowledge_base_ids=[kb.pk], overrides={"top_k": 3, "use_rerank": False})
    search(principal(kb.owner), asked)

    page = tree(client.get(reverse(CHANGE, args=[FailedQuery.objects.get().pk])))

    (link,) = page.xpath(f"//a[starts-with(@href, '{reverse('admin:search_debug')}?')]/@href")
    assert parse_qs(urlsplit(link).query) == {"kb": [str(kb.pk)], "q": ["违约金"], "top_k": ["3"], "rerank": ["off"]}
    assert client.get(link).status_code == 200


def test_it_opens_in_search_debug_when_its_search_is_no_longer_kept(client, failed, kb):
    page = tree(client.get(reverse(LIST)))

    (link,) = page.xpath(f"//*[@id='result_list']//a[starts-with(@href, '{reverse('admin:search_debug')}?')]/@href")
    assert parse_qs(urlsplit(link).query) == {"kb": [str(kb.pk)], "q": ["违约金"]}


def save(client, failed, **fields):
    return client.post(reverse(CHANGE, args=[failed.pk]), {"state": failed.state, "assignee": "", **fields})


def test_it_is_given_to_a_colleague_by_name_and_is_in_progress_then(client, kb, failed):
    colleague = make_member(kb)
    save(client, failed, assignee_name=colleague.username)

    failed.refresh_from_db()
    assert (failed.assignee, failed.state) == (colleague, State.IN_PROGRESS)
    save(client, failed, state=State.RESOLVED, assignee=colleague.pk)
    failed.refresh_from_db()
    assert (failed.assignee, failed.state) == (colleague, State.RESOLVED)


def test_it_is_given_to_nobody_who_may_not_see_it(client, failed):
    stranger = make_user()
    for fields in ({"assignee": stranger.pk}, {"assignee_name": stranger.username}):
        response = save(client, failed, **fields)

        assert response.status_code == 200
        assert response.context["adminform"].form.errors.keys() == fields.keys()


@pytest.mark.parametrize("role", ["owner", "editor", "viewer"])
def test_the_page_names_no_superuser_and_no_other_member(client, curator, kb, failed, role):
    make_user("root-admin", superuser=True)
    make_member(kb, user=make_user("secret.reader"))
    if role != "owner":
        client.force_login(make_member(kb, role, make_user("mallory")))

    page = client.get(reverse(CHANGE, args=[failed.pk])).content.decode()

    assert "root-admin" not in page
    assert "secret.reader" not in page
    assert ("assignee_name" in page) is (role == "owner")


def test_an_editor_takes_a_query_and_names_nobody_else(client, kb, failed):
    editor, other = make_member(kb, Membership.Role.EDITOR), make_member(kb)
    client.force_login(editor)

    assert "assignee_name" in save(client, failed, assignee_name=other.username).context["adminform"].form.errors
    save(client, failed, assignee=editor.pk)
    failed.refresh_from_db()
    assert failed.assignee == editor


def test_its_state_is_set_and_no_history_keeps_its_words(client, failed):
    save(client, failed, state=State.IGNORED)

    failed.refresh_from_db()
    assert failed.state == State.IGNORED
    assert not LogEntry.objects.exists()


def test_a_reader_sees_it_and_changes_nothing(client, kb, failed):
    client.force_login(make_member(kb))

    assert client.get(reverse(CHANGE, args=[failed.pk])).status_code == 200
    assert save(client, failed, state=State.IGNORED).status_code == 403
    assert client.get(reverse(TO_SET, args=[failed.pk])).status_code == 403
    assert act(client, "resolve", failed).status_code == 200
    failed.refresh_from_db()
    assert failed.state == State.OPEN


# -- Actions -------------------------------------------------------------------------------------------------------------
def act(client, name, *rows, **fields):
    data = {"action": name, "_selected_action": [row.pk for row in rows], **fields}
    return client.post(f"{reverse(LIST)}?state=all", data, follow=True)


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("resolve", State.OPEN, State.RESOLVED),
        ("ignore", State.OPEN, State.IGNORED),
        ("open_again", State.RESOLVED, State.OPEN),
        ("assign_to_me", State.OPEN, State.IN_PROGRESS),
    ],
)
def test_an_action_puts_rows_into_a_state(client, kb, action, before, after):
    rows = [make_failed(kb, query=query, state=before) for query in "ab"]
    act(client, action, *rows)

    assert set(FailedQuery.objects.values_list("state", flat=True)) == {after}


def test_who_assigns_rows_to_themselves_has_them(client, curator, failed):
    act(client, "assign_to_me", failed)

    failed.refresh_from_db()
    assert failed.assignee == curator


def test_an_action_passes_over_what_one_may_not_edit(client, curator, failed):
    others = make_kb()
    make_member(others, Membership.Role.VIEWER, curator)
    read_only = make_failed(others)
    act(client, "resolve", failed, read_only)

    assert set(FailedQuery.objects.values_list("pk", "state")) == {
        (failed.pk, State.RESOLVED),
        (read_only.pk, State.OPEN),
    }


def test_rows_are_deleted_after_a_question(client, failed):
    asked = act(client, "delete_selected", failed)
    assert FailedQuery.objects.exists()
    assert "违约金" in asked.content.decode()

    act(client, "delete_selected", failed, post="yes")
    assert not FailedQuery.objects.exists()
    assert not LogEntry.objects.exists()


# -- To an evaluation set ------------------------------------------------------------------------------------------------
def to_set(client, failed, target, **fields):
    data = {"target": target, **fields}
    return client.post(reverse(TO_SET, args=[failed.pk]), data, headers={"accept-language": "en"})


def test_it_becomes_a_query_of_a_set(client, kb, failed):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="regression")
    response = to_set(client, failed, f"set-{eval_set.pk}")

    assert response.url == reverse(LIST)
    query = EvalQuery.objects.get()
    assert (query.eval_set, query.text, query.answerable) == (eval_set, "违约金", True)


def test_it_becomes_one_without_an_answer_in_a_new_set(client, kb, failed):
    to_set(client, failed, f"new-{kb.pk}", name="gaps", unanswerable="on")

    query = EvalQuery.objects.get()
    assert (query.eval_set.name, query.answerable) == ("gaps", False)


def test_a_set_of_another_knowledge_base_is_not_offered(client, curator, failed):
    elsewhere = EvalSet.objects.create(knowledge_base=make_kb(curator), name="elsewhere")

    response = to_set(client, failed, f"set-{elsewhere.pk}")

    assert "target" in response.context["form"].errors
    assert "elsewhere" not in client.get(reverse(TO_SET, args=[failed.pk])).content.decode()
    assert not EvalQuery.objects.exists()


def test_a_query_that_cannot_be_taken_is_refused_in_words(client, kb):
    failed = make_failed(kb, query="x" * 5_000)
    response = to_set(client, failed, f"new-{kb.pk}")

    assert "longer than" in words(tree(response).xpath("//form[contains(@class, 'fq-form')]")[0])
    assert not EvalSet.objects.exists()


def test_one_click_in_the_list_puts_a_query_into_the_default_set(client, open_list, failed, kb):
    (button,) = tree(open_list()).xpath("//*[@id='result_list']//button[@form='to-set']")
    client.post(button.get("formaction"), {button.get("name"): button.get("value")})
    query = EvalQuery.objects.get()
    assert (query.text, query.eval_set.knowledge_base, query.answerable) == (failed.query, kb, True)
    assert not query.judgments.exists()


@pytest.mark.parametrize("case", ["viewer", "several knowledge bases"])
def test_where_there_is_no_one_set_to_put_it_in_the_list_has_no_such_button(open_list, curator, kb, case):
    make_failed(kb, make_kb(curator)) if case != "viewer" else make_failed(viewed(curator))
    page = tree(open_list())
    assert page.xpath("//*[@id='result_list']//tbody")
    assert page.xpath("//button[@form='to-set']") == []


def viewed(user):
    other = make_kb()
    make_member(other, user=user)
    return other


# -- Filters, what visitors say, and what becomes of it -------------------------------------------------------------------
def test_a_query_goes_into_a_set_without_the_list_losing_its_filters(client, open_list, kb, failed):
    make_failed(kb, query="another")
    (action,) = set(tree(open_list(kb=kb.pk, reason="disliked")).xpath("//button/@formaction"))
    kept = {"kb": [str(kb.pk)], "reason": ["disliked"]}

    response = client.post(action, {"target": f"new-{kb.pk}"})
    assert parse_qs(urlsplit(response.url).query) == kept

    (back,) = tree(client.get(action)).xpath(f"//a[starts-with(@href, '{reverse(LIST)}?')]/@href")
    assert parse_qs(urlsplit(back).query) == kept


@pytest.fixture
def judged(kb, curator):
    """An answer that a visitor found wrong, after which the question was put in other words; its assistant."""
    assistant = make_assistant(curator, kb, access="public")
    visitor = Visitor.objects.create(assistant=assistant)
    conversation = Conversation.objects.create(visitor=visitor, knowledge_base_ids=[kb.pk])
    conversation.messages.create(role="user", text="违约金 怎么算？", is_replaced=True)
    said = {"feedback": -1, "feedback_text": "It is of 2019.", "is_replaced": True}
    conversation.messages.create(role="assistant", text="百分之三十。", **said)
    conversation.messages.create(role="user", text="违约金的上限？")
    conversation.messages.create(role="assistant", text="百分之三十。", feedback=-1)
    return assistant


def test_what_a_visitor_said_of_an_answer_stands_beside_its_question(client, open_list, kb, judged):
    failed = make_failed(kb, query="违约金  怎么算？", assistant_ids=[judged.pk], reasons={"disliked": 1})
    make_failed(kb, query="违约金的上限？", assistant_ids=[judged.pk], reasons={"disliked": 1})
    make_failed(kb, query="违约金 怎么算?", reasons={"nothing": 1})  # not asked of an assistant

    assert [words(each) for each in tree(open_list()).xpath("//*[@id='result_list']//q")] == ["It is of 2019."]

    (remark,) = tree(client.get(reverse(CHANGE, args=[failed.pk]))).xpath("//*[@data-testid='remark']")
    assert "It is of 2019." in words(remark)
    conversation = Conversation.objects.get()
    assert remark.xpath("./a/@href") == [reverse("admin:kb_assistant_conversation", args=[judged.pk, conversation.pk])]


def test_who_does_not_edit_the_assistant_does_not_read_what_its_visitors_said(client, kb, judged):
    failed = make_failed(kb, query="违约金 怎么算？", assistant_ids=[judged.pk])
    judged.knowledge_bases.add(make_kb())
    client.force_login(make_member(kb, "editor"))
    assert "2019" not in client.get(reverse(CHANGE, args=[failed.pk])).content.decode()
