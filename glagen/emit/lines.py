"""What both printers share: the full axes of an expression, and axis positions of a sum."""

from __future__ import annotations

from glagen.ir.expr import refs
from glagen.ir.kernel import Assign

CANONICAL = ("t", "s", "i", "j")


def full_axes(line: Assign) -> tuple[str, ...]:
    """The axes of the expression before its sum, in the order of its own matrices."""
    if not line.over:
        return line.axes
    for r in refs(line.expr):
        if len(r.indices) == 2:
            return tuple(x.axis for x in r.indices)
    return tuple(sorted({*line.axes, *line.over}, key=CANONICAL.index))


def summed_positions(line: Assign) -> tuple[int, ...]:
    axes = full_axes(line)
    return tuple(axes.index(a) for a in line.over if a in axes)
