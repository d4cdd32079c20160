"""Walks on chip that are given scores where gates are strong.

Halves and growths block by block are more work than all else of a chunk. A walk has no registers for that, and nothing
else to do meanwhile: made for all chunks at once, by a kernel of their own, scores are CHUNK by CHUNK numbers of each,
and the walk is left with what it does for mild gates. It stores states only where somebody asks for them. (H200, Triton
3.6.0, bf16, gates of -4 softplus of normal numbers, forward, ms, for a walk that stores chunk states, and outputs by
these: gla, B4 T4096 H64 K=V=128 0.46 + 0.60 for 0.60 + 1.00; B16 T2048 H4 K128 V256 0.06 + 0.15 for 0.16 + 0.20; B32
T2048 H16 K=V=64 0.25 + 0.25 for 0.19 + 0.42; hgrn2, as the first, 0.74 + 0.65 for 0.69 + 1.33. Four warps, which are
faster where gates are mild, spill 672 bytes of each thread's here, and take 1.09 ms for 0.60.)

Walks back take the scores of a forward on chip, and its notes of what is strong: they look at no chunks of their own,
and make gradients of values in all runs. (The same, with backward: gla 4.04 ms for 4.55, where the walk back made
gradients of states alone and another kernel those of values; 0.83 for 1.04, 1.63 for 1.85; hgrn2 4.82 for 5.80; rwkv6
6.05 for 6.68.) That is CHUNK by CHUNK numbers of each chunk more to keep.

Gates on values decay what scores have multiplied, for which a walk would need halves of its own (see beyond.py).
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.chunk import ChunkProgram, Operand
from glagen.ir.kernel import Blocks, Depth, Kernel, Loop
from glagen.ir.tuned import BEYOND, HALVED, ON_CHIP, STRONG, WALKS, Tuned
from glagen.schedule.anchor import with_one_anchor
from glagen.schedule.apart import made_apart, maker_of
from glagen.schedule.beyond import given_scores
from glagen.schedule.covers import Cover
from glagen.schedule.tile import matrix
from glagen.schedule.tiles import gated_sides


def are_for_strong_gates(program: ChunkProgram, covers: dict[str, Cover]) -> bool:
    """Are scores made for walks where gates are strong? If keys have such gates."""
    sides = gated_sides(program)
    guarded = any(cover.finds_depth for cover in covers.values())
    return guarded and "K" in sides and not program.recurrence.part_of


def changes_bits(x: Tuned) -> bool:
    """Would walks have other bits before strong gates than where all are mild, if scores were made for them so? By
    several tiles of keys, beside other types than bfloat16: a product of float32 is three there, each of which goes
    through all columns of a tile before the next."""
    return x.kernel in ("scores", f"scores{STRONG}") and x.dtype != "bfloat16" and x.block_K < x.K


def with_scores(
    program: ChunkProgram,
    covers: dict[str, Cover],
    kernels: tuple[Kernel, ...],
    apart: tuple[Operand, ...],
    measured: bool,
) -> tuple[Kernel, ...]:
    """The same kernels, after one that makes these scores, and with what they do without where it has: walks on chip
    for strong gates, others where that was `measured` to be faster."""
    maker = maker_of(program, covers, apart, ())
    # one that finds out by its own walk whether gates are strong has no scores that were made for such gates till then
    own = {HALVED, *(k.name for k in kernels if k.whole and maker.runs_twice)}
    takers = {k.name for k in kernels if measured and "j" in k.owned and k.name not in WALKS and not k.given} - own
    taken = dict.fromkeys(takers, made_apart) | dict.fromkeys({*ON_CHIP} & own, given_scores_of_strong)
    found = tuple(taken[k.name](k, apart) if k.name in taken else k for k in kernels)
    if any(k.late for k in found):  # then they are there for what adds to the outputs of this walk
        found = tuple(given_scores(k, apart) if k.name == BEYOND else k for k in found)
    return (maker, *found) if any(kernel.ready for kernel in found) else kernels


def given_scores_of_strong(kernel: Kernel, matrices: tuple[Operand, ...]) -> Kernel:
    """The same walk, whose run for strong gates is given these scores, if nothing else that it makes goes by how strong
    gates are; else the kernel as it is."""
    gates = {x.source.name for x in kernel.lines if isinstance(x, Depth)}
    blocks = [x for x in kernel.lines if isinstance(x, Blocks) and x.gate in gates]
    tiles = {matrix(m.name, transposed).name for m in matrices for transposed in (False, True)}
    made = {x.name for block in blocks for x in block.body if x.accumulate or x.name in tiles}
    if not made or made - tiles:
        return kernel
    mild = [x for line in kernel.body for x in ((line,) if isinstance(line, Loop) else with_one_anchor(line, gates))]
    taken = made_apart(replace(kernel, body=tuple(mild)), matrices)
    return replace(taken, late=True) if taken.ready else kernel
