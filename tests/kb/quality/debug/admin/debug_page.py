"""The search-debug page as a test reads it."""

from urllib.parse import urlencode

import lxml.html
from django.urls import reverse

from kb.search.services.search import SearchRequest, search
from tests.factories import principal


def open_page(client, *, language="en", **parameters):
    """The response; parameters that are None stay out of the URL."""
    given = {name: value for name, value in parameters.items() if value is not None}
    url = f"{reverse('admin:search_debug')}?{urlencode(given, doseq=True)}"
    return client.get(url, headers={"accept-language": language})


class Page:
    """What a reader finds on the page."""

    def __init__(self, response):
        self.status = response.status_code
        self.tree = lxml.html.fromstring(response.content.decode())

    def one(self, xpath):
        (found,) = self.tree.xpath(xpath)
        return found

    def has(self, testid):
        return bool(self.tree.xpath(f"//*[@data-testid='{testid}']"))

    def text(self, testid):
        return words(self.one(f"//*[@data-testid='{testid}']"))

    def rows(self):
        """Of the table of all candidates, which the process has."""
        return self.tree.xpath("//*[@data-testid='candidates']//tr[@data-chunk-id]")

    def hits(self, name=None):
        """The passages of a list of the results, "results", "near" or "others"; of all three where none is named."""
        where = f"[@data-rt-list='{name}']" if name else "[@data-rt-list]"
        return self.tree.xpath(f"//ol{where}/li[@data-chunk-id]")

    def column(self, name):
        return {int(row.get("data-chunk-id")): cell(row, name) for row in self.rows()}

    def marks(self, chunk_id):
        return self.tree.xpath(f"//tr[@data-chunk-id='{chunk_id}']//*[contains(@class,'sd-text')]//mark/text()")

    def value(self, field):
        return self.one(f"//*[@id='id_{field}']").get("value")

    def chosen(self, field):
        return self.one(f"//select[@id='id_{field}']//option[@selected]").get("value")

    def placeholder(self, field):
        return self.one(f"//*[@id='id_{field}']").get("placeholder")

    def errors(self):
        return [words(each) for each in self.tree.xpath("//*[contains(@class,'sd-error')]")]


def cell(row, name):
    (found,) = row.xpath(f".//*[@data-col='{name}']")
    return words(found)


def words(element):
    """Its text, with a space between what stands in different elements."""
    return " ".join(" ".join(element.itertext()).split())


def outcome_of(curator, *kbs, q, **overrides):
    """What the search of the page finds."""
    request = SearchRequest(query=q, knowledge_base_ids=[kb.pk for kb in kbs], overrides=overrides, explain=True)
    return search(principal(curator), request).result
