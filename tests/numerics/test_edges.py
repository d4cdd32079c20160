"""Gates at the ends of the domain that the certificate is computed from, and beyond: right, or not a number at all."""

from __future__ import annotations

import functools

import pytest
import torch

from glagen.check import check
from glagen.derive import derive
from glagen.ir.document import Document
from glagen.ir.kernel import Blocks
from glagen.ir.schedule import Options
from glagen.loader import import_path
from glagen.regimes import Case, Problem, draw
from glagen.schedule import schedule
from glagen.schedule.covers import GROWTH_LIMIT
from glagen.tolerances import PRECISIONS, ZERO
from glagen.verify import Results, compare, op_results, reference_results, verify
from tests.numerics.helpers import CPU, ROOT, changed_before, compiled, document_of, generated, spec_text

CASE = Case(1, 70, 2, 20, 24)
SPEC = """
name: op
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  g: {{axes: [t, {axis}], domain: "[{low}, 0]"}}
state: S[i, j]
equations:
  - S[t,i,j] = exp(g[t,{axis}]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t,i,j])
"""
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
    ),
]
# Several leaves to a chunk, one leaf as large as it may be (60 nats), and one product for the whole chunk.
LOWS = (-5.0, -3.75, -0.9375)


@functools.cache
def problem(axis: str, low: float, kind: str, size: float) -> tuple[Document, Problem, Results]:
    """Gates at `low`, or at either end by turns of eight steps, or at random; keys times `size`."""
    document = document_of(SPEC.format(axis=axis, low=low))
    drawn = draw(document, "mild", CASE)
    g = drawn.arguments["g"]
    assert isinstance(g, torch.Tensor)
    steps = torch.arange(CASE.T)[None, :, None, None]
    gates = {
        "all": torch.full_like(g, low),
        "turns": torch.where(steps // 8 % 2 == 0, low, 0.0).double().expand_as(g),
        "some": torch.where(torch.rand(g.shape, generator=torch.Generator().manual_seed(0)) < 0.5, low, 0.0).double(),
    }
    drawn.arguments["g"] = gates[kind].clone()
    drawn.arguments["k"] = drawn.arguments["k"] * size  # type: ignore[operator]
    return document, drawn, reference_results(document, drawn, CPU)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1.0, 2.0**30])
@pytest.mark.parametrize("kind", ["all", "turns", "some"])
@pytest.mark.parametrize("axis", "ij")
@pytest.mark.parametrize("low", LOWS)
def test_at_the_edge(low: float, axis: str, kind: str, size: float, device: str) -> None:
    """Every precision keeps its budget; keys of 1e9 too, but for float16, which does not have them."""
    document, given, expected = problem(axis, low, kind, size)
    for name in ("fp64", "fp32", "bf16", "fp16") if size == 1.0 else ("fp32", "bf16"):
        found = op_results(
            document, compiled(SPEC.format(axis=axis, low=low)), given, PRECISIONS[name], torch.device(device)
        )
        rows = compare(document, found, expected, PRECISIONS[name], ("edge", "", name, ""))
        assert not [f"{row}" for row in rows if not row.ok]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beyond", [1.1, 1.25, 1.4, 1.5, 1.6, 2.0, 4.0, 20.0])
@pytest.mark.parametrize("axis", "ij")
@pytest.mark.parametrize("low", LOWS)
def test_beyond_the_edge(low: float, axis: str, beyond: float, device: str) -> None:
    """A promise that does not hold may cost the result, but never gives a plausible wrong one."""
    document, given, expected = problem(axis, low * beyond, "all", 1.0)
    module = compiled(SPEC.format(axis=axis, low=low))
    for name in ("fp32", "bf16", "fp16"):
        found = op_results(document, module, given, PRECISIONS[name], torch.device(device))
        for quantity, x in found.items():
            off = (x.double().to(CPU) - expected[quantity]).abs()
            scale = expected[quantity].square().mean().sqrt().clamp(min=ZERO)
            assert bool(((off < 0.1 * scale) | ~x.isfinite().to(CPU)).all()), (name, quantity)


def test_some_promises_are_broken_loudly() -> None:
    """Far beyond, numbers do overflow: what the test before this one allows does happen."""
    document, given, _ = problem("i", -0.9375 * 20, "all", 1.0)
    found = op_results(document, compiled(SPEC.format(axis="i", low=-0.9375)), given, PRECISIONS["fp32"], CPU)
    assert not found["o"].isfinite().all()


# -- the guarded cover: what a promise would allow, found out row by row -----------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["gla", "gla_v", "gla_kv", "hgrn2", "rwkv6", "gsa"])
def test_a_guarded_cover_holds_for_any_gates(name: str, device: str) -> None:
    """Mild gates, for which no row needs the other blocks, and strong ones, for which most do; causal bit by bit."""
    text = spec_text(name)
    report = verify(document_of(text), compiled(text, "guarded"), device, cases=[Case(2, 70, 2, 20, 12)])
    assert report.ok, report.failures[:3]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["gla", "gla_v", "gla_kv", "hgrn2", "rwkv6"])
def test_later_strong_gates_change_no_earlier_bit(name: str, device: str) -> None:
    """Kernels take another run for a sequence with strong gates, which is to give the bits of the first before them."""
    document, module = document_of(spec_text(name)), generated(name)
    for precision in ("fp32", "bf16", "fp16"):
        for mode in ("saved", "recomputed"):
            assert not changed_before(document, module, PRECISIONS[precision], torch.device(device), mode), precision


@pytest.mark.parametrize("axis", ["i", "j"])
def test_gates_given_as_such_keep_their_gradients_digits(axis: str) -> None:
    """A gradient that is divided by a gate near 0 must not be a difference of sums: in the default cover too."""
    text = SPEC.format(axis=axis, low="-inf").replace('domain: "[-inf, 0]"', 'domain: "(0, 1]"').replace("exp(g", "(g")
    for seed in range(3):
        report = verify(document_of(text), compiled(text), cases=[CASE], precisions=["fp32"], seed=seed)
        assert report.ok, report.failures[:3]


@pytest.mark.parametrize("times", [("t-1", "t"), ("t", "t-1")])
def test_a_guarded_cover_of_reads_before_and_after_the_write(times: tuple[str, str]) -> None:
    """Each kind of read has rows of its own that are too strong."""
    first, second = times
    text = SPEC.format(axis="i", low="-inf").replace("S[t,i,j])", f"S[{first},i,j])")
    text += f"  - p[t,j] = sum(i, q[t,i] * S[{second},i,j])\n"
    report = verify(document_of(text), compiled(text, "guarded"), cases=[Case(1, 40, 2, 5, 6)], precisions=["fp64"])
    assert report.ok, report.failures[:3]


@pytest.mark.parametrize("before", [False, True])
def test_rows_take_the_blocks_that_their_gates_ask_for(before: bool) -> None:
    """Rows up to GROWTH_LIMIT in sum, one channel's gates beyond it, and all rows after that."""
    text = SPEC.format(axis="i", low="-inf").replace("S[t,i,j])", "S[t-1,i,j])" if before else "S[t,i,j])")
    plan = schedule(derive(check(document_of(text))), Options(cover="guarded"))
    lines = [line for line in plan.twin_forward if isinstance(line, Blocks)]
    kinds = ["guard", "eights", "bisect", *(["own"] if not before else [])]
    assert [(line.kind, line.by_row) for line in lines] == [(kind, True) for kind in kinds]
    module = compiled(text, "guarded")
    document = document_of(text)
    drawn = draw(document, "mild", CASE)
    g = drawn.arguments["g"]
    assert isinstance(g, torch.Tensor)
    for steep in (-GROWTH_LIMIT, -GROWTH_LIMIT - 1, -100.0):
        g[:, 9, :, 3] = steep
        expected = reference_results(document, drawn, CPU)
        for name in ("fp64", "fp32"):
            found = op_results(document, module, drawn, PRECISIONS[name], CPU)
            assert all(row.ok for row in compare(document, found, expected, PRECISIONS[name], ("", "", name, "")))


# -- a divisor that is a small sum of large terms ----------------------------------------------------------------------


@pytest.mark.parametrize("exact", [True, False])
def test_a_divisor_that_cancels_keeps_its_digits(exact, tmp_path):
    """In float32 it would not, for some of mlstm's 2000 queries here; nor does it where that is what it is read in."""
    text = (ROOT / "generated" / "mlstm.py").read_text()
    assert text.count("x.double()") == 1
    path = tmp_path / "op.py"
    path.write_text(text if exact else text.replace("x.double()", "x"))
    options = {"regimes": ["neighbours", "clean"], "precisions": ["fp32"], "modes": ["saved"], "invariants": False}
    module, cases = import_path(path, f"divisor_{exact}"), [Case(1, 500, 4, 96, 8)]
    report = verify(document_of(spec_text("mlstm")), module, cases=cases, **options)
    assert report.ok == exact
