"""Small words for tiles, and the workspace in which statements become lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from glagen.ir.chunk import ChunkProgram, Operand, Statement
from glagen.ir.expr import Expr, Ref, apply, ref
from glagen.ir.kernel import Line
from glagen.schedule.covers import Cover


def tile(name: str, *axes: str) -> Ref:
    return ref(name, axes)


def keep(mask: str, x: Expr, *axes: str) -> Expr:
    """x where the mask holds, else 0. A mask's name begins with %, as no name of a spec can."""
    return apply("keep", tile(f"%{mask}", *axes), x)


def choose(mask: str, x: Expr, y: Expr, *axes: str) -> Expr:
    """x where the mask holds, else y."""
    return apply("keep", tile(f"%{mask}", *axes), x, y)


def natural(operand: Operand) -> Ref:
    """The tile of an operand: rows are called t unless there are two."""
    axes = operand.indices
    return tile(operand.name, *(axes if {"t", "s"} <= set(axes) else ("t" if x == "s" else x for x in axes)))


def matrix(name: str, transposed: bool) -> Ref:
    """The tile of a [t, s] matrix; transposed it is [s, t], and called name_T."""
    return tile(f"{name}_T", "s", "t") if transposed else tile(name, "t", "s")


def axes_of(x: Ref) -> tuple[str, ...]:
    return tuple(index.axis for index in x.indices)


def paths_from_start(gate: str, select: str) -> str:
    """The name of what a chunk anchored at its start leaves for the sum over these rows."""
    return f"{gate}_paths_{select}_start"


@dataclass(frozen=True, slots=True)
class Crossed:
    """A product within the chunk that feeds a gate's gradient: part times `partner` goes to the tile `bucket`."""

    partner: Operand
    bucket: str


@dataclass(slots=True)
class Workspace:
    """The lines of one kernel (or of the PyTorch form), as they grow."""

    program: ChunkProgram
    covers: dict[str, Cover]  # by gate, vector gates only
    looped: str | None  # feature axis in blocks: sums over it accumulate
    statements: tuple[Statement, ...]
    lines: list[Line] = field(default_factory=list)
    updates: dict[str, Expr] = field(default_factory=dict)  # carried states: what they become
    known: dict[object, str] = field(default_factory=dict)
    named: dict[str, object] = field(default_factory=dict)
    _transposed: set[str] = field(default_factory=set)
    _upright: set[str] = field(default_factory=set)
    crossed: dict[str, Crossed] = field(default_factory=dict)  # by the part that carries a gate's gradient
    crossing_tiles: set[str] = field(default_factory=set)  # buckets, and paths from the chunk's start, that there are
    turned: bool = False  # what dots make with value columns is to have those first (see turn.py)
    by_columns: bool = False  # tiles with value columns are smaller: a program has a block of those, and all of keys
    causal: bool = False  # no bit of what a row reads may depend on later rows
    alike: set[str] = field(default_factory=set)  # products of one matrix, which is to be rounded in one way for all
    by_rows: bool = False  # gradients of gates may be differences of sums over all paths of a row (see crossings.py)

    def emit(self, *lines: Line) -> None:
        self.lines.extend(lines)

    def matrix(self, name: str) -> Ref:
        """The tile of a [t, s] matrix, which is transposed where it is only used that way round."""
        return matrix(name, name in self._transposed)

    def unique(self, key: object, base: str) -> str:
        """The name that stands for `key`: `base`, or longer where that stands for something else."""
        while self.named.setdefault(base, key) != key:
            base += "_"
        return base
