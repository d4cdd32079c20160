"""`glagen bench` on the CPU, with workloads small enough for it. Times are not looked at, what surrounds them is."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from glagen.bench import FIGURE_2, WORKLOADS, Workload, bench, cold_start, measure, peers, plot, table, workloads
from glagen.cli import main
from tests.numerics.helpers import ROOT, document_of, generated, spec_text

TINY = Workload("tiny", 3, 40, 5, 8, 6)
CPU = torch.device("cpu")


def test_a_call_has_the_extents_of_its_workload_and_gradients():
    for name in ("gla", "retnet", "mamba2", "linear_attn_norm"):
        document = document_of(spec_text(name))
        call = workloads.call(document, TINY, CPU, torch.bfloat16)
        o, _ = getattr(generated(name), name)(**call.arguments)
        assert o.shape == call.cotangents[0].shape == (3, 40, 5, 6) and o.dtype == torch.bfloat16
        gradients = torch.autograd.grad(o, call.leaves, call.cotangents)
        assert all(bool(g.isfinite().all()) for g in gradients)


def test_the_floor_counts_what_must_be_read_and_written():
    """By hand; for GLA on the first workload, at 4250 GB/s, 0.316 and 0.884 ms."""
    call = workloads.call(document_of(spec_text("gla")), TINY, CPU, torch.bfloat16)
    key, value = 2 * 3 * 40 * 5 * 8, 2 * 3 * 40 * 5 * 6
    assert call.forward_bytes == 3 * key + 2 * value
    assert call.both_bytes == 2 * call.forward_bytes + 3 * key + value
    whole = workloads.call(document_of(spec_text("gla")), WORKLOADS["fla"], torch.device("meta"), torch.bfloat16)
    floors = whole.forward_bytes / 4250e9, whole.both_bytes / 4250e9
    assert floors == (pytest.approx(0.316e-3, rel=2e-3), pytest.approx(0.884e-3, rel=2e-3))


def test_every_contender_is_measured_and_shown(monkeypatch):
    def two(name, call):
        q, k = call.arguments["q"], call.arguments["k"]
        yield "peer", lambda: ((q * k).sum(-1, keepdim=True) * call.arguments["v"],)
        yield "broken", lambda: (_ for _ in ()).throw(RuntimeError("no such GPU"))

    monkeypatch.setattr(measure, "peers", two)
    told: list[str] = []
    rows = list(bench(document_of(spec_text("gla")), generated("gla"), [TINY], CPU, torch.bfloat16, told.append))
    assert [row.contender for row in rows] == ["glagen", "peer", "broken"]
    assert all(row.forward and row.both and row.forward_floor < row.both_floor for row in rows[:2])
    assert rows[2].forward is None and "no such GPU" in rows[2].fault
    assert told == ["memory bandwidth", "tiny: glagen", "tiny: peer", "tiny: broken"]
    assert table("gla", rows).row_count == 3


def test_leaves_of_a_peer_are_those_it_has_gradients_by():
    x, y, z = (torch.randn(3, requires_grad=True) for _ in range(3))
    found = peers.leaves_of(lambda: ((x * y).exp(), (y + z.detach()).sum()))
    assert {id(t) for t in found} == {id(x), id(y)}


def test_leaves_of_a_peer_that_is_an_autograd_function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

    x = torch.randn(3, requires_grad=True)
    assert [id(t) for t in peers.leaves_of(lambda: (Twice.apply(x.exp()),))] == [id(x)]


def test_peers_name_specs_that_exist():
    specs = {p.stem for p in (ROOT / "specs").glob("*.yaml")}
    assert set(peers.FLA) <= specs
    assert list(peers.peers("gla", workloads.call(document_of(spec_text("gla")), TINY, CPU, torch.bfloat16))) == []


def test_a_plot_is_a_file(tmp_path):
    pytest.importorskip("matplotlib")
    rows = list(bench(document_of(spec_text("gla")), generated("gla"), [TINY], CPU, torch.bfloat16))
    assert plot("gla", rows, [40], tmp_path / "x.png") and (tmp_path / "x.png").stat().st_size > 1000


def test_cold_start_runs_in_a_process_of_its_own(monkeypatch):
    small = "__import__('glagen.bench').bench.Workload('t', 1, 20, 1, 4, 4)"
    monkeypatch.setattr(measure, "COLD", measure.COLD.replace('WORKLOADS["small"]', small))
    assert 0 < cold_start(ROOT / "specs" / "gla.yaml", generated("gla"), CPU) < 60


def test_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(WORKLOADS, "small", TINY)
    spec = str(ROOT / "specs" / "retnet.yaml")
    result = CliRunner().invoke(main, ["bench", spec, "--device", "cpu", "--workload", "small", "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "retnet: ms" in result.output and "glagen" in result.output
    kept = json.loads((tmp_path / "retnet.json").read_text())
    assert kept["rows"][0]["extents"] == str(TINY) and kept["device"] == "cpu"
    wrong = CliRunner().invoke(main, ["bench", spec, "--workload", "huge"])
    assert wrong.exit_code == 2 and "unknown workload 'huge'" in wrong.output


def test_what_is_cut_short_has_what_was_measured(monkeypatch, tmp_path):
    monkeypatch.setitem(WORKLOADS, "small", TINY)

    def interrupted() -> tuple[torch.Tensor, ...]:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "peers", lambda name, call: [("a peer that tunes", interrupted)])
    spec = str(ROOT / "specs" / "retnet.yaml")
    command = ["bench", spec, "--device", "cpu", "--workload", "small", "-o", str(tmp_path)]
    earlier = '{"device": "another", "rows": []}'
    (tmp_path / "retnet.json").write_text(earlier)
    assert CliRunner().invoke(main, command).exit_code
    (row,) = json.loads((tmp_path / "retnet.partial.json").read_text())["rows"]
    assert row["contender"] == "glagen" and row["forward"] > 0
    assert (tmp_path / "retnet.json").read_text() == earlier, "what was measured before is not lost"
    monkeypatch.setattr(measure, "peers", lambda name, call: [])
    assert CliRunner().invoke(main, command).exit_code == 0
    assert [x.name for x in tmp_path.iterdir()] == ["retnet.json"]
    (tmp_path / "retnet.partial.json").write_text("mine")
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code and "not written by `glagen bench`" in refused.output


def test_figure_2_has_as_many_steps_at_every_length():
    assert {w.B * w.T for w in FIGURE_2} == {32 * 2048} and [w.T for w in FIGURE_2] == sorted(w.T for w in FIGURE_2)
