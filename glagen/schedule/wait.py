"""States to which a chunk's products are added a turn later, before the next chunk.

Hopper's wgmma may have its left operand in shared memory alone (see templates/hopper.py.j2). Triton puts it there if it
is a tile of a tensor, and if it is what a loop carries from turn to turn; what has just been computed, in registers.
Where gates scale keys and values both, all that a state adds is computed: it waits, in few registers, for its sum to be
wgmma's. States are then as they lie in memory: what their rows decay by is few numbers a thread. (H200, Triton 3.6.0,
bf16, gla_kv without gradients, B4 T4096 H64 K=V=128: 0.81 ms; by mma.sync at once, with values first, 1.07 ms; B32
T2048 H16 K=V=64: 0.30 ms; with states in memory 0.60 ms.)

What gates scale on one side alone had better be turned (see turn.py) and added at once: gla that waits takes 0.56 to
0.68 ms for 0.49 with B1 T65536 H8 K=V=128. Walks for the states alone had better have narrow tiles, of fewer rows than
wgmma's: back for gla_kv, at the first of these sizes, 1.07 ms; by wgmma 1.27 to 1.50 ms.

A state that waits is there when its turn begins, and is read when scores are made, not last: where gates are mild,
queries with their decays are the left operand of both products, which threads load once if one follows the other.
(H200, Triton 3.6.0, bf16, gla_kv without gradients, ms, and with that product before growths, and after scores: B4
T4096 H64 K=V=128 0.75, 0.77 and 0.86; B16 T2048 H4 K128 V256 0.21, 0.23 and 0.25. gla, which does not wait, 0.60 for
0.40.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glagen.ir.expr import Apply, walk
from glagen.ir.kernel import Blocks, Dot, Kernel, Line, Load, Loop, Scan, read
from glagen.ir.tuned import BOTH, KEY_GRADIENTS
from glagen.schedule.both import has_states_left
from glagen.schedule.given import has_lefts_in_memory
from glagen.schedule.order import pruned
from glagen.schedule.turn import single_lines


def had_better_wait(scans: Iterable[Scan], loads: Iterable[Load]) -> bool:
    """Are products added to states whose operands are both computed, and is all else that is done to these a factor?"""
    tensors = {line.name for line in loads}
    scans = tuple(scans)
    dots = [dot for scan in scans for dot in scan.added]
    computed = bool(dots) and not any({dot.x.name, dot.y.name} & tensors for dot in dots)
    return computed and all(x.function == "mul" for scan in scans for x in walk(scan.update) if isinstance(x, Apply))


def waiting(scans: Iterable[Scan]) -> tuple[Scan, ...]:
    """The same, with one turn more, in which they take what the last chunk adds."""
    return tuple(replace(scan, waits=True) for scan in scans)


def read_beside_scores(body: Iterable[Line | Loop], scans: Iterable[Scan]) -> tuple[Line | Loop, ...]:
    """The same, with the first product of a state that waits just before the first of a block that is the chunk, if it
    needs nothing that blocks make. Requires: no loops; definitions before uses."""
    lines, states = [x for x in body if not isinstance(x, Loop)], {scan.tile for scan in scans if scan.waits}
    blocks = next((x for x in lines if isinstance(x, Blocks) and x.kind == "guard"), None)
    reads = next((x for x in lines if isinstance(x, Dot) and states & {x.x.name, x.y.name}), None)
    if blocks is None or reads is None or lines.index(reads) < lines.index(blocks):
        return tuple(lines)
    at = lines.index(blocks)
    led = [x for x in pruned(lines[: lines.index(reads)], list(read(reads))) if x not in lines[:at]]
    if any(isinstance(x, Blocks) for x in led):  # it needs what blocks make
        return tuple(lines)
    n = next(n for n, x in enumerate(blocks.body) if isinstance(x, Dot))
    block = replace(blocks, body=(*blocks.body[:n], reads, *blocks.body[n:]))
    moved = [*led, reads]
    return (*lines[:at], *led, block, *(x for x in lines[at + 1 :] if x not in moved))


def adds_from_shared(kernel: Kernel) -> bool:
    """Do states add up products alone whose left operands are tiles of tensors as they lie in memory, or wait, and have
    all other products steps for rows? What Hopper's wgmma multiplies, 64 rows or more, then lies in shared memory."""
    loads = {line.name for line in kernel.lines if isinstance(line, Load)}
    added = [scan.waits or dot.x.name in loads for scan in kernel.scans for dot in scan.added]
    own = [line for line in single_lines(kernel.lines) if isinstance(line, Dot)]
    return bool(added) and all(added) and all(dot.axes[0] in ("t", "s") for dot in own)


def reads_from_shared(kernel: Kernel) -> bool:
    """Do all products of 64 rows or more have left operands that lie in shared memory, in a kernel that was measured to
    be faster by wgmma?"""
    if kernel.name == BOTH:
        return has_states_left(kernel)
    return bool(kernel.whole or kernel.given or kernel.name == KEY_GRADIENTS) and has_lefts_in_memory(kernel)
