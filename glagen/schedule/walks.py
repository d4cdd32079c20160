"""Walks for the states alone, which sum a chunk's gates once beside 16-bit inputs; so does what walks are given.

Sums from the chunk's start serve for all. What gates leave of a state is the last of them, and the least, for no gate
is above 0; decays to the end are powers of that less the others. Such differences are off by a few 2^-24 of what
gates come to, of at most 128 nats a step; what they decay is rounded by 2^-9, in float16 by 2^-11. That spares a dot
for sums of other rows, and threads from bringing gates into another order for a sum of their own. (H200, Triton 3.6.0,
bf16, states of gla_kv: B1 T65536 H8 K=V=128, for what enters pieces, 0.51 ms -> 0.35, and with tiles that are better
then 0.20; B8 T2048 H4 K256 V512 0.54 -> 0.33, and 0.27.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glagen.ir.expr import apply
from glagen.ir.kernel import Assign, Blocks, Line, RowSum
from glagen.schedule.tile import tile


def summed_once(lines: list[Line], gates: Iterable[str]) -> list[Line]:
    """The same, with one kind of sums for each of these log gates with columns, which are 0 at most."""
    for gate in gates:
        anchored = (x for line in lines if isinstance(line, Blocks) and line.kind == "guard" for x in line.body)
        sums = {x.name: x for x in (*lines, *anchored) if isinstance(x, RowSum)}
        ends = sums.get(f"log_{gate}_to_end")
        since = sums.get(f"log_{gate}_since") or sums.get(f"log_{gate}_from_start")
        if since is not None and since.select != "through":
            continue
        made: list[Line] = []
        if since is None and ends is not None:
            since = replace(ends, name=f"log_{gate}_since", select="through")
            made = [since]
        if since is not None:
            lines = made + [_by_sum(x, gate, since) for x in lines]
    return lines


def _by_sum(line: Line, gate: str, since: RowSum) -> Line:
    """What gates leave over the chunk, and to its end, by their sums from its start."""
    sums, whole = tile(since.name, *since.axes), f"log_{gate}_whole"
    match line:
        case Assign(name=name) if name == whole and not line.least:
            return replace(line, mild=sums)
        case Assign(name=name) if name == f"{gate}_to_end":
            return replace(line, mild=apply("exp", apply("sub", tile(whole, *since.axes[1:]), sums)))
    return line
