"""Statements of a chunk program as equations, and what it says of its recurrence: decays, writes, unrolling."""

from __future__ import annotations

from glagen.derive.chunkwise import unroll
from glagen.errors import InternalError
from glagen.explain.outline import Chain, Equation, Exponential, Formula, Inline, Product, SumOver, Total
from glagen.ir.chunk import (
    Carry,
    ChunkProgram,
    Contract,
    Crossing,
    Decay,
    GateGradient,
    GateInfo,
    Map,
    Operand,
    Point,
    StateInfo,
    Statement,
)

STEP = "tau"  # the step whose gate is asked for


def equation(statement: Statement) -> Equation:
    """The statement, as written in a paper."""
    match statement:
        case Map(out=out, expr=expr, over=over):
            return Equation(out, SumOver(over, expr) if over else expr)
        case Contract():
            return _contract(statement)
        case Carry(out=out, carried=carried, decays=decays, added=added):
            return Equation(out, _total((_product(carried, *decays), *added)))
        case GateGradient(out=out, crossings=crossings):
            return _gate_gradient(out, crossings)
        case _:
            raise InternalError(f"cannot explain {statement!r}")


def _contract(statement: Contract) -> Equation:
    """Steps and axes that the result lacks are summed; the order of t and s limits that sum, or the result itself."""
    out, order = statement.out, statement.order
    body: Formula = Product((*statement.operands, *statement.decays))
    features = tuple(x for x in statement.over if x not in ("t", "s"))
    steps = tuple(x for x in statement.over if x in ("t", "s"))
    if features:
        body = SumOver(features, body)
    if steps:
        body = SumOver(steps, body, _ordered(steps, order))
    return Equation(out, body, ("s", order, "t") if order and not steps else None)


def _ordered(steps: tuple[str, ...], order: str | None) -> Chain | None:
    if order is None:
        return None
    return ("t", {"<=": ">=", "<": ">"}[order], "s") if steps == ("t",) else ("s", order, "t")


def _product(*factors: Formula) -> Formula:
    return factors[0] if len(factors) == 1 else Product(factors)


def _total(terms: tuple[Formula, ...], minus: tuple[bool, ...] = ()) -> Formula:
    return terms[0] if len(terms) == 1 and not any(minus) else Total(terms, minus)


# -- gate gradients ----------------------------------------------------------------------------------------------------


def _gate_gradient(out: Operand, crossings: tuple[Crossing, ...]) -> Equation:
    """The gradient of the log gate of step tau: the sum over the paths that cross it."""
    terms: list[Formula] = []
    minus: list[bool] = []
    for crossing in crossings:
        for sign, term in crossing_terms(crossing, out.indices):
            terms.append(term)
            minus.append(sign)
    indices = tuple(STEP if x == "t" else x for x in out.indices)
    return Equation(Operand(out.name, indices), _total(tuple(terms), tuple(minus)))


def crossing_terms(crossing: Crossing, axes: tuple[str, ...]) -> tuple[tuple[bool, Formula], ...]:
    """What one decay's paths add to the gradient at step tau; (True, x) for what is subtracted."""
    decay = crossing.decay
    reads: Chain = ("t", ">" if decay.upper.before else ">=", STEP)
    upper, lower = crossing.upper, crossing.lower
    if upper and not decay.upper.is_row:
        return ((False, _summed(upper, axes, crossing.factors)),)
    if upper and upper == lower:
        between: Chain = ("s", "<", STEP, "<" if decay.upper.before else "<=", "t")
        return ((False, SumOver(("s", "t"), _summed(upper, ("t", "s", *decay.axes)), between)),)
    terms: list[tuple[bool, Formula]] = []
    if upper:
        terms.append((False, SumOver(("t",), _summed(upper, axes), reads)))
    if lower:
        since: Chain = ("s", ">=", STEP) if upper else ("s", "<", STEP)
        terms.append((bool(upper), SumOver(("s",), _summed(lower, (*axes, "s")), since)))
    if not terms:
        raise InternalError(f"nothing crosses {decay}")
    return tuple(terms)


def _summed(pair: tuple[Operand, Operand], kept: tuple[str, ...], factors: tuple[Decay, ...] = ()) -> Formula:
    body = Product((*pair, *factors))
    over = tuple(x for x in pair[0].indices if x not in kept)
    return SumOver(over, body) if over else body


def crossing_words(crossing: Crossing, state: str) -> Inline:
    """Which paths a decay stands for."""
    decay = crossing.decay
    write = "a write at step $s$" if decay.lower.is_row else f"the state `{state}` that enters the chunk"
    when = "the read before the write of step $t$" if decay.upper.before else "the read at step $t$"
    read = when if decay.upper.is_row else "the end of the chunk"
    if not (crossing.upper and crossing.lower):
        return (f"from {write} to {read}: ", decay)
    shared = ", both in this chunk"
    if crossing.upper != crossing.lower and decay.upper.before:
        shared += " (what has $s = t-1$ does not cross: it cancels)"
    elif crossing.upper != crossing.lower:
        shared += " (what has $s = t$ does not cross, and is left out of both sums)"
    return (f"from {write} to {read}{shared}: ", decay)


# -- the recurrence a program came from --------------------------------------------------------------------------------


def definition(gate: GateInfo) -> Equation:
    """What the decay of a gate is."""
    lower, upper = Point("s"), Point("t")
    log = Operand(gate.name, ("r", *gate.axes))
    return Equation(
        Decay(gate.name, gate.axes, lower, upper), Exponential(SumOver(("r",), log, ("s", "<", "r", "<=", "t")))
    )


def writes(program: ChunkProgram, state: StateInfo) -> tuple[tuple[Operand, Operand], ...]:
    """The (key, value) products that a state receives, with rows s."""
    added = carry(program, state).added
    made = {s.out.name: s for s in program.forward if isinstance(s, Contract)}
    return tuple(made[a.name].operands for a in added)


def gates(program: ChunkProgram, state: StateInfo) -> tuple[GateInfo, ...]:
    own = [d.gate for d in carry(program, state).decays]
    return tuple(g for g in program.gates if g.name in own)


def carry(program: ChunkProgram, state: StateInfo) -> Carry:
    """How a state crosses the chunk."""
    for statement in program.forward:
        if isinstance(statement, Carry) and statement.out.name == state.end:
            return statement
    raise InternalError(f"nothing carries {state.name}")


def unrolled(program: ChunkProgram, state: StateInfo, upto: Point) -> Equation:
    """The state after step t (`upto` before: after step t-1), from the one that entered the chunk."""
    start = Operand(state.name, ("i", "j"))
    kept, *added = unroll(start, gates(program, state), writes(program, state), upto)
    where: Chain = ("s", "<" if upto.before else "<=", "t")
    terms = [_product(*kept.operands, *kept.decays)]
    terms += [SumOver(("s",), Product((*term.operands, *term.decays)), where) for term in added]
    return Equation(Operand(state.name, (str(upto), "i", "j")), Total(tuple(terms)))
