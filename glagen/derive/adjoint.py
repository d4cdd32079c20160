"""The backward: the adjoint of the chunkwise forward, statement by statement in reverse.

Each statement is linear in each operand, so its adjoint is another statement of the same kind. Log-gate gradients come
from differentiating exponents: d Decay(l->u) / d g_tau = [l < tau <= u] Decay(l->u), so a gate's gradient is the sum
over the paths whose interval crosses the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from glagen.algebra import chained, derivative
from glagen.derive.names import Names
from glagen.errors import InternalError
from glagen.ir.chunk import (
    Carry,
    ChunkProgram,
    Contract,
    Crossing,
    Decay,
    GateGradient,
    InputGradient,
    Map,
    Operand,
    Point,
    Statement,
    inputs_of,
)
from glagen.ir.expr import Expr, Ref, plus, ref, refs

Pair = tuple[Operand, Operand]


@dataclass(slots=True)
class _Backward:
    """What has been derived so far: statements, the parts of each value's gradient, each gate's crossings."""

    program: ChunkProgram
    names: Names
    constant: frozenset[str]
    inputs: frozenset[str]
    statements: list[Statement] = field(default_factory=list)
    parts: dict[str, list[Operand]] = field(default_factory=dict)
    crossings: dict[str, list[Crossing]] = field(default_factory=dict)

    def add(self, name: str, part: Operand) -> None:
        self.parts.setdefault(name, []).append(part)

    def total(self, value: Operand) -> Operand | None:
        """The gradient of a value, its parts summed under one name; None where nothing depends on it."""
        parts = self.parts.get(value.name, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        expr = plus(*(ref(part.name, part.indices) for part in parts))
        total = self.map(f"d{value.name}", parts[0].indices, expr, ())
        self.parts[value.name] = [total]
        return total

    def map(self, base: str, axes: tuple[str, ...], expr: Expr, over: tuple[str, ...]) -> Operand:
        """As a value: what already has one keeps it."""
        if isinstance(expr, Ref) and not over and tuple(str(x) for x in expr.indices) == axes:
            return Operand(expr.name, axes)
        for statement in self.statements:
            if isinstance(statement, Map) and (statement.out.indices, statement.expr, statement.over) == (
                axes,
                expr,
                over,
            ):
                return statement.out
        out = Operand(self.names.fresh(base), axes)
        self.statements.append(Map(out, expr, over))
        return out


def adjoint(program: ChunkProgram) -> ChunkProgram:
    """Append the backward to a forward program.

    Requires: a forward of Map, Contract and Carry. Ensures: `gradients` has an entry for each differentiable input.
    """
    rec = program.recurrence
    taken = [d.name for d in rec.declarations] + [n for s in program.states for n in (s.name, s.end, s.adjoint)]
    taken += [s.adjoint_end for s in program.states]
    taken += [s.out.name for s in program.forward if not isinstance(s, GateGradient)]
    bwd = _Backward(
        program,
        Names(taken),
        constant=frozenset(d.name for d in rec.declarations if not d.differentiable),
        inputs=frozenset(d.name for d in rec.declarations),
    )
    cotangents = []
    for out in program.outputs:
        name = bwd.names.fresh(f"d{out.name}")
        bwd.add(out.name, Operand(name, out.indices))
        cotangents.append(name)
    for statement in reversed(program.forward):
        match statement:
            case Map():
                _map(bwd, statement)
            case Contract():
                _contract(bwd, statement)
            case Carry():
                _carry(bwd, statement)
            case _:
                raise InternalError(f"no adjoint for {statement!r}")
    gradients = tuple(
        InputGradient(d.name, tuple(bwd.parts.get(d.name, ()))) for d in rec.declarations if d.differentiable
    )
    return replace(program, backward=_needed(bwd, gradients), gradients=gradients, cotangents=tuple(cotangents))


def _needed(bwd: _Backward, gradients: tuple[InputGradient, ...]) -> tuple[Statement, ...]:
    """The statements that lead to a gradient of an input or of an initial state: a constant's gate needs none."""
    wanted = {part.name for gradient in gradients for part in gradient.parts}
    wanted |= {state.adjoint for state in bwd.program.states}
    kept = []
    for statement in reversed(bwd.statements):
        if statement.out.name in wanted:
            kept.append(statement)
            wanted |= set(inputs_of(statement))
    return tuple(reversed(kept))


def _map(bwd: _Backward, statement: Map) -> None:
    """dx += sum of dout * d expr / dx over the axes x lacks."""
    out = statement.out
    if any(gate.name == out.name for gate in bwd.program.gates):
        _gate_gradient(bwd, out)
    gradient = bwd.total(out)
    if gradient is None:
        return
    axes = (*out.indices, *statement.over)
    for x in refs(statement.expr):
        if x.name in bwd.constant:
            continue
        slope = derivative(statement.expr, x)
        own = tuple(index.axis for index in x.indices)
        over = tuple(a for a in axes if a not in own)
        dx = bwd.map(f"d{x.name}", own, chained(ref(gradient.name, gradient.indices), slope), over)
        bwd.add(x.name, dx)


def _gate_gradient(bwd: _Backward, gate: Operand) -> None:
    crossings = bwd.crossings.get(gate.name)
    if crossings:
        out = Operand(bwd.names.fresh(f"d{gate.name}"), gate.indices)
        bwd.statements.append(GateGradient(out, gate.name, tuple(crossings)))
        bwd.add(gate.name, out)


def _contract(bwd: _Backward, statement: Contract) -> None:
    """Z = sum X Y Decay is linear in X and in Y: dX = sum dZ Y Decay, dY = sum dZ X Decay."""
    gradient = bwd.total(statement.out)
    if gradient is None:
        return
    dout = Operand(gradient.name, statement.out.indices)
    x, y = statement.operands
    pairs: list[Pair] = []
    for own, other in ((x, y), (y, x)):
        state = next((s for s in bwd.program.states if s.name == own.name), None)
        base = f"{state.adjoint}_added" if state else f"d{own.name}"
        base += "" if own.indices == ("t", "s") or state else f"_{statement.part}"
        part = Operand(bwd.names.fresh(base), own.indices)
        bwd.statements.append(replace(statement, out=part, operands=(dout, other)))
        bwd.add(own.name, Operand(part.name, _natural(own.indices)))
        pairs.append((own, part))
    pairs.append((statement.out, dout))
    for decay in statement.decays:
        upper, lower = _carriers(decay, pairs)
        rows = _rows(decay, pairs[:2]) if upper and lower else None
        bwd.crossings.setdefault(decay.gate, []).append(Crossing(decay, upper, lower, rows=rows))


def _natural(indices: tuple[str, ...]) -> tuple[str, ...]:
    """A value's own axes: rows are called t unless it has two."""
    return indices if "t" in indices else tuple("t" if x == "s" else x for x in indices)


def _carriers(decay: Decay, pairs: list[Pair]) -> tuple[Pair | None, Pair | None]:
    """Which products hold the derivative by the exponent, for each end of the interval that is a row.

    One pair for both ends where one has both rows (its halves then cancel exactly), else the smallest that serves.
    """
    both = [p for p in pairs if {"t", "s", *decay.axes} <= set(p[0].indices)]

    def carrier(point: Point) -> Pair | None:
        if not point.is_row:
            return None
        serving = both or [p for p in pairs if {point.at, *decay.axes} <= set(p[0].indices)]
        if not serving:
            raise InternalError(f"nothing carries the gradient of {decay}")
        return min(serving, key=lambda p: len(p[0].indices))

    return carrier(decay.upper), carrier(decay.lower)


def _rows(decay: Decay, pairs: list[Pair]) -> tuple[Pair, Pair] | None:
    """The operands that have the one row and the other, if each has one, with the gate's axes."""
    ends = (decay.upper.at, decay.lower.at)
    found = [[p for p in pairs if {end, *decay.axes} <= set(p[0].indices)] for end in ends]
    return (found[0][0], found[1][0]) if [len(x) for x in found] == [1, 1] and found[0] != found[1] else None


def _carry(bwd: _Backward, statement: Carry) -> None:
    """S_end = Decay S + added: the state's adjoint runs the other way, and every step of the chunk is crossed."""
    state = next(s for s in bwd.program.states if s.end == statement.out.name)
    end = Operand(state.adjoint_end, ("i", "j"))
    for added in statement.added:
        bwd.add(added.name, end)
    reads = tuple(bwd.parts.get(state.name, ()))
    out = Operand(state.adjoint, ("i", "j"))
    bwd.statements.append(Carry(out, end, statement.decays, reads, reverse=True))
    for decay in statement.decays:
        bwd.crossings.setdefault(decay.gate, []).append(
            Crossing(decay, (statement.carried, end), None, statement.decays)
        )
