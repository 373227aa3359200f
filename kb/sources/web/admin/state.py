"""What became of a run of a web source, in words."""

from collections.abc import Sequence

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kb.sources.models import WebSource
from kb.sources.web.services.sources import UNFINISHED, error_in_words

LABELS = {
    WebSource.Status.NEVER: "info",
    WebSource.Status.WAITING: "info",
    WebSource.Status.RUNNING: "info",
    WebSource.Status.DONE: "success",
    WebSource.Status.CANCELLED: "warning",
    WebSource.Status.FAILED: "danger",
}
COUNTED = {
    "added": gettext_lazy("new: %(count)d"),
    "changed": gettext_lazy("changed: %(count)d"),
    "unchanged": gettext_lazy("unchanged: %(count)d"),
    "duplicate": gettext_lazy("same as another document: %(count)d"),
    "refused": gettext_lazy("refused by robots.txt: %(count)d"),
    "failed": gettext_lazy("failed: %(count)d"),
    "gone": gettext_lazy("gone: %(count)d"),
    "deleted": gettext_lazy("deleted: %(count)d"),
}


def counts_in_words(source: WebSource) -> list[str]:
    return [words % {"count": source.counts[name]} for name, words in COUNTED.items() if source.counts.get(name)]


def unfinished_ids(sources: Sequence[WebSource]) -> str:
    """The sources that a page has to ask about again, as the value of a query parameter."""
    return ",".join(str(source.pk) for source in sources if source.status in UNFINISHED)


def state_cell(source: WebSource, *, swap: bool = False) -> SafeString:
    """Status, counts and error of a source; `swap` makes HTMX put it in the place of the one on the page."""
    context = {
        "source": source,
        "label": _label(source),
        "counts": counts_in_words(source),
        "error": error_in_words(source.error, source.error_code, source.error_params),
        "swap": swap,
    }
    return render_to_string("sources/web/state.html", context)


def _label(source: WebSource) -> str:
    """A run that came to its end and could not read something is no plain success."""
    is_done = source.status == WebSource.Status.DONE
    return (
        "warning"
        if is_done and (source.counts.get("failed") or source.counts.get("gone"))
        else LABELS[WebSource.Status(source.status)]
    )


def schedule_in_words(source: WebSource) -> str:
    if source.every_minutes is None or not source.enabled:
        return _("only when asked for")
    minutes = source.every_minutes
    if minutes % 1_440 == 0:
        return _("every %(count)d days") % {"count": minutes // 1_440} if minutes > 1_440 else _("every day")
    if minutes % 60 == 0:
        return _("every %(count)d hours") % {"count": minutes // 60} if minutes > 60 else _("every hour")
    return _("every %(count)d minutes") % {"count": minutes}
