"""Walks on chip that take chunks by halves, without vector gates.

There chunks have 64 steps where walks are given scores, or one makes all gradients: fewer states are stored, and
products have rows enough for wgmma from shared memory. A forward that makes scores itself, so that queries and keys are
read once, may be faster by half as many steps. Pieces and slots are still of whole chunks.

Wide heads, where nothing is kept for a backward: a program has all columns of values; and the state, turned, is summed
by wgmma and read from the registers in which it was summed (see turn.py), of which half the threads hold all, so that a
multiprocessor has two programs. (H200, Triton 3.6.0, bf16, no gradients, four warps and stages, for walks that are
given scores: B4 T4096 H64 K=V=128 linear_attn 0.27 ms for 0.48, retnet 0.45 for 0.57, simple_gla 0.43 for 0.62; B1
T65536 H8 0.24 for 0.35, 0.31 for 0.39 and 0.40. Where fewer than five in six multiprocessors have a program, it may be
slower: B1 T4096 H96 0.30 for 0.26 and 0.28; and with two blocks of values, too: B16 T2048 H4 K128 V256 0.12 for 0.11,
and 0.19 for 0.12. With a state stored in each half it is 1.03 ms, of simple_gla, and in each second one 1.24, where
scores and the walk that is given them take 0.65.)

Narrow heads, beside a scalar gate: the forward on chip is as it is for chunks of 32, and stores the state that enters
each second half. (The same, B32 T2048 H16 K=V=64, simple_gla, without and with states: 0.150 and 0.195 ms; in chunks of
64 0.214 and 0.256, in chunks of 32, with a state for each, 0.150 and 0.226; as for wide heads 0.228 to 0.254.)

Wide heads without gates, with a backward: walks that are given scores are as they are for chunks of 64, and store the
states that enter chunks of 128, or their gradients on the way back. So key gradients, which are made of both, read half
as many, and half are kept. Scores are those of halves, for nobody reads others. (The same, linear_attn, with backward:
B16 T2048 H4 K128 V256 0.342 ms for 0.390, and 144 MiB for 272; B8 T2048 H4 K256 V512 0.568 for 0.685, and 264 for 520.
With scores of whole chunks 0.348 and 0.570, and forwards alone 0.115 for 0.107 ms. Where one kernel makes all
gradients, without storing any of states, it is no gain: B4 T4096 H64 K=V=128 1.63 for 1.47, B1 T65536 H8 1.03 for
0.95.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel, Load
from glagen.ir.tuned import GIVEN_KERNELS, HALVED, IN_HALVES, Heads, Tuned
from glagen.schedule.kernels import Shape
from glagen.schedule.tiles import gated_sides

_ALIKE = {"scores", *GIVEN_KERNELS}  # by halves all, or none


def may_take_halves(program: ChunkProgram, exact_states: bool) -> bool:
    """May a forward take half of a chunk at a time? Where no gates are vectors, and dots read states in 16 bits; if
    wgmma can then add to the state, values being as they lie in memory."""
    return gated_sides(program) in ("", "s") and not exact_states


def by_halves(fused: Shape) -> Shape:
    """How it walks: as the forward that keeps the state on chip."""
    return replace(fused, name=HALVED, doc="All outputs of a sequence, by halves of chunks; the state stays on chip.")


def in_halves(kernels: Iterable[Kernel], table: Iterable[Tuned]) -> tuple[Kernel, ...]:
    """The kernels, of which some may take chunks by halves that this table says were faster so: walks, and what makes
    scores for these."""
    names = {x.kernel for x in table}
    halved = {k.name for k in kernels if f"{k.name}{IN_HALVES}" in names and has_halves(k)}
    halved -= set() if halved >= _ALIKE else _ALIKE
    return tuple(replace(k, may_halve=k.name in halved) for k in kernels)


def agreeing(table: Iterable[Tuned]) -> tuple[Tuned, ...]:
    """The table, with each kernel by halves or not for heads: if one has both, then by halves; but walks only if what
    they are given is made so, and no scores of whole chunks beside a walk by halves that could take them."""
    table = tuple(table)
    names: dict[Heads, set[str]] = {}
    for x in table:
        names.setdefault(x.heads, set()).add(x.kernel)

    def agrees(x: Tuned) -> bool:
        found = names[x.heads]
        by_halves = found >= {f"{name}{IN_HALVES}" for name in (_ALIKE if x.walk in _ALIKE else {x.walk})}
        return by_halves == (x.kernel != x.walk) and not (x.kernel == "scores" and f"fused{IN_HALVES}" in found)

    return tuple(x for x in table if agrees(x))


def has_halves(kernel: Kernel) -> bool:
    """Can what it is given be made of halves? Scores can; what else there is counts from ends of whole chunks."""
    return all("s" in x.axes for x in kernel.lines if isinstance(x, Load) and x.name in kernel.given)
