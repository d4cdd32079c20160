"""Walks on chip that leave values beyond a growth's reach to another kernel: where, and what is left of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glagen.errors import Source
from glagen.ir.kernel import Blocks, Depth, Kernel, Load, read
from glagen.ir.schedule import Ensemble, Options, Schedule
from glagen.ir.tuned import BEYOND
from glagen.pipeline import compile_spec, plan
from glagen.schedule.beyond import leaving_values
from tests.numerics.helpers import SPECS, document_of, spec_text

LEAVING = {"gla_v", "gla_kv"}
READ = "sum(i, scale * q[t,i] * S[t,i,j])"


def kernels_of(text: str) -> dict[str, Kernel]:
    schedule = plan(document_of(text), Options())
    assert isinstance(schedule, Schedule)
    return {kernel.name: kernel for kernel in schedule.kernels}


def gates_halved(kernel: Kernel) -> set[str]:
    depths = {x.source.name for x in kernel.lines if isinstance(x, Depth)}
    return depths | {x.gate for x in kernel.lines if isinstance(x, Blocks)}


@pytest.mark.parametrize("name", sorted({path.stem for path in SPECS} - {"gsa", "mlstm", "linear_attn_norm"}))
def test_walks_leave_values_where_these_have_gates_of_any_strength(name):
    kernels = kernels_of(spec_text(name))
    assert (BEYOND in kernels) == kernels["fused"].leaves_values == (name in LEAVING)


@pytest.mark.parametrize("name", sorted(LEAVING))
def test_the_walk_has_no_halves_and_the_other_kernel_no_state(name):
    kernels = kernels_of(spec_text(name))
    walk, beyond = kernels["fused"], kernels[BEYOND]
    assert walk.runs_twice and not any(gate.startswith("gate_v") for gate in gates_halved(walk))
    assert gates_halved(beyond) == {"gate_v"}, "scores of strong gates are given"
    assert "S" not in {name for line in beyond.lines for name in read(line)}
    assert [(store.target, store.adds) for store in beyond.stores] == [("o", True)]
    assert not any(isinstance(x, Blocks) and x.kind == "guard" for x in beyond.lines)


def test_scores_of_strong_gates_are_loaded_and_not_made():
    beyond = kernels_of(spec_text("gla_kv"))[BEYOND]
    assert beyond.given == ("scores",) and not beyond.ready and beyond.looped is None
    assert {x.name for x in beyond.lines if isinstance(x, Load)} == {"gv", "v", "scores"}


@pytest.mark.parametrize(("chunk", "later"), [("16", False), ("32", True), ("128", True)])
def test_later_halves_of_chunks_go_first_if_they_are_rows_enough(chunk, later):
    spec = spec_text("gla_v").replace("chunk: auto", f"chunk: {chunk}", 1)
    text = compile_spec(Source("gla_v.yaml", spec), Options())
    assert ("passes=_later(programs)" in text) == ("LATER: tl.constexpr," in text) == later


@pytest.mark.parametrize("output", [f"tanh(v[t,j]) * {READ}", f"{READ} + v[t,j]"])
def test_not_where_outputs_are_made_of_what_blocks_add_up(output):
    kernels = kernels_of(spec_text("gla_v").replace(READ, output))
    assert BEYOND not in kernels and not kernels["fused"].leaves_values


def test_not_in_parts_whose_reads_are_combined():
    found = plan(document_of(spec_text("gla_v").replace(READ, f"silu({READ})")), Options())
    assert isinstance(found, Ensemble) and not any(k.leaves_values for part in found.parts for k in part.kernels)


def test_a_walk_whose_growths_are_not_known_stays_as_it_is():
    kernels = kernels_of(spec_text("gla_v"))
    outputs = kernels["outputs"]
    near = [replace(x, shifted=False) if isinstance(x, Depth) else x for x in outputs.body]
    assert leaving_values(outputs, replace(outputs, body=tuple(near))) == (outputs,)


def test_no_load_of_a_walk_that_waits_is_past_the_last_chunk():
    text = compile_spec(Source("gla_kv.yaml", spec_text("gla_kv")))
    body = text[text.index("def gla_kv_fused_kernel(") :]
    body = body[: body.index("\ndef ")]
    loads = [line for line in body.splitlines() if "(slot * H + h)" in line]
    assert loads and all("mask=n < chunks" in line for line in loads)
