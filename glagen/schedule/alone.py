"""One walk back that makes all gradients, where there are no gates.

Where a program holds all columns of keys and of values, it can make the gradients of both while the state's gradient is
on chip. That is then neither stored nor loaded, and scores, which gradients of keys and of values both take, are made
once. Left operands of dots are tiles of tensors, or what the loop carries: Triton has those in shared memory, from
which Hopper multiplies by wgmma (see templates/hopper.py.j2). So what has steps and columns has its columns first, and
the state's gradient is carried as dots read it, too; where a left operand is computed, there is no such kernel. (H200,
Triton 3.6.0, bf16, the kernels whose place it takes and this one: B32 T2048 H16 K=V=64 0.50 ms and 0.32, B4 T4096 H64
K=V=128 1.13 and 0.87.)

Beside a scalar gate chunks have half as many steps. There it is 0.53 to 0.65 ms for 0.63 at the first of these sizes;
and ptxas 12.8, which then has operands of 32 columns for wgmma, took another register for where one lies, of which it
had few left, in four of some twenty forms that the same lines were written in: an illegal memory access.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Dot, Line, Scan


def may_walk_alone(program: ChunkProgram, exact_states: bool) -> bool:
    """May one kernel make all gradients? Where there are no gates, no gradient is a sum over steps, and that of the
    state need not keep its digits."""
    of_steps = all("t" in part.indices for gradient in program.gradients for part in gradient.parts)
    return not program.gates and of_steps and not exact_states


def carried_rounded(lines: Iterable[Line], scans: Iterable[Scan]) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, where dots read states as the loop carries them from turn to turn: in their type. Requires: nothing
    else reads a state."""
    names = {scan.tile: f"{scan.tile}_rounded" for scan in scans}

    def of_rounded(dot: Dot) -> Dot:
        x, y = (replace(operand, name=names.get(operand.name, operand.name)) for operand in (dot.x, dot.y))
        return replace(dot, x=x, y=y)

    found: list[Line] = [of_rounded(line) if isinstance(line, Dot) else line for line in lines]
    return found, tuple(replace(scan, rounded=names[scan.tile]) for scan in scans)
