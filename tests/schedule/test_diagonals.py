"""Sums of a step's own products: read off the diagonal of a dot, where there is one of the same tiles."""

from __future__ import annotations

import pytest

from glagen.ir.chunk import Operand
from glagen.ir.expr import Expr, number, refs, times
from glagen.ir.kernel import Assign, Dot, RowSum
from glagen.schedule.diagonals import on_diagonals
from glagen.schedule.tile import tile
from tests.mutation.judge import SPECS, plan_of

X, Y, ROW, ONE = tile("x", "t", "j"), tile("y", "t", "j"), tile("b", "t"), tile("scale")
DOT = Dot("all", ("t", "s"), Operand("x", ("t", "j")), Operand("y", ("s", "j")), accumulate=True)


def summed(expr: Expr) -> Assign:
    return Assign("own", ("t",), expr, over=("j",), accumulate=True)


@pytest.mark.parametrize("dot", [DOT, Dot("all", ("s", "t"), DOT.y, DOT.x)], ids=["upright", "transposed"])
@pytest.mark.parametrize("numbers", [(), (ONE,), (number(3), ROW)], ids=str)
def test_what_has_no_columns_multiplies_the_diagonal(dot, numbers):
    _, read_off = on_diagonals([dot, summed(times(X, *numbers, Y))])
    assert isinstance(read_off, Assign)
    assert (read_off.name, read_off.axes, read_off.over, read_off.accumulate) == ("own", ("t",), ("s",), False)
    assert {x.name for x in refs(read_off.expr)} == {"%diagonal", "all", *(x.name for x in numbers if x in (ONE, ROW))}


@pytest.mark.parametrize(
    "expr",
    [X, times(X, X), times(X, tile("z", "t", "j")), times(X, Y, tile("u", "j")), times(X, Y, X), ROW],
    ids=["one tile", "a square", "another tile", "weights of columns", "three tiles", "no sum"],
)
def test_other_sums_stay(expr):
    line = summed(expr) if expr != ROW else Assign("own", ("t",), ROW)
    assert on_diagonals([DOT, line]) == [DOT, line]


def test_so_do_those_of_masked_dots():
    lines = [Dot("all", ("t", "s"), DOT.x, DOT.y, mask="same"), summed(times(X, Y))]
    assert on_diagonals(lines) == lines


@pytest.mark.parametrize("name", SPECS)
def test_no_kernel_sums_what_a_dot_has_summed(name):
    for kernel in plan_of(name, "guarded").kernels:
        lines = [x for x in kernel.lines if isinstance(x, Assign | Dot | RowSum)]
        assert on_diagonals(lines) == lines, kernel.name


def test_the_gradient_of_a_bonus_is_such_a_sum():
    kernel = next(k for k in plan_of("rwkv6", "guarded").kernels if k.name == "key_gradients")
    (own,) = (x for x in kernel.lines if isinstance(x, Assign) and x.name == "dlocal")
    assert own.over == ("s",) and "dscores_all" in {x.name for x in refs(own.expr)}
