"""Configurations that are worth trying for a kernel; and those that have kernels share work, as the rule would."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from glagen.bench import Workload
from glagen.ir.kernel import Kernel
from glagen.ir.schedule import Schedule
from glagen.ir.tuned import (
    BEYOND,
    GIVEN,
    GIVEN_KERNELS,
    HALVED,
    IN_HALVES,
    KEPT_BACK,
    KEPT_BY_KEYS,
    OF_KEPT,
    OPERANDS,
    SHARED,
    SHARING,
    Heads,
    Tuned,
    merged,
    power,
)
from glagen.schedule.mirrored import walk_alone
from glagen.schedule.tiles import ALONE_TILES, HALVED_TILES, WIDE, gated_sides

DTYPE = torch.bfloat16
COLUMNS = (32, 64, 128, 256, 512)  # in a tile: few for more programs, many for less done again in each of them
WARPS = (1, 2, 4, 8)
# Stages, and chunks in turn (loads of the next need a second stage), of kernels that take a chunk, and of walks; then
# those that are tried with the best of these, for some percents more.
TURNS, WALKING = ((1, 1), (2, 8), (3, 8)), ((2, 1), (3, 1))
MORE_TURNS, MORE_WALKING = ((2, 1), (3, 1), (1, 8), (2, 4), (2, 16), (3, 16), (4, 8)), ((1, 1), (4, 1))
FEWEST, MOST = 2, 128  # numbers of a tile that a thread holds

Table = tuple[Tuned, ...]


def tile(kernel: Kernel, workload: Workload) -> tuple[int, int]:
    """Columns of K and V in a tile, by the rule."""
    K, V = kernel.tiles.bfloat16
    return min(K, power(workload.K)), min(V, power(workload.V))


def candidates(planned: Schedule, kernel: Kernel, workload: Workload, device: torch.device) -> Table:
    """Configurations worth trying: tiles no wider than the heads, which threads can hold. They have no times yet."""
    like = configuration(planned, called(kernel), workload, device)
    if kernel.name == BEYOND:  # which has no other run
        like = replace(like, workload=where_strong(workload))
    keys, values = (sorted({min(size, extent) for size in COLUMNS}) for extent in (like.K, like.V))
    found = itertools.product(
        [like.K] if "i" in kernel.whole else keys,
        [like.V] if "j" in kernel.whole else values if "j" in (*kernel.owned, kernel.looped) else values[:1],
        WARPS,
        WALKING if kernel.scans else TURNS,
    )
    return tuple(
        replace(like, block_K=key, block_V=value, warps=warps, stages=stages, run=run)
        for key, value, warps, (stages, run) in found
        if FEWEST <= key * value / (32 * warps) <= MOST
    )


def where_strong(workload: Workload) -> str:
    """What a run for strong gates was measured in."""
    return f"{workload}, strong gates"


def called(kernel: Kernel) -> str:
    """By which name a kernel is configured where nothing is strong."""
    return f"{kernel.name}{IN_HALVES}" if kernel.may_halve else kernel.name


def turned(kernel: Kernel, best: Tuned) -> Table:
    """The same tile with other stages, or other numbers of chunks in turn, than candidates have."""
    more = MORE_WALKING if kernel.scans else MORE_TURNS
    return tuple(replace(best, stages=stages, run=run, rule=0.0, measured=0.0) for stages, run in more)


def scores_apart(planned: Schedule, workload: Workload, device: torch.device) -> Tuned:
    """What has a kernel of their own make the scores, as the rule would."""
    return replace(configuration(planned, "scores", workload, device), block_K=64, block_V=16)


def operands_shared(planned: Schedule, workload: Workload, device: torch.device) -> Table:
    """What has kernels of the backward be given what two others make once for all of them, as the rule would."""
    like = replace(configuration(planned, "", workload, device), block_K=32, block_V=32)
    return tuple(replace(like, kernel=name) for name in (*SHARED, *SHARING))


def forward_shared(planned: Schedule, workload: Workload, device: torch.device) -> Table:
    """What has a forward on chip be given what one of these makes of keys, as well, as the rule would."""
    rows = operands_shared(planned, workload, device)
    walk = replace(rows[0], kernel=GIVEN, block_K=rows[0].K, block_V=64, stages=2)
    return merged(rows, [replace(rows[0], kernel=OPERANDS), walk])


def reads_kept(planned: Schedule, workload: Workload, device: torch.device) -> Table:
    """What has others keep what gradients of values read of states, as the rule would."""
    like = configuration(planned, "", workload, device)
    back, keys = (replace(like, kernel=name, block_V=min(like.V, 64)) for name in (KEPT_BACK, KEPT_BY_KEYS))
    return back, replace(keys, warps=8), replace(like, kernel=OF_KEPT, block_V=min(like.V, 64))


def all_gradients(planned: Schedule, name: str, workload: Workload, device: torch.device) -> Tuned:
    """What has one kernel make all gradients, as the rule would: along sequences, or of chunks, by name."""
    like = configuration(planned, name, workload, device)
    return replace(like, warps=ALONE_TILES.warps, stages=ALONE_TILES.stages)


def walks_given(planned: Schedule, workload: Workload, device: torch.device) -> Table:
    """What has walks on chip be given their operands, as the rule would; where there are gates, also chunks of twice as
    many steps, with scores made apart and a walk for their states."""
    chunk = planned.chunk * (2 if planned.program.gates else 1)
    like = replace(scores_apart(planned, workload, device), chunk=chunk)
    walk = replace(like, kernel="states", block_V=min(WIDE, like.V), stages=3)
    stages = 2 if like.K <= WIDE else 1  # wider ones have no room for two (see emit/loads.py)
    on_chip = [replace(like, kernel=name, block_K=like.K, block_V=64, stages=stages) for name in GIVEN_KERNELS]
    return merged(on_chip, [like, walk] if chunk > planned.chunk else [])


def given_by_halves(planned: Schedule, workload: Workload, device: torch.device) -> Table:
    """What has walks on chip take chunks of twice as many steps by halves, given scores or not, as the rule would."""
    like = scores_apart(planned, workload, device)
    own = replace(like, kernel="fused", block_K=like.K)
    rows = (like, own, *walks_given(planned, workload, device))
    return tuple(replace(x, kernel=f"{x.kernel}{IN_HALVES}", chunk=2 * planned.chunk) for x in rows)


def by_half_chunks(planned: Schedule, workload: Workload, device: torch.device) -> Table:
    """What has one kernel make all gradients, walking back in chunks of twice as many steps, which the forward on chip
    takes by halves, as the rule would."""
    like = configuration(planned, f"fused{IN_HALVES}", workload, device)
    like = replace(like, chunk=2 * planned.chunk, stages=3)
    return like, replace(like, kernel=walk_alone(planned.program), stages=ALONE_TILES.stages)


def by_halves(planned: Schedule, workload: Workload, device: torch.device) -> Tuned:
    """What has a forward take chunks by halves, as the rule would."""
    like, tiles = configuration(planned, HALVED, workload, device), HALVED_TILES
    return replace(like, block_V=min(like.V, tiles.bfloat16[1]), warps=tiles.warps, stages=tiles.stages)


def configuration(planned: Schedule, kernel: str, workload: Workload, device: torch.device) -> Tuned:
    """One of a kernel, for heads like those of a workload, by nobody measured."""
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
    heads: Heads = (major, str(DTYPE).removeprefix("torch."), power(workload.K), power(workload.V))
    chunk = planned.chunk * (2 if heads in planned.doubled else 1)
    architecture, dtype, K, V = heads
    like = {"architecture": architecture, "gates": gated_sides(planned.program), "chunk": chunk, "kernel": kernel}
    place = {"workload": str(workload), "device": _described(device)}
    whole = {"block_K": K, "block_V": V, "warps": 4, "stages": 1, "run": 1}
    return Tuned(**like, dtype=dtype, K=K, V=V, **whole, rule=0.0, measured=0.0, **place)  # type: ignore[arg-type]


def _described(device: torch.device) -> str:
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return f"{name}, torch {torch.__version__}, Triton {triton.__version__}"
