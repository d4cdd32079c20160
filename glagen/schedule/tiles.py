"""Tile sizes by rule: how much of each feature axis a program holds, and with how many warps.

The rules are what was fastest on an H200 (torch 2.11, Triton 3.6.0, mma.sync, bf16, B4 T4096 H64 K=V=128) of some 400
configurations, for gla, gla_v, gla_kv, simple_gla and linear_attn: four warps, each with as much as its registers hold
(twice as many with half the registers are slower: 2.7 ms against 2.3 ms in gla's key gradients; but see `spared_tile`).
Chunks of 64 halve the chunk states in memory, but spill in the gradients of gated ops (gla's on the key side: 3.1 ms
against 2.4 ms). What stays on chip has three chunks under way rather than two where all tiles are copied ahead (see
operands.py): without gates, forward, 0.15 ms instead of 0.18 for B32 T2048 H16 K=V=64. tuned.json has what was
measured to be faster than the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from glagen.ir.chunk import ChunkProgram
from glagen.ir.expr import Apply, Expr, refs, walk
from glagen.ir.kernel import Assign, Dot, Kernel, Load
from glagen.ir.tuned import (
    BEYOND,
    BOTH,
    CROWDED,
    GIVEN,
    IN_HALVES,
    KEPT_KERNELS,
    ON_CHIP,
    STRONG,
    Tiles,
    Tuned,
    read_table,
)

GATED_CHUNK = 32
UNGATED_CHUNK = 64
WIDE, NARROW = 128, 64
SPARED = 64 * 64  # columns of keys times those of values (see `spared_tile`)
WGMMA_ROWS = 64  # of a product that Hopper's wgmma makes, at least
# For gates on these sides (see gated_sides), the forward is faster if it keeps the state on chip, given enough heads:
# 1.2 to 1.9 times on an H200 (bf16, heads of 64 by 64 to 256 by 512). Where keys have gates, each block of value
# columns would take the exponentials of all keys again: there it is up to 1.9 times slower. Where states are stored for
# each chunk as well, that holds for keys of up to so many columns, of more than WIDE in tiles that were measured
# (gla_v, B8 T2048 H4 K256 V512: 0.41 ms instead of 0.56, but slower by rule; linear_attn 0.28 instead of 0.26); for the
# gradients of values together with those of states, of up to NARROW: 0.20 ms instead of 0.28 (linear_attn, B32 T2048
# H16 K=V=64), but 0.84 instead of 0.78 for heads of 128 by 128.
FUSED_SIDES = {"": WIDE, "s": WIDE, "V": 2 * WIDE}
# For gates on these, the state alone has values first there (see turn.py). Where Hopper adds to it by wgmma, forwards
# are 1.3 to 1.9 times as fast on an H200 (bf16, heads of 64 by 64 to 128 by 256; gla, rwkv6, hgrn2, gla_sigmoid), with
# states stored 0.9 to 1.6 times, and 1.0 to 1.7 times what is walked back for the gradients of values. Where values are
# computed as well, as with gates on both sides, nothing is turned (see wait.py).
STATES_TURNED = ("K", "Ks", "KV")
FASTER_BY_WGMMA = dict.fromkeys(ON_CHIP, WIDE)


def chunk_of(program: ChunkProgram) -> int:
    """Steps a chunk: what the spec says, if it does."""
    return program.recurrence.chunk or (GATED_CHUNK if program.gates else UNGATED_CHUNK)


@functools.cache
def shipped() -> tuple[Tuned, ...]:
    """The measured configurations that glagen comes with."""
    return read_table(Path(__file__).with_name("tuned.json"))


def gated_sides(program: ChunkProgram) -> str:
    """What kernels differ by in the time they take: "K", "V" and "s" of those sides that have gates."""
    found = {"K" if "i" in gate.axes else "V" if "j" in gate.axes else "s" for gate in program.gates}
    return "".join(side for side in "KVs" if side in found)


def scan_tiles(chunk: int) -> Tiles:
    """Of a kernel that walks for the states alone, which pays to have few threads that wait for each other."""
    return Tiles((64, WIDE), (64, 64), (32, 32), warps=2 if chunk <= GATED_CHUNK else 4, stages=3)


def fused_tiles(program: ChunkProgram) -> Tiles:
    """Of a kernel that keeps the state on chip, with all columns of keys in a program."""
    sides = gated_sides(program)
    if sides in STATES_TURNED:
        return Tiles((WIDE, WIDE), (WIDE, 32), (WIDE, 16), warps=8, stages=3)
    wide = 2 * WIDE if sides in ("s", "V") else WIDE  # larger chunks have no room for more
    stages = 2 if "V" in sides else 3  # values that gates scale first do not come straight from memory
    return Tiles((wide, 64), (WIDE, 32), (WIDE, 16), warps=4, stages=stages)


# Of a kernel that is given what it multiplies (see given.py), with all columns of keys in a program.
GIVEN_TILES = Tiles((2 * WIDE, 64), (WIDE, 32), (WIDE, 16), warps=4, stages=2)
# Of one that makes scores alone, of keys with gates: what few warps make, no others wait for. (H200, Triton 3.6.0,
# bf16, gla, strong gates, B4 T4096 H64 K=V=128: 0.61 ms for 3.6 by four warps that have all columns.) Beside other
# types a tile has as many columns as that of a walk that is given them, so that sums have the same bits.
SCORES_TILES = Tiles((32, 32), (WIDE, 32), (WIDE, 16), warps=2, stages=3)
# Of one that makes all gradients (see alone.py and both.py), with all columns of keys and of values in a program.
HALVED_TILES = Tiles((WIDE, WIDE), (WIDE, 32), (WIDE, 16), warps=4, stages=3)
ALONE_TILES = Tiles((WIDE, WIDE), (32, 32), (16, 16), warps=8, stages=2)


def may_be_crowded(kernel: Kernel) -> bool:
    """May a forward on chip have another configuration where it stores no states (CROWDED)? If half as many threads are
    enough, or if it is given what it multiplies, of which more lies ahead then. (H200, bf16, linear_attn, B4 T4096 H64
    K=V=128, four stages for three: 0.481 ms for 0.496; with states stored 14 us more.)"""
    return has_room(kernel) or is_light(kernel) or kernel.name == GIVEN


def spared_tile(kernels: Iterable[Kernel], table: Iterable[Tuned]) -> int:
    """How large a tile may be for a walk along what is strong to do with half of the registers that threads may have,
    where it stores no states (see Schedule): SPARED, if it is given scores, holds no values back, and was measured in
    tiles like that; else 0.

    (H200, Triton 3.6.0, bf16, B32 T2048 H16 K=V=64, gates of -4 softplus of normal numbers, forward without gradients,
    ms: gla 0.49 -> 0.43, hgrn2 0.49 -> 0.48, rwkv6 0.50 -> 0.49; the walk alone 0.255 -> 0.196, 0.230 -> 0.217, 0.261
    -> 0.250. It is no gain where states are stored, 1.60 -> 1.62 with backward, nor where values have gates, for
    threads then spill: gla_v 0.53 -> 0.69, gla_kv 0.83 -> 1.03.)
    """
    scored = any(k.name == "fused" and k.late and not k.leaves_values for k in kernels)
    small = any(x.kernel == "fused" and x.block_K * x.block_V <= SPARED for x in table)
    return SPARED if scored and small else 0


def is_light(kernel: Kernel) -> bool:
    """Do half as many threads hold what a forward on chip works on, if its products take the state from registers
    (`Dot.dealt`)? Where tensors alone give multiples and exponentials alone. (H200, Triton 3.6.0, bf16, four warps for
    eight, B4 T4096 H64 K=V=128, forward, and with backward, which stores states: gla 0.40 ms and 2.51, for 0.57 and
    2.64; with keys made of gates 0.45 and 2.55, for 0.61 and 2.64; with gates made of logits 0.65 and 3.24, for 0.72
    and 3.16. A bonus for the own step would leave 568 bytes of each thread's in memory.)
    """
    deals = any(isinstance(line, Dot) and line.dealt for line in kernel.lines)
    return deals and _holds(kernel, {"mul", "clamp", "neg", "exp", "expm1"})


def has_room(kernel: Kernel) -> bool:
    """Do half as many threads hold what a kernel works on, which CROWDED is for, whatever products take the state from?
    Those of a forward on chip whose first run takes mild gates alone, and which computes nothing but multiples of
    tensors alone. (H200, bf16, four warps for eight, B4 T4096 H64 K=V=128, with states in shared memory: gla 0.65 ms
    for 0.71; with gates made of logits 0.85 for 0.87, with keys made of gates 1.17 for 0.95, with a bonus for the own
    step 1.14 for 0.77.)
    """
    return _holds(kernel, {"mul", "clamp"})


def _holds(kernel: Kernel, functions: set[str]) -> bool:
    """Is it a forward on chip whose first run takes mild gates alone, and computes of tensors alone only such functions
    of one tile?"""
    loads = {line.name for line in kernel.lines if isinstance(line, Load)}
    alone = [x for x in kernel.lines if isinstance(x, Assign) and set() < _tiles_read(x.expr) <= loads]
    return kernel.name == "fused" and kernel.runs_twice and all(_is_of_one(x, functions) for x in alone)


def differs(kernel: Kernel) -> bool:
    """May the run for strong gates have tiles of its own (STRONG)? Not if it walks, for notes are of tiles then; nor if
    a sum over columns is stored for each tile. (H200, bf16, -8 a step in a channel of 32: gla's outputs 1.05 ms for
    1.47 at B4 T4096 H64 K=V=128; its key gradients 0.77 for 1.33 at B8 T2048 H4 K256 V512.)
    """
    twice = kernel.runs_twice and kernel.name not in (BOTH, BEYOND, *KEPT_KERNELS)  # which have one run
    return twice and not kernel.scans and all({*kernel.owned} <= {*store.axes} for store in kernel.stores)


def names_of(kernel: Kernel) -> tuple[str, ...]:
    """By which names a table may have configurations of a kernel."""
    more = (
        (CROWDED, may_be_crowded(kernel)),
        (STRONG, differs(kernel)),
        (IN_HALVES, kernel.may_halve),
    )
    return (kernel.name, *(f"{kernel.name}{suffix}" for suffix, may in more if may))


def _is_of_one(line: Assign, functions: set[str]) -> bool:
    """Where gates are mild."""
    expr = line.expr if line.mild is None else line.mild
    used = {x.function for x in walk(expr) if isinstance(x, Apply)}
    return len(_tiles_read(expr)) == 1 and used <= functions


def _tiles_read(expr: Expr) -> set[str]:
    return {r.name for r in refs(expr) if len(r.indices) == 2}


def chunk_tiles(owned: tuple[str, ...], gated: frozenset[str], gradients: bool) -> Tiles:
    """Of a kernel that takes chunk by chunk: gradients along an axis with gates of its own hold half as much of it."""
    half = {axis for axis in owned if gradients and axis in gated}
    wide = (64 if "i" in half else WIDE, 64 if "j" in half else WIDE)
    return Tiles(wide, (64, 64), (32, 32), warps=4, stages=1)
