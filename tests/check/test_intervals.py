"""Interval arithmetic holds what it says: sampled values lie in the intervals computed for them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glagen.check.domains import interval_of
from glagen.check.intervals import apply_interval, point
from glagen.ir.expr import FUNCTIONS, Apply, Expr, Number, Ref, number, ref
from glagen.ir.interval import REALS, Interval

INF = math.inf
UNIT = Interval(0, 1, True, True)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        ("sigmoid", [REALS], "(0, 1)"),
        ("softplus", [REALS], "(0, inf)"),
        ("logsigmoid", [REALS], "(-inf, 0)"),
        ("tanh", [REALS], "(-1, 1)"),
        ("elu", [REALS], "(-1, inf)"),
        ("exp", [REALS], "(0, inf)"),
        ("exp", [Interval(-INF, 0)], "[0, 1]"),
        ("exp", [Interval(-INF, 0, True)], "(0, 1]"),
        ("log", [Interval(0, 1, True)], "(-inf, 0]"),
        ("log", [Interval(-1, 1)], "[-inf, inf]"),
        ("sqrt", [Interval(0, 4)], "[0, 2]"),
        ("relu", [Interval(-1, 2)], "[0, 2]"),
        ("relu", [Interval(-2, -1)], "[0, 0]"),
        ("relu", [UNIT], "(0, 1)"),
        ("abs", [Interval(-3, 1)], "[0, 3]"),
        ("neg", [Interval(-INF, 0, True)], "[0, inf)"),
        ("sub", [point(1), UNIT], "(0, 1)"),
        ("add", [UNIT, Interval(0, 1)], "(0, 2)"),
        ("add", [Interval(-INF, 0), UNIT], "[-inf, 1)"),
        ("mul", [Interval(-2, 3), Interval(-5, 7)], "[-15, 21]"),
        ("mul", [Interval(0, INF, False, True), Interval(-1, 1)], "(-inf, inf)"),
        ("mul", [UNIT, Interval(-INF, 0)], "[-inf, 0]"),
        ("div", [point(1), UNIT], "(1, inf)"),
        ("div", [point(1), Interval(-2, -1)], "[-1, -0.5]"),
        ("div", [point(1), Interval(-1, 1)], "[-inf, inf]"),
        ("pow", [Interval(-2, 1), point(2)], "[0, 4]"),
        ("pow", [Interval(-2, 1), point(3)], "[-8, 1]"),
        ("pow", [UNIT, point(1 / 16)], "(0, 1)"),
        ("pow", [UNIT, point(-2)], "(1, inf)"),
        ("pow", [point(2), Interval(-INF, -5)], "[0, 0.03125]"),
        ("pow", [Interval(-1, 1), point(0.5)], "[-inf, inf]"),
        ("min", [Interval(-1, 1), point(0)], "[-1, 0]"),
        ("max", [UNIT, point(0)], "(0, 1)"),
    ],
)
def test_ends(function: str, args: list[Interval], expected: str) -> None:
    assert str(apply_interval(function, tuple(args))) == expected


def value(expr: Expr, at: dict[str, float]) -> float:
    match expr:
        case Number(value=exact):
            return float(exact)
        case Ref(name=name):
            return at[name]
        case Apply(function=function, args=args):
            return FLOAT[function](*(value(arg, at) for arg in args))
    raise AssertionError


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


FLOAT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: math.pow(x, y),
    "neg": lambda x: -x,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "abs": abs,
    "min": min,
    "max": max,
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": sigmoid,
    "logsigmoid": lambda x: -math.log1p(math.exp(-x)) if x > -700 else x,
    "softplus": lambda x: math.log1p(math.exp(x)) if x < 700 else x,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "silu": lambda x: x * sigmoid(x),
}

DOMAINS = {"x": Interval(-3, 2), "y": Interval(0, 1, True, True), "z": Interval(0.5, 40), "w": REALS}
AT = st.fixed_dictionaries(
    {
        "x": st.floats(-3, 2),
        "y": st.floats(1e-6, 1 - 1e-6),
        "z": st.floats(0.5, 40),
        "w": st.floats(-50, 50),
    }
)
LEAVES = st.sampled_from([ref(name) for name in DOMAINS]) | st.sampled_from([-2, -1, 0, 1, 2, 3]).map(number)
UNARY = [name for name, arity in FUNCTIONS.items() if arity == 1] + ["neg"]
BINARY = ["add", "sub", "mul", "div", "pow", "min", "max"]
EXPRS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda f, x: Apply(f, (x,)), st.sampled_from(UNARY), inner)
        | st.builds(lambda f, x, y: Apply(f, (x, y)), st.sampled_from(BINARY), inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=600, deadline=None)
@given(EXPRS, AT)
def test_values_lie_within(expr: Expr, at: dict[str, float]) -> None:
    interval = interval_of(expr, DOMAINS)
    assert not math.isnan(interval.low) and not math.isnan(interval.high) and interval.low <= interval.high
    try:
        found = value(expr, at)
    except (ValueError, ZeroDivisionError, OverflowError):
        return
    if math.isfinite(found):
        slack = 1e-9 * max(1.0, abs(found))
        assert interval.low - slack <= found <= interval.high + slack
