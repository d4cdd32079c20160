"""Tiles of tensors that lie as dots read them.

While one chunk is worked on, Triton copies the tiles of later ones to shared memory, unless a dot's left operand would
have to be transposed on its way from there: such a tile waits in registers, and the loop for it. The right operand may
lie either way. (H200, Triton 3.6.0, bf16, no gates: walks of B1 T4096 H8 K=V=128 take 0.03 ms instead of 0.05; forwards
on chip of B32 T2048 H16 K=V=64, three chunks at a time, 0.15 instead of 0.19.)
"""

from __future__ import annotations

from collections.abc import Iterable

from glagen.ir.expr import refs
from glagen.ir.kernel import Assign, Dot, Line, Load, Scan, Store, read, written
from glagen.schedule.turn import flipped


def as_read(
    loads: list[Load], lines: list[Line], scans: tuple[Scan, ...], stores: Iterable[Store]
) -> tuple[list[Line], tuple[Scan, ...]]:
    """The loads and lines, with tiles of tensors, and what is computed of such element by element, transposed where
    that spares dots from transposing them."""
    everything: list[Line] = [*loads, *lines]
    names = {
        name
        for group in _groups(everything)
        if _is_of_tensors(group, everything) and _had_better_be_transposed(group, everything, scans, stores)
        for name in group
    }
    return flipped(everything, scans, names)


def _groups(lines: list[Line]) -> list[set[str]]:
    """Tiles of two axes that have to lie alike."""
    groups: list[set[str]] = []
    for line in lines:
        alike = {line.name} if isinstance(line, Load | Assign) and len(line.axes) == 2 else set[str]()
        if isinstance(line, Assign):
            alike |= {r.name for r in refs(line.expr) if len(r.indices) == 2}
        touched = [group for group in groups if group & alike]
        groups = [group for group in groups if group not in touched] + [alike.union(*touched)]
    return groups


def _is_of_tensors(group: set[str], lines: list[Line]) -> bool:
    """Is it made of tensors element by element, and of nothing else that has two axes?"""
    makers = [line for line in lines if group & set(written(line))]
    simple = all(isinstance(x, Load) or (isinstance(x, Assign) and not x.over and not x.accumulate) for x in makers)
    return simple and any(isinstance(x, Load) for x in makers) and group == {n for x in makers for n in written(x)}


def _had_better_be_transposed(
    group: set[str], lines: list[Line], scans: tuple[Scan, ...], stores: Iterable[Store]
) -> bool:
    """Do dots transpose these tiles, and would nothing have to if they were?"""
    fixed = {store.tile for store in stores} | {r.name for scan in scans for r in refs(scan.update)}
    dots = [dot for scan in scans for dot in scan.added]
    transposed = set[bool]()
    for line in (*lines, *dots):
        match line:
            case Dot(x=x, y=y):
                transposed |= {x.indices[0] in y.indices} if x.name in group else set()
            case _ if not group & set(written(line)):
                fixed |= set(read(line))
    return transposed == {True} and not group & fixed
