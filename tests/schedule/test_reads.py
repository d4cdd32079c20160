"""Where values have gates, products of a read add up before they decay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glagen.ir.chunk import Operand
from glagen.ir.expr import apply, ref, refs, times
from glagen.ir.kernel import Assign, Blocks, Dot, Line, read
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import BEYOND, FORWARD, GIVEN
from glagen.pipeline import plan
from glagen.schedule.reads import read_at_once
from glagen.schedule.turn import single_lines
from tests.numerics.helpers import document_of, spec_text
from tests.schedule.test_joint import value
from tests.strategies import READ_TWICE

VALUES, PAIRS = ("t", "j"), ("t", "s")
INTER = Assign("inter", VALUES, times(ref("undecayed", VALUES), ref("g_from_start", VALUES), ref("scale")))
PART = Dot("part", VALUES, Operand("scores", PAIRS), Operand("v_up", VALUES))
INTRA = Assign("intra", VALUES, times(ref("g_down_anchored", VALUES), ref("part", VALUES)), accumulate=True)
GUARD = Blocks("guard", 1, "g", (PART, INTRA), "depth", by_row=True)
OTHER = Blocks("eights", 8, "g", (replace(PART, y=Operand("v_eight", VALUES)), INTRA), "depth", by_row=True)
TOTAL = Assign("o", VALUES, apply("add", ref("inter", VALUES), ref("intra", VALUES)))
SCALED = replace(TOTAL, expr=times(ref("z", VALUES), TOTAL.expr))


@pytest.mark.parametrize("text", [spec_text("gla_v"), spec_text("gla_kv"), READ_TWICE], ids=["values", "both", "twice"])
def test_forwards_decay_what_they_read_once(text):
    schedule = plan(document_of(text), Options())
    assert isinstance(schedule, Schedule)
    kernels = {k.name: k for k in schedule.kernels if k.name in FORWARD and "j" in k.owned and k.stores}
    assert {"outputs", "fused"} <= kernels.keys() <= {"outputs", "fused", GIVEN, BEYOND}
    for kernel in (x for x in kernels.values() if x.name != BEYOND):
        assert not any(name.startswith("gate_v_from_start") for line in kernel.lines for name in read(line))
        blocks = [x for x in kernel.lines if isinstance(x, Blocks) and (x.kind, x.gate) == ("guard", "gate_v")]
        assert len(blocks) == (not kernel.leaves_values)
        body = blocks[0].body if blocks else kernel.lines
        begun = {x.name: x for x in body if isinstance(x, Assign)}
        sums = [x for x in body if isinstance(x, Dot) and x.accumulate and x.name.endswith("_anchored")]
        assert len(sums) == len(schedule.program.outputs)
        for dot in sums:
            assert "%UNIT" in {r.name for r in refs(begun[dot.name].expr)}, "runs with smaller growths have it smaller"


def test_gates_of_keys_decay_queries():
    """There one tile has both as it is, and nothing changes."""
    schedule = plan(document_of(spec_text("gla")), Options())
    assert isinstance(schedule, Schedule)
    for kernel in (k for k in schedule.kernels if k.name in FORWARD):
        assert not [x for x in single_lines(kernel.lines) if x.name.endswith("_intra_anchored")]


def run(lines: list[Line], given: dict[str, float]) -> dict[str, float]:
    """What lines make of one number a tile, in a run for mild gates."""
    given = dict(given)
    for line in lines:
        for x in line.body if isinstance(line, Blocks) else (line,):
            match x:
                case Assign(name=name, expr=expr):
                    found = value(expr, given)
                case Dot(name=name):
                    found = given[x.x.name] * given[x.y.name]
            given[name] = given.get(name, 0.0) * x.accumulate + found
    return given


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("total", [TOTAL, SCALED], ids=["all", "a factor"])
def test_both_forms_give_the_same_numbers(shifted, total):
    unit = 0.25 if shifted else 1.0
    given = {"undecayed": 3.0, "g_from_start": 0.5, "scale": 0.75, "scores": 5.0, "z": 7.0, "%UNIT": unit}
    given |= {"v_up": 4.0 * unit, "g_down_anchored": 0.5 / unit, "v_eight": 0.125}
    before: list[Line] = [INTER, GUARD, OTHER, total]
    after = read_at_once(before, "g", shifted)
    assert len(after) == (2 if total is TOTAL else 3) and not any("g_from_start" in read(line) for line in after)
    assert run(after, given)["o"] == run(before, given)["o"]


@pytest.mark.parametrize(
    "lines",
    [
        [INTER, GUARD, TOTAL, Assign("more", VALUES, ref("inter", VALUES))],
        [INTER, GUARD, TOTAL, Assign("more", VALUES, ref("intra", VALUES))],
        [replace(INTER, expr=times(ref("undecayed", VALUES), ref("h_from_start", VALUES))), GUARD, TOTAL],
        [replace(INTER, rounded="wide"), GUARD, TOTAL],
        [INTER, GUARD, replace(TOTAL, expr=apply("mul", *TOTAL.expr.args))],
        [INTER, OTHER, TOTAL],
    ],
    ids=["the state's is read", "the chunk's is read", "another gate", "a dot's operand", "no sum", "no one block"],
)
def test_what_something_else_needs_stays(lines):
    assert read_at_once(lines, "g", True) == lines
