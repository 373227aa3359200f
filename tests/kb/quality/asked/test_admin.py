import re

import pytest
from django.urls import reverse

from kb.assistants.services.assistants import version_create, version_publish
from kb.assistants.settings import AssistantSettings
from kb.models import Conversation, EvalQuery, EvalRun, EvalSet, Membership, RetrievalProfile, Visitor
from tests.factories import make_kb, make_user, principal
from tests.kb.assistants.making import make_assistant
from tests.kb.web.admin.pages import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(assistant, kb):
    def call(question, *, hit=True, **fields):
        visitor = Visitor.objects.create(assistant=assistant)
        conversation = Conversation.objects.create(visitor=visitor, knowledge_base_ids=[kb.pk])
        conversation.messages.create(role="user", text=question)
        conversation.messages.create(role="assistant", text="An answer.", hit=hit, **fields)

    return call


def rows(answer):
    return [re.sub(r"\s+", " ", row.text_content()).strip() for row in Page(answer).tree.xpath("//tbody/tr")]


def test_questions_stand_together_with_how_they_were_answered(page, assistant, asked):
    asked("How long is the warranty?", feedback=1, input_tokens=70, output_tokens=5)
    asked("how long is the warranty", hit=False)
    asked("Who pays for returns?", hit=False)
    first, second = rows(page("questions", assistant.pk))
    assert "warranty" in first
    assert "50%" in first
    assert "75" in first
    assert second.startswith("Who pays for returns?")
    unanswered = rows(page("questions", assistant.pk, unanswered="on"))
    assert {row[:9] for row in unanswered} == {"how long ", "Who pays "}


def test_a_question_leads_to_why_to_an_answer_and_into_an_evaluation_set(page, assistant, asked, kb):
    asked("Who pays for returns?", hit=False)
    found = Page(page("questions", assistant.pk))
    for testid, name in (("why", "why_not"), ("write", "ask_write")):
        [link] = found.tree.xpath(f"//a[@data-testid='{testid}']/@href")
        assert link == f"{reverse(f'admin:{name}')}?kb={kb.pk}&q=Who+pays+for+returns%3F"
    answer = page("questions", assistant.pk, data={"question": "Who pays for returns?", "kb": kb.pk})
    assert answer.status_code == 302
    query = EvalQuery.objects.get()
    assert (query.text, query.eval_set.knowledge_base) == ("Who pays for returns?", kb)


def test_a_question_goes_into_no_set_of_a_knowledge_base_that_is_not_the_assistants(page, assistant, owner):
    for kb_id in (make_kb(owner).pk, make_kb().pk, "", "x"):
        assert page("questions", assistant.pk, data={"question": "Returns?", "kb": kb_id}).status_code == 404
    assert not EvalSet.objects.exists()


def test_its_sets_are_run_as_it_searches(page, assistant, owner, kb):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="returns")
    version = version_create(principal(owner), assistant, AssistantSettings(profile="balanced"))
    version_publish(principal(owner), version)
    [link] = Page(page("questions", assistant.pk)).tree.xpath(
        "//ul[@data-testid='measure']//a[@data-testid='evaluate']/@href"
    )
    assert link == f"{reverse('admin:kb_evalrun_add')}?eval_set={eval_set.pk}&profile=balanced"


def test_a_set_shows_its_last_run_that_searched_as_the_assistant_does(page, assistant, owner, kb):
    def run(eval_set, profile, ndcg, **fields):
        report = {"stages": {"reranked": {"ndcg@10": ndcg}}}
        return EvalRun.objects.create(eval_set=eval_set, profile=profile, status="done", report=report, **fields)

    def figures():
        lines = Page(page("questions", assistant.pk)).tree.xpath("//ul[@data-testid='measure']/li/small/a[1]")
        return [line.text_content() for line in lines]

    eval_set = EvalSet.objects.create(knowledge_base=kb, name="returns")
    other = RetrievalProfile.objects.live("balanced")
    assert other != kb.profile
    run(eval_set, kb.profile, 0.5)
    run(eval_set, kb.profile, 0.625)
    run(eval_set, kb.profile, 0.9, overrides={"top_k": 3})
    run(eval_set, other, 0.75)
    assert figures() == ["NDCG@10 0.625"]
    version_publish(
        principal(owner), version_create(principal(owner), assistant, AssistantSettings(profile="balanced"))
    )
    assert figures() == ["NDCG@10 0.750"]


def test_who_may_not_edit_all_its_knowledge_bases_finds_no_page(page, kb):
    other = make_user()
    assistant = make_assistant(other, make_kb(other))
    assert page("questions", assistant.pk).status_code == 404
    shared = make_kb(other)
    Membership.objects.create(user=kb.owner, knowledge_base=shared, role="editor")
    assert page("questions", make_assistant(other, shared).pk).status_code == 200


def test_an_empty_page_says_what_it_is_for(page, assistant):
    found = Page(page("questions", assistant.pk))
    assert found.tree.xpath("//*[@data-testid='no-question']")


def test_it_takes_few_queries(page, assistant, asked, django_assert_max_num_queries):
    for number in range(30):
        asked(f"Question about thing{number}?")
    page("questions", assistant.pk)
    with django_assert_max_num_queries(11):
        page("questions", assistant.pk)
