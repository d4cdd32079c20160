"""Walks for the states alone, and how often they sum gates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glagen.ir.expr import Ref
from glagen.ir.kernel import Assign, Kernel, Line, RowSum
from glagen.ir.schedule import Options, schedules
from glagen.pipeline import plan
from glagen.schedule.order import pruned
from tests import strategies
from tests.mutation.judge import plan_of
from tests.numerics.helpers import document_of, spec_text

GATED = ["gla", "gla_kv", "gla_sigmoid", "gla_v", "hgrn2"]


def walks(name: str) -> list[Kernel]:
    """Those that make states, and their gradients, and nothing else."""
    return [k for k in plan_of(name, "guarded").kernels if k.direction and not k.whole and not k.given]


def beside_16_bits(kernel: Kernel) -> list[Line]:
    """What such a kernel does there."""
    lines = [
        replace(x, expr=x.mild, least=bool(x.over)) if isinstance(x, Assign) and x.mild is not None else x
        for x in kernel.lines
    ]
    return pruned(lines, [n for scan in kernel.scans for n in scan.reads])


@pytest.mark.parametrize("name", GATED)
def test_a_gate_is_summed_once_beside_16_bit_inputs(name):
    for kernel in walks(name):
        lines = beside_16_bits(kernel)
        sums = [x for x in lines if isinstance(x, RowSum)]
        assert len({x.source.name for x in sums}) == len(sums) > 0
        assert {x.select for x in sums} == {"through"}
        assert not [x for x in lines if isinstance(x, Assign) and x.over and not x.least]


@pytest.mark.parametrize("name", GATED)
def test_all_digits_of_other_inputs_count(name):
    """Decays to the chunk's end have sums of their own: no exponent is a difference."""
    for kernel in walks(name):
        exact = [replace(x, mild=None) if isinstance(x, Assign) else x for x in kernel.lines]
        lines = pruned(exact, [n for scan in kernel.scans for n in scan.reads])
        assert {x.select for x in lines if isinstance(x, RowSum)} == {"after" if kernel.name == "states" else "through"}
        powers = [x.expr for x in lines if isinstance(x, Assign) and getattr(x.expr, "function", "") == "exp"]
        assert powers and all(isinstance(power.args[0], Ref) for power in powers)


@pytest.mark.parametrize("text", [*strategies.PARAMETER_GATES, spec_text("mlstm")])
def test_states_that_keep_their_digits_have_exact_decays(text):
    found = plan(document_of(text), Options(tuned=()))
    for one in schedules(found):
        for kernel in one.kernels:
            if kernel.direction and not kernel.whole:
                assert not [x for x in kernel.lines if isinstance(x, Assign) and x.mild is not None]
