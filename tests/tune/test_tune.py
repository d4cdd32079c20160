"""`glagen tune`: only what is right is timed, only what is faster is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from glagen import tune as tuning
from glagen.bench import Workload
from glagen.cli import main
from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.ir.tuned import read_table
from glagen.parse import parse
from glagen.pipeline import plan
from tests.numerics.helpers import ROOT, spec_text

TINY = Workload("tiny", 1, 40, 2, 16, 32)
SOURCE = Source("gla.yaml", spec_text("gla"))
# In the interpreter, which has to be chosen before triton is imported: every kernel's launches are run and timed.
TUNED = """
import functools, sys
import torch
from glagen import tune as tuning
from glagen.bench import Workload
from glagen.errors import Source
from glagen.verify import verify

tuning.verify = functools.partial(verify, regimes=("mild",), modes=("saved",))
tuning.candidates = lambda kernel, K, V: ((16, 16, 2, 1), (16, 32, 4, 1)) if kernel.name == "outputs" else ()
tuning.GAIN, tuning.REPEATS, tuning.DTYPE, tuning.PRECISION = 1e9, 3, torch.float32, "fp32"  # it has no bfloat16
workload = Workload("tiny", 1, 40, 2, 16, 32)
source = Source("gla.yaml", open(sys.argv[1]).read())
for x in tuning.tune(source, torch.device("cpu"), [workload], 1, print):
    assert (x.kernel, x.gates, x.chunk, x.K, x.V) == ("outputs", "K", 32, 16, 32) and x.rule > 0 and x.measured > 0
    print("kept", x.block_K, x.block_V, x.workload)
"""


@pytest.fixture
def kernels():
    return {k.name: k for k in plan(parse(SOURCE), Options()).kernels}


def test_candidates_fit_the_heads_and_the_threads(kernels):
    for name, kernel in kernels.items():
        for K, V in ((128, 128), (20, 300), (1, 1)):
            found = tuning.candidates(kernel, K, V)
            assert found and len(set(found)) == len(found)
            for key, value, warps, stages in found:
                assert key <= max(16, 2 * K) and value <= max(16, 2 * V) and stages in tuning.STAGES
                assert tuning.FEWEST <= key * value / (32 * warps) <= tuning.MOST
                assert name != "fused" or key >= K


def test_kernels_are_tuned_where_they_run():
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, "-c", TUNED, str(ROOT / "specs" / "gla.yaml")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert "checking 2 configurations" in run.stdout
    assert "kept 16 " in run.stdout and "B1 T40 H2 K16 V32" in run.stdout


class Kept:
    """A stand-in for what measures: times by configuration; 1 ms for the rule's."""

    def __init__(self, times):
        self.times = times

    def __call__(self, module, name, kernel, given, row):
        return 1.0 if row is None else self.times[row]


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({(32, 32, 4, 1): 0.5, (64, 32, 4, 1): 0.4}, 64),
        ({(32, 32, 4, 1): 0.98}, None),
        ({(32, 32, 4, 1): 2.0}, None),
        ({}, None),
    ],
)
def test_the_fastest_is_kept_if_it_gains(times, best, monkeypatch):
    wrong = (16, 16, 4, 1)
    monkeypatch.setattr(tuning, "candidates", lambda k, K, V: (*times, wrong) if k.name == "states" else ())
    monkeypatch.setattr(tuning, "_right", lambda source, text, tasks, *_: [t for t in tasks if t.row != wrong])
    monkeypatch.setattr(tuning, "_time", Kept(times | {wrong: 0.1}))
    monkeypatch.setattr(tuning, "_on", lambda module, device: True)
    found = list(tuning.tune(SOURCE, torch.device("cpu"), [TINY], 1))
    assert [x.block_K for x in found] == ([best] if best else [])
    assert all((x.kernel, x.rule, x.K, x.V) == ("states", 1.0, 16, 32) for x in found)


def test_a_configuration_that_is_wrong_or_cannot_be_launched_is_not_right(monkeypatch):
    class Report:
        ok = False

    def raises(*_, **__):
        raise RuntimeError("gla: this GPU cannot hold a tile")

    pytest.importorskip("triton")
    from glagen.pipeline import compile_spec

    task = tuning.Task("outputs", (64, 64, 4, 1))
    for stand_in in (lambda *_, **__: Report(), raises):
        monkeypatch.setattr(tuning, "verify", stand_in)
        assert not tuning._is_right(SOURCE, compile_spec(SOURCE), task, TINY, "cpu")


@pytest.mark.parametrize(
    ("spec", "message"),
    [("gla", "kernels do not run on cpu"), ("linear_attn_norm", "an op of several states multiplies in float32")],
)
def test_what_cannot_be_tuned_is_told(spec, message, tmp_path):
    table = tmp_path / "tuned.json"
    table.write_text("[]")
    command = ["tune", str(ROOT / "specs" / f"{spec}.yaml"), "--device", "cpu", "--workload", "small", "-o", str(table)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1 and message in result.output and read_table(table) == ()


def test_the_command_adds_to_the_table(tmp_path, monkeypatch):
    from tests.tune.test_tables import ONE

    table = tmp_path / "tuned.json"
    monkeypatch.setattr(tuning, "tune", lambda *_: iter([ONE]))
    for spec in ("gla", "retnet"):
        command = ["tune", str(ROOT / "specs" / f"{spec}.yaml"), "--device", "cpu", "-o", str(table)]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0 and "64 by 128, 8 warps, 2 stages: 0.700 ms, the rule's 0.850" in result.output
        assert read_table(table) == (ONE,)
    assert Path(table).read_text().count("architecture") == 1
