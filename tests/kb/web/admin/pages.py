"""A page of the admin as a test reads it."""

import lxml.html


def words(element):
    return " ".join(" ".join(element.itertext()).split())


class Page:
    def __init__(self, response):
        assert response.status_code == 200
        self.tree = lxml.html.fromstring(response.content.decode())

    def has(self, testid):
        return bool(self.tree.xpath(f"//*[@data-testid='{testid}']"))

    def text(self, testid):
        (found,) = self.tree.xpath(f"//*[@data-testid='{testid}']")
        return words(found)
