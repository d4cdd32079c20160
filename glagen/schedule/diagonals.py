"""Sums over the columns of a step's own products, where a matrix has them on its diagonal.

A bonus for a step's own write has a gradient of such products. A dot makes those of all pairs of steps, for gradients
of scores; threads would bring the tiles of both into another order, and sum them once more.
"""

from __future__ import annotations

from glagen.ir.expr import Number, Ref, factors, times
from glagen.ir.kernel import Assign, Dot, Line
from glagen.schedule.tile import axes_of, keep, natural, tile


def on_diagonals(lines: list[Line]) -> list[Line]:
    """The same lines, but such sums are read off the dots that there are, and numbers multiply them."""
    dots = [x for x in lines if isinstance(x, Dot) and {*x.axes} == {"t", "s"} and not x.mask]
    return [_read_off(x, dots) if isinstance(x, Assign) and x.axes == ("t",) else x for x in lines]


def _read_off(line: Assign, dots: list[Dot]) -> Assign:
    parts = factors(line.expr)
    tiles = {x for x in parts if isinstance(x, Ref) and set(line.over) & {*axes_of(x)}}
    numbers = [x for x in parts if x not in tiles]
    if len(parts) - len(numbers) != 2 or not all(_is_of_steps(x) for x in numbers):
        return line
    for dot in dots:
        if tiles == {natural(dot.x), natural(dot.y)}:
            own = times(keep("diagonal", tile(dot.name, *dot.axes), *dot.axes), *numbers)
            return Assign(line.name, line.axes, own, over=tuple(axis for axis in dot.axes if axis != "t"))
    return line


def _is_of_steps(x: object) -> bool:
    return isinstance(x, Number) or (isinstance(x, Ref) and axes_of(x) in ((), ("t",)))
