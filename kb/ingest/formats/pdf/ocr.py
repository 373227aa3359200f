"""The lines on the picture of a page, by RapidOCR where it is installed."""

import importlib.util
import math
import os
import resource
import time
from functools import cache
from typing import Any, Final

from kb.ingest.formats.outline import Line
from kb.ingest.formats.pdf.scans import in_order, size_by_width
from kb.ingest.parser.parsed import Region

# Neither PDFium's pages nor RapidOCR have types that mypy reads.
Page = Any

# Pixels a point: 108 dpi, at which RapidOCR reads text of 9 points, in a third of the memory of 200 dpi.
_SCALE: Final = 1.5
_MIN_SCORE: Final = 0.5
# The rest is for the pages that have text, and for the answer.
_SHARE_OF_TIME: Final = 0.6
_PARAMETERS: Final = {
    "Global.log_level": "critical",
    "Global.use_cls": False,
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
    "Rec.rec_batch_num": 1,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    "EngineConfig.onnxruntime.enable_cpu_mem_arena": False,
}


def recognise(page: Page, number: int) -> list[Line]:
    """The lines that can be read on the picture of a page; none without RapidOCR, or once the time is nearly up."""
    allowed = resource.getrlimit(resource.RLIMIT_CPU)[0]
    has_time = allowed == resource.RLIM_INFINITY or time.process_time() < _SHARE_OF_TIME * allowed
    if not is_installed() or not has_time:
        return []
    size = page.get_size()
    found = _entries(page.render(scale=_SCALE).to_numpy())
    return in_order([_recognised_line(corners, text, size, number) for corners, text in found])


def lines_on(bitmap: Any) -> list[str]:
    """The lines that can be read on a picture, of shape (height, width, 3), its colours from blue to red."""
    return [text for _corners, text in _entries(bitmap)]


def _entries(bitmap: Any) -> list[tuple[Any, str]]:
    """What is read with some certainty, each with the four corners of its place, in pixels."""
    found = _recogniser()(bitmap)
    entries = zip(found.boxes, found.txts, found.scores, strict=True) if found.txts else ()
    return [(corners, text.strip()) for corners, text, score in entries if score >= _MIN_SCORE and text.strip()]


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("rapidocr", "onnxruntime"))


@cache
def _recogniser() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # Most files need none, and it takes a second
    return importlib.import_module("rapidocr").RapidOCR(params=dict(_PARAMETERS))


def _recognised_line(corners: Any, text: str, size: tuple[float, float], page: int) -> Line:
    """From pixels that count downwards to points that count upwards."""
    width, height = size
    across = [min(max(float(corner[0]) / _SCALE, 0.0), width) for corner in corners]
    down = [min(max(float(corner[1]) / _SCALE, 0.0), height) for corner in corners]
    left, top, right, bottom = min(across), min(down), max(across), max(down)
    box = (left / width, top / height, right / width, bottom / height)
    size_of_text = size_by_width(text, math.dist(corners[0], corners[1]) / _SCALE)
    return Line(
        text,
        left,
        right,
        height - bottom,
        bottom - top,
        size=size_of_text,
        region=Region(page=page, box=box),
    )
