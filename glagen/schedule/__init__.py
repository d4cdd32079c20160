"""ChunkProgram -> kernels: covers, what stays on chip, what is saved and what is recomputed."""

from __future__ import annotations

from glagen.ir.chunk import ChunkProgram
from glagen.ir.schedule import Options, Schedule
from glagen.schedule.plan import schedule

__all__ = ["ChunkProgram", "Options", "Schedule", "schedule"]
