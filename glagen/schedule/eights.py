"""Strong gates beside 16-bit inputs: in blocks of eight rows, growths serve whatever the gates are.

A log gate counts as CLOSED at least there, so that it comes to FARTHEST nats at most in EIGHT rows; with half of that
between growths and decays, both are numbers. So nothing of a run for strong gates depends on how strong they are: its
loops have as many turns as the compiler knows, and loads of the next chunk come while there is work on one. A gate's
gradient is then, as for mild gates, what later steps read less what they write, for what cancels are the same rounded
products. (H200, Triton 3.6.0, bf16, B4 T4096 H64 K=V=128, -8 in one channel of 32, `gla`, ms: outputs 2.82 -> 1.46,
gradients of values 1.79 -> 0.67, of keys 3.45 -> 1.97, and 3.48 with sums of paths block by block.)
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.chunk import Operand
from glagen.ir.expr import Apply, Expr, Ref, apply, number, plus
from glagen.ir.kernel import Assign, BlockLine, Blocks, Depth, Line, RowSum, read
from glagen.ir.schedule import FARTHEST
from glagen.schedule.tile import tile


def by_eights(lines: list[Line], gate: str) -> list[Line]:
    """The same lines, with what they are for strong gates. Requires: lines for mild gates as mild.py makes them."""
    by_rows = _by_rows(lines, gate)
    sums_paths = by_rows is lines  # then levels one after another would spill: a loop of as many turns is as fast

    def line(x: Line) -> Line:
        match x:
            case Blocks(kind="eights") | Blocks(kind="guard", by_row=False) if x.gate == gate:
                return replace(x, bounded=True, body=tuple(_from_middle(y, gate) for y in x.body))
            case Blocks() if x.gate == gate:
                return replace(x, bounded=not (sums_paths and _sums_paths(x)))
            case Depth() if x.source.name == gate:
                return replace(x, bounded=True)
        return x

    return [line(x) for x in by_rows]


def _sums_paths(blocks: Blocks) -> bool:
    """Does each level sum what crosses its steps?"""
    return any(isinstance(x, RowSum) and x.accumulate for x in blocks.body)


def _from_middle(line: BlockLine, gate: str) -> BlockLine:
    """A growth or a decay from a block's start, with half of the range between them."""
    half = number(FARTHEST / 2)
    match line:
        case Assign(
            expr=Apply(function="exp", args=(Apply(function="min", args=(Apply(function="neg", args=(log,)), _)),))
        ):
            return replace(line, strong=apply("grow", plus(log, half)))
        case Assign(name=name, expr=Apply(function="exp", args=(log,))) if name.startswith(f"{gate}_down"):
            return replace(line, strong=apply("exp", plus(log, half)))
    return line


def _by_rows(lines: list[Line], gate: str) -> list[Line]:
    """The gate's gradient by sums over rows, where it is for mild gates, and all paths within the chunk are those of
    one gradient of reads and of one of writes."""
    body = [y for x in lines if isinstance(x, Blocks) and (x.kind, x.gate) == ("guard", gate) for y in x.body]
    spared = [x.source for x in body if isinstance(x, RowSum) and x.spared and x.select == "leaf_T"]
    reads, writes = (_paths(body, negative) for negative in (False, True))
    from_, before, left = (f"{gate}_{name}" for name in ("paths_from", "paths_before", "rows_kept"))
    summed = next((x for x in lines if isinstance(x, RowSum) and x.name == f"d{gate}_rows_from"), None)
    total = next((x for x in lines if isinstance(x, Assign) and summed and x.mild and summed.name in read(x)), None)
    later = any(isinstance(x, Assign) and x.name == from_ for x in lines)  # none where reads come before the write
    if summed is None or total is None or not later or (len(spared), len(reads), len(writes)) != (1, 1, 1):
        return lines
    axes, kept = summed.axes, tuple(axis for axis in summed.axes if axis != "t")
    anchored = summed.source.name != f"{gate}_rows_from"  # mild ones have a factor in common
    every, leaving = f"{gate}_rows_all", f"{gate}_rows_left"
    changed: list[Line] = []
    for x in lines:
        match x:
            case Blocks(kind="bisect", gate=of) if of == gate:
                more = apply("sub", tile(*reads, *axes), tile(*writes, *axes))
                x = replace(x, body=(*x.body, Assign(spared[0].name, axes, more, accumulate=True)))
            case Assign(name=name) if name == from_:
                x = replace(x, strong=x.mild)
            case RowSum() if x is summed and anchored:
                strong = apply("sub", tile(from_, *axes), tile(before, *axes))
                changed.append(Assign(every, axes, strong, mild=tile(x.source.name, *axes)))
                x = replace(x, source=Operand(every, axes))
            case Assign(name=name) if name == left and anchored:
                changed.append(Assign(leaving, axes, tile(before, *axes), mild=x.expr))
                x = replace(x, expr=tile(leaving, *axes))
            case Assign() if x is total:
                x = replace(x, strong=_without_factor(x.mild, tile(left, *kept)))
        changed.append(x)
    return changed


def _paths(body: list[BlockLine], negative: bool) -> list[str]:
    """The paths of reads, or of writes, in blocks of halves, by name: those of blocks with a growth are of these."""
    found = [(x.name, x.expr) for x in body if isinstance(x, Assign) and x.name.endswith("_paths_anchored")]
    own = [(name, x) for name, x in found if not (isinstance(x, Apply) and x.function == "add")]  # but for their sum
    wanted = [name for name, x in own if (isinstance(x, Apply) and x.function == "neg") == negative]
    return [name.removesuffix("_anchored") for name in wanted]


def _without_factor(total: Expr | None, kept: Ref) -> Expr | None:
    """A sum of which `kept` is the last term, if that has a factor, without it."""
    match total:
        case Apply(function="add", args=(rest, Apply(function="mul", args=(Ref() as last, _)))) if last == kept:
            return plus(rest, kept)
    return total
