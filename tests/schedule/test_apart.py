"""Scores that a kernel of their own makes, where a table says so: which kernels can do without making them."""

from __future__ import annotations

import pytest

from glagen.errors import Source
from glagen.ir.kernel import Blocks, Depth, Kernel, Load, read, written
from glagen.ir.schedule import Ensemble, Options, Schedule
from glagen.ir.tuned import ON_CHIP, WALKS
from glagen.pipeline import compile_spec, plan
from tests.numerics.helpers import SPECS, document_of, scores_apart, spec_text


def planned(name: str) -> Schedule | Ensemble:
    document = document_of(spec_text(name))
    table = scores_apart(document, 9, (64, 64)) if len(document.states) == 1 else ()
    return plan(document, Options(tuned=table))


@pytest.mark.parametrize("name", [p.stem for p in SPECS])
def test_kernels_do_without_what_makes_scores_and_without_nothing_else(name):
    found = planned(name)
    if isinstance(found, Ensemble):
        assert not any(k.ready for part in found.parts for k in part.kernels)
        return
    kernels = {kernel.name: kernel for kernel in found.kernels}
    assert "j" not in {axis for line in kernels["scores"].lines for axis in getattr(line, "axes", ())}
    takers = [k for k in found.kernels if k.ready]
    # with gates on both sides, gradients of values take the growths of keys from what makes scores
    assert {"outputs", *(["value_gradients"] if name != "gla_kv" else [])} <= {k.name for k in takers}
    for kernel in takers:
        assert "j" in kernel.owned and kernel.name not in WALKS and kernel.spared
        if kernel.whole and kernels["scores"].runs_twice:  # where gates are strong; it makes those of mild ones
            assert kernel.name in ON_CHIP and kernel.late and not any(isinstance(x, Depth) for x in kernel.lines)
            assert {x.kind for x in kernel.lines if isinstance(x, Blocks)} <= {"own"}
        left = [line for line in kernel.lines if line not in kernel.spared]
        known = {name for line in left for name in written(line)} | {ready.tile for ready in kernel.ready}
        known |= {scan.tile for scan in kernel.scans}
        made = {name for line in kernel.lines for name in written(line)}
        wanted = {name for line in left for name in read(line)} | {store.tile for store in kernel.stores}
        wanted |= {name for scan in kernel.scans for name in scan.reads} | {j.sums for j in kernel.judges}
        assert wanted & made <= known
        assert not {name for line in left for name in written(line)} & {ready.tile for ready in kernel.ready}


def loads(kernel: Kernel) -> set[str]:
    return {line.name for line in kernel.lines if isinstance(line, Load) and line not in kernel.spared}


def test_what_is_not_loaded_then():
    """Keys for outputs, queries for gradients of values; but keys where an output takes them by themselves."""
    kernels = {(n, k.name): k for n in ("gla", "rwkv6") for k in planned(n).kernels}
    assert loads(kernels["gla", "outputs"]) == {"g", "q", "S", "v"}
    assert loads(kernels["gla", "value_gradients"]) == {"g", "k", "dS_end", "do"}
    assert "k" in loads(kernels["rwkv6", "outputs"])


@pytest.mark.parametrize("name", [p.stem for p in SPECS])
def test_without_a_table_they_are_for_strong_gates_alone(name):
    """Of keys; then for walks on chip, whose other runs make their own."""
    planned = plan(document_of(spec_text(name)), Options(tuned=()))
    for part in planned.parts if isinstance(planned, Ensemble) else (planned,):
        walks = {"gla_kv": {ON_CHIP[0]}} | {key: {*ON_CHIP} for key in ("gla", "gla_sigmoid", "hgrn2", "rwkv6")}
        of_keys = name in walks
        assert {k.name for k in part.kernels if k.ready} == walks.get(name, set())
        assert all(k.late == bool(k.spared) for k in part.kernels)
        assert ("scores" in {k.name for k in part.kernels}) == of_keys
    text = compile_spec(Source(f"{name}.yaml", spec_text(name)), Options(tuned=()))
    assert ("def _strong_scores_triton(" in text) == of_keys and "def _scores_triton(" not in text


def test_a_table_has_others_take_them():
    table = scores_apart(document_of(spec_text("gla")), 9, (64, 64))
    text = compile_spec(Source("gla.yaml", spec_text("gla")), Options(tuned=table))
    assert text.count("if scores_ptr is not None:") == 4 and "def _scores_triton(" in text
