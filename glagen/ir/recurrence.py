"""A recurrence with its roles found: what is read, written, forgotten, and what is added on the side.

S_t[i,j] = exp(gK_t[i] + gV_t[j] + gs_t) S_{t-1}[i,j] + sum_p a^p_t[i] b^p_t[j]
r_t[j]   = sum_i c_t[i] S_t[i,j]        (or S_{t-1}: before the write)
o_t      = pointwise function of reads and inputs at step t

A spec of several states is several recurrences, and outputs that are pointwise in what is read of them: a Composite.
"""

from __future__ import annotations

from dataclasses import dataclass

from glagen.ir.document import Declaration, StateDeclaration
from glagen.ir.expr import Expr
from glagen.ir.interval import Interval

SIDES = ("K", "V", "scalar")
SIDE_AXES: dict[str, tuple[str, ...]] = {"K": ("i",), "V": ("j",), "scalar": ()}


@dataclass(frozen=True, slots=True)
class Gate:
    """The sum of all log gates on one side: natural log, at most 0 everywhere in `domain`.

    `log` refers to inputs only, in a stable form (logsigmoid(x), not log(sigmoid(x))). `axes` are those it truly
    has: ("t", "i"), ("i",) for a learned constant per channel, ("t",), or () for one number per head.
    """

    side: str  # one of SIDES
    log: Expr
    axes: tuple[str, ...]
    domain: Interval


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


@dataclass(frozen=True, slots=True)
class Composite:
    """Recurrences of one state each, and outputs that are pointwise in what is read of them.

    A part has keys and values, as any recurrence: where its state lacks one of them, it is as wide as 1 there, and
    `one`, an input of ones, stands for what is written to it or reads it. A part's outputs are its reads, by the names
    that `outputs` have for them, [t, j], or [t] for a state without values.
    """

    name: str
    doc: str
    equations: tuple[str, ...]
    declarations: tuple[Declaration, ...]
    states: tuple[StateDeclaration, ...]
    parts: tuple[Recurrence, ...]  # in order of the states
    outputs: tuple[Output, ...]
    one: str  # the name of the input of ones; not among `declarations`
