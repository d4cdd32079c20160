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
    all later steps would: a closed gate next to an open one keeps its relative precision. (For scalar gates beside
    inputs of 16 bits, see `_by_rows`.)
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
    by_rows = _by_rows(work, statement, total)
    for crossing, n in inner:
        total += inner_crossing(work, statement, crossing, n, sums["before"])
    for select, paths in sums.items():
        name = paths_from_start(gate, select)
        paths += [tile(name, *axes)] if name in work.crossing_tiles else []
        if paths:
            source, summed = f"{gate}_paths_{select}", f"d{gate}_{select}"
            work.emit(Assign(source, axes, plus(*paths)), RowSum(summed, axes, Operand(source, axes), select))
            total.append(tile(summed, *axes))
    work.emit(Assign(statement.out.name, axes, plus(*dict.fromkeys(total)), mild=by_rows))


def _by_rows(work: Workspace, statement: GateGradient, total: list[Expr]) -> Expr | None:
    """The same as a difference, where that is as good: what this step and later ones read, less what they write; with
    `total`, that of paths across the whole chunk, and those from writes that leave it.

    What cancels are products of the same tiles, but for the last digits of float32: of 16-bit inputs, less than what is
    cut off. It takes neither scores nor sums of pairs. (H200, Triton 3.6.0, bf16, simple_gla's key gradients: B4 T4096
    H64 K=V=128 1.20 -> 1.10 ms, B16 T2048 H4 K128 V256 0.28 -> 0.22 ms; in chunks of 64 steps the others spill.)
    """
    gate, crossings = statement.gate, statement.crossings
    inner = [crossing for crossing in crossings if crossing.upper and crossing.lower]
    if not work.by_rows or not inner or not all(crossing.rows for crossing in inner):
        return None
    read: dict[tuple[str, Operand], list[Operand]] = {}
    written: dict[Operand, list[Operand]] = {}
    for crossing in crossings:
        upper, lower = crossing.rows or (crossing.upper, crossing.lower)
        if upper and not crossing.factors:
            select = "after" if crossing.decay.upper.before else "from"
            read.setdefault((select, upper[0]), []).append(upper[1])
        if lower:
            written.setdefault(lower[0], []).append(lower[1])
    if any(work.looped in operand.indices for operand in (*(x for _, x in read), *written)):
        return None
    sums: dict[tuple[str, tuple[str, ...]], list[Expr]] = {}
    for (select, operand), parts in read.items():
        over, product = _row_product(work, operand, parts)
        sums.setdefault((select, over), []).append(product)
    for operand, parts in written.items():
        over, product = _row_product(work, operand, parts)
        sums.setdefault(("from", over), []).append(apply("neg", product))
    found = list(total)
    for n, ((select, over), products) in enumerate(sums.items()):
        rows, summed = f"{gate}_rows_{n}_{select}", f"d{gate}_rows_{n}_{select}"
        work.emit(Assign(rows, ("t",), plus(*products), over=over))
        work.emit(RowSum(summed, ("t",), Operand(rows, ("t",)), select))
        found.append(tile(summed, "t"))
    for n, crossing in enumerate(crossings):
        if crossing.lower and not crossing.upper and not crossing.factors:
            over, product = _row_product(work, crossing.lower[0], [crossing.lower[1]])
            work.emit(Assign(f"{gate}_{n}_kept", (), product, over=("t", *over)))
            found.append(tile(f"{gate}_{n}_kept"))
    return plus(*found)


def _row_product(work: Workspace, operand: Operand, parts: list[Operand]) -> tuple[tuple[str, ...], Expr]:
    """All that a row of an operand adds to paths, before it is summed over the columns: it times its gradients' sum."""
    plain, numbers = bare(work, operand)
    over = tuple(a for a in axes_of(natural(plain)) if a != "t")
    return over, times(natural(plain), plus(*map(natural, parts)), *numbers)


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
