"""One state of several as a recurrence by itself: with keys and values, and its axes called i and j."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from glagen.ir.document import AXES, Declaration, Document, Equation
from glagen.ir.expr import Expr, apply, number, ref, refs, with_axes
from glagen.ir.interval import Interval
from glagen.ir.recurrence import Gate, Output, Read, Recurrence, State, Write

Computed = Mapping[str, tuple[tuple[str, ...], Interval]]  # axes and domains of what is computed before, by name


def part(
    document: Document,
    equation: Equation,
    state: State,
    sides: tuple[str, str],
    reads: Sequence[Read],
    computed: Computed,
    one: str,
    divides: bool,
) -> Recurrence:
    """The recurrence of `state`, whose axes of keys and values are `sides`, with its reads as outputs.

    Where the state lacks one of them it is one column wide, and what is written there is `one`, a constant of ones.
    """
    key, value = sides
    own = tuple(index.axis for index in equation.target.indices)
    writes = tuple(
        Write(
            w.key if key in own else _times(w.key, ref(one, ("t", key))),
            w.value if value in own else _times(w.value, ref(one, ("t", value))),
        )
        for w in state.writes
    )
    called = {key: "i", value: "j"}
    state = _called(replace(state, writes=writes), called)
    outputs = tuple(Output(r.name, ("t", "j"), ref(_inside(r), ("t", "j"))) for r in reads)
    reads = tuple(replace(r, name=_inside(r), query=with_axes(r.query, called)) for r in reads)
    used = {r.name for e in (*state.expressions, *(r.query for r in reads)) for r in refs(e)}
    declarations = [replace(d, axes=_axes(d.axes, called)) for d in document.declarations if d.name in used]
    for name, (axes, domain) in computed.items():
        if name in used:
            declarations.append(Declaration(name, "input", _axes(axes, called), domain, None, "", equation.span))
    if one in used:
        axes = ("t", "j") if key in own else ("t", "i")
        declarations.append(Declaration(one, "constant", axes, None, None, "", equation.span))
    return Recurrence(
        name=f"{document.name}_{state.name}",
        doc=document.doc,
        equations=(equation.text,),
        declarations=tuple(declarations),
        states=(state,),
        reads=reads,
        outputs=outputs,
        chunk=document.chunk,
        subchunk=document.subchunk,
        part_of=document.name,
        divides=divides,
    )


def _inside(read: Read) -> str:
    """What a part calls a read, which is an output of its own by the read's name."""
    return f"{read.name}_of_{read.state}"


def _called(state: State, called: Mapping[str, str]) -> State:
    """A state with its axes called otherwise."""
    gates = tuple(Gate(g.side, with_axes(g.log, called), _axes(g.axes, called), g.domain, g.steep) for g in state.gates)
    writes = tuple(Write(with_axes(w.key, called), with_axes(w.value, called)) for w in state.writes)
    return State(state.name, gates, writes)


def _axes(axes: tuple[str, ...], called: Mapping[str, str]) -> tuple[str, ...]:
    renamed = [called.get(axis, axis) for axis in axes]
    return tuple(axis for axis in AXES if axis in renamed)


def _times(x: Expr, y: Expr) -> Expr:
    return y if x == number(1) else apply("mul", x, y)
