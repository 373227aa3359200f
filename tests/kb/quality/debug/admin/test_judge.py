"""The buttons that judge passages, and what they post."""

import lxml.html
import pytest
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils.translation import override

from kb.models import Chunk, EvalQuery, EvalSet, Judgment, Principal
from kb.quality.debug.admin.judge import SESSION_KEY, judging
from kb.quality.eval_sets.services.sets import DEFAULT_SET, eval_set_named, judge
from tests.factories import make_document, make_kb, make_member, make_user

pytestmark = pytest.mark.django_db

QUERY = "诉讼时效"
URL = "/admin/judge/"


@pytest.fixture
def chunk(document):
    return Chunk.objects.select_related("document").get(document=document, position=1)


def click(client, kb, /, **fields):
    """As the script posts it."""
    data = {"query": QUERY, "kb": [kb.pk], "eval_set": DEFAULT_SET, **fields}
    return client.post(URL, data, headers={"Accept": "application/json"})


class Row:
    def __init__(self, chunk, cut_by=""):
        self.chunk_id, self.kb_id, self.cut_by = chunk.pk, chunk.knowledge_base_id, cut_by


def rendered(template, **context):
    request = RequestFactory().get("/admin/search-debug/?q=x")
    return lxml.html.fragment_fromstring(render_to_string(f"quality/debug/{template}", context, request), "div")


def state_of(kb, *chunks, name=DEFAULT_SET):
    return judging(Principal(kb.owner), name, QUERY, [kb.pk], [chunk.pk for chunk in chunks])


def test_a_click_writes_a_judgment_and_tells_the_state(client, kb, chunk):
    answer = click(client, kb, judgment=f"{chunk.pk}:2", shown=[chunk.pk])
    assert answer.status_code == 200
    body = answer.json()
    assert (body["eval_set"], body["grade"], body["grades"]) == (DEFAULT_SET, 2, {str(chunk.pk): 2})
    assert "1" in body["judged"]
    judgment = Judgment.objects.get()
    assert (judgment.query.text, judgment.quote, judgment.grade) == (QUERY, chunk.text, 2)


def test_a_second_click_takes_it_back(client, kb, chunk):
    click(client, kb, judgment=f"{chunk.pk}:2")
    body = click(client, kb, judgment=f"{chunk.pk}:none", shown=[chunk.pk]).json()
    assert (body["grade"], body["grades"]) == (None, {})
    assert not Judgment.objects.exists()


def test_json_is_taken_too(client, kb, chunk):
    data = {"query": QUERY, "chunk": chunk.pk, "grade": 1, "eval_set": "mine", "kb": [kb.pk], "shown": [chunk.pk]}
    answer = client.post(URL, data, content_type="application/json", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["grades"]) == (200, {str(chunk.pk): 1})
    assert EvalSet.objects.get().name == "mine"


def test_a_new_set_is_made_and_stays_chosen(client, kb, chunk):
    click(client, kb, judgment=f"{chunk.pk}:2", new_eval_set="contracts")
    assert Judgment.objects.get().query.eval_set.name == "contracts"
    assert client.session[SESSION_KEY] == "contracts"


def test_choosing_a_set_makes_none(client, kb):
    body = click(client, kb, new_eval_set="later").json()
    assert body["eval_set"] == "later"
    assert not EvalSet.objects.exists()


def test_a_query_is_marked_to_have_no_answer(client, kb):
    assert click(client, kb, unanswerable="true").json()["unanswerable"] is True
    assert EvalQuery.objects.get().answerable is False
    assert click(client, kb, unanswerable="false").json()["unanswerable"] is False


def test_each_knowledge_base_has_a_set_of_the_name(client, curator, kb):
    other = make_kb(curator)
    client.post(URL, {"query": QUERY, "kb": [kb.pk, other.pk], "eval_set": "both", "unanswerable": "true"})
    assert set(EvalSet.objects.values_list("knowledge_base", "name")) == {(kb.pk, "both"), (other.pk, "both")}


def test_without_a_script_the_form_returns_to_its_page(client, kb, chunk):
    page = f"{reverse('admin:search_debug')}?top_k=3"
    answer = client.post(URL, {"query": QUERY, "kb": [kb.pk], "judgment": f"{chunk.pk}:2", "next": page})
    assert (answer.status_code, answer.url) == (302, page)
    assert Judgment.objects.count() == 1


@pytest.mark.parametrize("there", ["https://elsewhere.example/", "//elsewhere.example", ""])
def test_a_form_leads_to_no_other_site(client, kb, chunk, there):
    answer = client.post(URL, {"query": QUERY, "kb": [kb.pk], "judgment": f"{chunk.pk}:2", "next": there})
    assert answer.url == reverse("admin:search_debug")


def test_without_a_script_an_error_is_a_message(client, kb):
    page = reverse("admin:search_debug")
    answer = client.post(URL, {"query": QUERY, "kb": [kb.pk], "judgment": "999999:2", "next": page}, follow=True)
    assert len(list(answer.context["messages"])) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"query": " "},
        {"judgment": "x:2"},
        {"judgment": "{}:9"},
        {"chunk": "1"},
        {"grade": "2"},
        {"kb": ["x"]},
        {"new_eval_set": "x" * 121},
        {"unanswerable": "true", "kb": []},
    ],
)
def test_what_is_no_click_is_refused_with_a_sentence(client, kb, chunk, fields):
    if "judgment" in fields:
        fields = {"judgment": fields["judgment"].format(chunk.pk)}
    answer = click(client, kb, **fields)
    assert answer.status_code in {400, 404}
    assert answer.json()["detail"]
    assert not EvalQuery.objects.exists()


@pytest.mark.parametrize("body", ["{", "[]", "1"])
def test_a_body_that_is_no_object_is_refused(client, body):
    answer = client.post(URL, body, content_type="application/json", headers={"Accept": "application/json"})
    assert answer.status_code == 400


def test_a_strangers_passage_is_not_there(client, kb, foreign):
    chunk = foreign.chunks.get()
    assert click(client, kb, judgment=f"{chunk.pk}:2").status_code == 404
    assert click(client, chunk.knowledge_base, unanswerable="true").status_code == 404
    assert not EvalSet.objects.exists()


def test_a_viewer_may_not_judge(kb, chunk):
    client = Client()
    client.force_login(make_member(kb))
    assert click(client, kb, judgment=f"{chunk.pk}:2").status_code == 403
    assert not EvalSet.objects.exists()


def test_a_forged_post_is_refused(curator, kb, chunk):
    client = Client(enforce_csrf_checks=True)
    client.force_login(curator)
    assert click(client, kb, judgment=f"{chunk.pk}:2").status_code == 403


def test_who_is_not_signed_in_is_sent_to_the_login(kb, chunk):
    assert click(Client(), kb, judgment=f"{chunk.pk}:2").status_code == 302


def test_the_buttons_show_the_grade_and_take_it_back(kb, chunk):
    judge(Principal(kb.owner), eval_set_named(Principal(kb.owner), kb), QUERY, chunk, 1)
    buttons = rendered("judge.html", judging=state_of(kb, chunk), row=Row(chunk)).xpath(".//button")
    assert [button.get("aria-pressed") for button in buttons] == ["false", "true", "false"]
    assert [button.get("value") for button in buttons] == [f"{chunk.pk}:2", f"{chunk.pk}:none", f"{chunk.pk}:0"]
    assert {button.get("form") for button in buttons} == {"judge-form"}


def test_what_was_cut_should_be_here(kb, chunk):
    labels = [
        rendered("judge.html", judging=state_of(kb, chunk), row=Row(chunk, cut_by)).xpath(".//button[1]")[0].text
        for cut_by in ("", "gate")
    ]
    assert labels[0] != labels[1]


def test_the_set_and_its_state_are_shown(kb, chunk):
    eval_set_named(Principal(kb.owner), kb, "contracts")
    with override("en"):
        form = rendered("judge_set.html", judging=state_of(kb, chunk, name="contracts"))
    assert form.xpath(".//option/@value") == ["contracts", DEFAULT_SET]
    assert [option.text for option in form.xpath(".//option")] == ["contracts", "Default set"]
    assert form.xpath(".//option[@selected]")[0].text == "contracts"
    assert form.xpath(".//input[@name='query']/@value") == [QUERY]


def test_who_may_not_judge_sees_no_buttons(kb, chunk):
    viewer = Principal(make_member(kb))
    state = judging(viewer, DEFAULT_SET, QUERY, [kb.pk], [chunk.pk])
    assert not rendered("judge.html", judging=state, row=Row(chunk)).xpath(".//button")
    assert not rendered("judge_set.html", judging=state).xpath(".//form")


def test_the_state_takes_five_queries_however_many_chunks(kb, chunk, django_assert_max_num_queries):
    caller = Principal(kb.owner)
    chunks = list(make_document(kb, *(f"第{number}条规定的内容" for number in range(30))).chunks.all())
    judge(caller, eval_set_named(caller, kb), QUERY, chunk, 2)
    with django_assert_max_num_queries(5):
        assert state_of(kb, chunk, *chunks)["grades"] == {chunk.pk: 2}


def test_a_strangers_judgments_are_not_shown(kb, foreign):
    stranger = foreign.knowledge_base.owner
    chunk = Chunk.objects.select_related("document").get(document=foreign)
    judge(Principal(stranger), eval_set_named(Principal(stranger), foreign.knowledge_base), QUERY, chunk, 2)
    seen = judging(Principal(make_user()), DEFAULT_SET, QUERY, [foreign.knowledge_base_id], [chunk.pk])
    assert (seen["kb_ids"], seen["grades"]) == (frozenset(), {})
