"""Gradients of gates as differences of sums over rows, beside inputs of 16 bits."""

from __future__ import annotations

import pytest

from glagen.ir.expr import refs
from glagen.ir.kernel import Assign, Dot, Kernel, RowSum, read
from glagen.ir.schedule import Options, Schedule
from glagen.pipeline import plan
from glagen.schedule.order import pruned
from glagen.schedule.turn import single_lines
from tests.numerics.helpers import document_of, spec_text

BEFORE = spec_text("simple_gla").replace("q[t,i] * S[t,i,j]", "q[t,i] * S[t-1,i,j]")


def keys(text: str) -> Kernel:
    found = plan(document_of(text), Options(tuned=()))
    assert isinstance(found, Schedule)
    return next(kernel for kernel in found.kernels if kernel.name == "key_gradients")


def gate(kernel: Kernel) -> Assign:
    return next(x for x in kernel.lines if isinstance(x, Assign) and x.name == "dgate")


@pytest.mark.parametrize("text", [spec_text("simple_gla"), BEFORE], ids=["simple_gla", "read before the write"])
def test_a_scalar_gate_takes_no_pairs_of_steps(text):
    kernel = keys(text)
    line = gate(kernel)
    assert line.mild is not None
    lines = [Assign(line.name, line.axes, line.mild) if x is line else x for x in kernel.lines]
    made = {name for x in pruned(lines, [line.name]) for name in read(x)}
    assert not {"scores", "scores_all", "gate_pairs_0"} & made
    assert {"scores", "gate_pairs_0"} <= {name for x in pruned(list(kernel.lines), [line.name]) for name in read(x)}


def test_what_cancels_is_rounded_once():
    """Reads and writes of a pair of steps are products of one matrix."""
    dots = {x.name: x for x in single_lines(keys(spec_text("simple_gla")).lines) if isinstance(x, Dot)}
    assert dots["dquery_intra"].x.name == dots["dk_intra_unscaled"].x.name == "dscores_decayed"


@pytest.mark.parametrize("name", ["mamba2", "mlstm", "retnet"])
def test_other_scalar_gates_take_back_nothing(name):
    """Those of parameters, whose gradients add up over all steps; and of states whose reads are combined."""
    found = plan(document_of(spec_text(name)), Options(tuned=()))
    schedules = [found] if isinstance(found, Schedule) else list(found.parts)
    lines = [x for s in schedules for k in s.kernels for x in k.lines if isinstance(x, Assign)]
    assert lines and not any("_rows_" in name for x in lines for name in read(x))


@pytest.mark.parametrize(("name", "kernel"), [("gla", "key_gradients"), ("gla_v", "value_gradients")])
def test_a_vector_takes_back_what_leaves_a_chunk_if_it_is_mild(name, kernel):
    """One sum over rows for two; where gates are strong, each path has its own."""
    found = plan(document_of(spec_text(name)), Options(tuned=()))
    assert isinstance(found, Schedule)
    lines = next(k for k in found.kernels if k.name == kernel).lines
    sums = {x.name for x in lines if isinstance(x, RowSum)}
    line = next(x for x in lines if isinstance(x, Assign) and x.mild is not None and "_rows_from" in str(read(x)))
    exact, mild = ({r.name for r in refs(x)} & sums for x in (line.expr, line.mild))
    assert {n.rpartition("_")[2] for n in exact} == {"from", "before"} and {"rows" in n for n in mild} == {True}
    assert len(exact) == 2 and len(mild) == 1
