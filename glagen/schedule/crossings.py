"""Log-gate gradients: the sum over the paths that cross each step."""

from __future__ import annotations

from glagen.ir.chunk import Crossing, GateGradient, Operand
from glagen.ir.expr import Expr, apply, plus, times
from glagen.ir.kernel import Assign, RowSum
from glagen.schedule.factors import bare, factor
from glagen.schedule.tile import Workspace, axes_of, keep, natural, paths_from_start, tile


def gate_gradient(work: Workspace, statement: GateGradient) -> None:
    """Sum what crosses each step: later reads, earlier writes, everything for the whole chunk, pairs within it.

    Each sum has only the paths that do cross the step, so none takes back what it added, as differences of sums over
    all later steps would: a closed gate next to an open one keeps its relative precision.
    """
    axes = statement.out.indices
    gate = statement.gate
    sums: dict[str, list[Expr]] = {"from": [], "after": [], "before": []}
    total: list[Expr] = []
    inner: list[tuple[Crossing, int]] = []
    for n, crossing in enumerate(statement.crossings):
        decay = crossing.decay
        if crossing.factors:
            total.append(whole_crossing(work, statement, crossing, n))
        elif crossing.upper and crossing.lower:
            inner.append((crossing, n))
        elif crossing.upper:
            select = "after" if decay.upper.before else "from"
            sums[select].append(product(work, crossing.upper, axes, f"{gate}_path_{n}"))
        elif crossing.lower:
            sums["before"].append(product(work, crossing.lower, axes, f"{gate}_path_{n}"))
    for crossing, n in inner:
        total += inner_crossing(work, statement, crossing, n, sums["before"])
    for select, paths in sums.items():
        name = paths_from_start(gate, select)
        paths += [tile(name, *axes)] if name in work.crossing_tiles else []
        if paths:
            source, summed = f"{gate}_paths_{select}", f"d{gate}_{select}"
            work.emit(Assign(source, axes, plus(*paths)), RowSum(summed, axes, Operand(source, axes), select))
            total.append(tile(summed, *axes))
    work.emit(Assign(statement.out.name, axes, plus(*dict.fromkeys(total))))


def product(work: Workspace, pair: tuple[Operand, Operand], axes: tuple[str, ...], name: str) -> Expr:
    over = tuple(a for a in axes_of(natural(pair[0])) if a not in axes)
    if not over:
        return times(*(natural(o) for o in pair))
    (x, of_x), (y, of_y) = (bare(work, o) for o in pair)
    work.emit(Assign(name, axes, times(natural(x), natural(y)), over=over, accumulate=work.looped in over))
    return times(tile(name, *axes), *of_x, *of_y)


def whole_crossing(work: Workspace, statement: GateGradient, crossing: Crossing, number_: int) -> Expr:
    """Every step of the chunk lies on the path: sum S dS_end and its decays over the other axes."""
    assert crossing.upper
    x, y = crossing.upper
    axes = crossing.decay.axes
    over = tuple(a for a in x.indices if a not in axes)
    name = f"{statement.gate}_path_{number_}"
    inner = [factor(work, d) for d in crossing.factors if set(d.axes) & set(over)]
    product = times(natural(x), natural(y), *inner)
    work.emit(Assign(name, axes, product, over=over, accumulate=work.looped in over))
    return times(tile(name, *axes), *(factor(work, d) for d in crossing.factors if not set(d.axes) & set(over)))


def inner_crossing(
    work: Workspace, statement: GateGradient, crossing: Crossing, n: int, before: list[Expr]
) -> list[Expr]:
    """Paths within the chunk: summed in the cover's blocks for a vector gate (those of a block that is the whole chunk
    are left to the sums over all steps); for a scalar one, summed over reads from the step on, then over writes
    before it, together with those paths from writes `before` it that leave the chunk (which are taken)."""
    gate, decay = statement.gate, crossing.decay
    if decay.axes:
        name = f"crossed_{gate}"
        return [tile(name, *statement.out.indices)] if name in work.crossing_tiles else []
    assert crossing.upper
    x, y = crossing.upper
    paths, later, crossed = (f"{gate}_{name}_{n}" for name in ("pairs", "read_later", "crossed"))
    both = ("t", "s")
    work.emit(
        Assign(paths, both, times(natural(x), natural(y))),
        RowSum(later, both, Operand(paths, both), "after" if decay.upper.before else "from"),
    )
    reads: Expr = tile(later, *both)
    if before:
        source = f"{gate}_paths_before"
        work.emit(Assign(source, ("t",), plus(*before)))
        before.clear()
        reads = apply("add", reads, tile(source, "s"))
    work.emit(Assign(crossed, ("t",), keep("earlier", reads, *both), over=("s",)))
    return [tile(crossed, "t")]
