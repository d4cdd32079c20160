"""A recurrence with its roles found: what is read, written, forgotten, and what is added on the side.

S_t[i,j] = exp(gK_t[i] + gV_t[j] + gs_t) S_{t-1}[i,j] + sum_p a^p_t[i] b^p_t[j]
r_t[j]   = sum_i c_t[i] S_t[i,j]        (or S_{t-1}: before the write)
o_t      = pointwise function of reads and inputs at step t

A spec of several states is a Composite: several recurrences, what is computed between them, and outputs that are
pointwise in what is read of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glagen.ir.document import Declaration, StateDeclaration
from glagen.ir.expr import Expr, refs
from glagen.ir.interval import Interval

SIDES = ("K", "V", "scalar")
SIDE_AXES: dict[str, tuple[str, ...]] = {"K": ("i",), "V": ("j",), "scalar": ()}


@dataclass(frozen=True, slots=True)
class Gate:
    """The sum of all log gates on one side: natural log, at most 0 everywhere in `domain`.

    `log` refers to inputs only, in a stable form (logsigmoid(x), not log(sigmoid(x))). `axes` are those it truly
    has: ("t", "i"), ("i",) for a learned constant per channel, ("t",), or () for one number per head. `steep`: it is
    the logarithm of a number that may come near 0, by which its gradient is divided then.
    """

    side: str  # one of SIDES
    log: Expr
    axes: tuple[str, ...]
    domain: Interval
    steep: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """a_t[i] * b_t[j], added to the state at step t."""

    key: Expr  # a: axes within {t, i}
    value: Expr  # b: axes within {t, j}


@dataclass(frozen=True, slots=True)
class State:
    """One state S[i, j] with its gates (at most one a side, in order of SIDES) and writes."""

    name: str
    gates: tuple[Gate, ...]
    writes: tuple[Write, ...]

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Those of its gates and writes."""
        return (*(g.log for g in self.gates), *(x for w in self.writes for x in (w.key, w.value)))


@dataclass(frozen=True, slots=True)
class Read:
    """sum_i query_t[i] S[i,j], [t, j]; `before`: of S_{t-1}, the state before the write of step t."""

    name: str  # unlike any name of the spec; outputs refer to it as name[t,j]
    state: str
    query: Expr  # c: axes within {t, i}
    before: bool


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the op: an expression of reads and inputs, with axes (t, j); in a Recurrence linear in the reads.

    Sums over i or j that remain in `value` are local: their bodies refer to inputs at step t only.
    """

    name: str
    axes: tuple[str, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Everything later stages know of a spec. All intermediate names are substituted."""

    name: str
    doc: str
    equations: tuple[str, ...]  # as written, for headers and `explain`
    declarations: tuple[Declaration, ...]
    states: tuple[State, ...]
    reads: tuple[Read, ...]
    outputs: tuple[Output, ...]
    chunk: int | None
    subchunk: int | None
    part_of: str = ""  # the op, where this is one state of several: outputs are then float32, for more to be done
    divides: bool = False  # is there a division by what is read, which may be a small sum of large terms?

    @property
    def written(self) -> frozenset[str]:
        """The names that gates and writes of states are made of."""
        return frozenset(r.name for state in self.states for e in state.expressions for r in refs(e))


@dataclass(frozen=True, slots=True)
class Value:
    """name[t, ...] = expr, computed before a part that takes it as an input, or before the outputs.

    Pointwise in inputs, reads of earlier parts and earlier values, or a sum or softmax along an axis of what is that.
    """

    name: str
    axes: tuple[str, ...]  # t, and perhaps one feature axis
    expr: Expr


@dataclass(frozen=True, slots=True)
class Maximum:
    """A state without axes: m_t = max(m_{t-1} + rise_t, floor_t); `before`[t] is m_{t-1}. Names of values [t]."""

    state: str
    rise: str
    floor: str
    before: str


Step = Value | Maximum | Recurrence


def made(step: Step) -> tuple[str, ...]:
    """The names that a step gives to others."""
    match step:
        case Value(name=name):
            return (name,)
        case Maximum(before=before):
            return (before,)
        case Recurrence(outputs=outputs):
            return tuple(o.name for o in outputs)


def needed(step: Step) -> frozenset[str]:
    """The names that a step takes."""
    match step:
        case Value(expr=expr):
            return frozenset(r.name for r in refs(expr))
        case Maximum(rise=rise, floor=floor):
            return frozenset({rise, floor})
        case Recurrence(declarations=declarations):
            return frozenset(d.name for d in declarations)


@dataclass(frozen=True, slots=True)
class Composite:
    """Steps in order, recurrences of one state each and what is computed between them; then outputs, pointwise in that.

    A part calls the axes of its state i and j. It has keys and values, as any recurrence: where its state lacks one of
    them, it is as wide as 1 there, and `one`, a constant of ones, stands for what is written to it or reads it. A
    part's outputs are its reads; where other steps refer to them they have the axes of the spec, [t] for a state
    without values. `read_axes` has those.
    """

    name: str
    doc: str
    equations: tuple[str, ...]
    declarations: tuple[Declaration, ...]
    states: tuple[StateDeclaration, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    one: str  # the name of the constant of ones; not among `declarations`
    read_axes: Mapping[str, tuple[str, ...]]
    written: frozenset[str]  # declared names and values that states are made of, reads on the way included

    @property
    def parts(self) -> tuple[Recurrence, ...]:
        return tuple(step for step in self.steps if isinstance(step, Recurrence))
