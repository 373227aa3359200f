import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.management.commands.profile import Command
from kb.models import KnowledgeBase, RetrievalProfile
from kb.profiles.services import BUILT_IN
from tests.factories import make_document, make_kb, make_user
from tests.kb.quality.fitting.fitted_sets import NAMES, make_judged_set, mislead

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def root():
    return make_user("root", superuser=True)


@pytest.fixture
def kb():
    kb = make_kb(make_user("curator"), "faq")
    make_document(kb, "保修期是两年", "保修期内免费维修")
    return kb


def profile(*arguments):
    output = StringIO()
    call_command("profile", *arguments, stdout=output)
    return output.getvalue()


def as_json(*arguments):
    return json.loads(profile(*arguments, "--json"))


def test_lists_the_profiles_with_their_versions_and_who_uses_them(kb):
    profile("create", "faq tuned", "--kb", "faq")
    lines = profile("list").splitlines()
    assert "keyword-led: v1 published; used by faq" in lines
    assert "faq tuned (of faq): none published, draft v1; used by no knowledge base" in lines


def test_lists_as_json_what_the_api_lists(kb):
    rows = {row["name"]: row for row in as_json("list")}
    assert rows.keys() == BUILT_IN.keys()
    assert rows["keyword-led"] == {
        "name": "keyword-led",
        "knowledge_base_id": None,
        "published_version": 1,
        "newest_version": 1,
        "version_count": 1,
        "used_by": [{"id": kb.pk, "name": "faq"}],
        "used_elsewhere": 0,
    }


def test_shows_which_settings_are_inherited():
    lines = {line.split()[0]: line for line in profile("show", "keyword-led").splitlines()}
    assert lines["keyword-led@1:"].endswith("published")
    assert lines["vector_weight"].split() == ["vector_weight", "0.1"]
    assert lines["top_k"].split() == ["top_k", "5", "(inherited)"]


def test_shows_the_resolved_configuration_as_json():
    shown = as_json("show", "weighted@1")
    assert (shown["state"], shown["settings"], shown["configuration"]["fusion"]) == (
        "published",
        {"fusion": "weighted"},
        "weighted",
    )


def test_tells_in_what_two_versions_differ():
    assert profile("diff", "default@1", "keyword-led@1").splitlines() == [
        "vector_weight         0.6 -> 0.1",
        "keyword_weight        0.4 -> 0.9",
    ]


def test_compares_with_the_environment():
    found = as_json("diff", "environment", "weighted")
    assert (found["before"], found["after"]) == (None, {"name": "weighted", "version": 1})
    assert found["differences"] == [{"name": "fusion", "before": "rrf", "after": "weighted"}]


def test_says_that_nothing_differs():
    assert profile("diff", "environment", "default") == "Both come to the same settings.\n"


def test_creates_a_draft_with_the_settings_given():
    created = as_json(
        "create", "mine", "--set", "top_k=7", "--set", "fusion=weighted", "--set", 'rerankers=["overlap"]',
        "--description", "wider",
    )  # fmt: skip
    assert (created["name"], created["version"], created["state"], created["created_by"]) == (
        "mine",
        1,
        "draft",
        "root",
    )
    row = RetrievalProfile.objects.get(name="mine")
    assert (row.settings, row.description) == (
        {"top_k": 7, "fusion": "weighted", "rerankers": ["overlap"]},
        "wider",
    )


def test_no_option_of_its_own_has_the_name_of_one_that_django_reads():
    parsed = Command().create_parser("manage.py", "profile").parse_args(["create", "mine", "--set", "top_k=7"])
    assert (parsed.settings, parsed.given) == (None, [("top_k", 7)])


def test_begins_with_the_settings_of_another_version():
    profile("create", "mine", "--from", "keyword-led@1", "--set", "vector_weight=0.2")
    assert RetrievalProfile.objects.get(name="mine").settings == {"vector_weight": 0.2, "keyword_weight": 0.9}


def test_a_further_version_stays_where_the_first_is(kb):
    profile("create", "faq tuned", "--kb", "faq")
    profile("create", "faq tuned")
    assert {row.knowledge_base for row in RetrievalProfile.objects.filter(name="faq tuned")} == {kb}


def test_publishes_and_rolls_back(kb):
    profile("create", "faq tuned", "--kb", "faq")
    published = as_json("publish", "faq tuned@1", "--adopt", "--user", "curator")
    assert (published["state"], published["moved"]) == ("published", 1)
    profile("create", "faq tuned", "--set", "top_k=1")
    assert profile("publish", "faq tuned@2") == "faq tuned@2 is published; knowledge bases that have moved: 1.\n"
    profile("publish", "faq tuned@1")
    assert str(KnowledgeBase.objects.get(pk=kb.pk).profile) == "faq tuned v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nobodys"), "no retrieval profile named “nobodys”"),
        (("show", "default@9"), "has no version 9"),
        (("show", "default@x"), "NAME@NUMBER"),
        (("create", "mine", "--set", "top_k"), "give NAME=VALUE"),
        (("create", "mine", "--set", "topk=1"), "unknown setting 'topk'"),
        (("create", "mine", "--set", "top_k=many"), "expected int"),
        (("create", "mine", "--kb", "nobodys"), "no knowledge base named 'nobodys'"),
        (("create", "default", "--user", "curator"), "You may not change"),
        (("publish", "default@1", "--user", "curator"), "You may not publish"),
    ],
)
def test_an_error_says_what_to_do(kb, arguments, message):
    with pytest.raises(CommandError, match=message):
        profile(*arguments)


# -- Fitting -----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def judged():
    """A set whose vectors harm, of a knowledge base under a profile by which they lead."""
    kb = make_kb(make_user("fitter"), "fitted", language="en")
    make_judged_set(kb)
    mislead(kb)
    settings = {"vector_weight": 0.9, "keyword_weight": 0.1, "rerankers": []}
    kb.profile = RetrievalProfile.objects.create(name="misled", settings=settings, published=True)
    kb.save()
    return kb


def test_fits_a_draft_to_the_judgments_of_a_set(judged):
    lines = profile("fit", "--kb", "fitted", "--eval-set", "set", "--folds", "3").splitlines()

    draft = RetrievalProfile.objects.get(knowledge_base=judged)
    assert lines[0].startswith(f"set: {len(NAMES)} queries in 3 folds, from misled@1, stage fused, run ")
    assert lines[1].split() == ["out", "of", "fold", "present", "fitted", "difference", "95", "%", "interval", "p"]
    assert [line.split()[0] for line in lines[2:7]] == ["recall@5", "recall@20", "hit_rate@1", "mrr@10", "ndcg@10"]
    assert f"`manage.py profile publish --adopt {judged.pk}/{draft.name}@1`" in lines[-1]
    judged.refresh_from_db()
    assert judged.profile.name == "misled"


def test_publishes_what_it_has_fitted_if_asked_to(judged):
    said = as_json("fit", "--kb", "fitted", "--eval-set", "set", "--publish")

    assert said["draft"] == {"name": f"misled-{judged.name}", "version": 1}
    assert said["metrics"]["ndcg@10"]["low"] > 0
    judged.refresh_from_db()
    assert (judged.profile.name, judged.profile.published) == (said["draft"]["name"], True)


def test_without_a_gain_it_says_so_and_ends_well(judged):
    profile("create", "good", "--set", "vector_weight=0.0", "--set", "keyword_weight=1.0")

    said = as_json("fit", "--kb", "fitted", "--eval-set", "set", "--profile", "good", "--publish")

    assert (said["outcome"], said["draft"], said["profile"]["name"]) == ("no_gain", None, "good")
    assert "no draft was made" in said["text"]
    judged.refresh_from_db()
    assert judged.profile.name == "misled"


def test_says_how_many_folds_there_may_be(judged):
    with pytest.raises(CommandError, match="from 2 to 20"):
        profile("fit", "--kb", "fitted", "--eval-set", "set", "--folds", "1")
