"""What a load came to, in figures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.load.client import Answer, codes


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one load.

    Attributes:
        rate: answers a second.
        p50_ms: median time of an answer.
        p95_ms: what p95.
        p99_ms: likewise, 99 of 100.
        statuses: answers by HTTP status; 0: none came.
        degraded: how often each code was told.
    """

    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    statuses: Counter[int]
    degraded: Counter[str]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "Figures":
        """Of at least one answer."""
        first, last = answers[0].sent, max(answer.sent + answer.seconds for answer in answers)
        p50, p95, p99 = np.percentile([answer.seconds * 1_000 for answer in answers], [50, 95, 99])
        statuses = Counter(answer.status for answer in answers)
        return cls(len(answers) / (last - first), p50, p95, p99, statuses, Counter(codes(answers)))

    def __str__(self) -> str:
        statuses = ", ".join(f"{count:,} × {status or 'no answer'}" for status, count in sorted(self.statuses.items()))
        told = ", ".join(f"{code} × {count:,}" for code, count in self.degraded.most_common()) or "none"
        return (
            f"{self.rate:.1f} answers a second; p50 {self.p50_ms:.0f} ms, p95 {self.p95_ms:.0f} ms, p99 {self.p99_ms:.0f} ms\n"
            f"answers: {statuses}\ndegraded: {told}"
        )
