"""What feeds gates, states and divisors, read off a document's equations as they are written.

`check` finds the same and more; what verifies a module must not take its word.
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.document import Document, Equation
from glagen.ir.expr import Apply, Expr, Number, Ref, Sum, apply, free_axes, number, ref, refs, rewrite, walk

FINE = {"t", "j"}  # axes that a sum may have left


def gate_factors(document: Document) -> tuple[Expr, ...]:
    """The factors of S[t-1] in the equation of S[t], intermediate names replaced by what they stand for."""
    states = {s.name for s in document.states}
    bodies = {e.target.name: e.body for e in document.equations}

    def inline(node: Expr) -> Expr | None:
        if isinstance(node, Ref) and node.name in bodies and node.name not in states:
            return rewrite(bodies[node.name], inline)
        return None

    found = [f for name in bodies if name in states for f in _factors(rewrite(bodies[name], inline), name)]
    return tuple(dict.fromkeys(found))


def writers(document: Document) -> set[str]:
    """The declared names that the equations of a state come to, through intermediate names."""
    bodies = {e.target.name: e.body for e in document.equations}
    states = {s.name for s in document.states}
    found: set[str] = set()
    waiting = [n for n in bodies if n in states]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in bodies:
            waiting += [r.name for node in walk(bodies[name]) for r in refs(node)]
    return found


def cancellation(document: Document) -> Document | None:
    """A document whose outputs [t, j] tell what is left of a sum over what is read of a state, where it is divided by:
    the sum's square over the sum of squares, an output for each such sum. None if there is none.
    """
    bodies = {e.target.name: e.body for e in document.equations}
    states = {s.name for s in document.states}
    local = bodies.keys() - states

    def inline(node: Expr) -> Expr | None:
        return rewrite(bodies[node.name], inline) if isinstance(node, Ref) and node.name in local else None

    nodes = [node for body in bodies.values() for node in walk(rewrite(body, inline))]
    below = [n for pole in map(_pole, nodes) if pole is not None for n in walk(pole)]
    sums = [n for n in below if isinstance(n, Sum) and any(r.name in states for r in refs(n)) and free_axes(n) <= FINE]
    left: list[Equation] = []
    for x in dict.fromkeys(sums):
        share = apply("div", apply("mul", x, x), Sum(x.axis, apply("mul", x.body, x.body)))
        left.append(Equation(ref(f"left of sum {len(left)}", ("t", "j")), share, "", document.equations[0].span))
    if not left:
        return None
    needed = {r.name for e in left for r in refs(e.body)}
    while more := {r.name for n in needed & bodies.keys() for r in refs(bodies[n])} - needed:
        needed |= more
    return replace(
        document,
        states=tuple(s for s in document.states if s.name in needed),
        equations=(*(e for e in document.equations if e.target.name in needed), *left),
    )


def _pole(expr: Expr) -> Expr | None:
    """What must not be zero for an expression to be smooth, if anything."""
    match expr:
        case Apply(function="div", args=(_, y)):
            return y
        case Apply(function="pow", args=(x, Number(value=p))) if p.denominator > 1 or p < 0:
            return x
        case Apply(function="log" | "sqrt", args=(x,)):
            return x
        case _:
            return None


def _factors(expr: Expr, state: str) -> list[Expr]:
    def holds(node: Expr) -> bool:
        return any(isinstance(n, Ref) and n.name == state for n in walk(node))

    match expr:
        case Apply(function="mul", args=(x, y)):
            if not holds(expr):
                return []
            first, second = (_factors(a, state) if holds(a) else _single(a) for a in (x, y))
            return first + second
        case Apply(function="div", args=(x, y)):
            return [*_factors(x, state), Apply("div", (number(1), y))] if holds(x) else []
        case Apply(function="add" | "sub" | "neg", args=args):
            return [f for a in args for f in _factors(a, state)]
        case _:
            return []


def _single(expr: Expr) -> list[Expr]:
    """The factors of a product."""
    match expr:
        case Apply(function="mul", args=args):
            return [f for a in args for f in _single(a)]
        case _:
            return [expr]
