"""Tile sizes by rule: how much of each feature axis a program holds, and with how many warps.

Measured on an H200 (Triton 3.6.0, bf16, gla, B4 T4096 H64 K=V=128): chunks of 32 with these tiles take 5.95 ms forward
and 17.3 ms with backward; chunks of 64 took 5.26 and 26.5 ms on wgmma (with an assembler that gets it right), 24.6 and
77.2 ms on two warps without it.
"""

from __future__ import annotations

from glagen.ir.kernel import Tiles

# Steps a chunk, where a spec does not say.
DEFAULT_CHUNK = 32
# A program that keeps the whole key axis on chip serves heads up to this width; wider ones take the materialised form.
WIDEST_FUSED = 128


def tiles(scans: bool, whole: bool) -> Tiles:
    """The sizes fit shared memory of sm_80 and up (tests compile them)."""
    if whole:
        return Tiles((WIDEST_FUSED, 32), (WIDEST_FUSED, 16), warps=4, stages=1)
    if scans:
        return Tiles((32, 64), (32, 32), warps=4, stages=2)
    return Tiles((64, 64), (32, 32), warps=4, stages=1)
