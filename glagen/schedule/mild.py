"""Less work for mild gates, in kernels that run once as if all gates were mild, and again where some were not.

What a program finds in the first run counts only if all log gates of its chunks are mild: of no more than a guarded
cover's limit in sum. Their least sum is then that of the last row, they need no bound from below, and decays to the
chunk's end are no smaller than one growth can make up for. (H200, bf16, B4 T4096 H64 K=V=128: gla's key gradients take
1.73 ms without this.)
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.expr import Apply, Expr, Ref, apply, refs
from glagen.ir.kernel import Assign, BlockLine, Blocks, Line, RowSum, Store, read
from glagen.schedule.tile import tile, times


def lightened(lines: list[Line], looped: str | None) -> list[Line]:
    """The same lines, with what they are for mild gates, where that is less; `looped` is the axis of which a program
    takes block by block."""
    for since, before in _judged_sums(lines):
        gate = since.source.name
        whole = next((x for x in lines if isinstance(x, Assign) and x.name == f"log_{gate}_whole"), None)
        if before and whole is None:
            continue  # sums to before each row leave out the last row's gate, which may be -inf, and they then NaN
        bounded = next((x.expr for x in lines if isinstance(x, Assign) and x.name == gate), None)
        lines = [_of_one_step(x, gate, bounded) for x in lines]
        lines = [_unlimited(x, since) if isinstance(x, Blocks) and x.kind == "guard" else x for x in lines]
        if whole is not None:
            growth = None if looped in since.axes else _growth(lines, gate)  # which would need a loop of its own
            lines = [_of_all_steps(x, since, whole, growth) for x in lines]
    return lines


def unguarded(lines: list[Line], stores: list[Store]) -> list[Line]:
    """The same, but tiles that are stored and nothing else need no zeros outside of tensors: nothing goes there."""
    used = {name for line in lines for name in read(line)}
    free = {store.tile for store in stores} - used
    return [replace(x, guarded=False) if isinstance(x, Assign) and x.name in free and not x.over else x for x in lines]


def _judged_sums(lines: list[Line]) -> list[tuple[RowSum, bool]]:
    """The sums from the chunk's start through each row of those gates by which a kernel judges its rows; and whether it
    does so by sums to before each row."""
    judges = {r.name for x in lines if isinstance(x, Assign) and x.at_hand for r in refs(x.expr)}
    sums = [x for x in lines if isinstance(x, RowSum) and not x.exponent]
    before = {x.source.name: x.select == "before" for x in sums if x.name in judges}
    return [(x, before[x.source.name]) for x in sums if x.source.name in before and x.select == "through"]


def _growth(lines: list[Line], gate: str) -> Assign | None:
    """The growths of the rows that write, from the chunk's start."""
    guards = [blocks for blocks in lines if isinstance(blocks, Blocks) and blocks.kind == "guard"]
    made = [x for blocks in guards for x in blocks.body if isinstance(x, Assign)]
    return next((x for x in made if x.name.startswith(f"{gate}_up_anchored")), None)


def _of_one_step(line: Line, gate: str, bounded: Expr | None) -> Line:
    """A gate without its bound, and its derivative, in which that bound does not matter."""
    match line:
        case Assign(name=name, expr=Apply(function="clamp", args=(Ref() as given,))) if name == gate:
            return replace(line, mild=given)
        case Assign(expr=Apply(function="mul", args=(x, Apply(function="unclamped", args=(given,))))) if (
            bounded == apply("clamp", given)
        ):
            return replace(line, mild=x)
    return line


def _unlimited(blocks: Blocks, since: RowSum) -> Blocks:
    """Growths that nothing cuts off: there are none beyond the limit."""
    free = apply("neg", tile(since.name, *since.axes))

    def line(x: BlockLine) -> BlockLine:
        match x:
            case Assign(expr=Apply(function="exp", args=(Apply(function="min", args=(exponent, _)),))) if (
                exponent == free
            ):
                return replace(x, mild=apply("exp", free))
        return x

    return replace(blocks, body=tuple(line(x) for x in blocks.body))


def _of_all_steps(line: Line, since: RowSum, whole: Assign, growth: Assign | None) -> Line:
    """A gate's sum over the chunk, what is judged by it, and decays to the chunk's end, by the sums from its start."""
    gate = since.source.name
    match line:
        case Assign() if line is whole:
            return replace(line, mild=tile(since.name, *since.axes))
        case Assign(expr=expr, at_hand=True) if {r.name for r in refs(expr)} & {since.name, f"{since.name}_before"}:
            return replace(line, mild=tile(whole.name, *whole.axes))
        case Assign(name=name) if name == f"{gate}_to_end" and growth is not None:
            return replace(line, mild=times(tile(growth.name, *growth.axes), tile(f"{gate}_whole", *whole.axes)))
    return line
