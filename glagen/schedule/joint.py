"""Keys, or values, with one growth within a chunk and for states, in runs that only count for mild gates.

Decays to a chunk's end are there its growths, times what its gates leave of a state (see mild.py). That factor is one
for all steps, and may as well go to the state: S * whole + (k * growth * whole) v is (S + (k * growth) v) * whole. The
keys are then those of the scores, and lie in shared memory already. (H200, bf16, gla without gradients, B4 T4096 H64
K=V=128: 0.72 ms, and 0.84 ms without this.) Likewise values, where they alone have gates. (gla_v, the same call: 0.64
ms for 0.66, and 0.60 for 0.63 where what it reads decays once, see reads.py; with both, B32 T2048 H16 K=V=64 takes 0.26
ms for 0.33, and a thread spills 24 bytes for 240.) With gates on both sides values keep their decays to the chunk's
end: a product of two growths may be more than float32 holds. Keys that read a gradient stay as they are: dS * whole
would have to lie in shared memory beside the dS that is stored. (H100, the same sizes: gradients of values 0.91 ms,
0.99 with it.)
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from glagen.ir.expr import Apply, Ref, apply, number, ref, renamed
from glagen.ir.kernel import Assign, Depth, Line, Scan, read, written
from glagen.schedule.tile import tile


def joined(lines: list[Line], scans: tuple[Scan, ...]) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, where keys, or values, go to nothing but a sum of states.

    Requires: lines that `lightened` has seen.
    """
    for decay in [x for x in lines if isinstance(x, Assign) and x.name.endswith("_to_end")]:
        match decay.mild:
            case Apply(function="mul", args=(Ref() as growth, Ref() as rest)):
                lines, scans = _joined(lines, scans, decay, growth, rest)
    return lines, scans


def _joined(
    lines: list[Line], scans: tuple[Scan, ...], decay: Assign, growth: Ref, rest: Ref
) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same for what one gate's decays to the chunk's end scale."""
    scaled = [x for x in lines if decay.name in read(x)]
    if len(scaled) != 1 or len(scans) != 1 or scans[0].late is not None:
        return lines, scans
    (kept,), (scan,) = scaled, scans
    added = [dot for dot in scan.added if set(written(kept)) & {dot.x.name, dot.y.name}]
    others = [x for x in lines if set(written(kept)) & set(read(x))]
    if not isinstance(kept, Assign) or not kept.rounded or not added or others:
        return lines, scans
    # what may outgrow float16
    wide: dict[Line, Line] = {decay: replace(decay, mild=growth), kept: replace(kept, rounded="wide")}
    gate, axes = decay.name.removesuffix("_to_end"), tuple(index.axis for index in rest.indices)
    left = tile(f"{gate}_whole", *axes)
    shifts = rest.name == f"{gate}_rest"  # growths are times UNIT in runs that reach further
    unit = ref("%UNIT") if shifts else number(1)
    soon = Assign(f"{gate}_soon", axes, left, mild=unit, still_mild=decay.still_mild)
    late = Assign(f"{gate}_late", axes, number(1), mild=rest, still_mild=decay.still_mild)
    more = [soon, late]
    if decay.still_mild and shifts and axes == ("i",):
        limit = next(x.limit for x in lines if isinstance(x, Depth) and x.source.name == gate)
        wide[decay], *more = _from_further_on(replace(decay, mild=growth), decay.still_mild[0], soon, late, limit)
    dots = tuple(replace(dot, wide=dot.wide or dot in added) for dot in scan.added)
    update = renamed(scan.update, {left.name: soon.name})
    scan = replace(scan, update=update, added=dots, late=tile(late.name, *axes))
    return [*(wide.get(x, x) for x in lines), *more], (scan,)


def _from_further_on(decay: Assign, whole: Ref, soon: Assign, late: Assign, limit: Fraction) -> tuple[Assign, ...]:
    """The same beside 16-bit inputs, in all runs but the first: growths of columns whose gates come to more than the
    limit begin where they come to no more than that up to the chunk's end. To what is written the state then counts
    as if gates had come to the limit; what is left of it is less than any digit, and the product with what gates leave
    of it before the sum is spared: one for each number of a state. Columns within the limit have the first run's bits.

    (H200, Triton 3.6.0, bf16, gla, B4 T4096 H64 K=V=128, walks that are given scores: 0.38 ms for 0.60, for a thread
    has registers for them with half as many threads. Gates on values alone keep a factor of the state: growths from
    the chunk's end were slower there, 0.640 ms for 0.499.)
    """
    log = decay.name.removesuffix("_to_end")
    most = apply("max", whole, number(-limit))
    anchor = Assign(f"log_{log}_anchor", soon.axes, apply("sub", whole, most))
    gone = apply("sub", tile(f"log_{log}_since", *decay.axes), tile(anchor.name, *anchor.axes))
    growth = replace(decay, strong=apply("grow", gone), still_mild=None, near=True)
    left = replace(late, mild=soon.expr, strong=apply("exp", most), still_mild=None, near=True)
    return growth, anchor, replace(soon, mild=number(1), strong=number(1), still_mild=None), left
