"""What people do in the admin's pages, and what they then see there."""

import time
from dataclasses import dataclass

from playwright.sync_api import expect

from tests.browser.installation import SECONDS
from tests.kb.ingest.parser.documents import make_pdf

TRAVEL_PDF = {
    "name": "差旅制度.pdf",
    "mimeType": "application/pdf",
    "buffer": make_pdf(
        ["差旅制度第一章：总则", "员工出差应当事先填写申请单，由部门经理批准。", "交通工具优先选择高速铁路。"],
        [
            "差旅制度第二章：报销标准",
            "住宿费每晚不超过四百五十元，凭增值税发票报销。",
            "餐饮补贴每天一百元，无需发票。",
        ],
        title="差旅制度",
    ),
}
PUMPS = "水泵的油位每周一检查，低于刻度线时补充润滑油。"
MANUAL = make_pdf(
    [f"第{number}条：阀门的安装和验收另行规定。" for number in range(40)],
    [*(f"第{number}条：管道的安装和验收另行规定。" for number in range(36)), PUMPS],
)
PHONE = {"width": 390, "height": 844}
RRF_K = 60


@dataclass(frozen=True)
class Row:
    """A candidate as the page shows it, without the list of its terms; a rank or score that it lacks is None."""

    chunk_id: str
    place: str
    text: str
    marked: frozenset[str]
    cut_by: str
    ranks: dict[str, int | None]
    scores: dict[str, float | None]

    def fused(self, weights):
        """The fused score that the channels' ranks come to."""
        ranks = {channel: self.ranks[channel] for channel in weights}
        return sum(weights[channel] / (RRF_K + rank) for channel, rank in ranks.items() if rank is not None)


READ_ROWS = """rows => rows.map(row => {
    const of = column => row.querySelector(`[data-col="${column}"]`).textContent.trim();
    const figures = end => Object.fromEntries(
        [...row.querySelectorAll(`[data-col$=${end}]`)].map(cell => [cell.dataset.col.slice(0, -end.length), of(cell.dataset.col)])
    );
    const passage = row.querySelector(".sd-passage").cloneNode(true);
    passage.querySelector("ul")?.remove();
    return {
        chunk_id: row.dataset.chunkId,
        place: of("rank"),
        text: passage.textContent,
        cut_by: row.dataset.cut,
        marked: [...row.querySelectorAll("mark")].map(mark => mark.textContent),
        ranks: figures("-rank"),
        scores: figures("-score"),
    };
})"""


def read_rows(page):
    return [
        Row(
            chunk_id=row["chunk_id"],
            place=row["place"],
            text=row["text"],
            marked=frozenset(row["marked"]),
            cut_by=row["cut_by"],
            ranks={stage: None if shown == "–" else int(shown) for stage, shown in row["ranks"].items()},
            scores={stage: None if shown == "–" else float(shown) for stage, shown in row["scores"].items()},
        )
        for row in page.locator("[data-testid=candidates] [data-chunk-id]").evaluate_all(READ_ROWS)
    ]


def make_base(visitor, name, **settings):
    """The id of a new knowledge base. Its form is the matter of the walk of its hub."""
    answer = visitor.call("POST", "knowledge-bases/", {"name": name, **settings})
    assert answer.status == 201, answer.text()
    return str(answer.json()["id"])


def upload(curator, kb_id, *files):
    """Chooses files on the page of a knowledge base's documents, which then lists them."""
    page = curator.page
    curator.open(f"kb/knowledgebase/{kb_id}/documents/")
    with page.expect_navigation(url="**/documents/?upload=*"):
        page.set_input_files("[name=uploads]", files)
    expect(page.locator("[data-status]")).to_have_count(len(files))


def wait_until_ready(page, count):
    expect(page.locator("[data-status=ready]")).to_have_count(count)


def search(visitor, kb_id, query, **settings):
    """Searches as its user does, picks the knowledge base, types, presses Enter; returns the rows of the process.

    The page is then the process; see `back_to_results`.
    """
    page = visitor.page
    visitor.open("search-debug/")
    choose_base(page, kb_id)
    for name, value in settings.items():
        if not page.locator(f"#id_{name}").is_visible():
            page.click("[data-testid=more-settings] summary")
        page.fill(f"#id_{name}", value)
    page.fill("#id_q", query)
    with page.expect_navigation(url="**/search-debug/?*"):
        page.press("#id_q", "Enter")
    with page.expect_navigation(url="**view=process"):
        page.click("[data-testid=process]")
    return read_rows(page)


def choose_base(page, kb_id):
    """Searches one knowledge base and no other: the one that was searched last is chosen when a page opens."""
    for box in page.locator("[name=kb]").all():
        box.set_checked(box.get_attribute("value") == str(kb_id))


def back_to_results(page):
    with page.expect_navigation(url="**/search-debug/?*"):
        page.click(".rt-views a:not([aria-current])")


def add_texts(visitor, kb_id, *texts, **details):
    """Has texts made documents of one chunk each; returns the chunks' ids."""
    return [chunk_id for (chunk_id,) in add_documents(visitor, kb_id, *texts, **details)]


def add_documents(visitor, kb_id, *texts, **details):
    """Has texts made documents; returns the ids of each one's chunks."""
    return chunks_of(visitor, post_texts(visitor, kb_id, *texts, **details))


def post_texts(visitor, kb_id, *texts, **details):
    """The ids of the documents that the worker makes of texts."""
    path = f"knowledge-bases/{kb_id}/documents/"
    answers = [visitor.call("POST", path, {"text": text, **details}) for text in texts]
    assert [answer.status for answer in answers] == [201] * len(texts), answers[0].text()
    return [answer.json()["id"] for answer in answers]


def chunks_of(visitor, document_ids):
    """The ids of each one's chunks, once the documents are ready."""
    deadline = time.monotonic() + SECONDS
    for each in document_ids:
        while (status := visitor.call("GET", f"documents/{each}/").json()["status"]) != "ready":
            assert status != "failed"
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
    chunks = [visitor.call("GET", f"documents/{each}/chunks/").json()["results"] for each in document_ids]
    return [[chunk["id"] for chunk in of_one] for of_one in chunks]


def save_profile(visitor, kb_id, name, **settings):
    """Saves a draft of a knowledge base's own; returns what names it in forms."""
    asked = {"name": name, "settings": settings, "knowledge_base_id": int(kb_id)}
    answer = visitor.call("POST", "profiles/", asked)
    assert answer.status == 201, answer.text()
    return name


# A key counts where it does what a mouse would; Enter in a field of text is typing.
COUNT_CLICKS = """(() => {
    const add = () => sessionStorage.setItem("clicks", 1 + Number(sessionStorage.getItem("clicks") || 0));
    const pressed = "a, button, summary, label, select, [role=button], [type=checkbox], [type=radio]";
    addEventListener("pointerdown", event => { if (event.isTrusted) add(); }, true);
    addEventListener("keydown", event => {
        if (event.isTrusted && [" ", "Enter"].includes(event.key) && event.target.matches(pressed)) add();
    }, true);
})()"""


class Clicks:
    """What a visitor presses in the pages that they open from now on, counted by the browser."""

    def __init__(self, visitor):
        self._page = visitor.page
        self._page.add_init_script(COUNT_CLICKS)

    @property
    def count(self):
        return int(self._page.evaluate("sessionStorage.getItem('clicks') || 0"))


MOST_TABS = 200


def tab_to(page, selector):
    """Presses Tab until something is in focus, as one does who has no mouse."""
    for _press in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")
