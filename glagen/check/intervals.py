"""Interval arithmetic: where an expression's values lie, given where its names' values lie.

Ends are sound up to the rounding of float64. An open end is one that real arithmetic does not reach, however close
float32 comes to it: sigmoid of any finite number lies in (0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from glagen.errors import InternalError
from glagen.ir.expr import Along, Sum
from glagen.ir.interval import Interval

EVERYTHING = Interval(-math.inf, math.inf)  # infinities included: what is known of x / 0


@dataclass(frozen=True, slots=True, order=True)
class _End:
    """One end of an interval. Ordered as low ends are: of two at the same place, the open one excludes more."""

    at: float
    open: bool


def point(x: float) -> Interval:
    return Interval(x, x)


def apply_interval(function: str, args: tuple[Interval, ...]) -> Interval:
    """An interval that holds function(args) wherever it is defined."""
    match function, args:
        case "add", (x, y):
            return _add(x, y)
        case "sub", (x, y):
            return _add(x, _neg(y))
        case "neg", (x,):
            return _neg(x)
        case "mul", (x, y):
            return _mul(x, y)
        case "div", (x, y):
            return EVERYTHING if 0 in y else _mul(x, _reciprocal(y))
        case "pow", (x, y):
            return _pow(x, y)
        case "abs", (x,):
            return _abs(x)
        case "silu", (x,):
            return _silu(x)
        case "relu", (x,):
            return _max(x, point(0.0))
        case "min", (x, y):
            return _neg(_max(_neg(x), _neg(y)))
        case "max", (x, y):
            return _max(x, y)
        case (("exp" | "log" | "sqrt" | "sigmoid" | "logsigmoid" | "softplus" | "tanh" | "elu" | "expm1"), (x,)):
            return _increasing(function, x)
        case _:
            raise InternalError(f"no interval rule for {function} of {len(args)} arguments")


def along_interval(function: type[Along], body: Interval) -> Interval:
    """What a function gives of a row of one or more values of `body`."""
    return _sum(body) if function is Sum else Interval(0.0, 1.0)


def _sum(body: Interval) -> Interval:
    low, high = _End(body.low, body.low_open), _End(body.high, body.high_open)
    if low.at < 0:
        low = _End(-math.inf, math.isfinite(low.at) or low.open)
    if high.at > 0:
        high = _End(math.inf, math.isfinite(high.at) or high.open)
    return Interval(low.at, high.at, low.open, high.open)


def _neg(x: Interval) -> Interval:
    return Interval(-x.high, -x.low, x.high_open, x.low_open)


def _add(x: Interval, y: Interval) -> Interval:
    low = _add_ends(_End(x.low, x.low_open), _End(y.low, y.low_open), -math.inf)
    high = _add_ends(_End(x.high, x.high_open), _End(y.high, y.high_open), math.inf)
    return Interval(low.at, high.at, low.open, high.open)


def _add_ends(x: _End, y: _End, widest: float) -> _End:
    """The sum of two ends; infinity is reached where either reaches it."""
    total = x.at + y.at
    if math.isnan(total):
        return _End(widest, False)
    if math.isinf(total):
        return _End(total, all(end.open for end in (x, y) if math.isinf(end.at)))
    return _End(total, x.open or y.open)


def _mul(x: Interval, y: Interval) -> Interval:
    ends = [
        _mul_ends(_End(*a), _End(*b))
        for a in ((x.low, x.low_open), (x.high, x.high_open))
        for b in ((y.low, y.low_open), (y.high, y.high_open))
    ]
    return _hull(ends)


def _mul_ends(x: _End, y: _End) -> _End:
    """The product of two ends; 0 times infinity is 0, as a sum of terms that are all 0."""
    if x.at == 0 or y.at == 0:
        reached = (x.at == 0 and not x.open) or (y.at == 0 and not y.open)
        return _End(0.0, not reached)
    product = x.at * y.at
    if math.isinf(product):
        return _End(product, all(end.open for end in (x, y) if math.isinf(end.at)))
    if product == 0:
        return _End(0.0, True)
    return _End(product, x.open or y.open)


def _hull(ends: list[_End]) -> Interval:
    """The interval between the least and the greatest end, closed where any equal end is."""
    low = min(ends, key=lambda end: (end.at, end.open))
    high = max(ends, key=lambda end: (end.at, not end.open))
    return Interval(low.at, high.at, low.open, high.open)


def _reciprocal(y: Interval) -> Interval:
    """1/y. Requires: 0 is not in y."""
    low = -math.inf if y.high == 0 else 1 / y.high
    high = math.inf if y.low == 0 else 1 / y.low
    return Interval(low, high, y.high_open, y.low_open)


def _pow(x: Interval, y: Interval) -> Interval:
    if y.low == y.high and y.low == int(y.low if math.isfinite(y.low) else 0):
        return _integer_pow(x, int(y.low))
    if x.low < 0:
        return EVERYTHING
    if 0 in x and y.low <= 0:
        return Interval(0, math.inf)
    ends = [
        _pow_ends(_End(*a), _End(*b))
        for a in ((x.low, x.low_open), (x.high, x.high_open))
        for b in ((y.low, y.low_open), (y.high, y.high_open))
    ]
    return _hull(ends)


def _integer_pow(x: Interval, n: int) -> Interval:
    if n < 0:
        powered = _integer_pow(x, -n)
        return EVERYTHING if 0 in powered else _reciprocal(powered)
    if n == 0:
        return point(1.0)
    if n % 2 == 0:
        x = _abs(x)
    exponent = _End(float(n), False)
    low = _pow_ends(_End(x.low, x.low_open), exponent)
    high = _pow_ends(_End(x.high, x.high_open), exponent)
    return Interval(low.at, high.at, low.open, high.open)


def _pow_ends(x: _End, y: _End) -> _End:
    reached = not (x.open or y.open) or (x.at == 1 and not x.open) or (y.at == 0 and not y.open)
    try:
        value = math.pow(x.at, y.at)
    except OverflowError:
        return _End(math.inf if x.at > 0 or y.at % 2 == 0 else -math.inf, True)
    except ValueError:  # 0 to a negative power
        return _End(math.inf, True)
    if value == 0 and x.at != 0 and math.isfinite(x.at) and math.isfinite(y.at):
        return _End(0.0, True)
    return _End(value, not reached)


def _abs(x: Interval) -> Interval:
    if x.low >= 0:
        return x
    if x.high <= 0:
        return _neg(x)
    top = max(_End(-x.low, x.low_open), _End(x.high, x.high_open), key=lambda end: (end.at, not end.open))
    return Interval(0.0, top.at, False, top.open)


def _max(x: Interval, y: Interval) -> Interval:
    """max(x, y): its low end is the greater low end, reached only where both can be."""
    low = max(_End(x.low, x.low_open), _End(y.low, y.low_open))
    high = max(_End(x.high, x.high_open), _End(y.high, y.high_open), key=lambda end: (end.at, not end.open))
    return Interval(low.at, high.at, low.open, high.open)


_SILU_LOWEST = -1.2784645427610738  # where silu turns


def _silu(x: Interval) -> Interval:
    def value(at: float) -> float:
        return 0.0 if at == -math.inf else at * _sigmoid(at)

    ends = [_End(value(x.low), x.low_open), _End(value(x.high), x.high_open)]
    if _SILU_LOWEST in x:
        ends.append(_End(-0.2784645427610739, False))
    return _hull(ends)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _exp(x: float) -> float:
    return math.inf if x > 709 else math.exp(x)


# Increasing functions: the value at a finite x, where they begin, and the limits there and at infinity.
_INCREASING: dict[str, tuple[Callable[[float], float], float, float, float]] = {
    "exp": (_exp, -math.inf, 0, math.inf),
    "log": (math.log, 0, -math.inf, math.inf),
    "sqrt": (math.sqrt, 0, 0, math.inf),
    "sigmoid": (_sigmoid, -math.inf, 0, 1),
    "logsigmoid": (lambda x: -_softplus(-x), -math.inf, -math.inf, 0),
    "softplus": (_softplus, -math.inf, 0, math.inf),
    "tanh": (math.tanh, -math.inf, -1, 1),
    "expm1": (lambda x: math.inf if x > 709 else math.expm1(x), -math.inf, -1, math.inf),
    "elu": (lambda x: x if x > 0 else math.expm1(x), -math.inf, -1, math.inf),
}


def _increasing(function: str, x: Interval) -> Interval:
    value, start, least, most = _INCREASING[function]
    if x.low < start:
        return EVERYTHING

    def end(at: float, is_open: bool) -> _End:
        if at == start:
            return _End(least, is_open)
        if at == math.inf:
            return _End(most, is_open)
        found = value(at)
        return _End(found, is_open or found in (least, most))  # a limit is met only by rounding

    low, high = end(x.low, x.low_open), end(x.high, x.high_open)
    return Interval(low.at, high.at, low.open, high.open)
