"""What a state is to take in the next turn of a walk (see schedule/wait.py): what it goes by until then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glagen.ir.chunk import Operand
from glagen.ir.expr import Expr, Ref, ref, refs, rewrite
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
    found = [Carried(x.name + SUFFIX, x.name, x.indices, kept) for x, kept in operands]
    for r in _factors(scan):
        found.append(Carried(r.name + SUFFIX, r.name, tuple(index.axis for index in r.indices), ""))
    return list({x.name: x for x in found}.values())


def of_waiting(scan: Scan) -> Scan:
    """The same state, which takes that by the names that it waits by."""
    names = {r.name for r in _factors(scan)}

    def leaf(x: Expr) -> Expr | None:
        if isinstance(x, Ref) and x.name in names:
            return ref(x.name + SUFFIX, tuple(index.axis for index in x.indices))
        return None

    late = scan.late if scan.late is None else rewrite(scan.late, leaf)
    assert late is None or isinstance(late, Ref)
    return replace(scan, update=rewrite(scan.update, leaf), added=tuple(map(_dot, scan.added)), late=late)


def _factors(scan: Scan) -> list[Ref]:
    found = [r for r in refs(scan.update) if r.name != scan.tile]
    return found if scan.late is None else [*found, scan.late]


def _dot(dot: Dot) -> Dot:
    return replace(dot, x=_operand(dot.x), y=_operand(dot.y))


def _operand(operand: Operand) -> Operand:
    return replace(operand, name=operand.name + SUFFIX)
