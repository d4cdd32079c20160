"""What stays on chip has value columns first, or the state alone has, unless it waits (see test_wait.py): the same
numbers, and nothing else is turned."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace

import pytest

from glagen.emit import emit
from glagen.ir.chunk import Operand
from glagen.ir.expr import apply, ref
from glagen.ir.kernel import Assign, Blocks, Dot, Kernel, Load, RowSum, Scan, read, written
from glagen.ir.schedule import Options
from glagen.ir.tuned import GIVEN_KERNELS, KEY_GRADIENTS
from glagen.pipeline import plan
from glagen.schedule.tiles import STATES_TURNED, gated_sides
from glagen.schedule.turn import dealt, turned
from glagen.schedule.wait import adds_from_shared
from tests.mutation.judge import COVERS, SPECS, plan_of
from tests.numerics.helpers import document_of, spec_text

CASES = list(itertools.product(SPECS, COVERS))
BY_WGMMA = ["gla", "gla_sigmoid", "hgrn2", "rwkv6"]


def fused(name: str, cover: str) -> list[Kernel]:
    return [k for k in plan_of(name, cover).kernels if k.whole]


def single(kernel: Kernel):
    for line in kernel.lines:
        yield from line.body if isinstance(line, Blocks) else (line,)


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_what_dots_make_of_value_columns_has_them_first(name, cover):
    alone = gated_sides(plan_of(name, cover).program) in STATES_TURNED
    for kernel in fused(name, cover):
        assert all(scan.axes == (("i", "j") if scan.waits else ("j", "i")) for scan in kernel.scans)
        for line in single(kernel) if not alone else ():
            if isinstance(line, Dot) and "j" in line.axes:
                assert line.axes[0] == "j", line
            if isinstance(line, RowSum):
                assert line.axes[:1] != ("j",) or len(line.axes) == 1, line
            if isinstance(line, Load) and line.axes[:1] == ("j",) and len(line.axes) == 2:  # see test_operands.py
                assert line.axes == ("j", "t"), line


@pytest.mark.parametrize(("name", "cover"), [x for x in CASES if x[0] in BY_WGMMA])
def test_products_of_chunks_have_steps_first_where_the_state_alone_is_turned(name, cover):
    """So that wgmma multiplies what is added to states alone, of tiles as they lie in memory."""
    for kernel in fused(name, cover):
        assert adds_from_shared(kernel) and not kernel.waits
        for line in single(kernel):
            if isinstance(line, Dot) and "j" in line.axes:
                assert line.axes[0] in ("t", "s"), line
        assert all(dot.axes == ("j", "i") for scan in kernel.scans for dot in scan.added)


def dealt_in(kernel: Kernel) -> list[Dot]:
    return [x for x in single(kernel) if isinstance(x, Dot) and x.dealt]


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_products_with_a_turned_state_have_its_order(name, cover):
    """And what is added to them has; nothing else, and nobody sees a tile before it is in its own order again."""
    planned = plan_of(name, cover)
    for kernel in planned.kernels:
        states = {scan.tile for scan in kernel.scans if scan.axes == ("j", "i") and not scan.rounded}
        found = dealt_in(kernel)
        assert not found or kernel.name in planned.from_shared
        begun = [x for x in single(kernel) if isinstance(x, Dot) and x.y.name in states and not x.accumulate]
        assert kernel.name not in planned.from_shared or all(x.dealt for x in begun)
        for name_ in {x.name for x in found}:
            uses = [x for x in single(kernel) if name_ in (*written(x), *read(x))]
            last = max(n for n, x in enumerate(uses) if x in found)
            assert all(x in found for x in uses[: last + 1])
            assert any(x.y.name in states for x in uses[: last + 1])
            assert all("j" in x.y.indices for x in uses[: last + 1])


def test_what_is_added_later_is_not_dealt():
    """Nor what a mask belongs to, nor a product with a state that is not turned."""
    read_, add = Operand("S", ("j", "i")), Operand("v", ("s", "j"))
    first = Dot("o", ("t", "j"), Operand("q", ("t", "i")), read_)
    more = Dot("o", ("t", "j"), Operand("scores", ("t", "s")), add, accumulate=True)
    use = Assign("twice", ("t", "j"), apply("mul", ref("o", ("t", "j")), ref("o", ("t", "j"))))
    scan = Scan("S", ref("S", ("j", "i")), "S_initial", "S_final", None, axes=("j", "i"))
    masked = replace(more, mask="own")
    assert [x.dealt for x in dealt((first, more), (scan,))] == [True, True]
    assert [getattr(x, "dealt", None) for x in dealt((first, use, more), (scan,))] == [True, None, False]
    assert [x.dealt for x in dealt((first, masked, more), (scan,))] == [True, False, False]
    assert [x.dealt for x in dealt((first, more), (replace(scan, axes=("i", "j")),))] == [False, False]


@pytest.mark.parametrize("name", BY_WGMMA)
def test_light_forwards_store_states_ahead(name):
    """Which half as many threads hold: those that compute next to nothing of tensors alone."""
    for kernel in fused(name, "guarded"):
        light = kernel.name == "fused" and name in ("gla", "hgrn2")
        assert all(scan.ahead == (light and scan.saved is not None) for scan in kernel.scans)


@pytest.mark.parametrize(
    ("old", "new", "cover", "stays"),
    [
        ("", "", "auto", True),
        ("k[t,i] * v[t,j]", "k[t,i] * silu(v[t,j])", "auto", True),  # computed: it waits
        ("S[t-1,i,j] + k[t,i] * v[t,j]", "S[t-1,i,j] + k[t,i] * tanh(v[t,j]) + k[t,i] * v[t,j]", "auto", False),
        ("chunk: auto", "chunk: 64", "auto", False),  # as many rows as wgmma has
        ("", "", "bisect", False),
    ],
    ids=["as it is", "values computed", "one of two", "long chunks", "halves"],
)
def test_states_that_do_not_add_by_wgmma_stay_in_memory(old, new, cover, stays):
    document = document_of(spec_text("gla").replace(old, new))
    planned = plan(document, Options(cover=cover))
    assert bool(planned.fused_by_wgmma) == stays and bool(planned.faster_fused) == stays
    assert ("fused_value_gradients" in {k.name for k in planned.kernels}) == stays
    text = emit(planned, "0" * 16)
    others = {*planned.from_shared} - {*GIVEN_KERNELS}  # walks that are given what they multiply have chunks of 64
    assert bool(others) == stays and ("_dealt(" in text) == stays
    assert ("FROM_SHARED" in text) == bool(planned.from_shared) == (stays or bool(planned.doubled))
    ast.parse(text)


@pytest.mark.parametrize("name", ["gla_v", "simple_gla"])
def test_others_multiply_what_lies_in_registers(name):
    assert not [k.name for k in fused(name, "") if adds_from_shared(k)]


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_other_kernels_are_as_they_were(name, cover):
    others = [k for k in plan_of(name, cover).kernels if not k.whole]
    assert {k.name for k in others if k.turned} == ({KEY_GRADIENTS} if name == "linear_attn" else set())


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_every_use_says_which_way_round_a_tile_is(name, cover):
    for kernel in fused(name, cover):
        axes = {scan.tile: scan.axes for scan in kernel.scans} | {x.name: x.axes for x in single(kernel)}
        axes |= {scan.rounded: scan.axes for scan in kernel.scans}
        for line in [*single(kernel), *(dot for scan in kernel.scans for dot in scan.added)]:
            for operand in operands(line):
                known = axes[operand.name]
                rows = {"t", "s"}
                assert [x in rows for x in operand.indices] == [x in rows for x in known], (line, known)
            if isinstance(line, Dot):
                inner = set(line.x.indices) & set(line.y.indices)
                assert len(inner) == 1
                for axis, operand in zip(line.axes, (line.x, line.y), strict=True):  # rows are called t where alone
                    assert axis in operand.indices or (axis == "t" and "s" in operand.indices), line


def operands(line: Load | Assign | Dot | RowSum) -> tuple[Operand, ...]:
    return (line.x, line.y) if isinstance(line, Dot) else (line.source,) if isinstance(line, RowSum) else ()


def test_a_sum_over_steps_keeps_its_steps_first():
    """What such a sum adds to is not turned, nor what is computed of inputs alone."""
    dot = Dot("made", ("t", "j"), Operand("q", ("t", "i")), Operand("S", ("i", "j")))
    lines = [
        Load("q", ("t", "i")),
        Load("v", ("t", "j")),
        dot,
        Assign("scaled", ("t", "j"), apply("mul", ref("v", ("t", "j")), ref("v", ("t", "j")))),
        Assign("both", ("t", "j"), apply("mul", ref("made", ("t", "j")), ref("v", ("t", "j")))),
        RowSum("sums", ("t", "j"), Operand("made", ("t", "j")), "through"),
    ]
    found, (scan,) = turned(lines, (Scan("S", ref("S", ("i", "j")), "S_initial", "S_final", None),))
    assert [line.axes for line in found] == [("t", "i"), ("t", "j"), ("j", "t"), ("t", "j"), ("j", "t"), ("t", "j")]
    assert found[2].x == Operand("S", ("j", "i")) and found[2].y == Operand("q", ("t", "i"))
    assert found[5].source == Operand("made", ("j", "t")) and scan.axes == ("j", "i")
