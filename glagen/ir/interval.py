"""Intervals of the extended reals: declared domains, and what interval analysis finds."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from `low` to `high`; an open end is approached but not reached."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, x: float) -> bool:
        above = x > self.low or (x == self.low and not self.low_open)
        below = x < self.high or (x == self.high and not self.high_open)
        return above and below

    def __str__(self) -> str:
        return f"{'(' if self.low_open else '['}{_end(self.low)}, {_end(self.high)}{')' if self.high_open else ']'}"


def _end(x: float) -> str:
    return str(int(x)) if math.isfinite(x) and x == int(x) else str(x)


REALS = Interval(-math.inf, math.inf, low_open=True, high_open=True)
