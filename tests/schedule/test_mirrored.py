"""Gradients of queries that are outputs of other tensors: for which specs, and that the recurrence says so."""

from __future__ import annotations

import pytest
import torch

from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import OTHERS, merged
from glagen.pipeline import plan
from glagen.reference import run
from glagen.regimes import Case, draw
from glagen.schedule.mirrored import mirrored
from tests.numerics.helpers import SPECS, all_gradients, document_of, generated, half_chunks, spec_text
from tests.strategies import UNGATED, UNGATED_CONSTANT

HEADS = (20, 36)
OWN, BEFORE = UNGATED
CONSTANT = '  decay: {kind: constant, axes: [], domain: "(0, 1)"}\n  scale:'
FIXED = OWN.replace("  scale:", CONSTANT).replace("S[t-1,i,j] +", "decay * S[t-1,i,j] +")
TWICE = OWN.replace("o[t,j] = sum", "o[t,j] = 2 * sum")
MIRRORED = {
    "own step": OWN,
    "steps before": BEFORE,
    "a number more": TWICE,
    "a constant gate": FIXED,
    **{name: spec_text(name) for name in ("linear_attn", "retnet", "lightning_attn")},
}
UNLIKE = {
    "computed keys": OWN.replace("k[t,i] * v", "relu(k[t,i]) * v"),
    "computed queries": OWN.replace("* q[t,i]", "* relu(q[t,i])"),
    "computed outputs": OWN.replace("o[t,j] = ", "o[t,j] = tanh(v[t,j]) * "),
    "queries and what multiplies them": OWN.replace("* q[t,i]", "* q[t,i] * k[t,i]"),
    "queries are keys": OWN.replace("  q: [t, i]\n", "").replace("q[t,i]", "k[t,i]"),
    "a term beside": OWN.replace("S[t,i,j])", "S[t,i,j]) + v[t,j]"),
    "two writes": OWN.replace("  scale:", "  w: [t, j]\n  scale:").replace("* v[t,j]", "* v[t,j] + q[t,i] * w[t,j]"),
    "two reads": OWN.replace("S[t,i,j])", "S[t,i,j]) + sum(i, k[t,i] * S[t-1,i,j])"),
    "values without a gradient": UNGATED_CONSTANT,
    "gates with columns": FIXED.replace("axes: []", "axes: [i]").replace("decay *", "decay[i] *"),
    "gates with gradients": spec_text("simple_gla"),
    "a parameter": FIXED.replace("kind: constant", "kind: parameter"),
}


def planned(text: str) -> Schedule:
    document = document_of(text)
    tables = all_gradients(document, 9, HEADS), half_chunks(document, 9, (64, 64))
    found = plan(document, Options(tuned=merged(*tables)))
    assert isinstance(found, Schedule)
    return found


@pytest.mark.parametrize("text", MIRRORED.values(), ids=MIRRORED)
def test_gradients_of_queries_are_outputs_of_other_tensors(text):
    """In float64, by the recurrence: with an initial state, and where keys have other columns than values."""
    document = document_of(text)
    assert planned(text).mirrored == (("q", "do"), ("k", "v"), ("v", "k"))
    problem = draw(document, "mild", Case(2, 9, 2, *HEADS))
    (initial,), (do,) = problem.initial_states, problem.output_cotangents
    given = problem.arguments | {"scale": 0.25}
    q, k, v = (given[name] for name in "qkv")
    assert isinstance(q, torch.Tensor)
    leaf = q.clone().requires_grad_()
    (o,), _ = run(document, given | {"q": leaf}, initial)
    (wanted,) = torch.autograd.grad(o, leaf, do)
    (found,), _ = run(document, given | {"q": do, "k": v, "v": k}, initial.mT)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("text", UNLIKE.values(), ids=UNLIKE)
def test_of_no_others(text):
    found = planned(text)
    assert mirrored(found.program) == found.mirrored == ()


@pytest.mark.parametrize("name", sorted({path.stem for path in SPECS} - {"gsa", "mlstm", "linear_attn_norm"}))
def test_by_the_table_that_glagen_comes_with(name):
    module = generated(name)
    assert hasattr(module, "_reads_no_states") == (name in MIRRORED)
    walk = getattr(module, f"{name}_{OTHERS}_kernel", None)
    assert (walk is None) == (name not in MIRRORED) and (walk is None or "S_ptr" not in walk.arg_names)
