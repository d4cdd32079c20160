"""What is read of a state and within the chunk, summed before it decays, where values have gates.

A row's decay to the anchor of a block that is the chunk is that of its read of the state: both run from the chunk's
start. So decay * within + decay * across is decay * (within + across), and products add up in one tile, which takes
fewer registers, and work, than two. In runs whose growths are smaller by a power of two (see shift.py) what is read of
the state is so first; what other blocks give comes with decays of its own, as it did. Forwards do so in all kernels and
runs, so that bits are the same whichever makes a row. (H200, Triton 3.6.0, bf16, gla_v without gradients, B4 T4096 H64
K=V=128: 0.63 ms for 0.66; gla_kv with gradients 4.77 for 4.93.)
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.expr import Apply, Expr, Ref, apply, factors, ref, rewrite, times, walk
from glagen.ir.kernel import Assign, BlockLine, Blocks, Dot, Line, read
from glagen.schedule.tile import tile


def read_at_once(lines: list[Line], gate: str, shifted: bool) -> list[Line]:
    """The same lines, with a gate's decays of what is read applied once, if it has value columns. `shifted`: there are
    runs with smaller growths.

    Requires: blocks for mild gates as mild.py makes them.
    """
    for blocks in [x for x in lines if isinstance(x, Blocks) and (x.kind, x.gate) == ("guard", gate)]:
        for dot, within in zip(blocks.body, blocks.body[1:], strict=False):
            if isinstance(dot, Dot) and isinstance(within, Assign) and within.accumulate:
                lines = _at_once(lines, gate, dot, within, shifted)
    return lines


def _at_once(lines: list[Line], gate: str, dot: Dot, within: Assign, shifted: bool) -> list[Line]:
    """The same, with a product within the chunk added to what is read of the state, before the two decay; if their sum
    is all that they are for."""
    inside = tile(within.name, *within.axes)
    users = [name for line in lines for name in read(line)]
    made = {x.name: x for x in lines if isinstance(x, Assign) and not (x.over or x.rounded)}
    sums = {
        x.name: across
        for x in made.values()
        for node in walk(x.expr)
        for across in made.values()
        if node == apply("add", tile(across.name, *across.axes), inside)
    }
    if len(sums) != 1 or users.count(within.name) != 1:
        return lines
    ((name, across),) = sums.items()
    left = [x for x in factors(across.expr) if not _is_decay(x, gate)]
    if users.count(across.name) != 1 or len(left) == len(factors(across.expr)):
        return lines
    both = tile(f"{within.name}_anchored", *within.axes)
    decays = [x for x in factors(within.expr) if x != tile(dot.name, *dot.axes)]
    instead: dict[BlockLine, list[BlockLine]] = {
        dot: [
            Assign(both.name, within.axes, times(*left, *[ref("%UNIT")] * shifted)),
            replace(dot, name=both.name, accumulate=True),
        ],
        within: [replace(within, expr=times(*decays, both))],
    }
    total = rewrite(made[name].expr, lambda x: inside if isinstance(x, Apply) and inside in x.args else None)
    whole = total == inside  # the sum is what blocks add up
    found: list[Line] = []
    for x in lines:
        if isinstance(x, Blocks):
            body = [z for y in x.body for z in (instead.get(y, [y]) if x.kind == "guard" else [y])]
            named = (replace(y, name=name) if whole and y.name == within.name else y for y in body)
            found.append(replace(x, body=tuple(named)))
        elif x is made[name]:
            found += [] if whole else [replace(made[name], expr=total)]
        elif x is not across:
            found.append(x)
    return found


def _is_decay(x: Expr, gate: str) -> bool:
    """Is it a gate's decay from the chunk's start?"""
    return isinstance(x, Ref) and x.name.startswith(f"{gate}_from_start")
