"""Intermediate names: each replaced by what it stands for."""

from __future__ import annotations

from glagen.check.constants import MAX_BITS, bits, fold
from glagen.check.names import Scope
from glagen.check.report import Report
from glagen.ir.expr import Expr, Ref, children, refs, rewrite

MAX_NODES = 5_000
MAX_DEPTH = 120  # a little more than one expression may have by itself: later passes recurse


def substitute(scope: Scope, report: Report) -> dict[str, Expr]:
    """The right sides of the state's equation and of the outputs', in terms of inputs and states alone.

    Requires: names resolved, in an order of dependence. Ensures: no equation that rests on a broken one is left, and
    expressions are of bounded size and depth.
    """
    bodies: dict[str, Expr] = {}
    measures: dict[str, tuple[int, int]] = {}
    for name in scope.order:
        equation = scope.equations[name]
        used = [ref.name for ref in refs(equation.body) if ref.name in scope.equations and ref.name not in scope.states]
        if name in report.broken or any(other in report.broken for other in used):
            report.broken.add(name)
            continue
        measures[name] = _measure(equation.body, measures)
        excess = _excess(*measures[name])
        if not excess:
            bodies[name] = fold(_written_out(equation.body, {other: bodies[other] for other in used}))
            excess = "too long constants" if bits(bodies[name]) > MAX_BITS else ""
        if excess:
            message = f"`{name}`, with its intermediate names written out, has {excess}"
            report.fault(message, equation.span, "pass some of it as an input, computed outside the op", name)
    return {name: body for name, body in bodies.items() if name in scope.states or name in scope.outputs}


def _written_out(expr: Expr, bodies: dict[str, Expr]) -> Expr:
    return rewrite(expr, lambda node: bodies.get(node.name) if isinstance(node, Ref) else None)


def _excess(nodes: int, depth: int) -> str:
    """What an expression of this size has too much of, if anything."""
    if nodes > MAX_NODES:
        return f"{nodes:,} terms and operators; at most {MAX_NODES:,} are allowed"
    return f"{depth} levels; at most {MAX_DEPTH} are allowed" if depth > MAX_DEPTH else ""


def _measure(expr: Expr, measures: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """How many nodes, and how many levels of them, an expression has once its names are written out."""
    if isinstance(expr, Ref):
        return measures.get(expr.name, (1, 1))
    parts = [_measure(child, measures) for child in children(expr)]
    return 1 + sum(nodes for nodes, _ in parts), 1 + max((depth for _, depth in parts), default=0)
