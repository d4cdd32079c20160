"""A spec as it was written: declarations and equations with their places, nothing interpreted yet."""

from __future__ import annotations

from dataclasses import dataclass

from glagen.errors import Source, Span
from glagen.ir.expr import Expr, Ref
from glagen.ir.interval import Interval

KINDS = ("input", "parameter", "constant", "scalar")
# Time, keys, slots and values, in the order in which they stand in subscripts, and their extents.
EXTENT = {"t": "T", "i": "K", "s": "S", "j": "V"}
AXES = tuple(EXTENT)
FEATURES = AXES[1:]


@dataclass(frozen=True, slots=True)
class Declaration:
    """One entry of `inputs:`.

    An input is [B, T, H, ...] in a call, a parameter or constant [H, ...], a scalar a Python number. (In the parts that
    a spec of several states is made of, there are constants with steps, too.)
    `default` (scalars) and `value` (constants) are expressions of K, V, H and the 0-based state head h.
    """

    name: str
    kind: str  # one of KINDS
    axes: tuple[str, ...]
    domain: Interval | None  # None: any finite number
    default: Expr | None  # what a call that omits it gets: `default:` of a scalar, `value:` of a constant
    doc: str
    span: Span

    @property
    def timed(self) -> bool:
        """Has it values of its own at each step?"""
        return "t" in self.axes

    @property
    def differentiable(self) -> bool:
        return self.kind in ("input", "parameter")


@dataclass(frozen=True, slots=True)
class StateDeclaration:
    """`state: S[i, j]`."""

    name: str
    axes: tuple[str, ...]
    span: Span

    @property
    def key(self) -> str | None:
        """The axis that a read sums over: the first, unless it is j alone."""
        return None if self.axes in ((), ("j",)) else self.axes[0]

    @property
    def value(self) -> str | None:
        """The axis that what is read has."""
        return self.axes[-1] if len(self.axes) == 2 or (self.key is None and self.axes) else None


@dataclass(frozen=True, slots=True)
class Equation:
    """`target = body`; `text` as it was written."""

    target: Ref
    body: Expr
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed spec. `chunk` and `subchunk` are None for `auto` (also when left out)."""

    source: Source
    name: str
    doc: str
    declarations: tuple[Declaration, ...]
    states: tuple[StateDeclaration, ...]
    equations: tuple[Equation, ...]
    chunk: int | None
    subchunk: int | None
    chunk_span: Span | None = None
    subchunk_span: Span | None = None
