"""Symbolic algebra on pointwise expressions: the only door to sympy, shared by check and derive.

Stable rewriting is structural (a rule table on our own nodes, so that what no rule touches stays as it was written);
expansion, factoring and differentiation are sympy's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy

from glagen.errors import InternalError
from glagen.ir.expr import Along, Apply, Expr, Number, Ref, apply, number, plus, refs, times, walk

ONE = number(1)


# -- stable forms ------------------------------------------------------------------------------------------------------


def stable(expr: Expr) -> Expr:
    """The same function in a form that neither overflows nor cancels.

    log(sigmoid(x)) -> logsigmoid(x), 1 - sigmoid(x) -> sigmoid(-x), 1 - exp(x) -> -expm1(x),
    log(1 + exp(x)) -> softplus(x), log(exp(x)) -> x, x + y - max(x, z) -> min(y, x + y - z),
    log(x**p) -> p log(x) where the logarithm exists anyway.
    """
    match expr:
        case Apply(args=args):
            return _stable_node(replace(expr, args=tuple(stable(a) for a in args)))
        case Along(body=body):
            return replace(expr, body=stable(body))
        case _:
            return expr


def _stable_node(node: Apply) -> Expr:
    match node:
        case Apply(function="sub", args=(one, Apply(function="sigmoid", args=(x,)))) if one == ONE:
            return stable(apply("sigmoid", negated(x)))
        case Apply(function="sub", args=(one, Apply(function="exp", args=(x,)))) if one == ONE:
            return negated(apply("expm1", x))
        case Apply(function="sub", args=(Apply(function="exp", args=(x,)), one)) if one == ONE:
            return apply("expm1", x)
        case Apply(function="log", args=(Apply(function="exp", args=(x,)),)):
            return x
        case Apply(function="exp", args=(Apply(function="log", args=(x,)),)):
            return x
        case Apply(function="log", args=(Apply(function="sigmoid", args=(x,)),)):
            return apply("logsigmoid", x)
        case Apply(function="exp", args=(Apply(function="logsigmoid", args=(x,)),)):
            return apply("sigmoid", x)
        case Apply(function="log", args=(Apply(function="sqrt", args=(x,)),)):
            return apply("mul", number(Fraction(1, 2)), stable(apply("log", x)))
        case Apply(function="log", args=(Apply(function="pow", args=(x, Number(value=p))),)) if p.denominator > 1:
            return apply("mul", Number(p), stable(apply("log", x)))
        case Apply(function="log", args=(Apply(function="add", args=(x, y)),)):
            for left, right in ((x, y), (y, x)):
                if left == ONE and isinstance(right, Apply) and right.function == "exp":
                    return apply("softplus", right.args[0])
            return node
        case Apply(function="add" | "sub"):
            return _without_common_part(node)
        case _:
            return node


def _without_common_part(total: Apply) -> Expr:
    """A sum from which the larger (or smaller) of two is taken, one of them being its rest: then nothing cancels."""
    parts = terms(total)
    for n, part in enumerate(parts):
        match part:
            case Apply(function="neg", args=(Apply(function="max" | "min" as function, args=args),)):
                differences = [_difference((*parts[:n], *parts[n + 1 :]), terms(x)) for x in args]
                if not all(differences):
                    left = (plus(*d) for d in differences)
                    return stable(apply("min" if function == "max" else "max", *left))
    return total


def _difference(parts: tuple[Expr, ...], taken: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The terms of the one less those of the other; none that both have."""
    left = list(parts)
    for term in taken:
        if term in left:
            left.remove(term)
        else:
            left.append(negated(term))
    return tuple(left)


def negated(x: Expr) -> Expr:
    match x:
        case Apply(function="neg", args=(y,)):
            return y
        case Number(value=value):
            return Number(-value)
        case _:
            return apply("neg", x)


def log_terms(expr: Expr) -> tuple[Expr, ...]:
    """The additive terms of log(expr), in stable form; () for log(1).

    Requires: expr > 0 wherever it is defined, and so is each of its factors (check/domains.py).
    """
    match stable(expr):
        case Number(value=value) if value == 1:
            return ()
        case Apply(function="mul", args=(x, y)):
            return log_terms(x) + log_terms(y)
        case Apply(function="div", args=(x, y)):
            return log_terms(x) + tuple(negated(term) for term in log_terms(y))
        case Apply(function="pow", args=(x, p)):
            return tuple(stable(apply("mul", p, term)) for term in log_terms(x))
        case Apply(function="sqrt", args=(x,)):
            return tuple(apply("mul", number(Fraction(1, 2)), term) for term in log_terms(x))
        case Apply(function="exp", args=(x,)):
            return terms(x)
        case Apply(function="add" | "sub") as total:
            factored = factor(total)
            if isinstance(factored, Apply) and factored.function in ("mul", "div"):
                return log_terms(factored)
            return (stable(apply("log", total)),)
        case other:
            return (stable(apply("log", other)),)


# -- sympy's part ------------------------------------------------------------------------------------------------------


def terms(expr: Expr) -> tuple[Expr, ...]:
    """The additive terms of an expression, products expanded where they mix axes."""
    match expr:
        case Apply(function="add", args=(x, y)):
            return terms(x) + terms(y)
        case Apply(function="sub", args=(x, y)):
            return terms(x) + tuple(negated(term) for term in terms(y))
        case Apply(function="neg", args=(x,)):
            return tuple(negated(term) for term in terms(x))
        case Apply(function="mul" | "div" | "pow") if len({x.axis for r in refs(expr) for x in r.indices} - {"t"}) > 1:
            names = _Names()
            expanded = sympy.expand(names.enter(expr), power_exp=False, log=False)
            if not isinstance(expanded, sympy.Add):
                return (expr,)
            return tuple(names.leave(term) for term in expanded.as_ordered_terms())
        case _:
            return (expr,)


def cancels(expr: Expr) -> bool:
    """Is it a sum of which nothing is left, such as x - x?"""
    return isinstance(expr, Apply) and expr.function in ("add", "sub") and bool(_Names().enter(expr) == 0)


def factor(expr: Expr) -> Expr:
    """The expression as a product, where sympy finds one."""
    names = _Names()
    return names.leave(sympy.factor(names.enter(expr)))


def derivative(expr: Expr, by: Ref) -> Expr:
    """d expr / d by, pointwise: every other reference is held. Kinks follow torch (relu'(0) = 0, ties are shared).

    Where a log gate is clamped, what it is of may be 0, and a quotient by that no number: there the slope is 0.
    """
    match expr:
        case Apply(function="clamp", args=(inside,)):
            slope = derivative(inside, by)
            if any(isinstance(node, Apply) and node.function == "div" for node in walk(slope)):
                return apply("passed", inside, slope)
    names = _Names()
    return stable(names.leave(sympy.diff(names.enter(expr), names.enter(by))))


def chained(gradient: Expr, slope: Expr) -> Expr:
    """The product of a gradient and a slope, as one would write it."""
    match slope:
        case _ if slope == ONE:
            return gradient
        case Apply(function="neg", args=(x,)):
            return negated(chained(gradient, x))
        case _:
            return apply("mul", gradient, slope)


def _function(name: str, slope: Callable[..., Any]) -> Any:
    """A sympy function of ours whose derivative by its n-th argument is slope(n, *args)."""
    return type(name, (sympy.Function,), {"fdiff": lambda self, n=1: slope(n, *self.args), "is_real": True})


_step = _function("step", lambda n, x: sympy.Integer(0))
_positive = _function("positive", lambda n, x: sympy.Integer(0))
_sign = _function("sign", lambda n, x: sympy.Integer(0))
_unclamped = _function("unclamped", lambda n, x: sympy.Integer(0))
_clamp = _function("clamp", lambda n, x: _unclamped(x))
_sigmoid: Any = _function("sigmoid", lambda n, x: _sigmoid(x) * _sigmoid(-x))
_logsigmoid = _function("logsigmoid", lambda n, x: _sigmoid(-x))
_softplus = _function("softplus", lambda n, x: _sigmoid(x))
_expm1 = _function("expm1", lambda n, x: sympy.exp(x))
_tanh: Any = _function("tanh", lambda n, x: 1 - _tanh(x) ** 2)
_relu = _function("relu", lambda n, x: _positive(x))
_elu = _function("elu", lambda n, x: sympy.exp(_min(x, 0)))
_silu = _function("silu", lambda n, x: _sigmoid(x) * (1 + x * _sigmoid(-x)))
_abs = _function("abs", lambda n, x: _sign(x))
_max: Any = _function("max", lambda n, x, y: _step(x - y) if n == 1 else _step(y - x))
_min: Any = _function("min", lambda n, x, y: _step(y - x) if n == 1 else _step(x - y))

_TO_SYMPY: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "neg": lambda x: -x,
    "sqrt": sympy.sqrt,
    "exp": sympy.exp,
    "log": sympy.log,
} | {
    cls.__name__: cls
    for cls in (
        *(_step, _positive, _sign, _clamp, _unclamped, _sigmoid, _logsigmoid, _softplus, _tanh),
        *(_expm1, _relu, _elu, _silu, _abs, _max, _min),
    )
}


class _Names:
    """One trip to sympy and back: references and sums become real symbols, and are found again by them."""

    def __init__(self) -> None:
        self._symbols: dict[Expr, sympy.Symbol] = {}
        self._origin: dict[sympy.Symbol, Expr] = {}

    def _symbol(self, expr: Expr) -> sympy.Symbol:
        if expr not in self._symbols:
            symbol = sympy.Symbol(f"x{len(self._symbols):03d}", real=True)
            self._symbols[expr] = symbol
            self._origin[symbol] = expr
        return self._symbols[expr]

    def enter(self, expr: Expr) -> Any:
        match expr:
            case Number(value=value):
                return sympy.Rational(value.numerator, value.denominator)
            case Ref() | Along():
                return self._symbol(expr)
            case Apply(function=function, args=args):
                return _TO_SYMPY[function](*(self.enter(a) for a in args))
            case _:
                raise InternalError(f"unknown expression {expr!r}")

    def leave(self, value: Any) -> Expr:
        match value:
            case sympy.Rational():
                return number(Fraction(int(value.p), int(value.q)))
            case sympy.E:
                return apply("exp", ONE)
            case sympy.Symbol():
                return self._origin[value]
            case sympy.Add():
                return self._leave_sum(value)
            case sympy.Mul():
                return self._leave_product(value)
            case sympy.exp():
                return apply("exp", self.leave(value.args[0]))
            case sympy.log():
                return apply("log", self.leave(value.args[0]))
            case sympy.Pow():
                base, exponent = value.args
                if exponent == sympy.Rational(1, 2):
                    return apply("sqrt", self.leave(base))
                if exponent.is_number and exponent < 0:
                    return apply("div", ONE, self.leave(sympy.Pow(base, -exponent)))
                return apply("pow", self.leave(base), self.leave(exponent))
            case sympy.Function():
                name = type(value).__name__.lower()  # sympy's own Abs, which it makes of sqrt(x**2), is ours
                return apply(name, *(self.leave(a) for a in value.args))
            case _:
                raise InternalError(f"sympy returned {value!r}")

    def _leave_sum(self, value: Any) -> Expr:
        """Positive terms first, so that a sum reads as it would be written."""
        signed = [(term.could_extract_minus_sign(), term) for term in value.as_ordered_terms()]
        ordered = [t for minus, t in signed if not minus] + [t for minus, t in signed if minus]
        total = self.leave(ordered[0])
        for term in ordered[1:]:
            if term.could_extract_minus_sign():
                total = apply("sub", total, self.leave(-term))
            else:
                total = apply("add", total, self.leave(term))
        return total

    def _leave_product(self, value: Any) -> Expr:
        if value.could_extract_minus_sign():
            return negated(self.leave(-value))
        numerator, denominator = sympy.fraction(value, exact=True)
        if denominator != 1 and not denominator.is_Number:
            return apply("div", self.leave(numerator), self.leave(denominator))
        return times(*(self.leave(f) for f in value.as_ordered_factors()))
