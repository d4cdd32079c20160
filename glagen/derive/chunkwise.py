"""The chunkwise forward: the recurrence unrolled from the chunk's first step, and read at every step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from glagen.derive.names import Names
from glagen.errors import InternalError
from glagen.ir.chunk import (
    END,
    START,
    Carry,
    ChunkProgram,
    Contract,
    Decay,
    GateInfo,
    Map,
    Operand,
    Point,
    StateInfo,
    Statement,
)
from glagen.ir.expr import Apply, Expr, Ref, Sum, apply, plus, ref, refs, rewrite
from glagen.ir.interval import Interval
from glagen.ir.recurrence import SIDE_AXES, Gate, Read, Recurrence, State


@dataclass(frozen=True, slots=True)
class Term:
    """One term of an unrolled state: a product of operands and decays, summed over the step s where there is one."""

    operands: tuple[Operand, ...]  # (S,) or (key, value)
    decays: tuple[Decay, ...]


@dataclass(slots=True)
class _Forward:
    """What has been derived so far."""

    names: Names
    inputs: dict[str, tuple[str, ...]]  # tensors of the spec and their axes
    gates: list[GateInfo] = field(default_factory=list)
    states: list[StateInfo] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)

    def map(self, base: str, axes: tuple[str, ...], expr: Expr, over: tuple[str, ...] = ()) -> Operand:
        """The value of `expr` with exactly `axes`; an input that is already so stands for itself."""
        if isinstance(expr, Ref) and not over and self.inputs.get(expr.name) == axes:
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


def chunkwise(recurrence: Recurrence) -> ChunkProgram:
    """Unroll every state over a chunk, substitute it into every read, and associate the products.

    Ensures: scores [t, s] come from key-sided products; each statement is a pointwise map, a product of two
    operands, or the carry of a state.
    """
    inputs = {d.name: d.axes for d in recurrence.declarations if d.kind != "scalar"}
    taken = [d.name for d in recurrence.declarations]
    taken += [s.name for s in recurrence.states] + [o.name for o in recurrence.outputs]
    fwd = _Forward(Names(taken), inputs)
    unrolled = {}
    for number, state in enumerate(recurrence.states, 1):
        suffix = f"_{number}" if len(recurrence.states) > 1 else ""
        unrolled[state.name] = _state(fwd, state, suffix)
    reads = {}
    for number, read in enumerate(recurrence.reads, 1):
        suffix = f"_{number}" if len(recurrence.reads) > 1 else ""
        reads[read.name] = _read(fwd, read, *unrolled[read.state], suffix)
    outputs = []
    for output in recurrence.outputs:
        out = Operand(output.name, output.axes)
        fwd.statements.append(Map(out, _hoist_sums(fwd, _with_reads(output.value, reads))))
        outputs.append(out)
    return ChunkProgram(
        recurrence, tuple(fwd.gates), tuple(fwd.states), tuple(outputs), tuple(fwd.statements), (), (), ()
    )


def unroll(
    state: Operand, gates: tuple[GateInfo, ...], writes: tuple[tuple[Operand, Operand], ...], upto: Point
) -> tuple[Term, ...]:
    """S at `upto`, from S_t = D_t S_{t-1} + sum_p a_t b_t applied until the chunk's start:

    S_upto = Decay(0->upto) S_0 + sum_p sum_{s <= upto} Decay(s->upto) a_s b_s
    """

    def decays(lower: Point) -> tuple[Decay, ...]:
        return tuple(Decay(g.name, g.axes, lower, upto) for g in gates)

    kept = Term((state,), decays(START))
    added = tuple(Term((key, value), decays(Point("s"))) for key, value in writes)
    return (kept, *added)


Unroller = tuple[Operand, tuple[GateInfo, ...], tuple[tuple[Operand, Operand], ...]]


def _state(fwd: _Forward, state: State, suffix: str) -> Unroller:
    """Gates, keys and values of a state, and its carry from the chunk's start to its end."""
    gates = tuple(_gate(fwd, gate, suffix) for gate in _folded(state.gates))
    writes = []
    for number, write in enumerate(state.writes, 1):
        mark = suffix + (f"_{number}" if len(state.writes) > 1 else "")
        key = fwd.map(f"key{mark}", ("t", "i"), write.key)
        value = fwd.map(f"value{mark}", ("t", "j"), write.value)
        writes.append((Operand(key.name, ("s", "i")), Operand(value.name, ("s", "j"))))
    start = Operand(state.name, ("i", "j"))
    end = Operand(fwd.names.fresh(f"{state.name}_end"), ("i", "j"))
    fresh = fwd.names.fresh
    fwd.states.append(StateInfo(start.name, end.name, fresh(f"d{start.name}"), fresh(f"d{end.name}")))
    kept, *terms = unroll(start, gates, tuple(writes), END)
    added = []
    for number, term in enumerate(terms, 1):
        mark = suffix + (f"_{number}" if len(terms) > 1 else "")
        out = Operand(fresh(f"{state.name}_added{mark}"), ("i", "j"))
        key, value = term.operands
        fwd.statements.append(Contract(out, (key, value), term.decays, None, "end"))
        added.append(out)
    fwd.statements.append(Carry(end, start, kept.decays, tuple(added), reverse=False))
    return start, gates, tuple(writes)


def _folded(gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """A scalar gate beside a vector gate becomes part of the vector gate: one factor instead of two."""
    by_side = {gate.side: gate for gate in gates}
    host = by_side.get("K") or by_side.get("V")
    scalar = by_side.get("scalar")
    if host is None or scalar is None:
        return gates
    low, high = host.domain.low + scalar.domain.low, host.domain.high + scalar.domain.high
    log, steep = apply("add", host.log, scalar.log), host.steep or scalar.steep
    joined = replace(host, log=log, domain=Interval(low, high), steep=steep)
    return tuple(joined if gate is host else gate for gate in gates if gate is not scalar)


def _gate(fwd: _Forward, gate: Gate, suffix: str) -> GateInfo:
    """The log gate's value at every step, clamped where its exponential is 0 anyway."""
    axes = SIDE_AXES[gate.side]
    base = {"K": "gate_k", "V": "gate_v", "scalar": "gate"}[gate.side] + suffix
    value = fwd.map(base, ("t", *axes), apply("clamp", gate.log))
    info = GateInfo(value.name, axes, gate.domain, gate.steep)
    fwd.gates.append(info)
    return info


def _read(
    fwd: _Forward,
    read: Read,
    state: Operand,
    gates: tuple[GateInfo, ...],
    writes: tuple[tuple[Operand, Operand], ...],
    suffix: str,
) -> tuple[Operand, ...]:
    """sum_i query[t,i] S[i,j] with S unrolled: one part from the state, one from each write of the chunk."""
    query = fwd.map(f"query{suffix}", ("t", "i"), read.query)
    kept, *terms = unroll(state, gates, writes, Point("t", read.before))
    inter = Operand(fwd.names.fresh(f"{read.name}_inter"), ("t", "j"))
    fwd.statements.append(Contract(inter, (query, state), kept.decays, None, "inter"))
    parts = [inter]
    for number, term in enumerate(terms, 1):
        mark = suffix + (f"_{number}" if len(terms) > 1 else "")
        parts.append(_associate(fwd, read, query, term, mark))
    return tuple(parts)


def _associate(fwd: _Forward, read: Read, query: Operand, term: Term, mark: str) -> Operand:
    """sum_s sum_i query[t,i] key[s,i] value[s,j] as two products: over i first, with every decay that has no j."""
    key, value = term.operands
    order = "<" if read.before else "<="
    first = tuple(d for d in term.decays if "j" not in d.axes)
    second = tuple(d for d in term.decays if "j" in d.axes)
    scores = Operand(fwd.names.fresh(f"scores{mark}"), ("t", "s"))
    fwd.statements.append(Contract(scores, (query, key), first, order, "intra"))
    out = Operand(fwd.names.fresh(f"{read.name}_intra{mark}"), ("t", "j"))
    fwd.statements.append(Contract(out, (scores, value), second, order, "intra"))
    return out


def _with_reads(expr: Expr, reads: dict[str, tuple[Operand, ...]]) -> Expr:
    """The output's expression with the sum of its parts in place of every read."""

    def parts(node: Expr) -> Expr | None:
        if not (isinstance(node, Ref) and node.name in reads):
            return None
        return plus(*(ref(p.name, p.indices) for p in reads[node.name]))

    return rewrite(expr, parts)


def _hoist_sums(fwd: _Forward, expr: Expr) -> Expr:
    """The expression with a value of its own in place of every local sum."""
    match expr:
        case Sum(axis=axis, body=body):
            inner = _hoist_sums(fwd, body)
            axes = tuple(x for x in _axes(inner) if x != axis)
            local = fwd.map("local", axes, inner, over=(axis,))
            return ref(local.name, local.indices)
        case Apply(args=args):
            return replace(expr, args=tuple(_hoist_sums(fwd, a) for a in args))
        case _:
            return expr


def _axes(expr: Expr) -> tuple[str, ...]:
    """t, and those of i and j that occur."""
    found = {index.axis for r in refs(expr) for index in r.indices}
    if "s" in found:
        raise InternalError("a local sum refers to the writing step")
    return tuple(x for x in ("t", "i", "j") if x == "t" or x in found)
