"""Gradients of scalar gates: as differences of sums over rows, beside inputs of 16 bits."""

from __future__ import annotations

import pytest

from glagen.ir.kernel import Assign, Dot, Kernel, read
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


@pytest.mark.parametrize("name", ["gla", "mamba2", "rwkv6", "mlstm"])
def test_other_gates_take_back_nothing(name):
    """Vectors, whose products are rounded apart; those of parameters, whose gradients add up over all steps; and states
    whose reads are combined."""
    found = plan(document_of(spec_text(name)), Options(tuned=()))
    schedules = [found] if isinstance(found, Schedule) else list(found.parts)
    lines = [x for s in schedules for k in s.kernels for x in k.lines if isinstance(x, Assign)]
    assert lines and not any("_rows_" in name for x in lines for name in read(x))
