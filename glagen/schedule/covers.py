"""Covers: how the causal triangle of a chunk is tiled, so that a vector decay inside it splits at an anchor.

Decay(s->t) = Decay(s->r) Decay(r->t) for an anchor s <= r <= t, which makes scores a matrix product again.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from glagen.ir.interval import Interval
from glagen.ir.schedule import FARTHEST

# How far a growth factor 1/Decay may reach in nats: exp(60) times an operand of up to 1e12 is still finite in
# bfloat16, TF32 and float32 (largest 3.4e38 = exp(88.7)).
GROWTH_LIMIT = 60.0
# The same for a steep gate, one that is given itself and not as its logarithm. Guarded blocks give its gradient as a
# difference of sums, with the absolute error of their terms; divided by a gate near 0 that grows, exp(2.75) times here.
STEEP_LIMIT = 2.75


@dataclass(frozen=True, slots=True)
class Cover:
    """`parts` in order: (kind of ir.kernel.Blocks, leaf size). The diagonal has no decay; it is in none of them, but
    for rows that find their depth (see ir.kernel.Depth) and take scores."""

    name: str
    parts: tuple[tuple[str, int], ...]
    limit: float = GROWTH_LIMIT  # of the growth in guarded blocks

    @property
    def finds_depth(self) -> bool:
        """Is it found out for each chunk how often to halve it?"""
        return any(kind == "guard" for kind, _ in self.parts)

    @property
    def text(self) -> str:
        return f"{self.name} ({', '.join(f'{kind} {leaf}' for kind, leaf in self.parts)})"


def choose_cover(
    domain: Interval, chunk: int, subchunk: int | None, wanted: str = "auto", steep: bool = False
) -> Cover | None:
    """The cover for a vector gate with this range of log values per step; None where `wanted` cannot be proved.

    guarded: each chunk is halved until gates come to GROWTH_LIMIT at most in a block (STEEP_LIMIT if `steep`), which is
    found out chunk by chunk; the blocks are anchored.

    auto: anchored where the declared bound allows it; else the paper's sub-chunks if the spec asks for a size; else
    guarded. bisect: bisection alone, with anchored leaves as large as the bound allows.
    """
    leaf = anchored_rows(domain, chunk)
    if wanted == "anchored" or (wanted == "auto" and leaf >= chunk):
        return Cover("anchored", (("leaf", chunk),)) if leaf >= chunk else None
    if wanted == "guarded" or (wanted == "auto" and subchunk is None):
        return Cover("guarded", (("guard", chunk), ("bisect", 1)), guard_limit(steep))
    if wanted in ("subchunk", "auto"):
        size = min(subchunk or 16, chunk)
        strips = (("strips", size),) if size < chunk else ()
        diagonal = (("leaf" if leaf >= size else "offsets", size),) if size > 1 else ()
        return Cover("subchunk", (*strips, *diagonal))
    tail = (("leaf", leaf),) if leaf > 1 else ()
    return Cover("bisect", (("bisect", leaf), *tail))


def guard_limit(steep: bool) -> float:
    """How far the gates of a guarded block may come to, in nats."""
    return STEEP_LIMIT if steep else GROWTH_LIMIT


def reach(limit: float | Fraction) -> Fraction:
    """How far gates may come to beside 16-bit inputs in runs that reach further (see shift.py), of which there are some
    where the limit is that of a float's range."""
    return FARTHEST if limit == GROWTH_LIMIT else Fraction(limit)


def anchored_rows(domain: Interval, chunk: int) -> int:
    """The largest power of two of rows, up to `chunk`, over which a growth stays within GROWTH_LIMIT."""
    rows = 1
    while rows < chunk and 2 * rows * -domain.low <= GROWTH_LIMIT:
        rows *= 2
    return rows
