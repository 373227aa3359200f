"""The page that tells why a chunk was not found, as a test reads it."""

from urllib.parse import urlencode

import lxml.html
from django.urls import reverse

from tests.kb.web.admin.pages import words


def url_of(**parameters):
    """Parameters that are None stay out of it."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{reverse('admin:why_not')}?{urlencode(given, doseq=True)}"


class Page:
    """What a reader finds on the page; `url` is where it came from."""

    def __init__(self, response):
        self.status = response.status_code
        self.url = f"{response.request['PATH_INFO']}?{response.request['QUERY_STRING']}"
        self.tree = lxml.html.fromstring(response.content.decode())

    def has(self, testid):
        return bool(self.tree.xpath(f"//*[@data-testid='{testid}']"))

    def text(self, testid):
        (found,) = self.tree.xpath(f"//*[@data-testid='{testid}']")
        return words(found)

    def links(self, testid):
        return self.tree.xpath(f"//*[@data-testid='{testid}']//a/@href")

    @property
    def lost_at(self):
        return self.tree.xpath("//*[@data-stage][@data-state='lost']/@data-stage")

    @property
    def remedies(self):
        return self.tree.xpath("//*[@data-remedy]/@data-remedy")

    def remedy(self, remedy_id):
        (found,) = self.tree.xpath(f"//*[@data-remedy='{remedy_id}']")
        return found

    def row(self, testid, name, value):
        (found,) = self.tree.xpath(f"//*[@data-testid='{testid}']//tr[@data-{name}='{value}']")
        return words(found)
