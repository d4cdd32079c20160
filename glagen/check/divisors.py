"""Divisors: what is read of which state divides, and may yet be a small sum of large terms.

A quotient is as far off as its divisor, relative to what that is, and a sum that cancels may be far off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from glagen.check.domains import Domains, interval_of
from glagen.check.linearity import product
from glagen.ir.expr import Apply, Expr, Number, refs, walk
from glagen.ir.recurrence import Read, State


def divisors(values: Mapping[str, Expr], outputs: Iterable[Expr]) -> frozenset[str]:
    """The names that any of these divides by, or takes the logarithm or a power of; by way of values too."""
    found: set[str] = set()
    waiting = [divisor for expr in (*values.values(), *outputs) for divisor in _divisors(expr)]
    while waiting:
        for r in refs(waiting.pop()):
            if r.name not in found:
                found.add(r.name)
                waiting += [values[r.name]] if r.name in values else []
    return frozenset(found)


def _divisors(expr: Expr) -> Iterator[Expr]:
    for node in walk(expr):
        match node:
            case Apply(function="div", args=(_, divisor)):
                yield divisor
            case Apply(function="log", args=(x,)):
                yield x
            case Apply(function="pow", args=(x, exponent)) if not _is_natural(exponent):
                yield x


def _is_natural(x: Expr) -> bool:
    return isinstance(x, Number) and x.value.denominator == 1 and x.value >= 0


def may_cancel(read: Read, state: State, domains: Domains) -> bool:
    """May what a read sums up differ in sign?"""
    terms = [interval_of(product((read.query, w.key, w.value)), domains) for w in state.writes]
    return any(term.low < 0.0 for term in terms) and any(term.high > 0.0 for term in terms)
