"""Constants and sizes: exact arithmetic between numbers, and bounds on what algebra can make of an expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from glagen.errors import InternalError
from glagen.ir.expr import Along, Apply, Expr, Number, Ref

MAX_BITS = 16_384
MAX_EXPONENT = 64

_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
}


def fold(expr: Expr) -> Expr:
    """The expression with its rational constants computed: 1/16 is one number.

    Ensures: what has no exact value, or one of more than MAX_BITS, stays as it is.
    """
    match expr:
        case Number() | Ref():
            return expr
        case Along(body=body):
            return replace(expr, body=fold(body))
        case Apply(function=function, args=args):
            inside = tuple(fold(arg) for arg in args)
            values = [arg.value for arg in inside if isinstance(arg, Number)]
            value = _value(function, values) if len(values) == len(inside) else None
            return Apply(function, inside, span=expr.span) if value is None else Number(value, span=expr.span)
        case _:
            raise InternalError(f"unknown expression {expr!r}")


def _value(function: str, values: list[Fraction]) -> Fraction | None:
    """The exact value of a function of numbers, where it has one of moderate length."""
    match function, values:
        case "pow", [x, y]:
            if y.denominator > 1 or abs(y) > MAX_EXPONENT or _length(x) * abs(y) > MAX_BITS or (x == 0 and y < 0):
                return None
            return Fraction(x ** int(y))
        case _ if sum(_length(x) for x in values) > MAX_BITS:
            return None
        case "div", [x, y] if y:
            return x / y
        case name, _ if name in _EXACT:
            return _EXACT[name](*values)
        case _:
            return None


def bits(expr: Expr) -> int:
    """How many bits the constants of a folded expression can have once it is multiplied out; a bound."""
    match expr:
        case Number(value=value):
            return _length(value)
        case Ref():
            return 1
        case Along(body=body):
            return bits(body)
        case Apply(function="pow", args=(x, Number(value=n))):
            return bits(x) * (1 + int(abs(n)))
        case Apply(args=args):
            return sum(bits(arg) for arg in args)
        case _:
            raise InternalError(f"unknown expression {expr!r}")


def terms_when_expanded(expr: Expr) -> int:
    """How many terms a folded expression, or an argument in it, can have once multiplied out; a bound."""
    match expr:
        case Number() | Ref() | Along():
            return 1
        case Apply(function="add" | "sub", args=(x, y)):
            return terms_when_expanded(x) + terms_when_expanded(y)
        case Apply(function="mul" | "div", args=(x, y)):
            return terms_when_expanded(x) * terms_when_expanded(y)
        case Apply(function="pow", args=(x, Number(value=n))):
            return terms_when_expanded(x) ** min(1 + int(abs(n)), MAX_EXPONENT)
        case Apply(args=args):
            return max(terms_when_expanded(arg) for arg in args)
        case _:
            raise InternalError(f"unknown expression {expr!r}")


def degree(expr: Expr) -> int:
    """How high the powers in a folded expression, or in an argument in it, can be once multiplied out; a bound."""
    match expr:
        case Number():
            return 0
        case Ref() | Along():
            return 1
        case Apply(function="mul" | "div", args=(x, y)):
            return degree(x) + degree(y)
        case Apply(function="pow", args=(x, Number(value=n))):
            return degree(x) * max(abs(n.numerator), n.denominator)
        case Apply(args=args):
            return max(1, *(degree(arg) for arg in args))
        case _:
            raise InternalError(f"unknown expression {expr!r}")


def _length(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()
