"""Sums of a step's own products: read off the diagonal of a dot, where there is one of the same tiles; and numbers that
multiply a step's own row: put on the diagonal of a matrix that multiplies all rows."""

from __future__ import annotations

import pytest

from glagen.ir.chunk import Operand
from glagen.ir.expr import Expr, number, plus, refs, times
from glagen.ir.kernel import Assign, Dot, RowSum
from glagen.schedule.diagonals import put_on, read_off
from glagen.schedule.sums import users_of
from glagen.schedule.tile import keep, tile
from tests.mutation.judge import SPECS, plan_of

X, Y, ROW, ONE = tile("x", "t", "j"), tile("y", "t", "j"), tile("b", "t"), tile("scale")
DOT = Dot("all", ("t", "s"), Operand("x", ("t", "j")), Operand("y", ("s", "j")), accumulate=True)


def summed(expr: Expr) -> Assign:
    return Assign("own", ("t",), expr, over=("j",), accumulate=True)


@pytest.mark.parametrize("dot", [DOT, Dot("all", ("s", "t"), DOT.y, DOT.x)], ids=["upright", "transposed"])
@pytest.mark.parametrize("numbers", [(), (ONE,), (number(3), ROW)], ids=str)
def test_what_has_no_columns_multiplies_the_diagonal(dot, numbers):
    _, own = read_off([dot, summed(times(X, *numbers, Y))])
    assert isinstance(own, Assign)
    assert (own.name, own.axes, own.over, own.accumulate) == ("own", ("t",), ("s",), False)
    assert {x.name for x in refs(own.expr)} == {"%diagonal", "all", *(x.name for x in numbers if x in (ONE, ROW))}


@pytest.mark.parametrize(
    "expr",
    [X, times(X, X), times(X, tile("z", "t", "j")), times(X, Y, tile("u", "j")), times(X, Y, X), ROW],
    ids=["one tile", "a square", "another tile", "weights of columns", "three tiles", "no sum"],
)
def test_other_sums_stay(expr):
    line = summed(expr) if expr != ROW else Assign("own", ("t",), ROW)
    assert read_off([DOT, line]) == [DOT, line]


def test_so_do_those_of_masked_dots():
    lines = [Dot("all", ("t", "s"), DOT.x, DOT.y, mask="same"), summed(times(X, Y))]
    assert read_off(lines) == lines


@pytest.mark.parametrize("name", SPECS)
def test_no_kernel_sums_what_a_dot_has_summed(name):
    for kernel in plan_of(name, "guarded").kernels:
        lines = [x for x in kernel.lines if isinstance(x, Assign | Dot | RowSum)]
        assert read_off(lines) == lines, kernel.name


def test_the_gradient_of_a_bonus_is_such_a_sum():
    kernel = next(k for k in plan_of("rwkv6", "guarded").kernels if k.name == "key_gradients")
    (own,) = (x for x in kernel.lines if isinstance(x, Assign) and x.name == "dlocal")
    assert own.over == ("s",) and "dscores_all" in {x.name for x in refs(own.expr)}


Z, W = tile("z", "t", "j"), tile("w", "t", "j")
PRODUCT = Dot("within", ("t", "j"), Operand("scores", ("t", "s")), Operand("x", ("s", "j")))


def added(*terms: Expr) -> Assign:
    return Assign("o", ("t", "j"), plus(*terms, tile("within", "t", "j")))


@pytest.mark.parametrize("numbers", [(ROW,), (ONE, ROW), (ROW, tile("c", "t"))], ids=str)
@pytest.mark.parametrize("made", [False, True], ids=["a term", "a tile"])
def test_numbers_of_the_same_tile_go_to_the_diagonal(numbers, made):
    term = Assign("w", ("t", "j"), times(X, *numbers))
    lines = [*([term] if made else []), PRODUCT, added(Z, W if made else term.expr)]
    both, product, total = put_on(lines, users_of(lines, (), []))
    assert both == Assign(
        "scores_and_own",
        ("t", "s"),
        plus(tile("scores", "t", "s"), keep("diagonal", times(*numbers), "t", "s")),
    )
    assert isinstance(product, Dot) and product.x == Operand("scores_and_own", ("t", "s"))
    assert isinstance(total, Assign) and total.expr == plus(Z, tile("within", "t", "j"))


@pytest.mark.parametrize(
    "terms",
    [(Z,), (times(Z, ROW),), (X,), (times(X, ONE),), (times(X, X, ROW),), (times(X, tile("u", "j"), ROW),)],
    ids=["another", "numbers of another", "itself", "no number a step", "its square", "weights of columns"],
)
def test_other_terms_stay(terms):
    lines = [PRODUCT, added(*terms)]
    assert put_on(lines, users_of(lines, (), [])) == lines


def test_so_do_those_of_products_that_something_else_reads():
    lines = [PRODUCT, added(times(X, ROW)), Assign("also", ("t", "j"), tile("within", "t", "j"))]
    assert put_on(lines, users_of(lines, (), [])) == lines


@pytest.mark.parametrize("same", [True, False], ids=["as well", "with other numbers"])
def test_a_matrix_may_multiply_two_tiles(same):
    """With the same numbers on its diagonal, or for one of them."""
    other = Dot("back", ("t", "j"), PRODUCT.x, Operand("z", ("s", "j")))
    term = times(Z, ROW) if same else times(Z, ONE, ROW)
    sums = [added(times(X, ROW)), Assign("p", ("t", "j"), plus(term, tile("back", "t", "j")))]
    found = put_on([PRODUCT, other, *sums], users_of([PRODUCT, other, *sums], (), []))
    assert [x.name for x in found] == ["scores_and_own", "within", "back", "o", "p"]
    assert [x.x.name for x in found if isinstance(x, Dot)] == ["scores_and_own", "scores_and_own" if same else "scores"]
    assert (found[-1] == sums[-1]) != same


def test_threads_hold_no_values_for_a_bonus():
    """But where a walk is given its scores, which are then read from memory."""
    for kernel in plan_of("rwkv6", "guarded").kernels:
        if kernel.name in ("outputs", "fused", "value_gradients", "fused_value_gradients"):
            (own,) = (x for x in kernel.lines if isinstance(x, Assign) and x.name.endswith("_and_own"))
            assert "local" in {x.name for x in refs(own.expr)}
            assert not any({"v", "do"} & {x.name for x in refs(y.expr)} for y in kernel.lines if isinstance(y, Assign))
