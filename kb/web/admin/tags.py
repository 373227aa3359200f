"""Template tags of the admin's frame."""

from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold import widgets

from kb.web.admin.place import place

register = template.Library()


@register.simple_tag(takes_context=True, name="place")
def place_tag(context: Any) -> dict[str, Any]:
    """Where the page stands: see `kb.web.admin.place.place`."""
    request = context.get("request")
    return place(request, context) if request is not None and hasattr(request, "user") else {}


@register.filter
def with_code(text: str) -> SafeString:
    """A sentence whose parts between backticks are marked as code."""
    pieces = enumerate(str(text).split("`"))
    marked = [format_html('<code class="kb-mono">{}</code>' if index % 2 else "{}", piece) for index, piece in pieces]
    return format_html_join("", "{}", [(each,) for each in marked])


@register.filter
def grouped(number: int) -> str:
    """A number with a comma before each three digits."""
    return f"{number:,}"


@register.simple_tag
def widget_classes(kind: str) -> str:
    """The theme's classes of a field that a template writes itself: "select", "input", "checkbox" or "radio"."""
    return " ".join(getattr(widgets, f"{kind.upper()}_CLASSES"))
