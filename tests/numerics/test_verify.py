"""Verification must pass what is right and notice what is wrong; arguments must be in the regime that they claim."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
from dataclasses import astuple
from types import ModuleType, SimpleNamespace
from typing import cast
from unittest import mock

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from rich.console import Console

from glagen import jobs
from glagen.cli import main
from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.jobs import workers
from glagen.reference import output_names
from glagen.regimes import REGIMES, Case, draw, gate_factors, on_grid
from glagen.report import Report, Row
from glagen.tolerances import PRECISIONS, errors
from glagen.verify import defaults, reference_results, verify
from tests import strategies
from tests.numerics.helpers import CPU, document_of, generated, randn, spec_text

GLA = """
name: op
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  g: {axes: [t, i], domain: "[-inf, 0]"}
state: S[i, j]
equations:
  - S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t,i,j])
"""
SMALL = Case(1, 9, 2, 5, 4)


def module(read=lambda o, t: o, decay=torch.exp, rest=lambda state: state) -> ModuleType:
    """GLA written by hand, in float32 at least; the arguments are faults to plant."""

    def op_step(q, k, v, g, state=None, t=0):
        heads, of_state = max(x.shape[1] for x in (q, k, v, g)), max(x.shape[1] for x in (k, v, g))
        if state is None:
            dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
            state = torch.zeros(q.shape[0], of_state, q.shape[-1], v.shape[-1], dtype=dtype)
        reads = heads // state.shape[1]
        state = state.repeat_interleave(reads, 1)
        wide = [x.to(state.dtype).repeat_interleave(heads // x.shape[1], 1) for x in (q, k, v, g)]
        state = decay(wide[3])[..., None] * state + wide[1][..., None] * wide[2][..., None, :]
        return read(torch.einsum("bhi,bhij->bhj", wide[0], state), t).to(q.dtype), state[:, ::reads]

    def op(q, k, v, g, initial_state=None, output_final_state=False, states="auto", cu_seqlens=None):
        heads, of_state = max(x.shape[2] for x in (q, k, v, g)), max(x.shape[2] for x in (k, v, g))
        q, k, v, g = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k, v, g))
        b, length, _, width = q.shape
        state = initial_state
        if state is None:
            dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
            count = b if cu_seqlens is None else len(cu_seqlens) - 1
            state = torch.zeros(count, of_state, width, v.shape[-1], dtype=dtype)
        if cu_seqlens is not None:
            ends = [*cu_seqlens.tolist(), length]
            parts = [[x[:, m:n] for x in (q, k, v, g)] for m, n in itertools.pairwise(ends)]
            begun = [*state.split(1), torch.zeros_like(state[:1])]
            found = [op(*p, s) if p[0].shape[1] else (p[2], s) for p, s in zip(parts, begun, strict=True)]
            outputs = [o for o, _ in found[:-1]] + [torch.zeros_like(found[-1][0])]
            return torch.cat(outputs, 1), torch.cat([s for _, s in found[:-1]])
        state = state.repeat_interleave(heads // state.shape[1], 1)
        outputs = []
        for t in range(length):
            o, state = op_step(*(x[:, t] for x in (q, k, v, g)), state, t)
            outputs.append(o)
        return torch.stack(outputs, dim=1), rest(state)[:, :: heads // of_state]

    return cast(ModuleType, SimpleNamespace(op=op, op_step=op_step))


def run_verify(faulty: ModuleType, **options):
    return verify(document_of(GLA), faulty, cases=[SMALL], **{"precisions": ["fp64", "bf16"], **options})


def test_what_is_right_passes():
    report = run_verify(module(), precisions=["fp64", "fp32", "bf16", "fp16"])
    assert report.ok and not report.failures
    assert {row.regime for row in report.rows} == set(REGIMES)
    kinds = ("packed", "heads shared", "past the end", "causality")
    variants = {f"{mode}, {how}" for mode in ("saved", "recomputed") for how in kinds}
    variants |= {"step", "step, heads shared"}
    assert {row.mode for row in report.rows} == {"saved", "recomputed", "split"} | variants
    assert {"o", "final_state", "d q", "d k", "d v", "d g", "d initial_state"} == {row.quantity for row in report.rows}
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


class Shy(torch.autograd.Function):
    """exp with a slope that is wrong by a part in a thousand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * 1.001


NORMALISED = GLA.replace("state: S[i, j]", "state:\n  - S[i, j]\n  - z[i]").replace(
    "  - o[t,j] = sum(i, q[t,i] * S[t,i,j])",
    "  - z[t,i] = exp(g[t,i]) * z[t-1,i] + k[t,i]\n"
    "  - o[t,j] = sum(i, q[t,i] * S[t,i,j]) / (1 + sum(i, q[t,i] * z[t,i]) ** 2)",
)


def normalised(fault: float = 1.0) -> ModuleType:
    """NORMALISED written by hand: the normaliser is a column of values that are one. It multiplies z by `fault`."""
    right = module()

    def divided(out, state):
        return (out[..., :-1] / (1 + out[..., -1:] ** 2)), (state[..., :-1], fault * state[..., -1])

    def joined(states):
        return None if states is None else torch.cat([states[0], states[1][..., None]], -1)

    def op(q, k, v, g, initial_state=None, **options):
        v = torch.nn.functional.pad(v, (0, 1), value=1.0)
        if "cu_seqlens" in options:  # nothing is written past the end
            v = v * (torch.arange(v.shape[1]) < options["cu_seqlens"][-1])[:, None, None]
        return divided(*right.op(q, k, v, g, joined(initial_state), **options))

    def op_step(q, k, v, g, state=None):
        return divided(*right.op_step(q, k, torch.nn.functional.pad(v, (0, 1), value=1.0), g, joined(state)))

    return cast(ModuleType, SimpleNamespace(op=op, op_step=op_step))


@pytest.mark.parametrize("case", [SMALL, Case(2, 9, 4, 5, 4), Case(1, 7, 1, 3, 2, state=False)], ids=str)
def test_several_states_are_compared_one_by_one(case):
    document = document_of(NORMALISED)
    report = verify(document, normalised(), cases=[case], precisions=["fp64"])
    assert report.ok, report.failures
    finals = {"final_state S", "final_state z"}
    initials = {"d initial_state S", "d initial_state z"} if case.state else set()
    assert {row.quantity for row in report.rows if "state" in row.quantity} == finals | initials
    report = verify(document, normalised(1.001), cases=[case], precisions=["fp64"], invariants=False)
    assert {row.quantity for row in report.failures} >= {"final_state z"}
    assert "final_state S" not in {row.quantity for row in report.failures}


FAULTS = {
    "a sign": (module(read=lambda o, t: -o), {"o", "d q"}),
    "a step": (module(read=lambda o, t: o * (1 if t != 8 else 1.01)), {"o"}),
    "the slope of the gate": (module(decay=Shy.apply), {"d g"}),
    "the gradient of the gate": (module(decay=lambda g: g.detach().exp()), {"d g"}),
    "the gradient of the final state": (module(rest=lambda state: state.detach() + 0 * state), {"d k", "d v"}),
    "NaN where a gate is -inf": (module(decay=lambda g: torch.exp(g) + 0 * g), {"o", "d g"}),
    "one channel of the output": (module(read=lambda o, t: o * torch.tensor([1, 1, 1, 1.1])), {"o"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_fails(fault):
    faulty, quantities = FAULTS[fault]
    report = run_verify(faulty)
    assert not report.ok
    assert quantities <= {row.quantity for row in report.failures}
    assert not report.to_dict()["ok"]


def test_a_number_past_the_end_fails():
    right = module()

    def op(*args, cu_seqlens=None, **options):
        o, state = right.op(*args, cu_seqlens=cu_seqlens, **options)
        end = o.shape[1] if cu_seqlens is None else int(cu_seqlens[-1])
        return torch.cat([o[:, :end], o[:, end:] + 1e-9], 1), state

    report = run_verify(cast(ModuleType, SimpleNamespace(op=op, op_step=right.op_step)), precisions=["fp64"])
    assert {row.mode for row in report.failures} == {"saved, past the end", "recomputed, past the end"}


def test_a_wrong_segment_fails():
    right = module()

    def op(*args, segment=None, **options):
        o, state = right.op(*args, **options)
        return o if segment is None else 1.01 * o, state

    faulty = cast(ModuleType, SimpleNamespace(op=op, op_step=right.op_step))
    assert run_verify(faulty, precisions=["fp64"]).ok, "they are asked for"
    report = run_verify(faulty, precisions=["fp64"], segments=True)
    assert {row.mode for row in report.failures} == {"in segments", "in segments, packed"}
    assert {row.regime for row in report.failures} == {"reset"}


def test_16_bit_gradients_are_scaled_and_parameters_wide():
    """Mamba-2's gradients exceed float16's range as they come; its parameters come in float32."""
    document, right = document_of(spec_text("mamba2")), generated("mamba2")
    seen = []

    def op(A, D, **arguments):
        seen.append((arguments["x"].dtype, A.dtype, D.dtype))
        return right.mamba2(A=A, D=D, **arguments)

    watched = cast(ModuleType, SimpleNamespace(mamba2=op))
    case = Case(2, 500, 4, 32, 32)
    problem = draw(document, "reset", case)
    assert float(reference_results(document, problem, CPU)["d A"].abs().max()) > 2**16
    assert verify(document, watched, cases=[case], regimes=["reset"], precisions=["fp16"], invariants=False).ok
    assert set(seen) == {(torch.float16, torch.float32, torch.float32)}


def test_looking_ahead_fails_however_little():
    right = module()

    def op(q, k, v, g, **options):
        return right.op(q, k, v + 1e-12 * v.sum(1, keepdim=True), g, **options)

    report = run_verify(cast(ModuleType, SimpleNamespace(op=op, op_step=right.op_step)), precisions=["fp64"])
    wanted = {f"{mode}, {fault}" for mode in ("saved", "recomputed") for fault in ("causality", "past the end")}
    assert {row.mode for row in report.failures} == wanted


def test_a_closed_channel_cannot_hide_behind_an_open_one():
    expected = randn(1, 2000, 1, 8) * torch.tensor([1, 1, 1, 1, 1, 1, 1, 0.01])
    x = expected.clone()
    x[..., 7] *= 1.1
    over, channel = errors(x, expected, "BTHD")
    assert over < 1e-3 and channel > 0.09


@pytest.mark.parametrize("axis", [2, 3])
def test_a_state_has_channels_both_ways(axis):
    expected = randn(4, 1, 20, 20).movedim(axis, -1)
    expected = (expected * torch.tensor([1.0] * 19 + [0.05])).movedim(-1, axis)
    x = expected.clone()
    x.movedim(axis, -1)[..., 19] *= 1.1
    over, channel = errors(x, expected, "BHKV")
    assert over < 3e-3 and channel > 0.05


def test_zero_is_met_and_missed():
    zero = torch.zeros(1, 3, 1, 2)
    assert errors(zero, zero, "BTHD") == (0.0, 0.0)
    assert errors(zero + 1e-3, zero, "BTHD")[0] > 1
    assert errors(zero + 1e-9, zero, "BTHD") == pytest.approx((1e-5, 1e-5))  # the noise of float32, of whatever rows
    small = zero.clone()
    small[..., 0] = 1e-2  # then the other channel is held to less
    assert errors(small + torch.tensor([0, 1e-7]), small, "BTHD")[1] > 2e-5
    assert math.isnan(errors(zero * math.nan, zero, "BTHD")[0])
    assert math.isnan(errors(zero[:, :2], zero, "BTHD")[0])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_and_infinity_never_pass(precision):
    expected = randn(1, 3, 1, 2)
    for bad in (math.nan, math.inf):
        x = expected.clone()
        x[0, 0, 0, 0] = bad
        over, channel = errors(x, expected, "BTHD")
        assert not over <= PRECISIONS[precision].budget and not channel <= PRECISIONS[precision].budget


def test_the_grid_is_common_to_all_precisions():
    x = torch.cat([randn(1000) * s for s in (1, 1e-3, 1e-6, 1e3)] + [torch.tensor([0.0, -math.inf, 1e9])])
    grid = on_grid(x)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.equal(grid.to(dtype).double(), grid)
    assert (grid - x)[:1000].abs().max() < 2.0**-7


GATES = {
    "log": ('g: {axes: [t, i], domain: "[-inf, 0]"}', "exp(g[t,i])", lambda g: g),
    "bounded": ('g: {axes: [t, i], domain: "[-2, 0)"}', "exp(g[t,i])", lambda g: g),
    "linear": ('g: {axes: [t, i], domain: "(0, 1]"}', "g[t,i]", torch.log),
    "logit": ("g: [t, i]", "sigmoid(g[t,i]) ** (1/16)", lambda g: torch.nn.functional.logsigmoid(g) / 16),
    "falling": ("g: [t, i]", "exp(-softplus(g[t,i]))", lambda g: torch.nn.functional.logsigmoid(-g)),
    "double": ('g: {axes: [t, i], domain: "[-8, 8]"}', "exp(-exp(g[t,i]))", lambda g: -g.exp()),
}


def test_each_of_several_gates_takes_the_regime():
    text = GLA.replace('g: {axes: [t, i], domain: "[-inf, 0]"}', "g: [t, i]\n  x: [t]")
    text = text.replace("exp(g[t,i])", "sigmoid(g[t,i]) * exp(-softplus(x[t])) ")
    drawn = draw(document_of(text), "mild", Case(2, 100, 2, 8, 8)).arguments
    for logs in (torch.nn.functional.logsigmoid(drawn["g"]), torch.nn.functional.logsigmoid(-drawn["x"])):
        assert -0.06 < float(logs.median()) < -0.03


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("kind", GATES)
def test_gates_are_in_the_regime(kind, regime):
    declaration, factor, log = GATES[kind]
    text = GLA.replace('g: {axes: [t, i], domain: "[-inf, 0]"}', declaration).replace("exp(g[t,i])", factor)
    document = document_of(text)
    x = draw(document, regime, Case(2, 100, 2, 8, 8)).arguments["g"]
    domain = document.declarations[3].domain
    assert domain is None or all(value in domain for value in x.flatten().tolist())
    logs = log(x).flatten()
    closed = (logs < -9).double().mean() if kind != "bounded" else (logs < -1.9).double().mean()
    middle = float(logs.median())
    match regime:
        case "zero":
            assert logs.min() >= -0.01
        case "mild":
            assert -0.06 < middle < -0.03
        case "unit":
            assert -0.8 < middle < -0.6
        case "strong":
            assert -2.8 < middle < (-1.9 if kind == "bounded" else -2.2)
        case "neighbours":
            assert closed == 0.5 and logs.max() >= -0.01
        case "clean":
            assert 0.01 < closed < 0.04 and middle >= -0.01
        case _:
            assert 0.01 < closed < 0.04 and -0.06 < middle < -0.03


def test_gates_are_found_through_intermediate_names():
    text = GLA.replace("  - S[t,i,j] = exp(g[t,i])", "  - a[t,i] = exp(g[t,i])\n  - S[t,i,j] = a[t,i]")
    assert gate_factors(document_of(text)) == gate_factors(document_of(GLA)) != ()


@settings(max_examples=25)
@given(strategies.any_specs(), strategies.cases(), strategies.regimes, strategies.seeds)
def test_the_reference_is_finite_in_every_regime_of_every_spec(text, case, regime, seed):
    document = document_of(text)
    problem = draw(document, regime, case, seed)
    results = reference_results(document, problem, CPU)
    assert all(x.isfinite().all() for x in results.values())
    for declaration in document.declarations:
        x = problem.arguments[declaration.name]
        if declaration.domain is not None and isinstance(x, torch.Tensor):
            assert all(value in declaration.domain for value in x.flatten().tolist())
    assert results[output_names(document)[0]].shape == (case.B, case.T, case.H, case.V)


def test_many_processes_find_what_one_does():
    source = Source("test.yaml", GLA)
    found = []
    for count in (1, 2):
        with workers(count) as start:
            said = []
            found.append(start(source, Options(), "cpu", ("mild",))(said.append))
            assert said
    assert found[0].ok and len(found[0].rows) == len(found[1].rows)
    near = {astuple(row)[:5]: row.error for row in found[0].rows}
    assert all(row.error == pytest.approx(near[astuple(row)[:5]], rel=1e-2, abs=1e-9) for row in found[1].rows)


def dies(*task):
    os._exit(1)


def test_a_process_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(jobs, "_part", dies)
    with workers(2) as start, pytest.raises(ChildProcessError, match="fewer --jobs"):
        start(Source("test.yaml", GLA), Options(), "cpu", ("mild",))(print)


def test_the_table_keeps_its_numbers():
    """Where it is too wide, names take two lines; nothing is cut."""
    row = Row("neighbours", "B2", "fp16", "recomputed, heads shared", "d initial_state C", 1.2e-3, 3e-3, 4e-3, 2e-2)
    console = Console(width=120, file=io.StringIO())
    console.print(Report("mlstm", "cuda", (row,)).table())
    text = console.file.getvalue()
    assert "…" not in text and "1.2e-3" in text and "ok" in text


def test_the_command_tells_of_every_spec(tmp_path):
    """Of good ones a table, of bad ones a diagnostic, each in its turn; bad ones decide the exit code."""
    texts = {"good": GLA, "bad": GLA.replace("exp(g[t,i])", "exp(g[t,j])"), "unproved": GLA, "second": GLA}
    paths = {name: tmp_path / f"{name}.yaml" for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text)
    missing = tmp_path / "missing.yaml"
    given = [str(p) for p in (paths["bad"], paths["good"], missing, paths["second"])]
    for count in ("1", "2"):
        run = CliRunner().invoke(main, ["check", *given, "--device", "cpu", "--regime", "mild", "--jobs", count])
        assert run.exit_code == 2 and run.stdout.count("comparisons with the float64 recurrence") == 2
        assert str(paths["bad"]) in run.stderr and str(missing) in run.stderr
    run = CliRunner().invoke(main, ["check", str(paths["unproved"]), "--device", "cpu", "--cover", "anchored"])
    assert run.exit_code == 2 and "has no stability certificate" in run.stderr


def test_some_cases_are_of_calls_that_fill_a_gpu():
    """For them alone a module takes the kernels of such calls, of which no run is repeated after that."""
    module, document = generated("gla"), document_of(spec_text("gla"))
    seen, before, real = [], module._multiprocessors, module.gla

    def gla(*given, **options):
        seen.append(module._multiprocessors())
        return real(*given, **options)

    with mock.patch.object(module, "gla", gla):
        cases = Case(1, 40, 2, 16, 16), Case(1, 40, 2, 16, 16, crowded=True)
        module._records["a call"] = None
        given = {"precisions": ["fp32"], "regimes": ["mild"], "modes": ["saved"], "invariants": False}
        report = verify(document, module, cases=cases, **given)
    assert report.ok and seen == [before(), 1] and module._multiprocessors is before and not module._records
    assert {row.case for row in report.rows} == {"B1 T40 H2 K16 V16", "B1 T40 H2 K16 V16 crowded"}


def test_one_case_on_a_gpu_is_crowded():
    """With a number of chunks that none of those divides which programs take in turn."""
    (case,) = (case for case in defaults("cuda")[0] if case.crowded)
    assert all(case.B * -(-case.T // chunk) % 8 for chunk in (32, 64)) and not any(
        x.crowded for x in defaults("cpu")[0]
    )
