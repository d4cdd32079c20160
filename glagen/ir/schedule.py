"""A schedule, or those of several parts: everything the printers need. And the options of a compilation."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from glagen.ir.chunk import ChunkProgram, GateInfo
from glagen.ir.kernel import Kernel, Line, Scan
from glagen.ir.recurrence import Composite
from glagen.ir.tuned import Heads, Tuned

COVERS = ("auto", "anchored", "guarded", "subchunk", "bisect")


# In nats: how far growths reach at most, beside 16-bit inputs (see schedule/shift.py); and by how much less walks judge
# (see ir.kernel.Judge), so that sums of other roundings do not find a row strong in a chunk that is not.
FARTHEST, SLACK = Fraction(126), Fraction(1, 64)
SHIFT = 92  # the power of two that decays have more, and growths less, in runs that reach so far

# In nats: what a step's log gate is at least. The exponential of LOWEST is 0 in float32, so nothing changes but that
# -inf stays finite. Under guarded covers, beside 16-bit inputs, it is CLOSED: such a step leaves 1.4e-7 of what was
# before, where their digits end at 2e-3 (bfloat16) or 2e-4 (float16), and growths reach over any EIGHT rows.
EIGHT = 8
LOWEST, CLOSED = -128, -FARTHEST / EIGHT


def may_close(gates: tuple[GateInfo, ...]) -> bool:
    """May gates, under guarded covers beside 16-bit inputs, count as more than they are (see CLOSED)? Not if gradients
    are divided by one: next to nothing may be much then."""
    return not any(gate.steep for gate in gates)


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose. `cover`: one of COVERS, for every vector gate (see schedule/covers.py).

    `tuned`: configurations that were measured, in the place of the rule's (schedule/tiles.py); None: those that glagen
    comes with.
    """

    cover: str = "auto"
    tuned: tuple[Tuned, ...] | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """An exponential of a sum of gates in the emitted code, with its worst exponent and why it is finite.

    `worst` is in nats; `where` names the factor and the values it multiplies.
    """

    where: str
    interval: str
    worst: float
    reason: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Kernels by role, the PyTorch form's lines, the covers chosen and the stability certificate."""

    program: ChunkProgram
    chunk: int
    covers: tuple[tuple[str, str], ...]  # gate, cover as text
    kernels: tuple[Kernel, ...]
    twin_forward: tuple[Line | Scan, ...]
    twin_backward: tuple[Line | Scan, ...]
    certificate: tuple[Growth, ...]
    # The kernels that keep the state on chip, or its gradient, and are faster than those that do not; where they store
    # it for each chunk as well, for keys of up to so many columns.
    faster_fused: tuple[tuple[str, int], ...]
    fused_by_rule: int  # for more columns than these only in tiles that were measured
    fused_by_few: bool  # they are if programs occupy two thirds of a GPU; else they have to occupy all of it
    fused_by_wgmma: bool  # they are where GPUs have that, which is Hopper
    from_shared: tuple[str, ...]  # the kernels whose dots of 64 rows or more have both operands in shared memory
    stored_by_tma: tuple[str, ...]  # the kernels that may have Hopper's TMA store chunk states (see emit/states.py)
    # Columns of keys times those of values in a tile that is small enough for a walk along what is strong, forward, on
    # chip, which stores no states, to do with half of the registers that threads may have; 0: in none.
    spared_tile: int
    exact_states: bool  # chunk states stay in float32 and are made of float32, whatever dots read them in
    tuned: tuple[Tuned, ...]  # those of its kernels
    doubled: tuple[Heads, ...]  # heads whose chunks have twice as many steps, as was measured to be faster
    by_tiles: tuple[str, ...]  # the kernels whose outputs depend, in the last bits, on the columns in a tile
    # If the first argument's gradient is a forward of other tensors: arguments, and what is in their place there.
    mirrored: tuple[tuple[str, str], ...]

    @property
    def widest_fused(self) -> str:
        """Keys of how many columns a program keeps on chip whole, in words."""
        tiles = next(k.tiles for k in self.kernels if k.whole)
        wide, other = tiles.bfloat16[0], max(tiles.float16[0], tiles.float32[0])
        part = bool(self.program.recurrence.part_of)
        return f"{other}" if part or wide == other else f"{wide} in bfloat16, else {other}"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The schedules of a composite's parts, in order."""

    composite: Composite
    parts: tuple[Schedule, ...]


def schedules(planned: Schedule | Ensemble) -> tuple[Schedule, ...]:
    """That of a recurrence, or those of a composite's parts."""
    return planned.parts if isinstance(planned, Ensemble) else (planned,)
