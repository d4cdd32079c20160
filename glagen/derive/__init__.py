"""Recurrence -> ChunkProgram: the chunkwise forward by unrolling, the backward as its adjoint."""

from __future__ import annotations

from glagen.derive.adjoint import adjoint
from glagen.derive.chunkwise import chunkwise
from glagen.ir.chunk import ChunkProgram
from glagen.ir.recurrence import Recurrence


def derive(recurrence: Recurrence) -> ChunkProgram:
    """Requires: a checked recurrence. Ensures: every exponential of gates is a Decay over a forward interval."""
    return adjoint(chunkwise(recurrence))


__all__ = ["derive"]
