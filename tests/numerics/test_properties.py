"""Any spec of the class, any extents, any regime of gates: the op is the recurrence. On the PyTorch twin."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glagen.fuzz import PRECISION as FP64
from glagen.reference import output_names, run
from glagen.regimes import Case, draw
from glagen.tolerances import PRECISIONS
from glagen.verify import MODES, compare, op_results, reference_results, verify
from tests import strategies
from tests.numerics.helpers import (
    CPU,
    SPECS,
    close,
    compiled,
    document_of,
    generated,
    one_by_one,
    randn,
    spec_text,
    state_names,
)

of_calls = (strategies.cases(), strategies.regimes, strategies.seeds)
arguments = (strategies.any_specs(), *of_calls)


def failures(rows) -> list[str]:
    return [f"{row.mode}: {row.quantity} errs {row.error:.1e}, {row.channel:.1e}" for row in rows if not row.ok]


@given(*arguments)
def test_the_op_is_the_recurrence(text, case, regime, seed):
    document, module = document_of(text), compiled(text)
    problem = draw(document, regime, case, seed)
    expected = reference_results(document, problem, CPU)
    rows = []
    for mode in MODES:
        actual = op_results(document, module, problem, FP64, CPU, mode)
        rows += compare(document, actual, expected, FP64, (regime, str(case), "fp64", mode))
    assert not failures(rows)


@settings(max_examples=15)
@given(strategies.specs(), *of_calls, st.sampled_from(("bf16", "fp16")))
def test_half_precision_loses_what_rounding_loses(text, case, regime, seed, name):
    document, module, precision = document_of(text), compiled(text), PRECISIONS[name]
    problem = draw(document, regime, case, seed)
    actual = op_results(document, module, problem, precision, CPU)
    expected = reference_results(document, problem, CPU)
    assert not failures(compare(document, actual, expected, precision, (regime, str(case), name, "auto")))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("spec", ["rwkv6", "mamba2"])
def test_parameters_may_have_16_bits_too(spec, name):
    """`op_results` keeps them in float32, as training does."""
    document, precision = document_of(spec_text(spec)), PRECISIONS[name]
    problem = draw(document, "mild", Case(2, 70, 2, 20, 12))
    expected = reference_results(document, problem, CPU)
    given = {n: x.to(precision.dtype).requires_grad_() for n, x in _tensors(problem)}
    start = problem.initial_states[0].float()
    op = getattr(generated(spec), spec)
    o, final = op(**problem.arguments | given, initial_state=start, output_final_state=True)
    cotangents = [problem.output_cotangents[0].to(o.dtype), problem.state_cotangents[0].float()]
    gradients = torch.autograd.grad((o, final), list(given.values()), cotangents)
    results = {output_names(document)[0]: o.detach(), "final_state": final.detach()}
    results |= {f"d {n}": gradient for n, gradient in zip(given, gradients, strict=True)}
    assert all(results[f"d {n}"].dtype == precision.dtype for n in given)
    assert not failures(compare(document, results, expected, precision, ("mild", "", name, "16-bit parameters")))


@settings(max_examples=15)
@given(*arguments)
def test_steps_parts_and_causality(text, case, regime, seed):
    report = verify(
        document_of(text), compiled(text), regimes=["mild", "reset"], cases=[case], precisions=["fp64"], seed=seed
    )
    assert not failures(report.rows)


@settings(max_examples=15)
@given(*arguments)
def test_the_chunk_size_changes_nothing(text, case, regime, seed):
    document = document_of(text)
    problem = draw(document, regime, case, seed)
    results = []
    for chunk in (16, 64):
        sized = re.sub(r"^(chunk|subchunk): .*$", "", text, flags=re.MULTILINE) + f"chunk: {chunk}\n"
        results.append(op_results(document, compiled(sized), problem, FP64, CPU))
    rows = compare(document, results[0], results[1], FP64, (regime, str(case), "fp64", "chunks of 16 and 64"))
    assert not failures(rows)


@settings(max_examples=15)
@given(*arguments, st.sampled_from(("subchunk", "bisect", "guarded")))
def test_the_cover_changes_nothing(text, case, regime, seed, cover):
    document = document_of(text)
    problem = draw(document, regime, case, seed)
    results = [op_results(document, compiled(text, c), problem, FP64, CPU) for c in ("auto", cover)]
    assert not failures(compare(document, results[1], results[0], FP64, (regime, str(case), "fp64", cover)))


@settings(max_examples=15)
@given(*arguments)
def test_an_omitted_state_is_zero(text, case, regime, seed):
    document, module = document_of(text), compiled(text)
    problem = draw(document, regime, replace(case, state=False), seed)
    *omitted, final = module.op(**problem.arguments)
    whole = draw(document, regime, replace(case, state=True), seed)
    zeros = {n: torch.zeros_like(x) for n, x in zip(state_names(document), whole.initial_states, strict=True)}
    *given_, last = one_by_one(document, module.op)(**problem.arguments, **zeros)
    assert final is None and last is None
    assert all(torch.equal(x, y) for x, y in zip(omitted, given_, strict=True))


@settings(max_examples=10)
@given(*arguments)
def test_segments_change_nothing(text, case, regime, seed):
    document, module = document_of(text), compiled(text)
    problem = draw(document, regime, replace(case, T=150), seed)
    whole, parts = (op_results(document, module, problem, FP64, CPU, segments=n) for n in (1, 3))
    assert not failures(compare(document, parts, whole, FP64, (regime, str(case), "fp64", "in segments")))


@pytest.mark.parametrize("name", ["gla", "gla_v", "gla_kv", "simple_gla"])
def test_gates_of_zero_are_linear_attention(name):
    case = Case(2, 90, 2, 20, 12)
    document = document_of(spec_text(name))
    problem = draw(document, "zero", case)
    plain_document = document_of(spec_text("linear_attn"))
    plain = {d.name: problem.arguments[d.name] for d in plain_document.declarations}
    gated = op_results(document, generated(name), problem, FP64, CPU)
    (o,), final = _outputs(generated("linear_attn").linear_attn(**plain, **_state(problem)))
    close({"o": gated["o"], "final_state": gated["final_state"]}, {"o": o, "final_state": final}, 1e-13)


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_committed_modules_pass_verification(path):
    report = verify(
        document_of(path.read_text()),
        generated(path.stem),
        precisions=["fp64", "fp32"],
        cases=[Case(2, 70, 2, 20, 12)],
        segments=True,
    )
    assert not failures(report.rows) and any(row.mode == "in segments, packed" for row in report.rows)


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_half_precision_on_the_cpu(path):
    report = verify(
        document_of(path.read_text()),
        generated(path.stem),
        precisions=["bf16", "fp16"],
        cases=[Case(1, 150, 2, 32, 48)],
        regimes=["mild", "strong", "reset"],
        invariants=False,
    )
    assert not failures(report.rows)


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_nothing_depends_on_what_the_batch_or_the_other_heads_hold(path):
    document, module = document_of(path.read_text()), generated(path.stem)
    problem = draw(document, "unit", Case(2, 40, 2, 8, 8))
    op = one_by_one(document, getattr(module, document.name))
    names = state_names(document)
    states = dict(zip(names, problem.initial_states, strict=True))
    whole = op(**problem.arguments, **states, output_final_state=True)
    timed = {d.name for d in document.declarations if "t" in d.axes}
    single = {
        n: (x[1:, :, 1:] if n in timed else x[1:]) if isinstance(x, torch.Tensor) else x
        for n, x in problem.arguments.items()
    }
    part = op(**single, **{n: x[1:, 1:] for n, x in states.items()}, output_final_state=True)
    outputs = len(part) - len(names)
    for n, (x, y) in enumerate(zip(part, whole, strict=True)):
        close({"result": x}, {"result": y[1:, :, 1:] if n < outputs else y[1:, 1:]}, 1e-13)


def test_strides_carry_no_meaning():
    """Views that are not contiguous, as projections split into heads give them."""
    document, module = document_of(spec_text("gla")), generated("gla")
    problem = draw(document, "mild", Case(2, 50, 2, 12, 20))
    strided = {n: x if x is None else x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in _tensors(problem)}
    (o,), final = _outputs(module.gla(**problem.arguments, **_state(problem)))
    (p,), last = _outputs(module.gla(**(problem.arguments | strided), **_state(problem)))
    assert torch.equal(o, p) and torch.equal(final, last)


def test_the_final_state_alone_has_gradients():
    document, module = document_of(spec_text("gla")), generated("gla")
    problem = draw(document, "mild", Case(1, 40, 2, 8, 8))
    leaves = {n: x.clone().requires_grad_() for n, x in _tensors(problem)}
    *_, final = module.gla(**leaves, initial_state=problem.initial_states[0], output_final_state=True)
    cotangent = randn(*final.shape)
    got = torch.autograd.grad(final, list(leaves.values()), cotangent, allow_unused=True)
    _, expected = run(document, leaves, problem.initial_states[0])
    want = torch.autograd.grad(expected, list(leaves.values()), cotangent, allow_unused=True)
    for name, x, y in zip(leaves, got, want, strict=True):
        zero = torch.zeros_like(leaves[name])
        close({name: zero if x is None else x}, {name: zero if y is None else y})


def _tensors(problem):
    return [(n, x) for n, x in problem.arguments.items() if isinstance(x, torch.Tensor)]


def _state(problem):
    return {"initial_state": problem.initial_states[0], "output_final_state": True}


def _outputs(results):
    *outputs, final = results
    return tuple(outputs), final


def test_outputs_come_in_the_order_of_equations():
    text = """
name: op
inputs: {q: [t, i], k: [t, i], v: [t, j]}
state: S[i, j]
equations:
  - p[t,j] = sum(i, k[t,i] * S[t-1,i,j])
  - S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t,i,j])
"""
    assert output_names(document_of(text)) == ("p", "o")
    report = verify(document_of(text), compiled(text), regimes=["mild"], precisions=["fp64"])
    assert not failures(report.rows)
