"""What holds of every chunk program: later stages rely on it, and would go wrong in silence without it."""

from __future__ import annotations

from glagen.errors import InternalError
from glagen.ir.chunk import END, START, Carry, ChunkProgram, Contract, Crossing, Decay, GateGradient, Point

STEP = {"<": Point("t", before=True), "<=": Point("t")}


def require_sound(program: ChunkProgram) -> None:
    """Raise InternalError, naming the statement, unless every decay's interval is one that its statement can have, and
    matrices over pairs of steps are used in the order (s <= t or s < t) in which they were made."""
    statements = (*program.forward, *program.backward)
    orders = {s.out.name: s.order for s in statements if isinstance(s, Contract) and s.out.indices == ("t", "s")}
    used = {d for s in program.forward if isinstance(s, Contract | Carry) for d in s.decays}
    for statement in statements:
        match statement:
            case Carry(decays=decays):
                fault = _stray(decays, [(START, END)])
            case Contract():
                fault = _contract_fault(statement, orders)
            case GateGradient(crossings=crossings):
                fault = next(filter(None, (_crossing_fault(c, used) for c in crossings)), "")
            case _:
                fault = ""
        if fault:
            raise InternalError(f"{statement.out}: {fault}")


def _contract_fault(statement: Contract, orders: dict[str, str | None]) -> str:
    if statement.order is None:
        writes = any("s" in o.indices for o in statement.operands)
        return _stray(statement.decays, [(Point("s"), END)] if writes else [(START, step) for step in STEP.values()])
    for operand in statement.operands:
        if orders.get(operand.name, statement.order) != statement.order:
            return f"{operand} is made for s {orders[operand.name]} t and used for s {statement.order} t"
    return _stray(statement.decays, [(Point("s"), STEP[statement.order])])


def _stray(decays: tuple[Decay, ...], intervals: list[tuple[Point, Point]]) -> str:
    return next((f"{d} is no interval of such a statement" for d in decays if (d.lower, d.upper) not in intervals), "")


def _crossing_fault(crossing: Crossing, used: set[Decay]) -> str:
    """A pair for every end that is a row, with that row; for the whole chunk one pair, and the decays that it lacks."""
    decay = crossing.decay
    if decay not in used:
        return f"the forward has no {decay}"
    whole = (decay.lower, decay.upper) == (START, END)
    ends = ((decay.upper, crossing.upper), (decay.lower, crossing.lower))
    for end, pair in ends:
        expected = end.is_row or (whole and end == END)
        if bool(pair) != expected or (pair and end.is_row and any(end.at not in o.indices for o in pair)):
            return f"the crossing of {decay} has no right pair for its end {end}"
    if bool(crossing.factors) != whole:
        return f"the crossing of {decay} has the wrong factors"
    return _stray(crossing.factors, [(START, END)])
