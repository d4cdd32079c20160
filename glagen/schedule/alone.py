"""One walk back that makes all gradients, or all but those of queries, without gates or with one a head.

Where a program holds all columns of keys and of values, it can make the gradients of both while the state's gradient is
on chip. (Those of queries, for which it loads states, had better come of a forward, if they can: see mirrored.py.) That
is then neither stored nor loaded, and scores, which gradients of keys and of values both take, are made
once. Left operands of dots are tiles of tensors, or what the loop carries: Triton has those in shared memory, from
which Hopper multiplies by wgmma (see templates/hopper.py.j2). So what has steps and columns has its columns first, and
the state's gradient is carried as dots read it, too; where a left operand is computed, there is no such kernel. (H200,
Triton 3.6.0, bf16, the kernels whose place it takes and this one: B32 T2048 H16 K=V=64 0.50 ms and 0.32, B4 T4096 H64
K=V=128 1.13 and 0.87.)

With a gate it takes chunks of 64 steps, twice as many as others do. (In chunks of 32 it was 0.53 to 0.65 ms, for 0.63
of others, at the first of these sizes; and ptxas 12.8, which then has operands of 32 columns for wgmma, took another
register for where one lies, of which it had few left, in four of some twenty forms that the same lines were written in:
an illegal memory access.) What threads lack there is registers: beside inputs of 16 bits it does with less arithmetic
(see lean.py), tiles are held shortly, and TMA moves those of tensors, so that threads need no addresses (see
emit/loads.py). (H200, Triton 3.6.0, bf16, forward and backward, B32 T2048 H16 K=V=64: simple_gla 0.85 ms -> 0.67,
retnet 0.83 -> 0.52; by threads, and with all loads in front, simple_gla 1.08. B4 T4096 H64 K=V=128, eight warps:
simple_gla 2.22 -> 2.29, retnet 1.90 -> 2.12.)

With a gate on keys threads lack more: a kernel written by hand, in chunks of 32 steps, has 224 bytes of each thread's
in memory at 64 by 64 with four warps, 1,136 at 128 by 128 with eight. (The same GPU and shapes, gla, forward and
backward: 0.97 ms -> 1.00 and 2.52 -> 5.4; with eight warps 1.24 at 64 by 64.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glagen.ir.chunk import ChunkProgram
from glagen.ir.expr import Expr, Ref, factors, refs, times
from glagen.ir.kernel import Assign, Dot, Line, Load, Loop, Scan, lines_of, read, written
from glagen.schedule.order import in_order
from glagen.schedule.tiles import gated_sides


def may_walk_alone(program: ChunkProgram, exact_states: bool) -> bool:
    """May one kernel make all gradients? Where no gates are vectors, no gradient is a sum over steps, and that of the
    state need not keep its digits."""
    of_steps = all("t" in part.indices for gradient in program.gradients for part in gradient.parts)
    return gated_sides(program) in ("", "s") and of_steps and not exact_states


def carried_rounded(lines: Iterable[Line], scans: Iterable[Scan]) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, where dots read states as the loop carries them from turn to turn: in their type. Requires: nothing
    else reads a state."""
    names = {scan.tile: f"{scan.tile}_rounded" for scan in scans}

    def of_rounded(dot: Dot) -> Dot:
        x, y = (replace(operand, name=names.get(operand.name, operand.name)) for operand in (dot.x, dot.y))
        return replace(dot, x=x, y=y)

    found: list[Line] = [of_rounded(line) if isinstance(line, Dot) else line for line in lines]
    return found, tuple(replace(scan, rounded=names[scan.tile]) for scan in scans)


def summed_as_they_lie(lines: Iterable[Line]) -> list[Line]:
    """The same, with sums over tiles in the order of those that dots made columns first."""

    def turned(x: Expr) -> bool:
        return isinstance(x, Ref) and [index.axis for index in x.indices] == ["i", "t"]

    return [
        replace(x, expr=times(*sorted(factors(x.expr), key=lambda y: not turned(y))))
        if isinstance(x, Assign) and x.over and any(map(turned, refs(x.expr)))
        else x
        for x in lines
    ]


def held_shortly(body: tuple[Line | Loop, ...]) -> tuple[Line | Loop, ...]:
    """The same, so that threads hold few tiles at a time: each sum over a tile right after what makes it; tiles of
    tensors, and what is rounded for dots, just before what first takes them, or begins a sum of dots that do; with
    these, sums of nothing but tensors and states. (What is loaded is in registers until its last use but in dots.)"""
    lines = [line for item in body for line in lines_of(item)]
    loads = [x for x in lines if isinstance(x, Load) and len(x.axes) == 2]
    rounded = [x for x in lines if isinstance(x, Assign) and x.rounded]
    sums = [x for x in lines if isinstance(x, Assign) and x.over]
    found = [x for x in lines if x not in loads and x not in rounded and x not in sums]
    made = {name for x in found for name in written(x)}
    beside = [x for x in sums if not made & set(read(x))]
    for line in sums:
        if line not in beside:
            makers = (n for n, x in enumerate(found) if set(written(x)) & set(read(line)))
            found.insert(max(makers) + 1, line)
    late: list[Assign | Load] = [*rounded, *loads]
    for x in late:
        begun = {n for y in found if x.name in read(y) for n in written(y)}
        first = next((n for n, y in enumerate(found) if begun & set(written(y))), len(found))
        found[first:first] = [x, *(y for y in beside if x.name in read(y))]
    return tuple(in_order(found))
