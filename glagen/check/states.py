"""States that depend on others: which is computed first."""

from __future__ import annotations

from collections.abc import Mapping

from glagen.check.report import Report
from glagen.ir.document import Document
from glagen.ir.expr import Expr, refs


def states_in_order(document: Document, bodies: Mapping[str, Expr], report: Report) -> list[str]:
    """States, each after those it depends on. Where some depend on each other: none, and that is reported."""
    names = [s.name for s in document.states if s.name in bodies]
    others = {n: [r for r in refs(bodies[n]) if r.name in names and r.name != n] for n in names}
    order: list[str] = []
    while len(order) < len(names):
        ready = [n for n in names if n not in order and all(r.name in order for r in others[n])]
        if not ready:
            name = next(n for n in names if n not in order)
            other = next(r for r in others[name] if r.name not in order)
            helped = "a state may depend on states that do not depend on it: each is computed whole before the next"
            message = f"states `{name}` and `{other.name}` depend on each other"
            report.fault(message, other.span, helped, name)
            return []
        order += ready
    return order
