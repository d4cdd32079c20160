"""A step's own products, where a matrix has all pairs of steps: they are its diagonal.

A bonus for a step's own write has a gradient of such products. A dot makes those of all pairs of steps, for gradients
of scores; threads would bring the tiles of both into another order, and sum them once more. (H200, Triton 3.6.0, bf16,
rwkv6, B4 T4096 H64 K=V=128, forward and backward: 3.20 ms for 4.69, in which a sum of gates that is spared since has
some part.) And what the bonus adds to an output is a number times the step's value, which scores multiply as well: with
that number on their diagonal, one product does both, and threads hold no values. (The same call: 3.08 ms; forward 0.70
for 0.71, and 0.26 for 0.28 at B32 T2048 H16 K=V=64.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from glagen.ir.chunk import Operand
from glagen.ir.expr import Expr, Number, Ref, factors, plus, terms, times
from glagen.ir.kernel import Assign, Dot, Line
from glagen.schedule.tile import axes_of, keep, natural, tile

STEPS = {"t", "s"}


def read_off(lines: list[Line]) -> list[Line]:
    """The same lines, but sums of a step's own products are read off the dots that there are."""
    dots = [x for x in lines if isinstance(x, Dot) and {*x.axes} == STEPS and not x.mask]
    return [_read_off(x, dots) if isinstance(x, Assign) and x.axes == ("t",) else x for x in lines]


def _read_off(line: Assign, dots: list[Dot]) -> Assign:
    parts = factors(line.expr)
    tiles = {x for x in parts if isinstance(x, Ref) and set(line.over) & {*axes_of(x)}}
    numbers = [x for x in parts if x not in tiles]
    if len(parts) - len(numbers) != 2 or not all(map(_is_of_steps, numbers)):
        return line
    for dot in dots:
        if tiles == {natural(dot.x), natural(dot.y)}:
            own = times(keep("diagonal", tile(dot.name, *dot.axes), *dot.axes), *numbers)
            return Assign(line.name, line.axes, own, over=tuple(axis for axis in dot.axes if axis != "t"))
    return line


def put_on(lines: list[Line], used: Counter[str]) -> list[Line]:
    """The same lines, but a matrix has on its diagonal the numbers of a term that its product is added to, of the tile
    that it multiplies. `used`: how often each tile is."""
    for dot in [x for x in lines if isinstance(x, Dot) and {*x.x.indices} == STEPS and used[x.name] == 1]:
        made: dict[Expr, Assign] = {tile(x.name, *x.axes): x for x in lines if isinstance(x, Assign) and _is_plain(x)}
        total = next((x for x in made.values() if tile(dot.name, *dot.axes) in terms(x.expr)), None)
        once = {x: line for x, line in made.items() if used[line.name] == 1}
        lines = lines if total is None else _put_on(lines, dot, total, once)
    return lines


def _put_on(lines: list[Line], dot: Dot, total: Assign, once: dict[Expr, Assign]) -> list[Line]:
    """`total` is what a dot is added to, `once` what is used once, by tile."""
    summed = terms(total.expr)
    numbers = [_numbers(once[x].expr if x in once else x, dot) for x in summed]
    found = [n for n, x in enumerate(numbers) if x]
    if len(found) != 1:
        return lines
    (n,), axes = found, dot.x.indices
    own = keep("diagonal", times(*numbers[n]), *axes)
    both = Assign(f"{dot.x.name}_and_own", axes, plus(tile(dot.x.name, *axes), own))
    there = [x for x in lines if isinstance(x, Assign) and x.name == both.name]
    if there not in ([], [both]):  # for another product this matrix has other numbers there
        return lines
    product = replace(dot, x=Operand(both.name, axes))
    instead: dict[Line, tuple[Line, ...]] = {
        dot: (product,) if there else (both, product),
        total: (replace(total, expr=plus(*summed[:n], *summed[n + 1 :])),),
    }
    if summed[n] in once:
        instead[once[summed[n]]] = ()
    return [y for x in lines for y in instead.get(x, (x,))]


def _numbers(term: Expr, dot: Dot) -> list[Expr]:
    """What multiplies the tile that a dot multiplies, if it is one number a step."""
    parts = factors(term)
    numbers = [x for x in parts if x != natural(dot.y)]
    of_steps = len(parts) - len(numbers) == 1 and all(map(_is_of_steps, numbers))
    return numbers if of_steps and any(isinstance(x, Ref) and axes_of(x) for x in numbers) else []


def _is_plain(x: Assign) -> bool:
    return not (x.over or x.accumulate or x.rounded or x.mild or x.strong or x.still_mild)


def _is_of_steps(x: Expr) -> bool:
    return isinstance(x, Number) or (isinstance(x, Ref) and axes_of(x) in ((), ("t",)))
