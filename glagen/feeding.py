"""What feeds gates, states and divisors, read off a document's equations as they are written.

`check` finds the same and more; what verifies a module must not take its word.
"""

from __future__ import annotations

from glagen.ir.document import Document
from glagen.ir.expr import Apply, Expr, Ref, number, refs, rewrite, walk

POLES = ("div", "pow", "log", "sqrt")


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


def divides_by_a_read(document: Document) -> bool:
    """Is some argument of a function with a pole made of what is read of a state?"""
    bodies = {e.target.name: e.body for e in document.equations}
    states = {s.name for s in document.states}

    def reads(expr: Expr) -> bool:
        names = {r.name for r in refs(expr)}
        return bool(names & states) or any(reads(bodies[n]) for n in names & bodies.keys())

    return any(
        isinstance(node, Apply) and node.function in POLES and reads(node.args[1 if node.function == "div" else 0])
        for body in bodies.values()
        for node in walk(body)
    )


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
