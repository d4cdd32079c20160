"""What a state is to take in the next turn of a walk (see schedule/wait.py): what it goes by until then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glagen.ir.expr import refs, renamed
from glagen.ir.kernel import Dot, Scan

SUFFIX = "_waiting"


@dataclass(frozen=True, slots=True)
class Carried:
    """A tile from one turn to the next: `name` is what was `made`. `kept`: the type that a dot reads it in, "" for a
    factor. Before the first turn it is one that changes nothing: 0 of a dot, as a factor 1."""

    name: str
    made: str
    axes: tuple[str, ...]
    kept: str


def carried(scan: Scan) -> list[Carried]:
    """What a state that waits takes."""
    operands = [(x, "WIDE" if dot.wide else "DOT") for dot in scan.added for x in (dot.x, dot.y)]
    factors = [r for r in refs(scan.update) if r.name != scan.tile] + ([] if scan.late is None else [scan.late])
    found = [Carried(x.name + SUFFIX, x.name, x.indices, kept) for x, kept in operands]
    found += [Carried(r.name + SUFFIX, r.name, tuple(index.axis for index in r.indices), "") for r in factors]
    return list({x.name: x for x in found}.values())


def of_waiting(scan: Scan) -> Scan:
    """The same state, which takes that by the names that it waits by."""
    names = {x.made: x.name for x in carried(scan)}

    def dot(x: Dot) -> Dot:
        return replace(x, x=replace(x.x, name=names[x.x.name]), y=replace(x.y, name=names[x.y.name]))

    late = scan.late if scan.late is None else replace(scan.late, name=names[scan.late.name])
    return replace(scan, update=renamed(scan.update, names), added=tuple(map(dot, scan.added)), late=late)
