"""Running maxima: states without axes."""

from __future__ import annotations

from collections.abc import Iterator

from glagen.algebra import terms
from glagen.ir.expr import Apply, Expr, Ref, apply, plus, refs


def find_maximum(name: str, body: Expr) -> tuple[Expr, Expr] | None:
    """rise and floor of m_t = max(m_{t-1} + rise_t, floor_t), where `body` is that of the state `name`; else None."""
    rises: list[Expr] = []
    floors: list[Expr] = []
    for x in _arguments_of_max(body):
        parts = terms(x)
        own = [p for p in parts if isinstance(p, Ref) and p.name == name]
        rest = tuple(p for p in parts if p not in own)
        if len(own) > 1 or any(r.name == name for p in rest for r in refs(p)):
            return None
        (rises if own else floors).append(plus(*rest))
    return (_largest(rises), _largest(floors)) if rises and floors else None


def _arguments_of_max(expr: Expr) -> Iterator[Expr]:
    match expr:
        case Apply(function="max", args=args):
            for x in args:
                yield from _arguments_of_max(x)
        case _:
            yield expr


def _largest(exprs: list[Expr]) -> Expr:
    largest = exprs[0]
    for x in exprs[1:]:
        largest = apply("max", largest, x)
    return largest
