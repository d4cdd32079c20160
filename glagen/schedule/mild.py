"""Less work for mild gates, in kernels that run once as if all gates were mild, and again where some were not.

The first run takes sequences alone in whose chunks log gates come to no more than a guarded cover's limit in sum. Their
least sum is then that of the last row, decays to the chunk's end are no smaller than one growth can make up for, and
all anchored paths run from the chunk's start. (H200, bf16, B4 T4096 H64 K=V=128: gla's key gradients take 1.36 ms, and
1.73 ms without this.) In forwards, what comes before strong gates is to have the same bits in the second run: where
another form would give others, that run takes it too. How far growths reach beside 16-bit inputs is in shift.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from glagen.ir.chunk import Operand
from glagen.ir.expr import Apply, Expr, Ref, apply, number, plus, ref, terms, times
from glagen.ir.kernel import (
    Assign,
    BlockLine,
    Blocks,
    Depth,
    Dot,
    Kernel,
    Line,
    Loop,
    RowSum,
    Store,
    lines_of,
    read,
    written,
)
from glagen.ir.schedule import SLACK
from glagen.schedule.covers import reach
from glagen.schedule.eights import by_eights
from glagen.schedule.reads import read_at_once
from glagen.schedule.shift import halved, shifted
from glagen.schedule.tile import tile


def lightened(lines: list[Line], causal: bool, walks: bool, bounded: bool) -> list[Line]:
    """The same lines, with what they are for mild gates, where that is less. `causal`: no bit may depend on later
    gates; `walks`: they keep states on chip; `bounded`: beside 16-bit inputs gates count as CLOSED at least."""
    for depth in [line for line in lines if isinstance(line, Depth)]:
        gate = depth.source.name
        lines = _with_paths_from_start(lines, gate)
        sums = (x for x in (*_anchored(lines, gate), *lines) if isinstance(x, RowSum))
        since = next((x for x in sums if x.name == f"log_{gate}_since"), None)
        whole = next((x for x in lines if isinstance(x, Assign) and x.name == f"log_{gate}_whole"), None)
        made = next((x.expr for x in lines if isinstance(x, Assign) and x.name == gate), None)
        lines = [_of_one_step(x, made) for x in lines]
        if since is None:
            lines = _by_rows(lines, gate)
            continue
        lines = read_at_once(lines, gate, reach(depth.limit) > depth.limit) if causal else lines
        lines = [_unlimited(x, since) if isinstance(x, Blocks) and _is_anchored(x, gate) else x for x in lines]
        limit: Expr | None = number(SLACK - depth.limit)
        rest = f"{gate}_whole"  # what is left of a state from the growth's anchor on
        if reach(depth.limit) > depth.limit:
            lines, rest = (shifted if causal or walks else halved)(lines, gate, since)
            limit = ref(f"%{float(SLACK)} - LIMIT")
        if whole is not None:
            growth, limit = _growth(lines, gate), limit if causal else None
            lines = [_of_all_steps(x, since, whole, growth, rest, limit, walks) for x in lines]
        halves = rest == f"{gate}_half"
        by_anchor = _by_anchor(lines, gate, tile(rest, *since.axes[1:])) if halves else None
        lines = _by_rows(lines, gate) if by_anchor is None else by_anchor
        lines = by_eights(lines, gate) if bounded and reach(depth.limit) > depth.limit else lines
    return lines


def for_mild_gates(kernel: Kernel) -> Kernel:
    """The kernel without what only strong gates need, of which others make what it stores; but not their states."""
    kinds = ("guard", "own")
    found: list[Line | Loop] = []
    for item in kernel.body:
        lines = tuple(x for x in lines_of(item) if not (isinstance(x, Blocks) and x.depth and x.kind not in kinds))
        found += [replace(item, body=lines)] if isinstance(item, Loop) else lines
    return replace(kernel, body=tuple(found))


def for_any_gates(lines: list[Line]) -> list[Line]:
    """The same, but what is outside of blocks counts whatever the gates are, in every run."""
    return [replace(x, mild=None, still_mild=None) if isinstance(x, Assign) else x for x in lines]


def unguarded(lines: list[Line], stores: list[Store]) -> list[Line]:
    """The same, but tiles that are stored and nothing else need no zeros outside of tensors: nothing goes there."""
    used = {name for line in lines for name in read(line)}
    free = {store.tile for store in stores} - used
    return [replace(x, guarded=False) if isinstance(x, Assign) and x.name in free and not x.over else x for x in lines]


def _is_anchored(blocks: Blocks, gate: str) -> bool:
    return (blocks.kind, blocks.gate) == ("guard", gate)


def _anchored(lines: list[Line], gate: str) -> list[BlockLine]:
    """All lines of blocks with one anchor, which is the chunk's start if gates are mild."""
    return [x for line in lines if isinstance(line, Blocks) and _is_anchored(line, gate) for x in line.body]


def _growth(lines: list[Line], gate: str) -> Assign | None:
    """The growths of the rows that write."""
    made = [x for x in _anchored(lines, gate) if isinstance(x, Assign)]
    return next((x for x in made if x.name.startswith(f"{gate}_up_anchored")), None)


def _with_paths_from_start(lines: list[Line], gate: str) -> list[Line]:
    """Paths within the chunk, for a gate's gradient, summed with those that leave it: all run from its start. (But for
    those of two loops over blocks, of which the second has its own in the first one's tile.)"""
    names = {"leaf_T": f"{gate}_paths_from", "leaf_before_T": f"{gate}_paths_after"}
    there = {x.name for x in lines if isinstance(x, Assign)}
    within = [x for x in _anchored(lines, gate) if isinstance(x, RowSum) and x.select in names]
    tiles = Counter(x.source.name for x in within)
    spared = [x for x in within if names[x.select] in there and tiles[x.source.name] == 1]
    none = {x.name for x in spared} - {x.name for x in within if x not in spared}  # sums of which nothing is left

    def line(x: Line) -> Line:
        if isinstance(x, Blocks) and _is_anchored(x, gate):
            return replace(x, body=tuple(replace(y, spared=True) if y in spared else y for y in x.body))
        if isinstance(x, Assign) and x.name in names.values():
            sources = (y.source for y in spared if names[y.select] == x.name)
            total = plus(x.expr, *(tile(source.name, *source.indices) for source in sources))
            return replace(x, mild=total) if total != x.expr else x
        if isinstance(x, Assign) and not x.over and none & set(read(x)):
            return replace(x, mild=_without(x.expr, none))
        return x

    return [line(x) for x in lines]


def _by_rows(lines: list[Line], gate: str) -> list[Line]:
    """A gate's gradient with one sum over rows for two: what later steps read, less what they write that leaves the
    chunk; and all of that. (H200, bf16, B4 T4096 H64 K=V=128, ms, gradients of keys: gla 1.19 -> 1.15, gla_kv 1.28 ->
    1.19, and of its values 1.24 -> 1.15.)"""
    if (found := _summed_over_rows(lines, gate)) is None or found[0].select == "after":
        return lines
    later, earlier, total, rest = found
    axes = later.axes
    reads, writes = (tile(x.source.name, *x.axes) for x in (later, earlier))
    rows, summed, left = f"{gate}_rows_from", f"d{gate}_rows_from", f"{gate}_rows_kept"
    kept = tuple(axis for axis in axes if axis != "t")
    made: list[Line] = [
        Assign(rows, axes, apply("sub", reads, writes)),
        RowSum(summed, axes, Operand(rows, axes), "from"),
        Assign(left, kept, writes, over=("t",)),
        replace(total, mild=plus(*rest, tile(summed, *axes), tile(left, *kept))),
    ]
    return [y for x in lines for y in (made if x is total else [x])]


def _summed_over_rows(lines: list[Line], gate: str) -> tuple[RowSum, RowSum, Assign, list[Expr]] | None:
    """The sums over rows of what later steps read and of what earlier ones write; the gate's gradient, of which both
    are terms, and its other terms. None where that is not so."""
    sums = {x.name: x for x in lines if isinstance(x, RowSum)}
    later = sums.get(f"d{gate}_from") or sums.get(f"d{gate}_after")
    earlier = sums.get(f"d{gate}_before")
    if later is None or earlier is None:
        return None
    both = {later.name, earlier.name}
    total = next(x for x in lines if isinstance(x, Assign) and both <= set(read(x)))
    summed = terms(total.expr if total.mild is None else total.mild)
    rest = [x for x in summed if not isinstance(x, Ref) or x.name not in both]
    return (later, earlier, total, rest) if len(rest) + len(both) == len(summed) else None


@dataclass(frozen=True, slots=True)
class _Half:
    """Gradients on one side of a gate's paths: `part` within the chunk, `outer` beyond it, both without their decays,
    of which they have `anchor` in common; `sum_` is what the part adds to, `decayed` the outer one with its decays, and
    `rows` what they are multiplied with for the gate: `exact`, the outer one, with what is not rounded once more where
    much is."""

    sum_: Assign
    anchor: Ref
    part: Ref
    outer: Ref
    decayed: str
    rows: Ref
    exact: Expr
    sign: int

    @property
    def both(self) -> Ref:
        return tile(f"{self.sum_.name}_anchored", *self.sum_.axes)

    def paths(self, half: Ref) -> Expr:
        """All paths of the gate on this side."""
        if self.exact == self.rows:
            return times(self.rows, self.both)
        return plus(times(self.rows, self.part), times(times(self.exact, half), self.outer))


def _halves(lines: list[Line], gate: str) -> list[_Half]:
    """Reads and writes, where a block that is the chunk has both and each has one path beyond it; else none."""
    body = _anchored(lines, gate)
    made = {x.name: x.expr for x in body if isinstance(x, Assign)}
    split = {x.name for x in body if isinstance(x, Dot) and x.split}
    found = []
    for x in body:
        match x:
            case Assign(name=name, expr=Apply(function="mul", args=(Ref() as anchor, Ref() as part)), accumulate=True):
                path = made.get(f"{name}_paths_anchored")
                sign = -1 if isinstance(path, Apply) and path.function == "neg" else 1
                product = path.args[0] if isinstance(path, Apply) and sign < 0 else path
                side = {"down": "from_start", "up": "to_end"}[anchor.name.removeprefix(f"{gate}_").partition("_")[0]]
                outer = [
                    (y.name, u)
                    for y in lines
                    if isinstance(y, Assign) and isinstance(y.expr, Apply) and y.expr.function == "mul"
                    for u, d in [y.expr.args]
                    if isinstance(u, Ref) and isinstance(d, Ref) and d.name.startswith(f"{gate}_{side}")
                    if u.name == f"{y.name}_undecayed" and y.axes == x.axes
                ]
                if len(outer) != 1 or not isinstance(product, Apply) or not isinstance(product.args[0], Ref):
                    return []
                rows = product.args[0]
                exact = made[rows.name] if part.name in split else rows
                found.append(_Half(x, anchor, part, outer[0][1], outer[0][0], rows, exact, sign))
    return found


def _by_anchor(lines: list[Line], gate: str, half: Ref) -> list[Line] | None:
    """Gradients within the chunk and beyond it with their common factor last, and those of the gate by both: what later
    steps read, less what they write, and all of that which leaves the chunk. A read before the write does not pass the
    gate of its own step, which is taken from the sum. (H200, Triton 3.6.0, bf16, rwkv6, B4 T4096 H64 K=V=128, forward
    and backward: 4.69 ms for 5.11.) None where there is more to a gradient."""
    halves = sorted(_halves(lines, gate), key=lambda half: -half.sign)
    found = _summed_over_rows(lines, gate)
    blocks = [x for x in lines if isinstance(x, Blocks) and _is_anchored(x, gate)]
    if found is None or [half.sign for half in halves] != [1, -1] or len(blocks) != 1:
        return None
    later, earlier, total, rest = found
    reads, writes = halves
    read_here = Assign(f"{gate}_reads_anchored", later.axes, reads.paths(half))
    own: list[RowSum] = []  # then sums of what is written, which those of reads do not have
    if later.select == "after":
        crossed = tile(f"crossed_{gate}", *later.axes)
        own = [x for x in blocks[0].body if isinstance(x, RowSum) and x.name == crossed.name and not x.spared]
        if [x.source.name for x in own] != [f"{writes.sum_.name}_paths_anchored"]:
            return None
        rest = [*(x for x in rest if x != crossed), apply("neg", tile(read_here.name, *later.axes))]
    whole = [h for h in halves if _is_summed_alone(lines, h, {later.source.name, earlier.source.name})]
    passing = tile(read_here.name, *later.axes) if own else read_here.expr
    rows = Assign(f"{gate}_rows_anchored", later.axes, apply("sub", passing, writes.paths(half)))
    made: list[BlockLine] = [
        *(Assign(h.both.name, h.sum_.axes, plus(h.part, times(h.outer, half))) for h in halves),
        *([read_here] if own else []),
        rows,
    ]
    kept = tuple(axis for axis in later.axes if axis != "t")
    left = Assign(f"{gate}_rows_kept", kept, times(writes.exact, writes.outer), over=("t",))
    summed = RowSum(f"d{gate}_rows_from", later.axes, Operand(rows.name, later.axes), "from")
    changed: list[Line] = []
    for x in lines:
        if isinstance(x, Blocks) and _is_anchored(x, gate):
            body = [y for y in x.body if y not in [h.sum_ for h in whole]]
            body = [replace(y, spared=True) if isinstance(y, RowSum) and y in own else y for y in body]
            ends = [replace(h.sum_, mild=times(h.anchor, h.both)) for h in whole]
            x = replace(x, body=(*body, *made, *ends))
        elif x is total:
            changed += [summed, left]
            x = replace(total, mild=plus(*rest, tile(summed.name, *later.axes), times(tile(left.name, *kept), half)))
        elif isinstance(x, Assign):
            for h in whole:
                if {h.sum_.name, h.decayed} <= {y.name for y in terms(x.expr) if isinstance(y, Ref)}:
                    x = replace(x, mild=_without(x.expr, {h.decayed}))
        changed.append(x)
    return _after(changed, {h.outer.name for h in halves}, gate)


def _is_summed_alone(lines: list[Line], half: _Half, paths: set[str]) -> bool:
    """Does nothing read what is within the chunk, or beyond it, but their sum, and the gate's paths?"""
    for x in lines:
        if isinstance(x, Blocks) or x.name in paths:
            continue
        used = {half.sum_.name, half.decayed} & set(read(x))
        summed = terms(x.expr) if isinstance(x, Assign) and not x.over else []
        if used and not {half.sum_.name, half.decayed} <= {y.name for y in summed if isinstance(y, Ref)}:
            return False
    return True


def _after(lines: list[Line], names: set[str], gate: str) -> list[Line]:
    """The same lines, with a gate's blocks after what defines these, for one of them reads it: in their order."""
    blocks = [x for x in lines if isinstance(x, Blocks) and x.gate == gate]
    others = [x for x in lines if x not in blocks]
    last = max(n for n, x in enumerate(others) if names & set(written(x)))
    return [*others[: last + 1], *blocks, *others[last + 1 :]]


def _without(total: Expr, none: set[str]) -> Expr:
    """A sum without those of its terms that are zero."""
    return plus(*(x for x in terms(total) if not isinstance(x, Ref) or x.name not in none))


def _of_one_step(line: Line, bounded: Expr | None) -> Line:
    """The gradient of a gate that is given, without its bound: next to nothing passes one that is closed. (What a gate
    is made of may have a slope there that makes much of that.)"""
    match line:
        case Assign(expr=Apply(function="mul", args=(Ref() as x, Apply(function="unclamped", args=(Ref() as given,))))):
            return replace(line, mild=x) if bounded == apply("clamp", given) and not line.over else line
    return line


def _unlimited(blocks: Blocks, since: RowSum) -> Blocks:
    """Growths that nothing cuts off: there are none beyond the limit."""
    free = apply("neg", tile(since.name, *since.axes))

    def line(x: BlockLine) -> BlockLine:
        match x:
            case Assign(expr=Apply(function="exp", args=(Apply(function="min", args=(exponent, _)),))) if (
                exponent == free
            ):
                return replace(x, mild=apply("grow", tile(since.name, *since.axes)))
        return x

    return replace(blocks, body=tuple(line(x) for x in blocks.body))


def _of_all_steps(
    line: Line, since: RowSum, whole: Assign, growth: Assign | None, rest: str, limit: Expr | None, walks: bool
) -> Line:
    """A gate's sum over the chunk, and decays to the chunk's end, by the sums from its start; `rest` is what is left
    from the growth's anchor. With a limit, second runs make the sum so too, and decays of columns that are within; and
    beside 16-bit inputs those of walks make all other decays so: by the difference of two such sums.

    (H200, Triton 3.6.0, bf16, B4 T4096 H64 K=V=128, strong gates, the walk back of gla: 0.75 ms for 1.19.)
    """
    gate = since.source.name
    sums = tile(since.name, *since.axes)
    match line:
        case Assign() if line is whole:
            return replace(line, expr=sums, least=True) if walks or limit is not None else replace(line, mild=sums)
        case Assign(name=name) if name == f"{gate}_to_end" and growth is not None:
            mild = times(tile(growth.name, *growth.axes), tile(rest, *whole.axes))
            total = tile(whole.name, *whole.axes)
            strong = apply("exp", apply("sub", total, sums)) if walks else None
            return replace(line, mild=mild, still_mild=None if limit is None else (total, limit), strong=strong)
    return line
