"""Equations: what they mean, and where their parts stand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from glagen.errors import Diagnostic, Span
from glagen.ir.expr import Apply, Expr, Index, Number, Ref, Sum, apply, number, ref, show, walk
from glagen.parse.expression import MAX_CHARACTERS, parse_equation, parse_expression
from glagen.parse.reader import Scalar


def scalar(text: str) -> Scalar:
    return Scalar(text, Span(3, 5, len(text)), text, None)


def expression(text: str) -> Expr:
    faults: list[Diagnostic] = []
    expr = parse_expression(scalar(text), faults)
    assert not faults and expr is not None
    return expr


def fault(text: str) -> Diagnostic:
    faults: list[Diagnostic] = []
    assert parse_expression(scalar(text), faults) is None
    return faults[0]


x, y, z = ref("x"), ref("y"), ref("z")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("x + y * z", apply("add", x, apply("mul", y, z))),
        ("x - y - z", apply("sub", apply("sub", x, y), z)),
        ("x / y / z", apply("div", apply("div", x, y), z)),
        ("x ** y ** z", apply("pow", x, apply("pow", y, z))),
        ("-x**y", apply("neg", apply("pow", x, y))),
        ("x**-y", apply("pow", x, apply("neg", y))),
        ("-x * y", apply("mul", apply("neg", x), y)),
        ("x * -y", apply("mul", x, apply("neg", y))),
        ("--x", apply("neg", apply("neg", x))),
        ("(x + y) * z", apply("mul", apply("add", x, y), z)),
        ("max(x, y)", apply("max", x, y)),
        ("sum(i, k[t,i])", Sum("i", ref("k", ("t", "i")))),
        ("S[t - 1, i, j]", Ref("S", (Index("t", -1), Index("i"), Index("j")))),
        ("S[t+12,i]", Ref("S", (Index("t", 12), Index("i")))),
        ("0.1", number(Fraction(1, 10))),
        ("1e-3", number(Fraction(1, 1000))),
        (".5", number(Fraction(1, 2))),
        ("5.", number(5)),
        ("1.5E+2", number(150)),
    ],
)
def test_meaning(text: str, meaning: Expr) -> None:
    assert expression(text) == meaning
    if not isinstance(meaning, Number):  # 0.1 is shown as 1/10
        assert expression(show(meaning)) == meaning


def test_spans() -> None:
    """Every node's span holds the text of that node."""
    text = "exp(g[t,i]) * S[t-1,i,j] + k[t,i] * -(v[t,j])"
    for node in walk(expression(text)):
        assert node.span is not None and node.span.line == 3
        start = node.span.column - 5
        part = text[start : start + node.span.length]
        if isinstance(node, Ref):
            assert part == show(node)
        assert expression(part) == node


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("x +", "the expression ends too early", 3),
        ("", "the expression ends too early", 1),
        ("x ^ 2", "unexpected `^`", 3),
        ("2 x", "unexpected `x`", 3),
        ("x[t", "the expression ends too early", 3),
        ("x[]", "unexpected `]`", 3),
        ("f(x)", "`f` is not a function", 1),
        ("exp()", "unexpected `)`", 5),
        ("1e999999", "number `1e999999` is out of range", 1),
        ("x[t-99999999999]", "`99999999999` is not a number of steps", 3),
        ("x = y", "unexpected `=`", 3),
        ("x\x00y", "unexpected `\\x00`", 2),
    ],
)
def test_faults(text: str, message: str, column: int) -> None:
    found = fault(text)
    assert found.message == message
    assert found.span is not None and found.span.column == column + 4


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20_000 + "x" + ")" * 20_000,
        "(" * 2_000 + "x" + ")" * 2_000,
        "-" * 4_000 + "x",
        "+".join("x" * 2_400),
        "**".join("2" * 1_600),
        "exp(" * 900 + "x" + ")" * 900,
        "x[" * 2_000,
        "9" * MAX_CHARACTERS,
    ],
)
def test_monsters_are_refused(text: str) -> None:
    assert fault(text).help


def test_faults_of_an_expression_are_gathered() -> None:
    faults: list[Diagnostic] = []
    assert parse_expression(scalar("f(x) + exp(x, y) + k[x] + sum(x)"), faults) is None
    assert len(faults) == 4


def test_equation() -> None:
    faults: list[Diagnostic] = []
    equation = parse_equation(scalar("o[t,j]  =  x\n + 1"), faults)
    assert equation is not None and not faults
    assert equation.target == ref("o", ("t", "j"))
    assert equation.body == apply("add", x, number(1))
    assert equation.text == "o[t,j] = x + 1"
    assert equation.span == Span(3, 5, 12)


def test_numbers_are_exact() -> None:
    assert expression("0.1 + 0.2") == Apply("add", (Number(Fraction(1, 10)), Number(Fraction(1, 5))))
