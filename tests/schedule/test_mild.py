"""What a run that counts only for mild gates may leave out, and what it may not."""

from __future__ import annotations

import pytest

from glagen.ir.expr import Apply, Ref, refs
from glagen.ir.kernel import Assign, Blocks, Kernel, Load, Loop, RowSum, Store, read
from glagen.schedule.mild import unguarded
from tests.mutation.judge import SPECS, plan_of


def assigns(kernel: Kernel) -> list[Assign]:
    lines = [x for line in kernel.lines for x in (line.body if isinstance(line, Blocks) else (line,))]
    return [x for x in lines if isinstance(x, Assign)]


def functions(expr) -> set[str]:
    if not isinstance(expr, Apply):
        return set()
    return {expr.function}.union(*(functions(x) for x in expr.args))


@pytest.mark.parametrize("name", SPECS)
def test_kernels_that_run_once_do_all_work(name):
    for kernel in plan_of(name, "guarded").kernels:
        if not kernel.judged:
            assert not [x for x in assigns(kernel) if x.mild is not None]


@pytest.mark.parametrize("name", SPECS)
def test_only_gates_by_which_a_run_is_judged_are_let_alone(name):
    for kernel in plan_of(name, "guarded").kernels:
        sums = {x.name: x.source.name for x in kernel.lines if isinstance(x, RowSum)}
        judged = {sums[r.name] for x in assigns(kernel) if x.at_hand for r in refs(x.expr)}
        before = {x.source.name for x in kernel.lines if isinstance(x, RowSum) and x.select == "before"}
        for x in assigns(kernel):
            if x.mild is not None and functions(x.expr) & {"clamp"}:
                assert x.name in judged, x
            if x.name in judged - before and functions(x.expr) & {"clamp"} and isinstance(x.expr.args[0], Ref):
                assert x.mild == x.expr.args[0]


@pytest.mark.parametrize("name", SPECS)
def test_what_a_run_is_judged_by_is_at_hand(name):
    """The sum over the chunk stands before the judgement, and has its gate's axes."""
    for kernel in plan_of(name, "guarded").kernels:
        for body in (kernel.lines, *(item.body for item in kernel.body if isinstance(item, Loop))):
            seen: set[str] = set()
            for line in body:
                if isinstance(line, Assign) and line.at_hand and isinstance(line.mild, Ref):
                    assert line.mild.name in seen or line not in body
                seen |= {line.name} if isinstance(line, Assign) else set()


@pytest.mark.parametrize("name", SPECS)
def test_growths_stay_in_their_loop(name):
    """A decay to the end that waited for a growth would need a loop of its own over the columns."""
    for kernel in plan_of(name, "guarded").kernels:
        loops = [item for item in kernel.body if isinstance(item, Loop)]
        assert len(loops) <= 1, kernel.name


@pytest.mark.parametrize("name", SPECS)
def test_gates_without_bounds_are_all_in_what_judges_them(name):
    """A last gate of -inf that no sum took in would go unseen: sums that leave it out are NaN."""
    for kernel in plan_of(name, "guarded").kernels:
        free = {x.name for x in assigns(kernel) if x.mild is not None and functions(x.expr) & {"clamp"}}
        for x in assigns(kernel):
            if x.at_hand:
                sums = [y for r in refs(x.expr) for y in kernel.lines if isinstance(y, RowSum) and y.name == r.name]
                through = x.mild is not None or all(y.select == "through" for y in sums)
                assert through or not {y.source.name for y in sums} & free, x


def test_tiles_that_are_stored_alone_are_not_guarded():
    one = Assign("one", ("t",), Ref("x", ()), guarded=True)
    two = Assign("two", ("t",), Ref("one", ()), guarded=True)
    total = Assign("total", (), Ref("one", ()), over=("t",), guarded=True)
    stores = [Store("a", "one", ("t",)), Store("b", "two", ("t",)), Store("c", "total", ())]
    found = {x.name: x.guarded for x in unguarded([one, two, total], stores) if isinstance(x, Assign)}
    assert found == {"one": True, "two": False, "total": True}
    assert not isinstance(one, Load) and read(two) == ("one",)
