"""A further range for growths, beside 16-bit inputs: what a growth and a decay share is put in the middle of it.

A growth from a chunk's start is right up to GROWTH_LIMIT nats, for it must stay finite; the decays it meets then use
half of a float's range. In the other half there is room for FARTHEST nats, if growths are smaller by a factor, and
decays larger by the same, which leaves their products as they are.

Forwards have a power of two for that: it changes no digit of what is nearer, so that no bit depends on which run makes
it. What they make once a chunk has it in all runs; walks that keep states on chip in runs for gates that come to more
than GROWTH_LIMIT in a chunk, and to no more than FARTHEST. For states of values with gates it is a product more of each
number (those of keys do without, see joint.py).
(exp(126) * 2**-92 is 2**90, and what it multiplies may come to 2**37 before float32 ends, in sums as well; exp(-126) *
2**92 is 2**-90, a normal number times what is 2**-36 or more; states, and what is read of them where values have gates,
times 2**-92 meanwhile, have all digits from 2**-34 on.) In gradients of a chunk, of which none has to have the bits of
another run, it is what the gates leave of a state after half of the chunk, as they come to in sum: that is all of it
for mild gates, so that small gradients do not vanish.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from glagen.ir.expr import Apply, apply, number, ref, times
from glagen.ir.kernel import Assign, BlockLine, Blocks, Depth, Line, RowSum
from glagen.schedule.tile import tile


def shifted(lines: list[Line], gate: str, since: RowSum) -> tuple[list[Line], str]:
    """The same lines, with a power of two between growths and decays in runs that reach further; and the name of what
    the gate leaves of a state, times that. Requires: blocks for mild gates as mild.py makes them."""
    sums = tile(since.name, *since.axes)

    def line(x: BlockLine) -> BlockLine:
        match x:
            case Assign(name=name, expr=Apply(function="exp", args=(log,))) if name.startswith(f"{gate}_down_anchored"):
                return replace(x, expr=apply("raised", log))
            case Assign(name=name) if name.startswith(f"{gate}_up_anchored"):
                return replace(
                    x, expr=apply("lowered", apply("max", sums, ref("%-LIMIT"))), mild=apply("lowered", sums)
                )
        return x

    made: list[Line] = []
    for x in lines:
        match x:
            case Blocks(kind="guard") if x.gate == gate:
                made.append(replace(x, body=tuple(line(y) for y in x.body)))
            case Depth() if x.source.name == gate:
                made.append(replace(x, shifted=True))
            case _:
                made.append(x)
    rest, log = f"{gate}_rest", f"log_{gate}_whole"
    axes = since.axes[1:]
    summed = any(isinstance(x, Assign) and x.name == log for x in lines)
    return [*made, *[Assign(rest, axes, apply("raised", tile(log, *axes)))] * summed], rest


def halved(lines: list[Line], gate: str, since: RowSum) -> tuple[list[Line], str]:
    """The same lines, with the sum over half of the chunk between growths and decays in runs for mild gates; and the
    name of what the gate leaves of a state after that. Requires: blocks for mild gates as mild.py makes them."""
    axes = since.axes[1:]
    sums, least = tile(since.name, *since.axes), tile(f"log_{gate}_least", *axes)
    half, left = tile(f"log_{gate}_half", *axes), tile(f"{gate}_half", *axes)
    before = tile(f"{since.name}_before", *since.axes)  # no sum of its own: it is that one without the step's gate
    made = [
        Assign(least.name, axes, sums, over=("t",), least=True),
        Assign(half.name, axes, times(number(Fraction(1, 2)), least)),
        Assign(left.name, axes, apply("exp", half)),
    ]
    downs = dict[str, Assign]()

    def line(x: BlockLine) -> list[BlockLine]:
        match x:
            case RowSum() if x == since:
                return [x, *made]
            case Assign(name=name, expr=Apply(function="exp", args=(log,))) if name.startswith(f"{gate}_down_anchored"):
                downs[name.removeprefix(f"{gate}_down_anchored")] = x
                log = apply("sub", sums, tile(gate, *since.axes)) if log == before else log
                return [replace(x, mild=apply("exp", apply("sub", log, half)))]
            case Assign(name=name) if name.startswith(f"{gate}_up_anchored"):
                return [replace(x, mild=apply("grow", apply("sub", sums, half)))]
        return [x]

    changed: list[Line] = []
    for x in lines:
        if isinstance(x, Blocks) and (x.kind, x.gate) == ("guard", gate):
            x = replace(x, body=tuple(z for y in x.body for z in line(y)))
        changed.append(x)

    def from_start(x: Line) -> Line:
        """Decays from the chunk's start, by those from its middle."""
        if isinstance(x, Assign) and x.name.startswith(f"{gate}_from_start"):
            down = downs.get(x.name.removeprefix(f"{gate}_from_start"))
            return x if down is None else replace(x, mild=times(tile(down.name, *down.axes), left))
        return x

    return [from_start(x) for x in changed], left.name
