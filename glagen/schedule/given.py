"""Operands that are made once for each chunk by a kernel of their own, for others that multiply them.

Of walks: what needs neither the state nor value columns. A kernel that keeps a state on chip owns a block of value
columns. What it multiplies with the state, queries and keys with their decays, has none: where heads have many blocks,
each of its programs makes the same again, scores as well. Made once, they are tiles that lie in memory, and the walk is
left with products alone, all of 64 rows or more if chunks have as many steps: Hopper's wgmma takes their left operands
from shared memory. (H100, Triton 3.6.0, bf16, gla, B8 T2048 H4 K256 V512: 0.10 ms for the operands, 0.18 ms for the
walk and 0.29 where it stores states, 0.28 back; with states made, and read, in memory, in chunks as long, 0.47 ms
forward and 0.39 back.) Narrower keys leave room for walks that make all that themselves, in chunks of half as many
steps: at B16 T2048 H4 K128 V256 these are faster, though they keep twice as many states. (H200, Triton 3.6.0, kernels
alone: forward 0.15 ms for 0.17, with backward 0.62 for 0.68, of which gradients of keys 0.24 for 0.30.)

What is given is right at once, whatever the gates are, and made with as little as scores need: of one sum over gates,
queries with the decays that scores have. (H200, Triton 3.6.0, bf16, gla, the same size: 0.061 ms for the operands, in
tiles for which that leaves registers, and 0.077 with sums and exponentials of their own.)

Without gates that is scores alone. Those that a walk makes itself lie in registers, for Triton has left operands lie in
shared memory only if they come from memory; and those in registers may not be wgmma's (see templates/hopper.py.j2).
(H200, Triton 3.6.0, bf16, linear_attn, B16 T2048 H4 K128 V256: 0.025 ms for scores, 0.11 ms for the walk that stores
states and 0.11 ms back; with scores that walks make, by mma.sync, 0.17 and 0.16.)

With a scalar gate that is scores and numbers a step: queries and keys have no decays, values and results have them.
Chunks then have twice as many steps as else, for wgmma's rows. (H200, Triton 3.6.0, bf16, simple_gla, B4 T4096 H64
K=V=128: 0.19 ms for what is given, 0.51 ms for the walk that stores states and 0.51 ms back; by walks that make it, in
chunks of 32 steps, 0.90 ms, and back with states in memory 0.97. At 64 by 64 that is no gain: 0.12, 0.22 and 0.21 for
0.22, 0.25.)

Of a backward with gates on both sides: what needs no state, and columns of one side alone. There all that is multiplied
with states has decays, on either side, and three kernels make the same: the walk back, gradients of keys, gradients of
values. What a thread makes it has to bring into the order of a dot's left operand, of which each warp takes all, and
holds it in registers; from memory it comes as the dot reads it. And scores, which come of decays as well, are made of
what nothing has rounded, where others would take them in two terms. (H200, Triton 3.6.0, bf16, gla_kv, B4 T4096 H64
K=V=128, ms: walk back 1.07 -> 0.46, key gradients 2.10 -> 1.27, value gradients 1.63 -> 1.23, for 0.57 and 0.48 to
make it. At 64 by 64 that is more than it spares: 2.0 for 1.75, forward and backward. As little is had by products
turned around, whose left operands are states: 2.6 and 1.9 of those gradients.)
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from glagen.ir.chunk import ChunkProgram, Operand
from glagen.ir.expr import Apply, factors, ref, times
from glagen.ir.kernel import Assign, BlockLine, Blocks, Dot, Kernel, Line, Load, RowSum, Scan, Store, read, written
from glagen.schedule.order import axes_used, in_order, pruned
from glagen.schedule.tile import tile
from glagen.schedule.turn import columns_first, single_lines


def apart(
    lines: list[Line], scans: Iterable[Scan], stores: Iterable[Store], own: tuple[str, ...], numbers: bool
) -> tuple[list[Line], tuple[Operand, ...]]:
    """The lines that a kernel is left with, and the tiles that it is given: what the others write, and these read.

    `own`: what works on all of these columns it does itself, and all that needs a state it carries or loads. `numbers`:
    and numbers a step that are made of no tile with columns, where it uses them.

    Requires: definitions before uses.
    """
    late = {scan.tile for scan in scans}
    kept = []
    for n, line in enumerate(lines):
        if late & set(read(line)) or set(own) <= axes_used(line):
            late |= set(written(line))
            kept.append(n)
    made = {x.name: x.axes for x in single_lines(lines)}
    while True:
        left = [lines[n] for n in sorted(kept)]
        used = [n for line in left for n in read(line)] + [n for scan in scans for n in scan.reads]
        used += [store.tile for store in stores]
        given = [name for name in dict.fromkeys(used) if name in made and name not in late]
        of_steps = {name for name in given if numbers and _is_of_steps(name, lines)}
        if not of_steps:
            return left, tuple(Operand(name, made[name]) for name in given)
        late |= of_steps
        kept += [n for n, line in enumerate(lines) if of_steps & set(written(line))]


def _is_of_steps(name: str, lines: list[Line]) -> bool:
    """Is it a number a step, made of no tile with columns?"""
    makers = [line for line in lines if name in written(line)]
    return all(isinstance(x, Assign) and x.axes == ("t",) and axes_used(x) <= {"t", "s"} for x in makers)


def by_those_of_scores(lines: list[Line], stores: list[Store]) -> list[Line]:
    """The same, but queries have their decays from the chunk's start by the product that scores have, which is that
    times a power of two (see shift.py): one exponential for two."""
    blocks = [x for x in lines if isinstance(x, Blocks) and x.kind == "guard"]
    inside = {x.name: x for block in blocks for x in block.body if isinstance(x, Assign)}
    found = {}
    for x in lines:
        if isinstance(x, Assign):
            match inside.get(x.name.replace("_from_start", "_down_anchored")):
                case Assign(name=name, expr=Apply(function="raised")):
                    found[tile(x.name, *x.axes)] = tile(name, *x.axes)

    def line(x: Line) -> Line:
        if not isinstance(x, Assign) or x.over or not (decays := [y for y in factors(x.expr) if y in found]):
            return x
        others = [y for y in factors(x.expr) if y not in found]
        return replace(x, expr=times(*others, *(found[y] for y in decays), *[ref("%UNIT")] * len(decays)))

    return pruned(in_order([line(x) for x in lines]), [store.tile for store in stores]) if found else lines


def exact(lines: list[Line]) -> list[Line]:
    """The same, but what scores are made of is not rounded: they are themselves, where they are kept."""
    dots = [x for line in lines if isinstance(line, Blocks) for x in line.body if isinstance(x, Dot)]
    made = {o.name for dot in dots if set(dot.axes) == {"t", "s"} for o in (dot.x, dot.y)}

    def single(x: BlockLine) -> BlockLine:
        if isinstance(x, Dot) and {x.x.name, x.y.name} <= made:
            return replace(x, exact=True)
        return replace(x, rounded="") if isinstance(x, Assign) and x.name in made else x

    return [
        replace(x, body=tuple(map(single, x.body))) if isinstance(x, Blocks) and x.kind != "own" else x for x in lines
    ]


def of_exact(lines: list[Line]) -> list[Line]:
    """The same, but products take scores in one term: they are rounded once, where they are kept."""

    def single(x: BlockLine) -> BlockLine:
        return replace(x, split=False) if isinstance(x, Dot) else x

    return [replace(x, body=tuple(map(single, x.body))) if isinstance(x, Blocks) else x for x in lines]


def may_share(program: ChunkProgram, sides: str, exact_states: bool) -> bool:
    """May what kernels of the backward multiply be made once for all? Where all of it has gates, as these sides do, and
    is exact enough in 16 bits."""
    return {"K", "V"} <= {*sides} and not program.recurrence.part_of and not exact_states


def has_lefts_in_memory(kernel: Kernel) -> bool:
    """Are left operands of all products tiles of tensors, as they lie in memory, or such that a loop carries?"""
    loads = {line.name for line in kernel.lines if isinstance(line, Load)} | {scan.rounded for scan in kernel.scans}
    return _have_lefts([*single_lines(kernel.lines), *(dot for scan in kernel.scans for dot in scan.added)], loads)


def _have_lefts(lines: Iterable[Line], loads: Container[str]) -> bool:
    """Are left operands of all products these? Sums over rows, by columns, are products with masks, in registers."""
    lines = list(lines)
    sums = any(isinstance(x, RowSum) and {"i", "j"} & {*x.axes} for x in lines)
    return not sums and all(dot.x.name in loads for dot in lines if isinstance(dot, Dot))


def columns_first_from_memory(lines: list[Line], loads: Iterable[Load]) -> list[Line]:
    """The same, with results columns first (see turn.py) if left operands of all products then lie in memory, as those
    do of key gradients without gates.

    So Hopper multiplies by wgmma what else would have to be in registers, which chunks of 128 steps have no room for.
    (H200, Triton 3.6.0, bf16, linear_attn, B16 T2048 H4 K128 V256 and B8 T2048 H4 K256 V512, these gradients alone: in
    chunks of 64 0.143 and 0.215 ms, by mma.sync 0.148 and 0.223; in chunks of 128 0.125 and 0.174, where by mma.sync
    threads spill 96 bytes to 4 KB. B4 T4096 H64 K=V=128, in chunks of 64: 0.71 for 0.69; B32 T2048 H16 K=V=64 0.284,
    as before.)
    """
    found, _ = columns_first(lines, ())
    return found if _have_lefts(single_lines(found), {line.name for line in loads}) else lines
