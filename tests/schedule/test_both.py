"""One kernel for a chunk's gradients on both sides: for which specs, and what is left to others."""

from __future__ import annotations

import pytest

from glagen.ir.kernel import Assign, Dot, Kernel, Load, read, written
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import BOTH
from glagen.pipeline import plan
from glagen.schedule.both import has_states_left
from glagen.schedule.turn import single_lines
from tests.numerics.helpers import both_sides, document_of, spec_text

GLA_V = spec_text("gla_v")
STATES = {"S", "dS_end"}


def planned(text: str) -> Schedule:
    document = document_of(text)
    found = plan(document, Options(tuned=both_sides(document, 9, (200, 300))))
    assert isinstance(found, Schedule)
    return found


def both(text: str) -> Kernel | None:
    return next((kernel for kernel in planned(text).kernels if kernel.name == BOTH), None)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    found = both(GLA_V)
    assert found is not None
    return found


def test_it_makes_all_gradients_of_a_chunk(kernel):
    """Of what it loads once."""
    assert kernel.whole == ("i", "j") and kernel.direction is None and not kernel.scans
    assert {store.target for store in kernel.stores} == {"dq", "dk", "dv", "dg"}
    loads = [line.name for line in kernel.lines if isinstance(line, Load)]
    assert sorted(loads) == sorted({"q", "k", "v", "g", "do", *STATES})


def test_states_are_left_operands_as_they_lie_in_memory(kernel):
    """All other products have steps for rows, fewer than Hopper's wgmma takes."""
    dots = [line for line in kernel.lines if isinstance(line, Dot)]
    of_states = [dot for dot in dots if {dot.x.name, dot.y.name} & STATES]
    assert len(of_states) == 4 and all(dot.x.name in STATES for dot in of_states)
    assert all(dot.axes[0] in ("i", "j") and dot.axes[1] == "t" for dot in of_states)
    assert has_states_left(kernel) and BOTH in planned(GLA_V).from_shared


def test_sums_of_states_times_their_gradients_come_first(kernel):
    """Before any product that has columns: threads then hold none."""
    summed = [n for n, x in enumerate(kernel.lines) if isinstance(x, Assign) and {*read(x)} >= STATES]
    before = single_lines(kernel.lines[: summed[0]])
    assert len(summed) == 1 and not [x for x in before if isinstance(x, Dot) and {*x.axes} & {"i", "j"}]


def test_one_side_is_done_before_the_other(kernel):
    made = {name: n for n, line in enumerate(kernel.lines) for name in written(line)}
    last = {store.target: made[store.tile] for store in kernel.stores}
    assert max(last["dv"], last["dg"]) < min(last["dq"], last["dk"])


@pytest.mark.parametrize(
    "text",
    [
        spec_text("gla"),
        spec_text("gla_kv"),
        spec_text("linear_attn"),
        spec_text("simple_gla"),
        GLA_V.replace("  scale:", "  u: {kind: parameter, axes: [j]}\n  scale:").replace("* v[t,j]", "* u[j] * v[t,j]"),
    ],
    ids=["gates on keys", "on both sides", "none", "scalar", "parameter"],
)
def test_no_other_spec_has_it(text):
    """Where keys have gates threads have no room; gradients of parameters are sums over steps."""
    assert text != GLA_V and both(text) is None


def test_there_is_none_where_nobody_measured_it():
    found = plan(document_of(GLA_V), Options(tuned=()))
    assert isinstance(found, Schedule) and BOTH not in {kernel.name for kernel in found.kernels}
