"""What makes once, for several kernels, what these are given of keys or of values (see given.py).

With gates on both sides kernels of the backward share it. A forward on chip may be given that of keys as well, which it
keeps for the backward. Of it no bit depends on later gates then, so strong ones take longer: it is a kernel of its own,
and the backward has another, where nothing is kept. (H200, Triton 3.6.0, bf16, gla_kv, forward / with backward, ms: B8
T2048 H4 K256 V512 0.42 / 1.67 for 0.57 / 1.81 with states in memory, strong gates 0.72 / 2.92 for 0.67 / 2.98, resets
0.63 / 2.13 for 0.63 / 2.02. Where a forward on chip can make all itself it is faster without gradients: B16 T2048 H4
K128 V256 0.26 / 1.11 for 0.20 / 1.14, B4 T4096 H64 K=V=128 1.23 / 4.68 for 0.75 / 4.74. For backwards alone the kernel
of forwards took 1.34 ms for 0.67 there, strong gates.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glagen.ir.chunk import ChunkProgram, Operand
from glagen.ir.kernel import Kernel, Load
from glagen.ir.tuned import KEY_OPERANDS, OPERANDS, VALUE_OPERANDS
from glagen.schedule.apart import scores
from glagen.schedule.covers import Cover
from glagen.schedule.kernels import Goal, Shape, build

_OF_KEYS = "Scores, and queries and keys with their decays, of each chunk"
_OF_VALUES = "Gradients of scores, and those of outputs and values with their decays, of each chunk"


def sharing(shape: Shape) -> Shape:
    """That of a kernel that does the same, and is given all but what needs a state or all columns that it owns."""
    doc = f"{shape.doc} What it multiplies is given."
    return replace(shape, name=f"{shape.name}_given", doc=doc, own=shape.owned)


def with_makers(program: ChunkProgram, covers: dict[str, Cover], given: list[Kernel]) -> list[Kernel]:
    """These kernels, after those that make what they are given, of keys and of values. None if it takes more to make
    that, or if they store parts of sums."""
    sides = ((KEY_OPERANDS, _OF_KEYS, "i"), (VALUE_OPERANDS, _OF_VALUES, "j"))
    made = [
        _maker(program, covers, Shape(name, f"{what}, for kernels of the backward.", (), axis), given)
        for name, what, axis in sides
    ]
    whole = all({"t", *kernel.owned} <= set(store.axes) for kernel in given for store in kernel.stores)
    return [*made, *given] if whole and makes_all_of(made, given) else []


def makes_all_of(made: list[Kernel], given: list[Kernel]) -> bool:
    """Do these kernels make all that those are given?"""
    there = {store.target for kernel in made for store in kernel.stores}
    return there >= {name.removesuffix("_T") for kernel in given for name in kernel.given}


def maker_for_walk(program: ChunkProgram, covers: dict[str, Cover], given: list[Kernel]) -> Kernel:
    """The kernel that makes what these are given of keys, for a forward on chip as well: of that, no bit depends on
    later gates."""
    doc = f"{_OF_KEYS}, for the forward on chip and kernels of the backward."
    return _maker(program, covers, Shape(OPERANDS, doc, (), "i"), given)


def _maker(program: ChunkProgram, covers: dict[str, Cover], shape: Shape, given: list[Kernel]) -> Kernel:
    operands = tuple(x for x in given_tiles(given) if shape.looped in x.indices)
    goals = tuple(Goal(x.name, (x,)) for x in scores(program, of_gradients=shape.looped == "j"))
    return build(program, covers, replace(shape, makes_sums=True, exact=True), goals, (), operands)


def given_tiles(kernels: Iterable[Kernel]) -> list[Operand]:
    """What these kernels are given but matrices, as it lies in memory."""
    axes = {x.name: x.axes for k in kernels for x in k.lines if isinstance(x, Load) and x.name in k.given}
    return [Operand(n, tuple(a for a in "tij" if a in axes[n])) for n in axes if "s" not in axes[n]]
