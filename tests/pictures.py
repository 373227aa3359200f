"""Makes the pictures of the docs, and the moving one of the README, from the product as its first start leaves it.

`python -m tests.pictures` serves it with a data directory of its own, opens its pages in Chromium in both languages, and
writes to docs/images. It takes three minutes. A server on the loopback says what a chat model says of the demo's passages.
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser import chromium
from tests.browser.chat_model import variables_for
from tests.browser.conftest import Visitor
from tests.servers import ModelServer, Reply
from tests.serving import environment, free_port, serving

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
COLOURS = 128  # of a picture's palette
FRAME_SIZE, FRAME_COLOURS = (960, 600), 64
LANGUAGES = {"en": ("", "Demo knowledge base"), "zh-CN": ("-zh", "演示知识库")}
QUESTIONS = {
    "en": ("What is the warranty period?", "What does error E3 mean?", "How do I reset the thermostat?"),
    "zh-CN": ("保修期多久", "错误代码 E3 是什么意思", "怎么恢复出厂设置"),
}
"""Asked before pictures are taken, so that pages of figures have some; the first is what the pictures show."""
ANSWERS = {
    "en": "The device has a warranty of **24 months** from the date of the invoice; customers who register in the app get **36 months**[1].",
    "zh-CN": "整机保修 **24 个月**，从发票日期算起；在应用中完成注册的用户延长到 **36 个月**[1]。",
}
PHONE = {"width": 390, "height": 780}


class Artist:
    """Takes the pictures of one language."""

    def __init__(self, visitor, language):
        self.visitor, self.page, self.language = visitor, visitor.page, language
        self.ending, name = LANGUAGES[language]
        bases = visitor.call("GET", "knowledge-bases/").json()["results"]
        self.kb = next(kb["id"] for kb in bases if kb["name"] == name)
        self.frames = []

    def open(self, path):
        self.visitor.open(path)
        self.page.wait_for_load_state("networkidle")
        self.page.mouse.move(0, 0)

    def take(self, name):
        """A picture of what the window shows, in a palette, which a page of text needs no more than."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        target = IMAGES / f"{name}{self.ending}.png"
        picture.quantize(COLOURS).save(target, optimize=True)
        print(f"{target.name}: {target.stat().st_size // 1024} KB")

    def frame(self, milliseconds):
        shown = (
            Image.open(io.BytesIO(self.page.screenshot())).convert("RGB").resize(FRAME_SIZE, Image.Resampling.LANCZOS)
        )
        self.frames.append((shown, milliseconds))

    def film(self, name):
        """The frames as one moving picture; what does not change from one to the next takes no room."""
        target = IMAGES / f"{name}{self.ending}.gif"
        first, *rest = [frame.quantize(FRAME_COLOURS, dither=Image.Dither.NONE) for frame, _ in self.frames]
        durations = [milliseconds for _, milliseconds in self.frames]
        first.save(target, save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)
        print(f"{target.name}: {target.stat().st_size // 1024} KB")

    def paint(self):
        question = QUESTIONS[self.language][0]
        for each in QUESTIONS[self.language]:
            self.visitor.call("POST", "search/", {"query": each, "knowledge_base_ids": [self.kb]})
        documents = self.visitor.call("GET", f"knowledge-bases/{self.kb}/documents/").json()["results"]
        guide = next(each["id"] for each in documents if each["source"] == "install.pdf")
        found = self.visitor.call("POST", "search/", {"query": question, "knowledge_base_ids": [self.kb]}).json()
        chunk = (found["results"] + found["near_misses"])[0]["chunk_id"]
        asked = urlencode({"q": question, "kb": self.kb})

        self.open("")
        self.take("workbench")
        self.open(f"kb/knowledgebase/{self.kb}/documents/")
        self.take("documents")
        self.frame(1_800)
        self.open(f"kb/document/{guide}/change/")
        self.page.locator(".kb-page img, [data-page] img").first.wait_for()
        self.page.wait_for_load_state("networkidle")
        self.take("document")
        self._search(question)
        self.open(f"search-debug/?{asked}")
        self.take("retrieval-test")
        self.frame(3_000)
        self.open(f"kb/chunk/{chunk}/place/")
        self.frame(2_500)
        self.open(f"why-not/?{asked}&chunk={chunk}")
        self.take("why-not")
        self.frame(3_000)
        self.open(f"compare/?{asked}&a_profile=default&b_profile=weighted")
        self.take("compare")
        self.open("kb/providermodel/")
        self.take("models")
        self._ask(question)
        self.frame(3_500)
        self.film("tour")
        self._share(question)

    def _search(self, question):
        """Typed letter by letter, as somebody does."""
        self.open(f"kb/knowledgebase/{self.kb}/test/")
        field = self.page.locator("#id_q")
        for end in range(0, len(question) + 1, max(1, len(question) // 4)):
            field.fill(question[:end])
            self.frame(350)

    def _ask(self, question):
        self.open(f"ask/?kb={self.kb}")
        self.page.locator("textarea[name=q], textarea").first.fill(question)
        self.frame(1_000)
        self.page.keyboard.press("Enter")
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_timeout(1_500)

    def _share(self, question):
        """An assistant's link, and the chat that it opens on a phone."""
        self.open(f"assistants/add/?kb={self.kb}")
        with self.page.expect_navigation(url="**/share/"):
            self.page.locator("[name=publish]").click()
        self.page.wait_for_load_state("networkidle")
        self.take("share")
        self.page.set_viewport_size(PHONE)
        self.page.goto(self.page.get_by_test_id("address").input_value())
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")
        self.page.locator(".acts").wait_for()
        self.take("chat")


def main():
    argparse.ArgumentParser(description=__doc__.split("\n", 1)[0]).parse_args()
    root = Path(tempfile.mkdtemp(prefix="zhiku-pictures-"))
    root.chmod(0o711)
    port = free_port()
    try:
        with (
            ModelServer() as model,
            serving(port, environment(root / "data") | variables_for(model.base_url), "--no-mcp") as (
                _process,
                printed,
            ),
            sync_playwright() as playwright,
        ):
            password = next(line.split()[-1] for line in printed.splitlines() if "password:" in line)
            browser = playwright.chromium.launch(executable_path=chromium.path(), args=chromium.SWITCHES)
            for language in LANGUAGES:
                model.always("chat", Reply(ANSWERS[language]))
                context = browser.new_context(viewport=SIZE, locale=language)
                visitor = Visitor(context.new_page(), f"http://127.0.0.1:{port}")
                visitor.log_in("admin", password)
                Artist(visitor, language).paint()
                context.close()
            browser.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
