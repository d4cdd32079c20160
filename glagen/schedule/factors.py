"""Decays as tiles: a factor for each row, or a matrix between two rows of a scalar gate; numbers that are factors."""

from __future__ import annotations

from glagen.ir.chunk import Decay, Map, Operand
from glagen.ir.expr import Expr, Ref, apply, factors, free_axes
from glagen.ir.kernel import Assign, RowSum
from glagen.schedule.tile import Workspace, natural, tile

ROW_SELECT = {"start": {False: "through", True: "before"}, "end": {False: "after"}}
SUFFIX = {"start": "from_start", "end": "to_end"}


def factor(work: Workspace, decay: Decay) -> Ref:
    """The tile of a decay that has a row at one end at most."""
    gate = tile(decay.gate, "t", *decay.axes)
    row = decay.upper if decay.upper.is_row else decay.lower
    edge = decay.lower if decay.upper.is_row else decay.upper
    if not row.is_row:
        name, axes = f"{decay.gate}_whole", decay.axes
        if name not in work.known:
            work.known[name] = name
            work.emit(Assign(f"log_{name}", axes, gate, over=("t",)))
            work.emit(Assign(name, axes, apply("exp", tile(f"log_{name}", *axes))))
        return tile(name, *axes)
    name = f"{decay.gate}_{SUFFIX[edge.at]}" + ("_before" if row.before else "")
    axes = ("t", *decay.axes)
    if name not in work.known:
        work.known[name] = name
        select = ROW_SELECT[edge.at][row.before]
        work.emit(RowSum(f"log_{name}", axes, Operand(gate.name, axes), select, exponent=True))
        work.emit(Assign(name, axes, apply("exp", tile(f"log_{name}", *axes))))
    return tile(name, *axes)


def between(work: Workspace, decay: Decay, transposed: bool) -> Ref:
    """A scalar decay as a matrix [t, s] (or [s, t]): sums over s < tau <= t, each over its own interval."""
    before = "_before" if decay.upper.before else ""
    name = f"{decay.gate}_between{before}" + ("_T" if transposed else "")
    axes = ("s", "t") if transposed else ("t", "s")
    if name not in work.known:
        work.known[name] = name
        select = ROW_SELECT["start"][decay.upper.before]
        work.emit(RowSum(f"log_{name}", axes, Operand(decay.gate, ("t",)), select, exponent=True))
        work.emit(Assign(name, axes, apply("exp", tile(f"log_{name}", *axes))))
    return tile(name, *axes)


def bare(work: Workspace, operand: Operand) -> tuple[Operand, tuple[Expr, ...]]:
    """An operand without the numbers that an input is multiplied by, and those: a product's result can be multiplied by
    them as well, and the input goes from memory to the product as it is."""
    made = next((s for s in work.statements if isinstance(s, Map) and s.out.name == operand.name), None)
    if made is None or made.over:
        return operand, ()
    numbers = tuple(x for x in factors(made.expr) if not free_axes(x))
    values = [x for x in factors(made.expr) if free_axes(x)]
    if len(values) != 1 or not isinstance(values[0], Ref) or natural(made.out).indices != values[0].indices:
        return operand, ()
    return Operand(values[0].name, operand.indices), numbers
