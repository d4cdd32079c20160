"""Tile sizes by rule: how much of each feature axis a program holds, and with how many warps."""

from __future__ import annotations

from dataclasses import dataclass

from glagen.ir.kernel import Kernel

# A program that keeps the whole key axis on chip serves heads up to this width; wider ones take the materialised form.
WIDEST_FUSED = 128


@dataclass(frozen=True, slots=True)
class Tiles:
    """The most columns of the key and value axis in a tile: `wide` for 16-bit types, `narrow` for float32 and two warps."""

    wide: tuple[int, int]
    narrow: tuple[int, int]
    warps: int
    stages: int


def tiles(kernel: Kernel) -> Tiles:
    """Requires: a kernel of schedule/plan.py. The sizes fit shared memory of sm_80 and up (tests compile them)."""
    if "i" in kernel.whole:
        return Tiles((WIDEST_FUSED, 32), (WIDEST_FUSED, 16), warps=4, stages=1)
    return Tiles((64, 64), (32, 32), warps=4, stages=2 if kernel.direction else 1)
