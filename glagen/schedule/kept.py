"""What gradients of values read of states, kept by kernels that have these at hand.

Where values have gates, and keys have none, gradients on the value side have decays of their own, but read states as
they are: queries times the state that enters a chunk, keys times the gradient of that which leaves it, and sums of one
times the other. In wide heads, and chunks of few steps, that is nearly all there is to load: K by V numbers of each
state for CHUNK by V. The forward on chip has the first product; a walk back that has all columns of keys makes the
second while the gradient is on chip; and the gradients of keys, which load both states, sum them up. What values are
left with loads neither. It is for mild gates, and others are made as ever: kernels take as many chunks in turn, so that
all leave out the same.

H200, torch 2.11, Triton 3.6.0, bf16, gla_v, B8 T2048 H4 K256 V512, ms: gradients of values 0.37 -> 0.17, for 0.07 more
back and 0.01 more forward; with backward 1.43 -> 1.31, but 2.16 -> 2.25 where gates are strong, and 1028 -> 1160 MiB.
(In heads that have one kernel for the gradients of both sides, which loads states once, it was not tried: see both.py.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glagen.ir.chunk import ChunkProgram, Operand
from glagen.ir.kernel import Blocks, Kernel, Line, Load, Loop, Store, lines_of, read, written
from glagen.ir.tuned import KEPT_BACK, KEPT_BY_KEYS, OF_KEPT
from glagen.schedule.covers import Cover
from glagen.schedule.kernels import Shape, build, gradient_goals
from glagen.schedule.mild import for_mild_gates

_BACK_DOC = "Walk back over the chunks: keep the gradient of the state that leaves each, and what values read of it."
_KEYS_DOC = "One chunk's gradients on the key side, and what those of values sum of states, where gates are mild."
_VALUES_DOC = "One chunk's gradients on the value side, of what others have read of states, where gates are mild."


def kept(program: ChunkProgram, covers: dict[str, Cover], values: Kernel) -> tuple[Kernel, Kernel, Kernel]:
    """The walk back, and the kernels of either side's gradients, of which the last is given what these two and the
    forward keep. `values`: that which loads states."""
    (state,) = program.states
    of_states, of_gradients = (_products(values, name) for name in (state.name, state.adjoint_end))
    back = Shape(KEPT_BACK, _BACK_DOC, ("j",), None, "reverse", ("i",), save_states=True)
    keys = Shape(KEPT_BY_KEYS, _KEYS_DOC, ("i",), "j", whole=("i",), reduces_heads=True)
    products, sums = _in_order(of_gradients - of_states), _in_order(of_states & of_gradients)
    return (
        _last(build(program, covers, back, (), (state.adjoint,), kept=products)),
        _first(for_mild_gates(build(program, covers, keys, gradient_goals(program, "i"), (), kept=sums))),
        _given(values, of_states | of_gradients),
    )


def keeping(walk: Kernel, values: Kernel) -> Kernel:
    """The same forward on chip, which stores what it makes of what `values` are given."""
    made = {name for line in walk.lines for name in written(line)}
    loads = [x for x in values.lines if isinstance(x, Load) and x.name in values.given and x.name in made]
    stores = tuple(Store(x.name, x.name, x.axes) for x in loads)
    return replace(walk, stores=(*walk.stores, *stores), given=(*walk.given, *(x.name for x in loads)))


def _products(kernel: Kernel, state: str) -> set[Operand]:
    """The tiles that are made of a state at once."""
    return {Operand(x.name, x.axes) for x in kernel.lines if not isinstance(x, Load | Blocks) and state in read(x)}


def _in_order(products: Iterable[Operand]) -> tuple[Operand, ...]:
    return tuple(sorted(products, key=lambda x: x.name))


def _first(kernel: Kernel) -> Kernel:
    """The same, where what is kept is made as soon as states are loaded, before there is much else to hold."""

    def order(line: Line) -> int:
        return 0 if isinstance(line, Load) else 1 if set(kernel.given) & set(written(line)) else 2

    body = (replace(x, body=tuple(sorted(x.body, key=order))) if isinstance(x, Loop) else x for x in kernel.body)
    return replace(kernel, body=tuple(body))


def _last(kernel: Kernel) -> Kernel:
    """The same, where what is kept is made last of all: next to it TMA stores what it is made of. (H200, as above: 0.29
    ms for 0.31.)"""
    last = [x for x in kernel.body if not isinstance(x, Loop) and set(kernel.given) & set(written(x))]
    return replace(kernel, body=(*(x for x in kernel.body if x not in last), *last))


def _given(kernel: Kernel, products: set[Operand]) -> Kernel:
    """The same for mild gates, given these products, after its loops; it loads nothing that is not used then."""
    names = {x.name for x in products}
    body: list[Line | Loop] = []
    for item in for_mild_gates(kernel).body:
        if not isinstance(item, Loop) and not any(isinstance(x, Load) and x.name in names for x in body):
            body += [Load(x.name, x.indices) for x in _in_order(products)]
        lines = tuple(x for x in lines_of(item) if not names & set(written(x)))
        body += [replace(item, body=lines)] if isinstance(item, Loop) else lines
    used = {name for item in body for line in lines_of(item) for name in read(line)}
    left: list[Line | Loop] = []
    for item in body:
        lines = tuple(x for x in lines_of(item) if not isinstance(x, Load) or x.name in used)
        left += [replace(item, body=lines)] if isinstance(item, Loop) else lines
    return replace(kernel, name=OF_KEPT, doc=_VALUES_DOC, body=tuple(left), given=tuple(sorted(names)))
