"""Sums over an axis of which a program has one block: whole from memory, or parts that are added up afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from glagen.errors import InternalError
from glagen.ir.chunk import ChunkProgram, Map, Operand
from glagen.ir.expr import Apply, Expr, Ref, refs
from glagen.ir.kernel import Assign, Blocks, Depth, Dot, Line, Load, Loop, RowSum, Store, lines_of


def local_sums(program: ChunkProgram) -> dict[str, tuple[str, Operand]]:
    """Values of one step that are sums of what comes from memory, with the axis they are over, in program order: a
    kernel of their own can make them."""
    given = {d.name for d in program.recurrence.declarations} | set(program.cotangents)
    found: dict[str, tuple[str, Operand]] = {}
    for statement in (*program.forward, *program.backward):
        if isinstance(statement, Map) and {r.name for r in refs(statement.expr)} <= given:
            if statement.over:
                if statement.out.indices != ("t",) or len(statement.over) > 1:
                    continue
                found[statement.out.name] = (statement.over[0], statement.out)
            given.add(statement.out.name)
    return found


def require_whole(body: Iterable[Line | Loop], stores: Iterable[Store], axis: str) -> None:
    """Raise InternalError where a program that has one block of `axis` takes its part of a sum for the whole.

    A part may be used linearly, so that what is stored is a part as well, and is stored without the axis.
    """
    parts: set[str] = set()
    for item in body:
        for line in lines_of(item):
            for inner in line.body if isinstance(line, Blocks) else (line,):
                if _is_part(inner, axis, parts):
                    parts.add(inner.name)
                elif inner.name in parts:
                    raise InternalError(f"{inner.name} adds a whole to a part of a sum over {axis}")
    for store in stores:
        if (store.tile in parts) == (axis in store.axes):
            raise InternalError(f"{store.target} is stored from {store.tile}, a part of a sum over {axis} or not")


def _is_part(line: Line, axis: str, parts: set[str]) -> bool:
    match line:
        case Load() | Depth():
            return False
        case Assign(expr=expr, over=over):
            return _linear(expr, parts, line.name) or axis in over
        case Dot(x=x, y=y):
            if x.name in parts and y.name in parts:
                raise InternalError(f"{line.name} multiplies two parts of sums over {axis}")
            return bool({x.name, y.name} & parts) or (axis in x.indices and axis in y.indices)
        case RowSum(source=source):
            return source.name in parts
        case _:
            raise InternalError(f"unknown line {line!r}")


def _linear(expr: Expr, parts: set[str], name: str) -> bool:
    """Is the expression a part of a sum? It must then be linear in parts."""
    match expr:
        case Ref():
            return expr.name in parts
        case Apply(function="add" | "sub", args=(x, y)):
            both = _linear(x, parts, name), _linear(y, parts, name)
            if both[0] != both[1]:
                raise InternalError(f"{name} adds a part of a sum and a whole")
            return both[0]
        case Apply(function="neg" | "keep", args=args):
            return _linear(args[-1], parts, name)
        case Apply(function="mul", args=(x, y)):
            both = _linear(x, parts, name), _linear(y, parts, name)
            if all(both):
                raise InternalError(f"{name} multiplies two parts of sums")
            return any(both)
        case Apply(function="div", args=(x, y)) if not _linear(y, parts, name):
            return _linear(x, parts, name)
        case Apply(args=args) if any(r.name in parts for a in args for r in refs(a)):
            raise InternalError(f"{name} is not linear in a part of a sum")
        case _:
            return False
