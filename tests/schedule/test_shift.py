"""How far growths reach beside 16-bit inputs: which kernels have a factor between growths and decays, and which one."""

from __future__ import annotations

import math
import re

import pytest
import torch

from glagen.emit.blocks import EIGHTS
from glagen.emit.helpers import TRITON_HELPERS
from glagen.errors import Source
from glagen.ir.expr import Apply, refs, walk
from glagen.ir.kernel import Assign, Blocks, Depth, Kernel
from glagen.ir.schedule import CLOSED, EIGHT, FARTHEST, LOWEST, SHIFT, SLACK
from glagen.ir.tuned import BEYOND
from glagen.pipeline import compile_spec
from glagen.schedule.covers import GROWTH_LIMIT
from tests.mutation.judge import plan_of
from tests.numerics.helpers import spec_text

GUARDED = ["gla", "gla_v", "gla_kv", "hgrn2", "rwkv6"]


def kernels_of(name: str) -> list[Kernel]:
    return [k for k in plan_of(name, "guarded").kernels if k.runs_twice]


def growths(kernel: Kernel) -> list[Assign]:
    made = [x for line in kernel.lines for x in (line.body if isinstance(line, Blocks) else (line,))]
    return [x for x in made if isinstance(x, Assign) and "_up_anchored" in x.name and x.name.startswith("gate_")]


def calls(line: Assign) -> set[str]:
    return {
        x.function for expr in (line.expr, line.mild) if expr is not None for x in walk(expr) if isinstance(x, Apply)
    }


@pytest.mark.parametrize("name", GUARDED)
def test_forwards_and_walks_have_a_power_of_two(name):
    """And gradients of chunks have the sum over half of the chunk, in the run for mild gates."""
    for kernel in kernels_of(name):
        of_chunks = kernel.of_gradients and not kernel.whole
        assert growths(kernel) or kernel.name == BEYOND, kernel.name
        for line in growths(kernel):
            assert ("lowered" in calls(line)) == (not of_chunks)
            assert line.mild is not None
            halved = any(r.name.endswith("_half") for r in refs(line.mild))
            assert halved == of_chunks and not any(r.name.endswith("_half") for r in refs(line.expr))
        assert all(x.shifted == (not of_chunks) for x in kernel.lines if isinstance(x, Depth))


@pytest.mark.parametrize("name", ["rwkv6", "before_k", "before_v"])
def test_gradients_sum_gates_once_where_reads_come_before_the_write(name):
    """In the run for mild gates: sums before a step are those through it, less its own gate."""
    kernels = [k for k in kernels_of(name) if k.of_gradients and not k.whole]
    lines = [x for k in kernels for line in k.lines for x in (line.body if isinstance(line, Blocks) else (line,))]
    downs = [x for x in lines if isinstance(x, Assign) and re.fullmatch("gate_._down_anchored_before", x.name)]
    assert downs
    for line in downs:
        gate = line.name.removesuffix("_down_anchored_before")
        assert line.mild is not None
        assert {r.name for r in refs(line.mild)} == {f"log_{gate}_since", gate, f"log_{gate}_half"}


@pytest.mark.parametrize("name", GUARDED)
def test_walks_judge_by_what_their_readers_reach(name):
    """What makes chunk states judges for outputs made from them, whose first run reaches as far as it always did."""
    for kernel in plan_of(name, "guarded").kernels:
        for judge in kernel.judges:
            assert (judge.limit, judge.far) == (GROWTH_LIMIT, FARTHEST)


def test_both_ends_are_normal_numbers():
    """A growth and a decay of FARTHEST nats, with room for what they multiply; by the factor that kernels have."""
    bits = float(FARTHEST) * 1.4426950408889634
    assert bits - SHIFT < 127 - 36 and SHIFT - bits > -126 + 35
    for helper in ("_raised", "_lowered"):
        assert re.findall(r"2\.0\*\*-?(\d+)", TRITON_HELPERS[helper]) == [str(SHIFT)]
        assert re.findall(r"0\.0, (\d+)\.0\)", TRITON_HELPERS[helper]) == [str(SHIFT)]


def test_growths_reach_over_eight_closed_gates():
    """And a chunk is still mild with seven. Each leaves next to nothing beside the digits of inputs, and is a number
    that these types have; with half of the range between them, both ends have room for what they multiply."""
    assert 7 * CLOSED > SLACK - FARTHEST > 8 * CLOSED == -FARTHEST and EIGHT == 8
    assert math.exp(FARTHEST / 2) * 1e10 < 2.0**127 and math.exp(-FARTHEST / 2) * 1e-10 > 2.0**-126
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.tensor(float(CLOSED)).to(dtype) == float(CLOSED)
        assert math.exp(CLOSED) < 1e-3 * torch.finfo(dtype).eps
    assert math.exp(LOWEST) < 2.0**-149


@pytest.mark.parametrize(
    ("gate", "cover", "floor"),
    [
        ("exp(g[t,i])", "[-inf, 0]", f"{float(CLOSED)} if TERMS == 2 else {float(LOWEST)}"),
        ("exp(g[t,i])", "[-1, 0]", str(float(LOWEST))),  # one growth serves, whatever gates do
        ("g[t,i]", "(0, 1]", str(float(LOWEST))),  # its gradient is divided by it
    ],
)
def test_gates_are_closed_where_that_is_next_to_nothing(gate, cover, floor):
    text = spec_text("gla").replace("[-inf, 0]", cover).replace("exp(g[t,i])", gate)
    source = compile_spec(Source("gla.yaml", text))
    assert set(re.findall(r"FLOOR: tl.constexpr = (.*?)  #", source)) == {floor}


@pytest.mark.parametrize("name", ["gla", "gla_v", "gla_kv"])
def test_strong_gates_take_as_many_levels_whatever_they_are(name):
    """Beside 16-bit inputs: no loop in their runs ends as gates ask, and no growth is cut off."""
    source = compile_spec(Source(f"{name}.yaml", spec_text(name)))
    kernels, _ = source.split("# -- launches")
    loops = re.findall(r"for level in (.*):  #", kernels)
    straight = f"tl.static_range({EIGHTS})", f"tl.static_range(1 if LATER else 0, {EIGHTS})"
    assert loops and all("TERMS == 2" in loop or loop in straight for loop in loops)
    half = rf"\(log_gate_\w+ \+ {float(FARTHEST / 2)}\) if TERMS == 2"
    assert all(re.search(f"_{function}{half}", kernels) for function in ("exp", "grow"))


def test_steep_gates_are_halved_as_they_ask():
    """Those that gradients are divided by are not bounded."""
    text = spec_text("gla").replace("[-inf, 0]", "(0, 1]").replace("exp(g[t,i])", "g[t,i]")
    source = compile_spec(Source("gla.yaml", text))
    assert EIGHTS not in "".join(re.findall(r"for level in (.*):  #", source)) and "63.0" not in source


def test_the_certificate_says_how_far_they_reach():
    found = {x.where: x.worst for x in plan_of("gla", "guarded").certificate}
    worst = [value for text, value in found.items() if f"2^-{SHIFT}" in text]
    assert worst and all(abs(value - (float(FARTHEST) - SHIFT * math.log(2))) < 1e-9 for value in worst)
