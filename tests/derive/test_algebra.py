"""The algebra against torch: stable forms are the same functions, derivatives are torch's."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glagen.algebra import derivative, log_terms, negated, stable, terms
from glagen.ir.expr import FUNCTIONS, Apply, Expr, Number, Ref, apply, number, ref, show, walk
from glagen.reference import POINTWISE

X, Y = ref("x", ("t", "i")), ref("y", ("t", "i"))
EXTRA = {
    "step": lambda x: torch.heaviside(x, torch.full_like(x, 0.5)),
    "positive": lambda x: (x > 0).to(x),
    "sign": torch.sign,
    "expm1": torch.expm1,
    "clamp": lambda x: torch.where(x < -800.0, torch.full_like(x, -800.0), x),
    "unclamped": lambda x: (x >= -800.0).to(x),
}
# Away from kinks and poles, positive so that every function is defined.
VALUES = torch.tensor([0.07, 0.31, 0.77, 0.93, 1.4, 2.6], dtype=torch.float64)
OTHERS = torch.tensor([0.52, 0.11, 1.9, 0.29, 2.2, 0.83], dtype=torch.float64)


def value(expr: Expr, **named: torch.Tensor) -> torch.Tensor:
    match expr:
        case Number(value=x):
            return torch.full_like(next(iter(named.values())), float(x))
        case Ref(name=name):
            return named[name]
        case Apply(function=f, args=args):
            return (POINTWISE | EXTRA)[f](*(value(a, **named) for a in args))
    raise AssertionError(expr)


def numbers() -> st.SearchStrategy[Expr]:
    return st.sampled_from([number(1), number(2), number(Fraction(1, 16)), number(Fraction(1, 2)), number(3)])


def expressions(depth: int = 3) -> st.SearchStrategy[Expr]:
    """Expressions of x and y that are positive where x and y are, and of moderate size."""
    leaf = st.one_of(st.just(X), st.just(Y), numbers())
    if not depth:
        return leaf
    inner = expressions(depth - 1)
    return st.one_of(
        leaf,
        st.builds(lambda f, x, y: apply(f, x, y), st.sampled_from(["add", "mul", "div"]), inner, inner),
        st.builds(lambda x, y: apply("exp", apply("sub", x, apply("max", x, y))), inner, inner),
        st.builds(lambda x: apply("sub", number(1), apply("sigmoid", x)), inner),
        st.builds(lambda f, x: apply(f, x), st.sampled_from(["sigmoid", "softplus", "sqrt", "tanh", "silu"]), inner),
        st.builds(lambda x: apply("exp", apply("neg", x)), inner),
        st.builds(lambda x: apply("exp", apply("logsigmoid", x)), inner),
        st.builds(lambda x: apply("softplus", apply("log", x)), inner),
        st.builds(lambda x, p: apply("pow", x, p), inner, numbers()),
        st.builds(lambda f, x, y: apply(f, x, y), st.sampled_from(["min", "max"]), inner, inner),
        st.builds(lambda x: apply("exp", apply("log", x)), inner),
    )


def close(x: torch.Tensor, y: torch.Tensor, tolerance: float = 1e-9) -> bool:
    ordinary = x.isfinite() & y.isfinite() & (y.abs() < 1e12)
    return bool(torch.allclose(x[ordinary], y[ordinary], rtol=tolerance, atol=1e-12))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(expressions())
def test_stable_forms_are_the_same_functions(expr):
    assert close(value(stable(expr), x=VALUES, y=OTHERS), value(expr, x=VALUES, y=OTHERS)), show(expr)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(expressions(2))
def test_derivatives_are_those_of_autograd(expr):
    x, y = VALUES.clone().requires_grad_(), OTHERS.clone().requires_grad_()
    total = value(expr, x=x, y=y)
    if not total.requires_grad:
        return
    expected = torch.autograd.grad(total.sum(), (x, y), allow_unused=True)
    for by, slope in zip((X, Y), expected, strict=True):
        ours = value(derivative(expr, by), x=VALUES, y=OTHERS)
        assert close(ours, torch.zeros_like(ours) if slope is None else slope), f"d {show(expr)} / d {by.name}"


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if FUNCTIONS[f] == 1])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_each_function_on_either_side_of_zero(function, sign):
    points = sign * VALUES if function not in ("log", "sqrt") else VALUES
    x = points.clone().requires_grad_()
    (expected,) = torch.autograd.grad(POINTWISE[function](x).sum(), x)
    ours = value(derivative(apply(function, X), X), x=points)
    assert torch.allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize(("function", "at_zero"), [("relu", 0.0), ("abs", 0.0), ("elu", 1.0)])
def test_kinks_are_those_of_torch(function, at_zero):
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(value(derivative(apply(function, X), X), x=zero)) == at_zero
    x = zero.clone().requires_grad_()
    assert float(torch.autograd.grad(POINTWISE[function](x).sum(), x)[0]) == at_zero


def test_ties_are_shared():
    one = torch.ones(1, dtype=torch.float64)
    for f in ("min", "max"):
        assert float(value(derivative(apply(f, X, Y), X), x=one, y=one)) == 0.5
        x = one.clone().requires_grad_()
        (expected,) = torch.autograd.grad(POINTWISE[f](x, one).sum(), x)
        assert float(expected) == 0.5


@pytest.mark.parametrize("extreme", [-750.0, -40.0, 40.0, 750.0])
def test_stable_forms_hold_at_the_ends(extreme):
    """Where the text as written cancels or overflows, the stable form does not."""
    x = torch.tensor([extreme], dtype=torch.float64)
    one = number(1)
    assert torch.allclose(
        value(stable(apply("log", apply("sigmoid", X))), x=x), torch.nn.functional.logsigmoid(x), rtol=1e-14
    )
    survivors = value(stable(apply("sub", one, apply("sigmoid", X))), x=x)
    assert torch.allclose(survivors, torch.exp(torch.nn.functional.logsigmoid(-x)), rtol=1e-14, atol=0.0)
    assert bool(value(stable(apply("log", apply("add", one, apply("exp", X)))), x=x).isfinite().all())
    slope = value(derivative(apply("logsigmoid", X), X), x=x)
    assert torch.allclose(slope, torch.exp(torch.nn.functional.logsigmoid(-x)), rtol=1e-14, atol=0.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(expressions(1), min_size=1, max_size=3))
def test_the_terms_of_a_logarithm_add_up(factors):
    product = factors[0]
    for f in factors[1:]:
        product = apply("mul", product, f)
    expected = value(product, x=VALUES, y=OTHERS).log()
    found = sum((value(t, x=VALUES, y=OTHERS) for t in log_terms(product)), torch.zeros_like(expected))
    assert close(found, expected)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(expressions(2))
def test_terms_add_up(expr):
    found = sum((value(t, x=VALUES, y=OTHERS) for t in terms(expr)), torch.zeros_like(VALUES))
    assert close(found, value(expr, x=VALUES, y=OTHERS))


def test_negation_undoes_itself():
    assert negated(negated(X)) == X and negated(number(2)) == number(-2)
    assert not any(isinstance(n, Apply) and n.function == "log" for n in walk(stable(apply("log", apply("exp", X)))))


@pytest.mark.parametrize(
    ("whole", "form"),
    [
        (("sub", apply("add", X, Y), apply("max", apply("add", Y, X), number(3))), "min(0, y[t,i] + x[t,i] - 3)"),
        (("sub", X, apply("max", X, Y)), "min(0, x[t,i] - y[t,i])"),
        (("sub", X, apply("max", Y, X)), "min(x[t,i] - y[t,i], 0)"),
        (("sub", X, apply("min", X, Y)), "max(0, x[t,i] - y[t,i])"),
        (("sub", X, apply("max", Y, number(2))), "x[t,i] - max(y[t,i], 2)"),
        (("add", X, apply("max", X, Y)), "x[t,i] + max(x[t,i], y[t,i])"),
    ],
)
def test_a_maximum_is_taken_from_what_it_is_of(whole: tuple[str, Expr, Expr], form: str) -> None:
    expr = apply(*whole)
    assert close(value(stable(expr), x=VALUES, y=OTHERS), value(expr, x=VALUES, y=OTHERS))
    assert show(stable(expr)).replace("x[t,i] + y[t,i]", "y[t,i] + x[t,i]") == form
