"""One kernel for a chunk's gradients on both sides, where values have gates and keys have none.

Each of the kernels for one side loads the state at the chunk's start and its gradient at the end, which in chunks of
few steps are most of what there is to load. Here both sides have them of one load, and the chunk's tensors as well.
Products with states have columns first, so that left operands are states as they lie in shared memory: from there
Hopper multiplies by wgmma (see templates/hopper.py.j2), and threads hold no operands. What is summed of a state times
its gradient comes first, before there is much else to hold, and one side is done before the other.

H200, torch 2.11, Triton 3.6.0, bf16, gla_v, forward and backward, ms: B4 T4096 H64 K=V=128 3.65 -> 3.44, B1 T65536 H8
2.14 -> 2.05, B32 T2048 H16 K=V=64 1.39 -> 1.20; with all products by mma.sync, 3.81 and 1.30. With gates on keys as
well, a thread would spill 1,150 bytes: gla_kv, at the first of these sizes, takes 8.8 ms instead of 4.8. Wider heads,
by blocks of value columns, have sums for all keys to hold: at B8 T2048 H4 K256 V512 it is 0.80 ms (blocks of 64,
eight warps, states by TMA), and 0.78 for two kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Assign, Dot, Kernel, Line, Load, Store, read
from glagen.schedule.turn import single_lines


def may_make_both(program: ChunkProgram, exact_states: bool) -> bool:
    """May one kernel make the gradients of keys and of values, or others keep what those of values read (see kept.py)?
    Where gates are as said above, all gradients are of steps and columns, and what is added to states need not keep its
    digits."""
    axes = {axis for gate in program.gates for axis in gate.axes}
    parts = [part for gradient in program.gradients for part in gradient.parts]
    return axes == {"j"} and all({"t"} < {*part.indices} for part in parts) and not exact_states


def of_states(lines: Iterable[Line], states: set[str]) -> set[str]:
    """What dots make of states, or of their gradients, for each step."""
    dots = [line for line in single_lines(lines) if isinstance(line, Dot)]
    return {dot.name for dot in dots if {dot.x.name, dot.y.name} & states and "t" in dot.axes}


def summed_of_states(lines: Iterable[Line], states: set[str]) -> list[str]:
    """What is summed of states times their gradients."""
    return [line.name for line in lines if isinstance(line, Assign) and len(states & set(read(line))) == 2]


def sides_in_turn(stores: Iterable[Store]) -> list[str]:
    """The tiles to store: those of values, then those of keys."""
    return [store.tile for store in sorted(stores, key=lambda store: "j" not in store.axes)]


def has_states_left(kernel: Kernel) -> bool:
    """Are left operands of all products with columns for rows tiles of tensors, as they lie in memory?"""
    loads = {line.name for line in kernel.lines if isinstance(line, Load)}
    dots = [line for line in single_lines(kernel.lines) if isinstance(line, Dot)]
    return all(dot.x.name in loads for dot in dots if dot.axes[0] not in ("t", "s"))
