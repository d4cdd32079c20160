"""Log-gate gradients: the sum over the paths that cross each step."""

from __future__ import annotations

from glagen.ir.chunk import Crossing, GateGradient, Operand
from glagen.ir.expr import Expr, apply
from glagen.ir.kernel import Assign, RowSum
from glagen.schedule.factors import factor
from glagen.schedule.tile import Workspace, axes_of, keep, natural, tile, times


def gate_gradient(work: Workspace, statement: GateGradient) -> None:
    """Suffix and prefix sums of what crosses each step. See derive/adjoint.py for why."""
    axes = statement.out.indices
    gate = statement.gate
    buckets: dict[str, list[Expr]] = {"from": [], "after": [], "before": []}
    whole: list[Expr] = []
    for number_, crossing in enumerate(statement.crossings):
        decay = crossing.decay
        if not decay.upper.is_row and not decay.lower.is_row:
            whole.append(whole_crossing(work, statement, crossing, number_))
        elif crossing.upper and crossing.lower:
            inner_crossing(work, statement, crossing, number_, buckets)
        elif crossing.upper:
            select = "after" if decay.upper.before else "from"
            buckets[select].append(product(work, crossing.upper, axes, f"{gate}_path_{number_}"))
        elif crossing.lower:
            buckets["before"].append(product(work, crossing.lower, axes, f"{gate}_path_{number_}"))
    total: list[Expr] = []
    for select, paths in buckets.items():
        if not paths:
            continue
        source, summed = f"{gate}_paths_{select}", f"d{gate}_{select}"
        value = paths[0]
        for path in paths[1:]:
            value = apply("add", value, path)
        work.emit(Assign(source, axes, value))
        work.emit(RowSum(summed, axes, Operand(source, axes), select))
        total.append(tile(summed, *axes))
    value = total[0] if total else (whole.pop(0))
    for path in (*total[1:], *whole):
        value = apply("add", value, path)
    work.emit(Assign(statement.out.name, axes, value))


def product(work: Workspace, pair: tuple[Operand, Operand], axes: tuple[str, ...], name: str) -> Expr:
    x, y = (natural(o) for o in pair)
    over = tuple(a for a in axes_of(x) if a not in axes)
    if not over:
        return times(x, y)
    work.emit(Assign(name, axes, times(x, y), over=over, accumulate=work.looped in over))
    return tile(name, *axes)


def whole_crossing(work: Workspace, statement: GateGradient, crossing: Crossing, number_: int) -> Expr:
    """Every step of the chunk lies on the path: sum S dS_end and its decays over the other axes."""
    assert crossing.upper
    x, y = crossing.upper
    axes = crossing.decay.axes
    over = tuple(a for a in x.indices if a not in axes)
    name = f"{statement.gate}_path_{number_}"
    product = times(natural(x), natural(y), *(factor(work, d) for d in crossing.factors))
    work.emit(Assign(name, axes, product, over=over, accumulate=work.looped in over))
    return tile(name, *axes)


def inner_crossing(
    work: Workspace, statement: GateGradient, crossing: Crossing, number_: int, buckets: dict[str, list[Expr]]
) -> None:
    """Paths within the chunk: summed in the cover's blocks for a vector gate, rows minus columns for a scalar."""
    decay = crossing.decay
    read_select = "after" if decay.upper.before else "from"
    if decay.axes:
        axes = statement.out.indices
        names = [(read_select, f"crossed_{decay.gate}" + ("_before" if decay.upper.before else ""))]
        names += [("from", f"crossed_{decay.gate}")] if decay.upper.before else []
        for select, name in names:
            if tile(name, *axes) not in buckets[select]:
                buckets[select].append(tile(name, *axes))
        return
    assert crossing.upper
    x, y = crossing.upper
    product = keep("earlier", times(natural(x), natural(y)), "t", "s")
    rows, columns = f"{statement.gate}_rows_{number_}", f"{statement.gate}_columns_{number_}"
    work.emit(Assign(rows, ("t",), product, over=("s",)))
    work.emit(Assign(columns, ("s",), product, over=("t",)))
    buckets[read_select].append(tile(rows, "t"))
    buckets["from"].append(apply("neg", tile(columns, "t")))
