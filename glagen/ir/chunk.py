"""A chunk program: what one chunk computes forward, and what its adjoint computes backward.

Rows of a chunk are numbered by t (steps that read) and s (steps that write); i and j are the key and value axes.
Step 0 is the one before the chunk's first, step C its last. Every exponential of gates is a Decay.
"""

from __future__ import annotations

from dataclasses import dataclass

from glagen.ir.expr import Expr, refs
from glagen.ir.interval import Interval
from glagen.ir.recurrence import Recurrence

ROWS = ("t", "s")


@dataclass(frozen=True, slots=True)
class Point:
    """An instant of a chunk: its `start` (step 0), its `end` (step C), or step t or s, or the step `before` it."""

    at: str
    before: bool = False

    def __str__(self) -> str:
        return {"start": "0", "end": "C"}.get(self.at, self.at) + ("-1" if self.before else "")

    @property
    def is_row(self) -> bool:
        return self.at in ROWS


START, END = Point("start"), Point("end")


@dataclass(frozen=True, slots=True)
class Decay:
    """exp(sum of log gate `gate` over the steps lower+1 .. upper), along feature axes `axes`: at most 1."""

    gate: str
    axes: tuple[str, ...]
    lower: Point
    upper: Point

    def __str__(self) -> str:
        subscript = f"[{','.join(self.axes)}]" if self.axes else ""
        return f"Decay({self.gate}; {self.lower}->{self.upper}){subscript}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A value with the indices it is used under: ("k", ("s", "i"))."""

    name: str
    indices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}[{','.join(self.indices)}]" if self.indices else self.name


@dataclass(frozen=True, slots=True)
class Map:
    """out = sum over `over` of a pointwise expression of values and inputs at the same step."""

    out: Operand
    expr: Expr
    over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contract:
    """out = sum over the indices that `out` lacks of the product of operands and decays, for s <= t (or s < t).

    `order` is "<=" or "<" where t and s both occur, else None. `part` names the path: inter, intra or end.
    """

    out: Operand
    operands: tuple[Operand, Operand]
    decays: tuple[Decay, ...]
    order: str | None
    part: str

    @property
    def over(self) -> tuple[str, ...]:
        indices = dict.fromkeys(x for operand in self.operands for x in operand.indices)
        return tuple(x for x in indices if x not in self.out.indices)


@dataclass(frozen=True, slots=True)
class Carry:
    """out = carried * decays + sum of `added`: how a state crosses a chunk (backward: how its adjoint does)."""

    out: Operand
    carried: Operand
    decays: tuple[Decay, ...]
    added: tuple[Operand, ...]
    reverse: bool


@dataclass(frozen=True, slots=True)
class Crossing:
    """What one Decay adds to its gate's gradient: the sum over the paths whose interval contains the step.

    `upper` and `lower` are pairs (value, its adjoint along this path alone) whose product, summed over indices other
    than the endpoint's row and the gate's axes, is the derivative by the exponent; an interval from the chunk's start
    has no `lower`, one to its end no `upper`, the whole chunk has `upper` without a row. `rows`: between two rows, a
    pair with the one that reads and one with that which writes, for sums over all paths of a row.
    """

    decay: Decay
    upper: tuple[Operand, Operand] | None
    lower: tuple[Operand, Operand] | None
    factors: tuple[Decay, ...] = ()  # decays the pair still lacks (whole-chunk intervals)
    rows: tuple[tuple[Operand, Operand], tuple[Operand, Operand]] | None = None


@dataclass(frozen=True, slots=True)
class GateGradient:
    """out[t, axes] = sum of crossings: the gradient of the log gate of step t."""

    out: Operand
    gate: str
    crossings: tuple[Crossing, ...]


Statement = Map | Contract | Carry | GateGradient


@dataclass(frozen=True, slots=True)
class GateInfo:
    """A log gate as the program sees it: its value's name, its feature axes, its declared or inferred range, and
    whether its gradient may be divided by the gate."""

    name: str
    axes: tuple[str, ...]
    domain: Interval
    steep: bool = False


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A state's names: entering the chunk, leaving it, and the same for the adjoint, which enters at the end."""

    name: str
    end: str
    adjoint: str  # of the state entering the chunk
    adjoint_end: str  # of the state leaving it


@dataclass(frozen=True, slots=True)
class InputGradient:
    """The gradient of `name` is the sum of `parts`; a parameter's are over one chunk, and may still have t."""

    name: str
    parts: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class ChunkProgram:
    """Forward statements, and backward statements that may refer to any value of the forward."""

    recurrence: Recurrence
    gates: tuple[GateInfo, ...]
    states: tuple[StateInfo, ...]
    outputs: tuple[Operand, ...]  # values of the forward that the op returns, in order
    forward: tuple[Statement, ...]
    backward: tuple[Statement, ...]
    gradients: tuple[InputGradient, ...]
    cotangents: tuple[str, ...]  # the value that holds the gradient of each output


def inputs_of(statement: Statement) -> tuple[str, ...]:
    """Names a statement reads, in order."""
    match statement:
        case Map(expr=expr):
            names = [r.name for r in refs(expr)]
        case Contract(operands=operands, decays=decays):
            names = [o.name for o in operands] + [d.gate for d in decays]
        case Carry(carried=carried, decays=decays, added=added):
            names = [carried.name, *(d.gate for d in decays), *(a.name for a in added)]
        case GateGradient(gate=gate, crossings=crossings):
            pairs = [p for c in crossings for p in (c.upper, c.lower, *(c.rows or ())) if p]
            names = [gate, *(o.name for pair in pairs for o in pair)]
    return tuple(dict.fromkeys(names))
