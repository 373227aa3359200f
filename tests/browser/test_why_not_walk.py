"""Why not found, in a real browser: each stage that can lose a chunk is named, and a remedy is clicked."""

import itertools
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from playwright.sync_api import expect

from kb.quality.why_not.services.places import Stage
from tests.browser.conftest import Visitor
from tests.browser.steps import (
    add_documents,
    add_texts,
    choose_base,
    chunks_of,
    make_base,
    post_texts,
    save_profile,
    tab_to,
)

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

QUERY = "保修期"
SOUGHT = "安装说明书里写着许多关于电源和设备的事项，最后一页也提到保修期"
RIVALS = tuple(f"保修期 保修期 {number}" for number in range(3))
SHALLOW = {"vector_top_k": 2, "bm25_top_k": 2}
OPEN = {"threshold": "0"}
SPARE = 9  # made at once
NEVER_LOSES = {Stage.RERANK, Stage.FOUND}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Scene:
    """A chunk that the search finds, the last of four, unless something is done to it.

    Attributes:
        query: what is searched for.
        which: the field of the form that says which chunk is meant, and what stands in it.
        asked: other fields of the form, by name.
        spare: knowledge bases with their chunk that no test has seen yet.
    """

    visitor: Visitor
    database: Any
    kb_id: int
    chunk_id: int
    spare: list[tuple[int, int]]
    query: str = QUERY
    which: tuple[str, str] = ("text", SOUGHT)
    asked: dict[str, str] = field(default_factory=lambda: {"threshold": "0", "top_k": "10"})

    def on_its_own(self):
        """The same in a knowledge base that no other test sees, to be changed."""
        if not self.spare:
            self.spare.extend(furnish(self.visitor, SPARE))
        kb_id, chunk_id = self.spare.pop()
        return replace(self, kb_id=kb_id, chunk_id=chunk_id)

    def asking(self, **fields):
        return replace(self, asked=self.asked | fields)

    def under(self, **settings):
        name = f"{self.kb_id} {' '.join(settings)}"
        return self.asking(profile=save_profile(self.visitor, self.kb_id, name, **settings))

    def sql(self, statement):
        changed = self.database.execute(statement, {"chunk": self.chunk_id}).rowcount
        assert changed, statement
        return self


def furnish(visitor, count):
    """Knowledge bases with the chunk and its rivals, which the worker indexes together; the ids of both."""
    kb_ids = [make_base(visitor, f"kb {next(_numbers)}") for _ in range(count)]
    added = [post_texts(visitor, kb_id, *RIVALS, SOUGHT) for kb_id in kb_ids]
    return [(kb_id, chunks_of(visitor, ids)[-1][0]) for kb_id, ids in zip(kb_ids, added, strict=True)]


def in_another_base(scene):
    other = make_base(scene.visitor, f"kb {next(_numbers)}")
    add_texts(scene.visitor, other, RIVALS[0])
    return replace(scene, kb_id=other, which=("chunk", str(scene.chunk_id)))


def of_a_failed_document(scene):
    bare = without_vector(scene).sql("DELETE FROM kb_chunkpostings WHERE chunk_id = %(chunk)s")
    return bare.sql(
        "UPDATE kb_document SET status = 'failed', error = 'broken', error_code = 'broken'"
        " WHERE id = (SELECT document_id FROM kb_chunk WHERE id = %(chunk)s)"
    )


def switched_off(scene):
    scene = scene.on_its_own()
    page = scene.visitor.page
    scene.visitor.open(f"kb/chunk/{scene.chunk_id}/change/")
    page.uncheck("#id_enabled")
    with page.expect_navigation(url="**/kb/chunk/"):
        page.click("[name=_save]")
    return scene


def without_postings(scene):
    return scene.on_its_own().under(**SHALLOW).sql("DELETE FROM kb_chunkpostings WHERE chunk_id = %(chunk)s")


def without_vector(scene):
    return scene.on_its_own().under(**SHALLOW).sql("DELETE FROM kb_chunkembedding WHERE chunk_id = %(chunk)s")


def in_no_index(scene):
    bare = scene.on_its_own().sql("DELETE FROM kb_chunkpostings WHERE chunk_id = %(chunk)s")
    return bare.sql("DELETE FROM kb_chunkembedding WHERE chunk_id = %(chunk)s")


def with_another_models_vector(scene):
    return (
        scene.on_its_own()
        .under(**SHALLOW)
        .sql("UPDATE kb_chunkembedding SET model = 'other/model' WHERE chunk_id = %(chunk)s")
    )


def filtered(scene):
    return scene.asking(tags="no such tag")


def too_far_down(scene):
    return scene.under(**SHALLOW)


def too_far_down_on_its_own(scene):
    return too_far_down(scene.on_its_own())


def of_the_same_content(scene):
    scene, text = scene.on_its_own(), "保修期为两年"
    _first, double = add_texts(scene.visitor, scene.kb_id, text, f"{text}\n")
    return replace(scene, which=("chunk", str(double)))


def of_the_same_longer_passage(scene):
    small_to_large = {"chunk_strategy": "parent_child", "chunk_size": 20, "chunk_overlap": 0, "parent_size": 100}
    kb_id = make_base(scene.visitor, f"kb {next(_numbers)}", **small_to_large)
    text = "保修期为保修单上所写的保修期。人为损坏不在保修期的范围之内。"
    [[_first, second]] = add_documents(scene.visitor, kb_id, text)
    return replace(scene, kb_id=kb_id, chunk_id=second, which=("chunk", str(second)))


def beyond_the_reranked(scene):
    return scene.under(rerank_candidates=3).asking(top_k="1")


def only_keywords_find_it(scene):
    return scene.under(vector_top_k=1).asking(rerank="off")


def below_the_threshold(scene):
    return scene.asking(threshold="0.99")


def asked_in_words_that_it_lacks(scene):
    """Under the profile and the cut that a new knowledge base has."""
    return replace(scene.on_its_own(), query="坏了多久以内免费修", asked={})


def of_a_capped_kind(scene):
    return scene.under(general_retrieval=False, max_books=1)


def after_the_last(scene):
    return scene.asking(top_k="2")


@dataclass(frozen=True)
class Loss:
    """What loses a chunk; the stage that loses it, and words of the sentence that says so."""

    how: Any
    stage: Stage
    words: str


LOSSES = (
    Loss(in_another_base, Stage.KNOWLEDGE_BASE, "was not searched"),
    Loss(of_a_failed_document, Stage.DOCUMENT, "could not be processed, so the chunk is in no index"),
    Loss(switched_off, Stage.ENABLED, "It is switched off, so no search finds it."),
    Loss(without_postings, Stage.POSTINGS, "It has no terms of the tokenizer in use"),
    Loss(without_vector, Stage.EMBEDDING, "It has no vector"),
    Loss(with_another_models_vector, Stage.EMBEDDING, "It has a vector of the model other/model only"),
    Loss(filtered, Stage.FILTERS, "It does not pass the filters: tags."),
    Loss(too_far_down, Stage.CHANNELS, "rank 4 of 4 (2 become candidates)"),
    Loss(of_the_same_content, Stage.DEDUPE, "has the same content and stands for it"),
    Loss(beyond_the_reranked, Stage.FUSION, "Its fused rank is 4, and the first 3 go on."),
    Loss(only_keywords_find_it, Stage.FUSION, "Without a reranker only what the vectors find counts"),
    Loss(below_the_threshold, Stage.GATE, "is below the threshold 0.99 on the scale word overlap"),
    Loss(of_the_same_longer_passage, Stage.PARENT, "gives the longer passage that both were cut from"),
    Loss(of_a_capped_kind, Stage.PER_SOURCE, "are capped at 1, and it would be number 4"),
    Loss(after_the_last, Stage.TOP_K, "It would be result 4, and the search gives 2."),
)


@pytest.fixture(scope="module")
def furnished(chromium, served, admin_session):
    """What the tests share that only ask."""
    context = chromium.new_context(storage_state=admin_session)
    visitor = Visitor(context.new_page(), served.url)
    [(kb_id, chunk_id)] = furnish(visitor, 1)
    yield kb_id, chunk_id, []
    context.close()


@pytest.fixture
def scene(visit, admin_session, database, furnished):
    visitor = visit(language="en", storage_state=admin_session)
    return Scene(visitor, database, *furnished)


def fill(page, name, value):
    box = page.locator(f"#id_{name}")
    if box.evaluate("box => box.tagName") == "SELECT":
        box.select_option(value)
    else:
        box.fill(value)


def ask_why(scene):
    """Asks as a curator does: the query, the chunk, the knowledge base, the settings; then Enter."""
    page = scene.visitor.page
    scene.visitor.open("why-not/")
    fill(page, "q", scene.query)
    fill(page, *scene.which)
    choose_base(page, scene.kb_id)
    page.click("[data-testid=more-settings] summary")
    for name, value in scene.asked.items():
        fill(page, name, value)
    with page.expect_navigation(url="**/why-not/?*"):
        page.press("#id_q", "Enter")


def states(page):
    """What became of the chunk, by stage."""
    stages = page.locator("[data-testid=stages] [data-stage]")
    return dict(stages.evaluate_all("all => all.map(one => [one.dataset.stage, one.dataset.state])"))


def expect_verdict(page, words):
    expect(page.locator("[data-testid=verdict] h2")).to_contain_text(words)


def first_lost(page):
    return next((stage for stage, state in states(page).items() if state == "lost"), None)


def test_a_chunk_that_is_found_is_told_of_with_its_place(scene):
    ask_why(scene)
    expect_verdict(scene.visitor.page, "The search finds this chunk: It is result 4.")
    assert first_lost(scene.visitor.page) is None


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.how.__name__)
def test_the_stage_that_loses_a_chunk_is_named(scene, loss):
    page = scene.visitor.page
    ask_why(loss.how(scene))
    expect_verdict(page, loss.words)
    assert first_lost(page) == loss.stage


def test_every_stage_that_can_lose_a_chunk_is_walked():
    assert {loss.stage for loss in LOSSES} == set(Stage) - NEVER_LOSES


@dataclass(frozen=True)
class Cure:
    """What loses a chunk, the remedy that the page offers for it, and what it says when that was applied."""

    how: Any
    remedy: str
    said: str


CURES = (
    Cure(switched_off, "enable", "The chunk is switched on."),
    Cure(in_no_index, "index_chunk", "The chunk was indexed again."),
    Cure(too_far_down_on_its_own, "add_question", "The question was added."),
    Cure(asked_in_words_that_it_lacks, "add_question", "The question was added."),
    Cure(beyond_the_reranked, "draft:rerank_candidates+top_k", "The change was saved as a draft"),
    Cure(below_the_threshold, "draft:overlap_threshold", "The change was saved as a draft"),
)


@pytest.mark.parametrize("cure", CURES, ids=lambda cure: cure.remedy)
def test_a_remedy_is_one_click_and_its_effect_is_shown_beside_what_was(scene, cure):
    page = scene.visitor.page
    ask_why(cure.how(scene))
    stage = page.locator(f"[data-stage={first_lost(page)}] b").inner_text()
    before = page.locator("[data-testid=verdict] h2").inner_text()
    promised = page.locator(f"[data-remedy='{cure.remedy}'] [data-effect]").inner_text()
    [place] = re.findall(r"It would be result (\d+) of", promised)

    with page.expect_navigation(url="**/why-not/?*before=*"):
        page.click(f"[data-remedy='{cure.remedy}'] button")

    expect(page.get_by_text(cure.said)).to_be_visible()
    expect(page.locator("[data-testid=verdict] h2")).not_to_have_text(before)
    expect_verdict(page, f"It is result {place}.")
    outcome = page.locator("[data-testid=effect] .wn-outcome td")
    expect(outcome.first).to_have_text(f"lost at “{stage}”")
    assert outcome.last.inner_text() != outcome.first.inner_text()


def test_asking_and_a_remedy_take_no_mouse(scene):
    scene = scene.on_its_own()
    page = scene.visitor.page
    scene.visitor.open("why-not/")
    tab_to(page, "#id_q")
    page.keyboard.type(QUERY)
    tab_to(page, "#id_text")
    page.keyboard.type(SOUGHT)
    for chosen in page.locator("[name=kb]:checked").evaluate_all("boxes => boxes.map(box => box.value)"):
        tab_to(page, f"[name=kb][value='{chosen}']")
        page.keyboard.press("Space")
    tab_to(page, f"[name=kb][value='{scene.kb_id}']")
    page.keyboard.press("Space")
    tab_to(page, "[data-testid=more-settings] summary")
    page.keyboard.press("Enter")
    tab_to(page, "#id_threshold")
    page.keyboard.type("0.99")
    with page.expect_navigation(url="**/why-not/?*"):
        page.keyboard.press("Enter")
    expect_verdict(page, "is below the threshold 0.99")

    tab_to(page, "[data-remedy='draft:overlap_threshold'] button")
    with page.expect_navigation(url="**/why-not/?*before=*"):
        page.keyboard.press("Enter")
    expect_verdict(page, "The search finds this chunk")
