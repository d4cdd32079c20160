"""One walk back that makes all gradients, or all but those of queries: for which specs, and what is left to it."""

from __future__ import annotations

import re

import pytest
import torch

from glagen.ir.kernel import Assign, Dot, Kernel, Load, read, written
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import ALONE, ALONE_KERNELS, OTHERS
from glagen.pipeline import plan
from glagen.schedule.given import has_lefts_in_memory
from glagen.schedule.tiles import WGMMA_ROWS
from tests.numerics.helpers import all_gradients, document_of, generated, half_chunks, spec_text
from tests.strategies import UNGATED

HEADS = (200, 300)


def planned(text: str) -> Schedule:
    document = document_of(text)
    found = plan(document, Options(tuned=all_gradients(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    return found


def alone(text: str) -> Kernel | None:
    return next((kernel for kernel in planned(text).kernels if kernel.name in ALONE_KERNELS), None)


@pytest.mark.parametrize("text", [spec_text("linear_attn"), *UNGATED], ids=["linear_attn", "own step", "steps before"])
def test_all_gradients_but_those_of_queries_come_of_one_walk(text):
    """It reads no states, and neither keeps nor reads their gradient in memory."""
    kernel = alone(text)
    assert kernel is not None and kernel.direction == "reverse" and not kernel.owned and kernel.whole == ("i", "j")
    assert {store.target for store in kernel.stores} == {"dk", "dv"}
    assert {line.name for line in kernel.lines if isinstance(line, Load)} == {"q", "k", "v", "do"}
    assert planned(text).mirrored == (("q", "do"), ("k", "v"), ("v", "k"))
    (scan,) = kernel.scans
    assert scan.saved is None and scan.axes == ("i", "j")


@pytest.mark.parametrize("text", UNGATED, ids=["own step", "steps before"])
def test_its_left_operands_lie_in_memory_or_are_carried(text):
    kernel = alone(text)
    assert kernel is not None and has_lefts_in_memory(kernel)
    (scan,) = kernel.scans
    dots = [line for line in kernel.lines if isinstance(line, Dot)]
    assert len(dots) == 6 and sum(scan.rounded in (dot.x.name, dot.y.name) for dot in dots) == 2
    assert not any(scan.tile in (dot.x.name, dot.y.name) for dot in dots)
    assert OTHERS in planned(text).from_shared


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
    """With gates, in usual chunks; with left operands that are computed, which Triton would have in registers; with
    sums over steps."""
    assert alone(text) is None


@pytest.mark.parametrize("name", ["lightning_attn", "retnet", "simple_gla"])
def test_beside_a_scalar_gate_it_takes_chunks_of_64_steps(name):
    """Twice as many as other kernels; and not fewer, whatever a table says: operands would be of 32 columns."""
    document = document_of(spec_text(name))
    found = plan(document, Options(tuned=half_chunks(document, 9, HEADS)))
    assert isinstance(found, Schedule) and 2 * found.chunk == WGMMA_ROWS
    (kernel,) = (kernel for kernel in found.kernels if kernel.name in ALONE_KERNELS)
    assert has_lefts_in_memory(kernel) and kernel.name in found.from_shared and kernel.scans[0].saved is None
    loads = {line.name for line in kernel.lines if isinstance(line, Load)}
    assert loads >= {"q", "k", "v", "do"} and ("S" in loads) == (not found.mirrored) == (name == "simple_gla")
    assert alone(spec_text(name)) is None


def test_beside_a_gate_tiles_are_held_shortly():
    """They are loaded just before what takes them; and summed as soon as they are made."""
    document = document_of(spec_text("simple_gla"))
    found = plan(document, Options(tuned=half_chunks(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    (kernel,) = (kernel for kernel in found.kernels if kernel.name in ALONE_KERNELS)
    lines = [*kernel.lines]
    at = {line.name: n for n, line in enumerate(lines) if isinstance(line, Load) and len(line.axes) == 2}
    dots = [n for n, line in enumerate(lines) if isinstance(line, Dot)]
    assert at["do"] < dots[0] and at["v"] < dots[0] < at["S"] < dots[1] < at["q"]
    for n, line in enumerate(lines):
        if isinstance(line, Assign) and line.over and {*line.axes, *line.over} != {"t"}:
            assert {*read(line)} & {name for x in lines[n - 2 : n] for name in written(x)}, line.name


def test_beside_a_gate_tma_moves_tiles():
    """Of heads that fill them; without a gate threads do."""
    gated, plain = (
        getattr(generated(name), f"{name}_{kernel}_kernel").src
        for name, kernel in (("simple_gla", ALONE), ("linear_attn", OTHERS))
    )
    assert len(re.findall("= tl.make_tensor_descriptor", gated)) == 8 and "descriptor" not in plain
    assert len(re.findall(r"_tiles\.load\(", gated)) == 5 and len(re.findall(r"_tiles\.store\(", gated)) == 3
    module = generated("simple_gla")
    module._capability = lambda: 9
    x = torch.empty(64, dtype=torch.bfloat16)
    for K, V, whole in ((64, 64, True), (48, 64, False), (64, 56, False)):
        config = module._config(ALONE, K, V, torch.bfloat16)
        assert module._loads_by_tma(config, x, whole=True) == whole and not module._loads_by_tma(config, x)
    config = module._config(ALONE, 64, 64, torch.bfloat16)
    assert not module._loads_by_tma(config, x, x[1:], whole=True) and not module._loads_by_tma(
        config, x.half(), whole=True
    )


def test_there_is_none_where_nobody_measured_it():
    found = plan(document_of(spec_text("linear_attn")), Options(tuned=()))
    assert isinstance(found, Schedule) and not {*ALONE_KERNELS} & {kernel.name for kernel in found.kernels}
