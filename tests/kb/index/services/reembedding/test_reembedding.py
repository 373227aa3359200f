import itertools
import threading
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.base.db.transactions import Purpose, try_lock
from kb.base.errors import Rejected
from kb.index.services.reembedding import (
    REEMBED,
    reembedding_cancel,
    reembedding_drop,
    reembedding_rollback,
    reembedding_start,
    reembedding_swap,
)
from kb.ingest.services.chunks import chunk_update
from kb.jobs import moves
from kb.jobs.moves import AlreadyRunning
from kb.models import Chunk, ChunkEmbedding, EvalRun, KnowledgeBase, Principal, Reembedding
from kb.quality.runs.services.runs import evaluate_both, execute_run, reembedding_state
from kb.search.services.search import SearchRequest, search
from kb.tasks import reembed_knowledge_base
from retrieval.errors import ModelUnavailable
from tests.factories import make_document, make_kb
from tests.kb.index.searching import at_once
from tests.kb.providers.letters_model import letters_models

pytestmark = pytest.mark.django_db

TARGET, THIRD = "test/letters", "test/others"
QUERY = "abab"


@pytest.fixture(autouse=True)
def models(monkeypatch):
    return letters_models(monkeypatch, TARGET, THIRD)


@pytest.fixture
def kb():
    kb = make_kb(language="en")
    make_document(kb, "abab baba", "cdcd dcdc", "efef fefe")
    return kb


def fresh(kb):
    return KnowledgeBase.objects.select_related("profile").get(pk=kb.pk)


def vectors(model, kind="content"):
    return ChunkEmbedding.objects.filter(model=model, kind=kind)


def moved(kb, *, swaps=False):
    reembedding_start(kb, TARGET, swaps=swaps)
    assert REEMBED.advance(fresh(kb))
    kb.refresh_from_db()
    return kb


def find(kb, query=QUERY):
    found = search(Principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=[kb.pk], explain=True, log=False))
    return found, found.wiring.pipeline.scopes[0].space


class TestBuilding:
    def test_searches_use_the_present_vectors_until_the_swap(self, kb):
        moved(kb)

        assert vectors(TARGET).count() == vectors("hashing").count() == 3
        assert find(kb)[1] == "hashing"
        state = reembedding_state(kb)
        progress = state.progress
        assert (state.target, state.target_dimension, state.is_ready, progress.done, progress.total) == (
            TARGET,
            26,
            True,
            3,
            3,
        )

    def test_it_goes_on_where_it_stood(self, kb, models, monkeypatch):
        monkeypatch.setattr("kb.index.services.writing.BATCH", 1)
        reembedding_start(kb, TARGET)
        assert not REEMBED.advance(fresh(kb), batches=2)
        state = reembedding_state(fresh(kb))
        assert (state.progress.done, state.progress.percent, state.is_unfinished) == (2, 66, True)
        assert state.progress.per_second > 0
        assert state.progress.seconds_left is not None

        assert REEMBED.advance(fresh(kb))

        assert len(models[TARGET].embedded) == 3

    def test_a_chunk_edited_after_it_was_embedded_is_embedded_again(self, kb):
        moved(kb)
        chunk_update(Chunk.objects.get(position=1), text="xyxy", enabled=True)
        assert vectors(TARGET).count() == 2

        assert not reembedding_swap(kb)
        assert REEMBED.advance(fresh(kb))

        assert fresh(kb).embedding_model == TARGET
        assert vectors(TARGET).count() == 3

    def test_keywords_and_questions_are_embedded_as_they_are_stored(self, kb):
        KnowledgeBase.objects.filter(pk=kb.pk).update(keyword_vectors=True)
        Chunk.objects.filter(position=0).update(keywords=["own", "words"], questions=["why?", "how?"])

        moved(kb)

        assert (vectors(TARGET, "keywords").count(), vectors(TARGET, "question").count()) == (1, 2)
        assert Chunk.objects.get(position=0).keywords == ["own", "words"]

    def test_only_one_process_is_at_it(self, kb):
        reembedding_start(kb, TARGET)
        with try_lock(Purpose.REEMBED, kb.pk), pytest.raises(AlreadyRunning):
            REEMBED.advance(fresh(kb))

    def test_the_cache_of_responses_outlives_it(self, kb):
        reembedding_start(kb, TARGET)
        before = fresh(kb).version_row.content_version

        assert REEMBED.advance(fresh(kb))

        assert fresh(kb).version_row.content_version == before

    def test_a_model_that_fails_leaves_a_reason_and_what_it_has_made(self, kb, models):
        reembedding_start(kb, TARGET)
        models[TARGET].error = ModelUnavailable("the server is away: start it")

        reembed_knowledge_base(kb.pk)

        state = reembedding_state(fresh(kb))
        assert (state.status, state.error) == ("failed", "the server is away: start it")
        models[TARGET].error = None
        assert reembedding_state(moved(fresh(kb))).is_ready

    def test_the_sweep_finds_what_stands_still_once(self, kb):
        reembedding_start(kb, TARGET)
        assert REEMBED.sweep() == []
        Reembedding.objects.update(told_at=timezone.now() - 2 * moves.STOOD_STILL)

        assert REEMBED.sweep() == [kb.pk]
        assert REEMBED.sweep() == []

    def test_another_target_has_to_wait(self, kb):
        reembedding_start(kb, TARGET)
        with pytest.raises(Rejected) as refused:
            reembedding_start(kb, THIRD)
        assert refused.value.code == "already_changing"

    def test_cancelling_drops_what_was_made(self, kb):
        reembedding_cancel(moved(kb))

        assert (vectors(TARGET).count(), fresh(kb).target_embedding_model) == (0, "")
        assert reembedding_state(kb).status == "cancelled"
        reembed_knowledge_base(kb.pk)
        assert vectors(TARGET).count() == 0

    def test_who_follows_is_told_that_it_was_cancelled(self, kb, models, monkeypatch):
        reembedding_start(kb, TARGET)
        embed = models[TARGET].embed_documents

        def cancel_meanwhile(texts):
            reembedding_cancel(fresh(kb))
            return embed(texts)

        monkeypatch.setattr(models[TARGET], "embed_documents", cancel_meanwhile)
        with pytest.raises(Rejected) as refused:
            REEMBED.follow(fresh(kb))
        assert refused.value.code == "reembedding_cancelled"
        assert vectors(TARGET).count() == 0

    def test_who_follows_is_told_why_it_failed(self, kb):
        reembedding_start(kb, TARGET)
        Reembedding.objects.filter(knowledge_base=kb).update(status="failed", error="out of reach")
        with pytest.raises(Rejected, match="out of reach") as refused:
            REEMBED.has_ended(fresh(kb), TARGET)
        assert refused.value.code == "reembedding_failed"


class TestSwapping:
    def test_everything_changes_at_once(self, kb):
        before = fresh(kb).version_row.content_version

        assert reembedding_swap(moved(kb))

        after = fresh(kb)
        assert (
            after.embedding_model,
            after.target_embedding_model,
            after.previous_embedding_model,
            after.dimension,
        ) == (
            TARGET,
            "",
            "hashing",
            26,
        )
        assert after.profile.name == "balanced"
        assert after.version_row.content_version > before
        found, space = find(kb)
        assert (space, found.result.candidates[0].ranks["vector"]) == (TARGET, 1)

    def test_it_happens_by_itself_where_that_was_wanted(self, kb):
        assert moved(kb, swaps=True).embedding_model == TARGET

    def test_there_is_nothing_to_swap_to_without_a_target(self, kb):
        with pytest.raises(Rejected) as refused:
            reembedding_swap(kb)
        assert refused.value.code == "no_target"

    def test_a_profile_that_none_starts_with_stays(self, kb):
        kb.profile = type(kb.profile).objects.live("weighted")
        kb.save()
        assert moved(kb, swaps=True).profile_id == kb.profile_id

    @pytest.mark.parametrize(("variables", "profile"), [((), "keyword-led"), (("RRF_K",), "default")])
    def test_one_that_started_with_the_default_gets_the_profile_for_hashing(self, kb, settings, variables, profile):
        settings.FUSION_VARIABLES = variables
        kb = moved(kb, swaps=True)
        kb.profile = type(kb.profile).objects.live("default")
        kb.save()
        assert reembedding_rollback(kb)
        assert kb.profile.name == profile

    def test_where_the_environment_sets_the_fusion_that_of_the_former_model_gives_way_to_it(self, kb, settings):
        settings.FUSION_VARIABLES = ("RRF_K",)
        assert moved(kb, swaps=True).profile.name == "default"

    def test_a_search_that_began_before_finds_the_old_vectors(self, kb):
        outcome, _space = find(kb)
        reembedding_swap(moved(kb))

        again = outcome.wiring.pipeline.run(QUERY, outcome.wiring.config, latency_budget=10)

        assert [hit.passage.chunk_id for hit in again.hits] == [hit.passage.chunk_id for hit in outcome.result.hits]
        assert again.degraded == outcome.result.degraded


class TestRollingBack:
    def test_it_is_at_once_where_nothing_has_changed(self, kb, models):
        kb = moved(kb, swaps=True)

        assert reembedding_rollback(kb)

        assert (kb.embedding_model, kb.previous_embedding_model, kb.profile.name) == ("hashing", TARGET, "keyword-led")
        assert find(kb)[1] == "hashing"

    def test_what_was_written_since_is_embedded_first(self, kb):
        kb = moved(kb, swaps=True)
        make_document(fresh(kb), "ghgh", source="new.txt")
        assert reembedding_state(kb).missing == 1

        assert not reembedding_rollback(kb)
        assert find(kb)[1] == TARGET
        assert REEMBED.advance(fresh(kb))

        assert find(kb)[1] == "hashing"
        assert vectors("hashing").count() == 4

    def test_cancelling_it_keeps_the_vectors(self, kb):
        kb = moved(kb, swaps=True)
        make_document(fresh(kb), "ghgh", source="new.txt")
        reembedding_rollback(kb)

        reembedding_cancel(kb)

        assert vectors("hashing").count() == 3
        assert reembedding_state(kb).previous == "hashing"

    def test_a_third_model_takes_the_place_of_what_was_kept(self, kb):
        kb = moved(kb, swaps=True)
        reembedding_start(kb, THIRD, swaps=True)
        REEMBED.advance(fresh(kb))

        assert set(ChunkEmbedding.objects.values_list("model", flat=True)) == {TARGET, THIRD}

    def test_there_is_no_return_to_what_was_dropped(self, kb):
        kb = moved(kb, swaps=True)
        with pytest.raises(Rejected) as refused:
            reembedding_drop(kb)
        assert refused.value.code == "just_swapped"
        Reembedding.objects.update(swapped_at=timezone.now() - timedelta(hours=1))

        assert reembedding_drop(kb) == 3

        assert vectors("hashing").count() == 0
        with pytest.raises(Rejected) as refused:
            reembedding_rollback(kb)
        assert refused.value.code == "nothing_kept"


class TestComparing:
    @pytest.fixture
    def eval_set(self, kb):
        eval_set = kb.eval_sets.create(name="set")
        query = eval_set.queries.create(external_id="1", text=QUERY)
        chunk = Chunk.objects.select_related("document").get(position=0)
        query.judgments.create(document=chunk.document, source=chunk.document.source, quote=chunk.text, grade=1)
        return eval_set

    def test_both_models_are_measured_before_the_swap(self, kb, eval_set):
        moved(kb)
        eval_set.refresh_from_db()

        for run in evaluate_both(Principal(kb.owner), eval_set):
            execute_run(run.pk)

        now, then = EvalRun.objects.order_by("pk")
        assert (now.status, then.status) == ("done", "done")
        assert (now.model_ids["embedding"], then.model_ids["embedding"]) == ("hashing", TARGET)
        assert (now.profile.name, then.profile.name) == ("keyword-led", "balanced")
        assert then.report["stages"]["vector"]["recall@5"] == 1.0

    def test_a_model_without_vectors_cannot_be_measured(self, kb, eval_set):
        with pytest.raises(Rejected) as refused:
            evaluate_both(Principal(kb.owner), eval_set)
        assert refused.value.code == "no_second_model"


@pytest.mark.django_db(transaction=True)
class TestUnderLoad:
    def test_no_search_fails_or_is_empty_and_all_change_over_at_one_moment(self, kb, settings, monkeypatch):
        monkeypatch.setattr("kb.index.services.writing.BATCH", 8)
        make_document(kb, *(f"abab {'cdefgh'[number % 6] * 4} {number}" for number in range(60)), source="more.txt")
        swapped, stop, seen, problems = threading.Event(), threading.Event(), [], []
        order = itertools.count()
        swap = REEMBED.swap

        def swap_and_tell(*arguments):
            done = swap(*arguments)
            swapped.set()
            return done

        monkeypatch.setattr(REEMBED, "swap", swap_and_tell)
        pause = threading.Event()

        def searching():
            while not stop.is_set():
                asked, told_before = next(order), swapped.is_set()
                try:
                    outcome, space = find(kb)
                except Exception as error:  # noqa: BLE001 - whatever it is, the search failed
                    problems.append(error)
                    return
                if not outcome.result.hits or {each.code.value for each in outcome.result.degraded} - {
                    "hashing_embedder"
                }:
                    problems.append(outcome.result)
                seen.append((asked, told_before, space, swapped.is_set(), next(order)))
                pause.wait(0.12)

        def moving():
            while len(seen) < 10 and not problems:
                pause.wait(0.05)
            reembedding_start(fresh(kb), TARGET, swaps=True)
            REEMBED.follow(fresh(kb))
            after = len(seen)
            while len(seen) < after + 20 and not problems:
                pause.wait(0.05)
            stop.set()

        jobs = iter([moving, searching, searching, searching])
        at_once(4, lambda: next(jobs)())  # noqa: PLW0108 - each thread takes the next

        assert problems == []
        assert {space for _asked, told, space, *_ in seen if told} == {TARGET}
        assert {space for _asked, _told, space, told, _answered in seen if not told} <= {"hashing", TARGET}
        early = [asked for asked, _told, space, *_ in seen if space == "hashing"]
        late = [answered for *_, space, _told, answered in seen if space == TARGET]
        assert len(early) >= 10
        assert len(late) >= 17
        # Only what was asked before any search had answered from the new space may still be of the old one.
        assert max(early) < min(late)
