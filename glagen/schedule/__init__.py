"""ChunkProgram -> kernels: covers, what stays on chip, what is saved and what is recomputed."""

from __future__ import annotations

from glagen.schedule.plan import schedule

__all__ = ["schedule"]
