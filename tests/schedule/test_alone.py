"""One walk back that makes all gradients: for which specs, and what is left to it."""

from __future__ import annotations

import pytest

from glagen.ir.kernel import Dot, Kernel, Load
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import ALONE
from glagen.pipeline import plan
from glagen.schedule.given import has_lefts_in_memory
from tests.numerics.helpers import all_gradients, document_of, spec_text
from tests.strategies import UNGATED

HEADS = (200, 300)


def planned(text: str) -> Schedule:
    document = document_of(text)
    found = plan(document, Options(tuned=all_gradients(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    return found


def alone(text: str) -> Kernel | None:
    return next((kernel for kernel in planned(text).kernels if kernel.name == ALONE), None)


@pytest.mark.parametrize("text", [spec_text("linear_attn"), *UNGATED], ids=["linear_attn", "own step", "steps before"])
def test_all_gradients_come_of_one_walk(text):
    """It reads the state that enters a chunk, and neither keeps nor reads that state's gradient in memory."""
    kernel = alone(text)
    assert kernel is not None and kernel.direction == "reverse" and not kernel.owned and kernel.whole == ("i", "j")
    assert {store.target for store in kernel.stores} == {"dq", "dk", "dv"}
    assert {line.name for line in kernel.lines if isinstance(line, Load)} == {"q", "k", "v", "do", "S"}
    (scan,) = kernel.scans
    assert scan.saved is None and scan.axes == ("i", "j")


@pytest.mark.parametrize("text", UNGATED, ids=["own step", "steps before"])
def test_its_left_operands_lie_in_memory_or_are_carried(text):
    kernel = alone(text)
    assert kernel is not None and has_lefts_in_memory(kernel)
    (scan,) = kernel.scans
    dots = [line for line in kernel.lines if isinstance(line, Dot)]
    assert len(dots) == 8 and sum(scan.rounded in (dot.x.name, dot.y.name) for dot in dots) == 2
    assert not any(scan.tile in (dot.x.name, dot.y.name) for dot in dots)
    assert ALONE in planned(text).from_shared


@pytest.mark.parametrize("text", UNGATED, ids=["own step", "steps before"])
def test_what_has_columns_and_steps_has_its_columns_first(text):
    kernel = alone(text)
    assert kernel is not None
    made = {line.name: line.axes for line in kernel.lines if isinstance(line, Dot) and set(line.axes) & {"i", "j"}}
    assert made and all(axes[0] in "ij" for axes in made.values())
    assert {store.tile for store in kernel.stores} <= kernel.turned


@pytest.mark.parametrize(
    "text",
    [
        spec_text("simple_gla"),
        spec_text("gla"),
        spec_text("retnet"),
        UNGATED[0].replace("k[t,i] * v", "relu(k[t,i]) * v"),
        UNGATED[0].replace("o[t,j] = ", "o[t,j] = tanh(v[t,j]) * "),
        UNGATED[0].replace("  scale:", "  u: {kind: parameter, axes: [i]}\n  scale:").replace("* q", "* u[i] * q"),
    ],
    ids=["scalar", "gates on keys", "constant", "computed keys", "computed gradients", "parameter"],
)
def test_no_other_backward_is_one_walk(text):
    """With gates; with left operands that are computed, which Triton would have in registers; with sums over steps."""
    assert alone(text) is None


def test_there_is_none_where_nobody_measured_it():
    found = plan(document_of(spec_text("linear_attn")), Options(tuned=()))
    assert isinstance(found, Schedule) and ALONE not in {kernel.name for kernel in found.kernels}
