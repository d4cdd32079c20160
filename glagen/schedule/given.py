"""Operands of a walk that need neither the state nor value columns, made once for each chunk by a kernel of their own.

A kernel that keeps a state on chip owns a block of value columns. What it multiplies with the state, queries and keys
with their decays, has none: where heads have many blocks, each of its programs makes the same again, scores as well.
Made once, they are tiles that lie in memory, and the walk is left with products alone, all of 64 rows or more if chunks
have as many steps: Hopper's wgmma takes their left operands from shared memory. (H100, Triton 3.6.0, bf16, gla, B8
T2048 H4 K256 V512: 0.10 ms for the operands, 0.18 ms for the walk and 0.29 where it stores states, 0.28 back; with
states made, and read, in memory, in chunks as long, 0.47 ms forward and 0.39 back.)

Without gates that is scores alone. Those that a walk makes itself lie in registers, for Triton has left operands lie in
shared memory only if they come from memory; and those in registers may not be wgmma's (see templates/hopper.py.j2).
(H200, Triton 3.6.0, bf16, linear_attn, B16 T2048 H4 K128 V256: 0.025 ms for scores, 0.11 ms for the walk that stores
states and 0.11 ms back; with scores that walks make, by mma.sync, 0.17 and 0.16.)
"""

from __future__ import annotations

from collections.abc import Iterable

from glagen.ir.chunk import Operand
from glagen.ir.kernel import Dot, Kernel, Line, Load, Scan, Store, read, written
from glagen.schedule.order import axes_used
from glagen.schedule.turn import COLUMN, single_lines


def apart(lines: list[Line], scans: Iterable[Scan], stores: Iterable[Store]) -> tuple[list[Line], tuple[Operand, ...]]:
    """The lines that a walk is left with, and the tiles that it is given: what the others write, and these read.

    Requires: definitions before uses.
    """
    late = {scan.tile for scan in scans}
    left = []
    for line in lines:
        if late & set(read(line)) or COLUMN in axes_used(line):
            late |= set(written(line))
            left.append(line)
    made = {x.name: x.axes for x in single_lines(lines)}
    used = [n for line in left for n in read(line)] + [n for scan in scans for n in scan.reads]
    used += [store.tile for store in stores]
    return left, tuple(Operand(name, made[name]) for name in dict.fromkeys(used) if name in made and name not in late)


def has_lefts_in_memory(kernel: Kernel) -> bool:
    """Are left operands of all products tiles of tensors, as they lie in memory?"""
    loads = {line.name for line in kernel.lines if isinstance(line, Load)}
    dots = [*single_lines(kernel.lines), *(dot for scan in kernel.scans for dot in scan.added)]
    return all(dot.x.name in loads for dot in dots if isinstance(dot, Dot))
