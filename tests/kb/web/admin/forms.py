"""The forms and links of a page, as a browser would send and follow them."""

from urllib.parse import urljoin

import lxml.html

ORIGIN = "http://testserver"
TYPED = {"text", "search", "number", "url", "email", "password", "textarea", "select", ""}
"""Kinds of inputs that somebody fills in."""


def submissions_in(response, url):
    """(method, address, values) of each form of a page: as it stands, by each of its buttons, and with empty fields filled in."""
    page = _page(response)
    for form in [] if page is None else page.forms:
        target = urljoin(f"{ORIGIN}{url}", form.get("hx-post") or form.get("hx-get") or form.get("action") or url)
        method = "post" if form.get("hx-post") or form.method == "POST" else "get"
        inputs = {name: form.inputs[name] for name in set(form.inputs.keys())}
        values = {
            name: _value(each) for name, each in inputs.items() if _kind(each) not in {"submit", "button", "file"}
        }
        filled = {name: _filled(inputs[name]) for name, value in values.items() if not value}
        pressed = form.xpath(".//button[@name] | .//input[@type='submit'][@name]")
        for change in ({}, filled, *({each.get("name"): each.get("value") or ""} for each in pressed)):
            sent = {name: value for name, value in {**values, **change}.items() if value is not None}
            yield method, target.removeprefix(ORIGIN), sent


def links_in(response, url):
    """The addresses of the admin that a page leads to, but those of its menu, once each."""
    page = _page(response)
    if page is None:
        return []
    for menu in page.xpath("//nav | //*[@id='nav-sidebar'] | //*[@id='header']"):
        menu.drop_tree()
    links = {urljoin(f"{ORIGIN}{url}", each) for each in page.xpath("//a/@href")}
    return sorted(each.removeprefix(ORIGIN) for each in links if each.startswith(f"{ORIGIN}/admin/"))


def _page(response):
    is_page = not response.streaming and response.headers.get("Content-Type", "").startswith("text/html")
    return lxml.html.fromstring(response.content.decode()) if is_page and response.content.strip() else None


def _kind(element):
    tag = getattr(element, "tag", "input")
    return element.get("type", "") if tag == "input" and hasattr(element, "get") else tag


def _value(element):
    """None for a box that is not ticked."""
    value = element.value
    if isinstance(value, str):
        return value.removeprefix("\n") if _kind(element) == "textarea" else value  # as a browser reads it
    return None if value is None else [str(each) for each in value]


def _filled(element):
    if _kind(element) == "select":
        return next((each for each in element.value_options if each), "")
    return "1" if _kind(element) in {"number", "checkbox"} else "zq"
