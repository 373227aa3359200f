"""Charts for the theme's chart components, each with its figures as a table for those who cannot see it."""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INK = "#737c8b"  # legible on the theme's light and dark background alike
# Of a line of a label beside a bar; a Chinese character is two wide.
LABEL_WIDTH = 22

_WORDS = re.compile(r"[\x21-\x7e]+|\s|.")


@dataclass(frozen=True, slots=True)
class Series:
    """Values in the order of the chart's labels, None where there is none; the colour is a variable of the theme."""

    label: str
    values: Sequence[float | None]
    colour: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A card of a page of charts, with what there is to see in a sentence, the verdict.

    Attributes:
        name: for the page's own use.
        tone: "good", "bad" or blank, of the verdict.
        series: empty where there is nothing to show yet; the verdict says so.
        is_line: points over time, joined by lines; else bars.
        is_horizontal: bars lie, with their labels beside them.
        is_share: values are 0 to 1, shown as percentages up to 100.
        unit: of Intl.NumberFormat, such as "millisecond"; blank: plain numbers.
        link: where to go on, as an address and message.
    """

    name: str
    title: str
    verdict: str
    tone: str = ""
    labels: Sequence[str] = ()
    series: Sequence[Series] = ()
    is_line: bool = False
    is_horizontal: bool = False
    is_stacked: bool = False
    is_share: bool = False
    unit: str = ""
    link: tuple[str, str] | None = None

    @property
    def rows(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The figures as a table: each label with a cell of every series."""
        return tuple(
            (label, tuple(self._as_text(each.values[place]) for each in self.series))
            for place, label in enumerate(self.labels)
        )

    @property
    def height(self) -> float:
        """In rem: bars that lie need room for each."""
        if not self.is_horizontal:
            return 14
        bars = 1 if self.is_stacked else len(self.series)
        lines = max((len(_lines(label)) for label in self.labels), default=1)
        legend = 2 if len(self.series) > 1 else 0
        return max(6.0, 2.5 + legend + len(self.labels) * max(1.1 * bars + 0.5, 0.95 * lines + 0.5))

    @property
    def data(self) -> str:
        look: dict[str, Any] = {"borderRadius": 3, "maxBarThickness": 26}
        if self.is_line:
            look = {"borderWidth": 2, "pointRadius": 2.5, "tension": 0.25, "spanGaps": True}
        datasets = [
            {
                "label": each.label,
                "data": list(each.values),
                "borderColor": f"var(--color-{each.colour})",
                "backgroundColor": f"var(--color-{each.colour})",
                **look,
            }
            for each in self.series
        ]
        labels = [_lines(label) for label in self.labels] if self.is_horizontal else list(self.labels)
        return json.dumps({"labels": labels, "datasets": datasets})

    @property
    def options(self) -> str:
        value_axis, label_axis = ("x", "y") if self.is_horizontal else ("y", "x")
        scales = {
            value_axis: {
                "beginAtZero": True,
                "stacked": self.is_stacked,
                "ticks": {"color": INK, "maxTicksLimit": 6, "format": self._number_format()},
                "border": {"display": False},
                **self._bounds(),
            },
            label_axis: {
                "stacked": self.is_stacked,
                "ticks": {"color": INK, "maxRotation": 0, "autoSkip": not self.is_horizontal, "autoSkipPadding": 12},
                "grid": {"display": False},
                "border": {"display": False},
            },
        }
        legend = {
            "display": len(self.series) > 1,
            "align": "end",
            "labels": {"color": INK, "boxWidth": 8, "boxHeight": 8},
        }
        return json.dumps(
            {
                "animation": False,
                "responsive": True,
                "maintainAspectRatio": False,
                "indexAxis": "y" if self.is_horizontal else "x",
                "interaction": {"mode": "index", "axis": label_axis, "intersect": False},
                "plugins": {"legend": legend},
                "scales": scales,
            }
        )

    def _bounds(self) -> dict[str, Any]:
        """Shares side by side reach up to all; a line of shares is read by its changes."""
        if self.is_share:
            return {"suggestedMax": 0.1} if self.is_line else {"min": 0, "max": 1}
        return {} if self.unit else {"suggestedMax": 4}  # whole searches, not parts of one

    def _number_format(self) -> dict[str, Any]:
        if self.is_share:
            return {"style": "percent", "minimumFractionDigits": 0, "maximumFractionDigits": 1}
        if self.unit:
            return {"style": "unit", "unit": self.unit, "minimumFractionDigits": 0, "maximumFractionDigits": 1}
        return {"maximumFractionDigits": 0}

    def _as_text(self, value: float | None) -> str:
        if value is None:
            return "–"
        if self.is_share:
            return percentage(value)
        return f"{value:,.1f}" if self.unit else f"{value:,.0f}"


def percentage(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 1 else "100 %"


def _lines(label: str) -> list[str]:
    lines, width = [""], 0
    for word in _WORDS.findall(label):
        wide = sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in word)
        if width + wide > LABEL_WIDTH and lines[-1]:
            lines.append("")
            width = 0
        if lines[-1] or not word.isspace():
            lines[-1] += word
            width += wide
    return [line.rstrip() for line in lines]
