"""`glagen tune`: what can be launched is timed, what is kept is right, and faster."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from glagen import candidates as choice
from glagen import configurations as work
from glagen import tune as tuning
from glagen.bench import Workload
from glagen.cli import main
from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.ir.tuned import (
    ALONE,
    BEYOND,
    BOTH,
    CROWDED,
    GIVEN,
    GIVEN_KERNELS,
    HALVED,
    IN_HALVES,
    KEPT_KERNELS,
    OPERANDS,
    OTHERS,
    SHARED,
    SHARING,
    STRONG,
    read_table,
)
from glagen.jobs import answers
from glagen.loader import import_text
from glagen.parse import parse
from glagen.pipeline import compile_spec, plan
from glagen.regimes import Case
from glagen.schedule.tiles import shipped
from tests.numerics.helpers import ROOT, spec_text
from tests.tune.test_tables import ONE

TINY = Workload("tiny", 1, 40, 2, 16, 32)
SOURCE = Source("gla.yaml", spec_text("gla"))
CPU = torch.device("cpu")
# In the interpreter, which has to be chosen before triton is imported: every kernel's launches are run and timed.
TUNED = """
import functools, sys
from pathlib import Path
import torch
from glagen import candidates as choice, configurations as work, tune as tuning
from glagen.bench import Workload
from glagen.errors import Source
from glagen.regimes import REGIMES, Case
from glagen.verify import verify
from tests.interpreter import spare_the_interpreter

spare_the_interpreter()

def few(planned, kernel, workload, device, all=tuning.candidates):
    rows = {"key_gradients": ((16, 32, 4, 1, 1), (16, 32, 4, 2, 8)), "scores": ((16, 32, 4, 2, 8),)}
    rows["fused"] = ((16, 32, 4, 2, 1), (16, 32, 8, 2, 1))
    found = all(planned, kernel, workload, device)
    return [x for x in found if (x.block_K, x.block_V, x.warps, x.stages, x.run) in rows.get(kernel.name, ())]

def more(kernel, best, all=tuning.turned):
    return all(kernel, best)[:1] if kernel.name == "key_gradients" else ()

work.verify = functools.partial(verify, regimes=("mild",), modes=("saved",))
tuning.candidates, tuning.turned = few, more
tuning.GAIN, work.WARM, work.REPEATS = 1e9, 1, 1
work.DTYPE = tuning.DTYPE = choice.DTYPE = torch.float32  # it has no bfloat16
work.PRECISION = "fp32"
workload = Workload("tiny", 1, 40, 2, 16, 32)
source = Source("gla.yaml", open(sys.argv[1]).read())
run, ran, tried = work.reference_results, [], None
work.reference_results = lambda *given: ran.append(given) or run(*given)
for x in tuning.tune(source, torch.device("cpu"), [workload], 1, print):
    assert (x.gates, x.chunk, x.K, x.V) == ("K", 32, 16, 32)
    assert x.rule > 0 and x.measured > 0
    print("kept", x.kernel, x.block_K, x.workload)
    tried = x if x.kernel == "key_gradients" else tried
assert len(ran) == len(REGIMES)  # once for all candidates
held_to = source, workload, torch.device("cpu"), Case(2, 40, 2, 16, 32)
oracle, wrong = (work.Oracle(*held_to, Path(sys.argv[2], name)) for name in "ab")
oracle.run()
given = torch.load(oracle.file)
given["mild"]["d k"] *= 1.001
torch.save(given, wrong.file)
assert work.is_right(oracle, (), tried) and not work.is_right(wrong, (), tried)
"""


def yes(question, given):
    """Whatever is asked."""
    return [True for _ in given]


@pytest.fixture
def planned():
    pytest.importorskip("triton")
    return plan(parse(SOURCE), Options())


@pytest.mark.parametrize(("K", "V"), [(128, 128), (20, 300), (1, 1)])
def test_candidates_fit_the_heads_and_the_threads(planned, K, V):
    for kernel in planned.kernels:
        found = tuning.candidates(planned, kernel, Workload("one", 1, 40, 2, K, V), CPU)
        assert found and len(set(found)) == len(found)
        for x in found:
            assert (x.kernel, x.gates, x.chunk) == (kernel.name, "K", 32) and x.K >= K and x.V >= V
            assert x.block_K <= max(16, 2 * K) and x.block_V <= max(16, 2 * V)
            assert choice.FEWEST <= x.block_K * x.block_V / (32 * x.warps) <= choice.MOST
            assert x.run == 1 or (x.stages > 1 and kernel.name not in ("states", "adjoint_states", "fused"))
            assert kernel.name != "fused" or x.block_K >= K


def test_kernels_are_tuned_where_they_run(tmp_path):
    """And held to what the recurrence gave, which is run once."""
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, "-c", TUNED, str(ROOT / "specs" / "gla.yaml"), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    kept = [line.split(" ", 3) for line in run.stdout.splitlines() if line.startswith("kept")]
    assert [kernel for _, kernel, _, _ in kept] == [
        "fused",
        "key_gradients",
        "fused_crowded",
        "key_gradients_strong",
        "scores_strong",
        "scores",
        "scores_strong",
    ]
    where = "B1 T40 H2 K16 V32"
    for _, kernel, key, workload in kept:
        assert (key, workload) == ("16", f"{where}, strong gates" if kernel.endswith(STRONG) else where)
    assert [n for n in "1234567" if f"building {n} configurations" in run.stdout] == ["1", "3", "7"]


def test_what_runs_for_strong_gates_alone_is_timed_on_those(monkeypatch):
    pytest.importorskip("triton")
    timed: dict[str, set[str]] = {}

    def time(source, kernel, table, given):
        timed.setdefault(kernel, set()).add(given)
        return 1.0 if not table else 0.5

    monkeypatch.setattr(work, "call", lambda *given: given[-1])
    monkeypatch.setattr(tuning, "kernel_time", time)
    source = Source("gla_v.yaml", spec_text("gla_v"))
    oracle = work.Oracle(source, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    found = {x.kernel: x for x in tuning._measured(oracle, "mild", yes, print, ())}
    assert timed[BEYOND] == timed[f"outputs{STRONG}"] == {work.HARD} and timed["outputs"] == {"mild"}
    assert found[BEYOND].workload == f"{found['outputs'].workload}, strong gates"


@pytest.mark.parametrize(
    ("gains", "tile", "warps"), [({64: 0.5}, 64, 2), ({}, 128, 4)], ids=["that is kept", "of the rule"]
)
def test_a_crowd_has_the_tile_of_what_it_is_in_the_place_of(gains, tile, warps, monkeypatch):
    pytest.importorskip("triton")

    crowded = f"fused{CROWDED}"

    def time(source, kernel, table, given):
        """Few warps are faster for a crowd, and tiles that gain for all else."""
        last = next((x for x in table if x.kernel == kernel), None)
        return 1.0 if last is None else last.warps / 100 if kernel == crowded else gains.get(last.block_V, 2.0)

    monkeypatch.setattr(tuning, "kernel_time", time)
    workload = Workload("wide", 4, 4096, 64, 128, 128)
    oracle = work.Oracle(SOURCE, workload, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    found = {x.kernel: x for x in tuning._measured(oracle, None, yes, print, ())}
    assert ("fused" in found) == bool(gains)
    assert (found[crowded].block_K, found[crowded].block_V, found[crowded].warps) == (128, tile, warps)


def test_other_turns_of_the_best_are_tried(monkeypatch):
    pytest.importorskip("triton")

    def time(source, kernel, table, given):
        return 1.0 if not table else 0.1 if (table[-1].stages, table[-1].run) == (4, 8) else 0.4 + table[-1].warps / 100

    monkeypatch.setattr(tuning, "kernel_time", time)
    oracle = work.Oracle(SOURCE, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    found = {x.kernel: x for x in tuning._measured(oracle, None, yes, print, ())}
    for name in ("outputs", "key_gradients"):
        kept = found[name]
        assert (kept.warps, kept.stages, kept.run, kept.rule, kept.measured) == (1, 4, 8, 1.0, 0.1)
    assert found["states"].measured == 0.41


@pytest.mark.parametrize(
    ("times", "wrong", "best"),
    [
        ((0.5, 0.4), (), 1),
        ((0.5, 0.4), (0.4,), 0),
        ((0.5, 0.4), (0.4, 0.5), None),
        ((0.98, 2.0), (), None),
        ((2.0, 0.9), (), 1),
        ((2.0, None), (), None),
        ((), (), None),
    ],
)
def test_the_fastest_that_is_right_is_kept_if_it_gains(planned, times, wrong, best, monkeypatch):
    kernel = next(k for k in planned.kernels if k.name == "states")
    among = tuning.candidates(planned, kernel, TINY, CPU)[: len(times)]
    taken, asked = dict(zip(among, times, strict=True)), []

    def time(source, kernel, table, given):
        if table and taken[table[0]] is None:
            raise RuntimeError("gla: this GPU cannot hold a tile")
        return taken[table[0]] if table else 1.0

    def ask(question, given):
        asked.append([x.measured for _, _, x in given])
        return [x.measured not in wrong for _, _, x in given]

    monkeypatch.setattr(tuning, "kernel_time", time)
    oracle = work.Oracle(SOURCE, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    found = tuning._best(oracle, [tuning._Trial("states", (), among, None)], ask, print)
    assert found == (() if best is None else (replace(among[best], rule=1.0, measured=times[best]),))
    faster = sorted(t for t in times if t is not None and t < tuning.GAIN)
    assert asked == [[t] for t in faster[: len(wrong) + 1]]  # no more than it takes


def test_the_fastest_of_all_kernels_are_checked_side_by_side(planned, monkeypatch):
    """What there is to be is kept though it is slower than the rule's."""
    names, asked = ("states", "outputs"), []
    among = [tuning.candidates(planned, next(k for k in planned.kernels if k.name == n), TINY, CPU)[:2] for n in names]
    taken = dict(zip((*among[0], *among[1]), (0.2, 0.3, 5.0, 4.0), strict=True))
    base = (replace(among[1][0], rule=7.0),)  # no candidate
    monkeypatch.setattr(tuning, "kernel_time", lambda source, kernel, table, given: taken.get((*table, ONE)[0], 1.0))

    def ask(question, given):
        asked.append([x.measured for _, _, x in given])
        return [x.measured == 0.3 or x.kernel == "outputs" for _, _, x in given]

    oracle = work.Oracle(SOURCE, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    trials = [tuning._Trial(n, base if n == "outputs" else (), x, None) for n, x in zip(names, among, strict=True)]
    found = tuning._best(oracle, trials, ask, print)
    assert asked == [[0.2, 4.0], [0.3]]
    assert {x.kernel: x.measured for x in found} == {"states": 0.3, "outputs": 4.0}


def test_modules_are_one_that_differ_by_rows(planned):
    """Its kernels are loaded once. While it is timed it has the rows that it is to have, then its own."""
    kernel = next(k for k in planned.kernels if k.name == "outputs")
    tried = [x for x in tuning.candidates(planned, kernel, TINY, CPU) if x.run > 1]
    modules, rows = zip(*(work._module(SOURCE, (x,)) for x in tried), strict=True)
    assert len(tried) > 2 and len({*map(id, modules)}) == 1
    [key] = rows[0]["TUNED"]
    assert [x["TUNED"][key] for x in rows] == [((x.block_K, x.block_V), x.warps, x.stages, x.run) for x in tried]
    before = modules[0].TUNED
    with work._changed(modules[0], **rows[-1]):
        assert modules[0]._config("outputs", 16, 32, torch.bfloat16)["num_warps"] == tried[-1].warps
        assert modules[0].TUNED is rows[-1]["TUNED"]
    assert modules[0].TUNED is before
    one_each = next(x for x in tuning.candidates(planned, kernel, TINY, CPU) if x.run == 1)
    assert work._module(SOURCE, (one_each,))[0] is not modules[0]  # in another loop, or none
    assert work._module(SOURCE, ())[1] == {}


@pytest.mark.parametrize(("whole", "kept"), [((1.0, 0.9), True), ((1.0, 0.98), False), ((1.0, 2.0), False)])
def test_scores_are_made_apart_if_all_of_the_op_gains(whole, kept, monkeypatch):
    """With the tiles that are best then, which may not be those that are best without."""
    pytest.importorskip("triton")
    rows = {n: replace(ONE, kernel="outputs", block_V=n) for n in (16, 32)}
    made = replace(ONE, kernel="scores")
    monkeypatch.setattr(tuning, "_measured", lambda *given: iter([rows[16], made] if given[-1] else [rows[32]]))
    monkeypatch.setattr(tuning, "op_time", lambda source, table, given: whole[made in table])
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    found = list(tuning.tune(SOURCE, CPU, [TINY], 1))
    assert found == [rows[32], *([rows[16], made] if kept else [])]


@pytest.mark.parametrize(("gain", "K", "kept"), [(0.9, 256, True), (0.99, 256, False), (0.9, 128, None)])
def test_chunks_have_twice_as_many_steps_if_all_of_the_op_gains(gain, K, kept, monkeypatch):
    """Which is tried for heads with room, whose states are too wide to stay on chip."""
    pytest.importorskip("triton")
    tried = []

    def measured(oracle, given, jobs, say, base):
        tried.append(sorted(x.kernel for x in base))
        yield replace(ONE, chunk=max([32, *(x.chunk for x in base)]))

    monkeypatch.setattr(tuning, "_measured", measured)
    monkeypatch.setattr(tuning, "op_time", lambda source, table, given: gain if 64 in {x.chunk for x in table} else 1.0)
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: tried.append(oracle.case.T))
    found = list(tuning.tune(SOURCE, CPU, [replace(TINY, K=K)], 1))
    assert [x.chunk for x in found] == [32, 64][: 1 + bool(kept)]
    twice = [] if kept is None else [["fused_given", "fused_given_value_gradients", "scores", "states"]]
    assert tried == [tuning.CHUNKS * (32 if kept is None else 64) + 5, [], ["scores"], *twice]


@pytest.mark.parametrize(
    ("chunk", "K", "gain", "kept"),
    [("auto", 64, 0.9, True), ("auto", 64, 0.99, False), ("auto", 512, 0.9, None), ("32", 64, 0.9, None)],
    ids=["faster", "no faster", "wider than a program holds", "fewer rows than wgmma has"],
)
def test_walks_without_gates_are_given_scores_if_all_of_the_op_gains(chunk, K, gain, kept, monkeypatch):
    pytest.importorskip("triton")
    source = Source("linear_attn.yaml", spec_text("linear_attn").replace("chunk: auto", f"chunk: {chunk}"))
    given, tried = sorted(GIVEN_KERNELS), []

    def measured(oracle, call, jobs, say, base):
        tried.append(sorted(x.kernel for x in base))
        yield from (replace(ONE, kernel=x.kernel) for x in base)

    def whole(source, table, call):
        return gain if {*given} <= {x.kernel for x in table} else 1.0

    monkeypatch.setattr(tuning, "_measured", measured)
    monkeypatch.setattr(tuning, "op_time", whole)
    monkeypatch.setattr(tuning, "forward_time", lambda *_: 1.0)
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    found = list(tuning.tune(source, CPU, [replace(TINY, K=K)], 1))
    halves = sorted(f"{kernel}{IN_HALVES}" for kernel in ("fused", "scores", *given))
    more = [given, halves, [HALVED]] if kept is not None else []
    alone = [[OTHERS]] if chunk == "auto" else []  # whose operands would have fewer columns than are safe
    assert tried == [[], ["scores"], *alone, *more]
    assert sorted(x.kernel for x in found) == (given if kept else [])


@pytest.mark.parametrize(("gain", "is_kept"), [(0.9, True), (0.99, False)], ids=["faster", "no faster"])
@pytest.mark.parametrize(("name", "kernel"), [("linear_attn", OTHERS), ("gla_v", BOTH)])
def test_one_kernel_makes_all_gradients_if_all_of_the_op_gains(name, kernel, gain, is_kept, monkeypatch):
    pytest.importorskip("triton")
    source = Source(f"{name}.yaml", spec_text(name))

    def whole(source, table, call):
        return gain if {kernel} == {x.kernel for x in table} else 1.0

    monkeypatch.setattr(
        tuning, "_measured", lambda oracle, call, jobs, say, base: (replace(ONE, kernel=x.kernel) for x in base)
    )
    monkeypatch.setattr(tuning, "op_time", whole)
    monkeypatch.setattr(tuning, "forward_time", lambda *_: 1.0)
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    assert [x.kernel for x in tuning.tune(source, CPU, [TINY], 1)] == [kernel] * is_kept


@pytest.mark.parametrize(("gain", "V", "kept"), [(0.9, 64, True), (0.99, 64, False), (0.9, 128, None)])
def test_chunks_of_narrow_heads_are_taken_by_halves_if_all_of_the_op_gains(gain, V, kept, monkeypatch):
    """And one kernel makes all gradients in them, beside a scalar gate; which is not tried for wide heads."""
    pytest.importorskip("triton")
    source, halves, tried = Source("simple_gla.yaml", spec_text("simple_gla")), [ALONE, f"fused{IN_HALVES}"], []

    def measured(oracle, call, jobs, say, base):
        tried.append(sorted(x.kernel for x in base))
        yield from base

    monkeypatch.setattr(tuning, "_measured", measured)
    monkeypatch.setattr(
        tuning, "op_time", lambda source, table, call: gain if {*halves} <= {x.kernel for x in table} else 1.0
    )
    monkeypatch.setattr(tuning, "forward_time", lambda *_: 1.0)
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    found = list(tuning.tune(source, CPU, [replace(TINY, K=64, V=V)], 1))
    assert (halves in tried) == (kept is not None)
    assert [(x.kernel, x.chunk) for x in found] == ([(f"fused{IN_HALVES}", 64), (ALONE, 64)] if kept else [])


@pytest.mark.parametrize(("gain", "kept"), [(0.9, True), (0.99, False)], ids=["faster", "no faster"])
def test_walks_take_chunks_by_halves_if_all_of_the_op_gains(gain, kept, monkeypatch):
    """Beside walks given scores of whole chunks of half as many steps, if these gain as well."""
    pytest.importorskip("triton")
    source = Source("linear_attn.yaml", spec_text("linear_attn"))
    halves = {f"{kernel}{IN_HALVES}" for kernel in ("fused", "scores", *GIVEN_KERNELS)}
    monkeypatch.setattr(tuning, "_measured", lambda oracle, call, jobs, say, base: base)
    monkeypatch.setattr(
        tuning, "op_time", lambda source, table, call: gain if halves <= {x.kernel for x in table} else 1.0
    )
    monkeypatch.setattr(tuning, "forward_time", lambda *_: 1.0)
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    found = list(tuning.tune(source, CPU, [replace(TINY, K=128, V=256)], 1))
    assert {(x.kernel, x.chunk) for x in found} == ({(kernel, 128) for kernel in halves} if kept else set())


@pytest.mark.parametrize(("chunk", "gain", "kept"), [("auto", 0.9, True), ("auto", 0.99, False), ("32", 0.9, False)])
def test_a_forward_takes_chunks_by_halves_if_it_gains(chunk, gain, kept, monkeypatch):
    """Beside what is found for the op with its backward; and if halves are not narrower than what wgmma multiplies."""
    pytest.importorskip("triton")
    source = Source("linear_attn.yaml", spec_text("linear_attn").replace("chunk: auto", f"chunk: {chunk}"))
    plain = replace(ONE, kernel="outputs")

    def measured(oracle, call, jobs, say, base):
        yield from (replace(ONE, kernel=x.kernel) for x in base or [plain])

    def forward(source, table, call):
        assert plain in table
        return gain if HALVED in {x.kernel for x in table} else 1.0

    monkeypatch.setattr(tuning, "_measured", measured)
    monkeypatch.setattr(tuning, "op_time", lambda *_: 1.0)
    monkeypatch.setattr(tuning, "forward_time", forward)
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    found = [x.kernel for x in tuning.tune(source, CPU, [TINY], 1)]
    assert found == ["outputs", *([HALVED] if kept else [])]


@pytest.mark.parametrize(("name", "gain", "kept"), [("gla_kv", 0.9, True), ("gla_kv", 0.99, False), ("gla", 0.9, None)])
def test_a_backward_shares_its_operands_if_all_of_the_op_gains(name, gain, kept, monkeypatch):
    """Which is tried where both sides have gates."""
    pytest.importorskip("triton")
    source, shared, tried = Source(f"{name}.yaml", spec_text(name)), {*SHARED, *SHARING}, []

    def measured(oracle, call, jobs, say, base):
        tried.append({x.kernel for x in base})
        yield from (replace(ONE, kernel=x.kernel) for x in base)

    def whole(source, table, call):
        return gain if shared <= {x.kernel for x in table} else 1.0

    monkeypatch.setattr(tuning, "_measured", measured)
    monkeypatch.setattr(tuning, "op_time", whole)
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    found = list(tuning.tune(source, CPU, [TINY], 1))
    assert tried == [set(), {"scores"}, *([shared, shared | {OPERANDS, GIVEN}] if kept is not None else [])]
    assert {x.kernel for x in found} == (shared if kept else set())  # given as well, a forward gains no more


@pytest.mark.parametrize(("name", "gain", "kept"), [("gla_v", 0.9, True), ("gla_v", 0.99, False), ("gla", 0.9, None)])
def test_others_keep_what_gradients_of_values_read_if_all_of_the_op_gains(name, gain, kept, monkeypatch):
    """Which is tried where values alone have gates."""
    pytest.importorskip("triton")
    source, wanted, tried = Source(f"{name}.yaml", spec_text(name)), {*KEPT_KERNELS}, []

    def measured(oracle, call, jobs, say, base):
        tried.append({x.kernel for x in base})
        yield from (replace(ONE, kernel=x.kernel) for x in base)

    monkeypatch.setattr(tuning, "_measured", measured)
    monkeypatch.setattr(
        tuning, "op_time", lambda source, table, call: gain if wanted <= {x.kernel for x in table} else 1.0
    )
    monkeypatch.setattr(tuning, "timed_on", lambda *_: None)
    monkeypatch.setattr(tuning, "import_text", lambda text: SimpleNamespace(_on_triton=lambda x: True))
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    found = list(tuning.tune(source, CPU, [TINY], 1))
    assert (wanted in tried) == (kept is not None)
    assert {x.kernel for x in found} == (wanted if kept else set())


def test_a_configuration_that_is_wrong_or_cannot_be_launched_is_not_right(planned, monkeypatch):
    kernel = next(k for k in planned.kernels if k.name == "outputs")
    candidate = tuning.candidates(planned, kernel, TINY, CPU)[0]

    def raises(*_, **__):
        raise RuntimeError("gla: this GPU cannot hold a tile")

    monkeypatch.setattr(work, "_expected", lambda file: {})
    monkeypatch.setattr(work, "_run", raises)
    oracle = work.Oracle(SOURCE, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    for stand_in in (lambda *_, **__: SimpleNamespace(ok=False), raises):
        monkeypatch.setattr(work, "verify", stand_in)
        assert not work.is_right(oracle, (), candidate)
    assert not work.is_built(oracle, (), candidate)


def test_configurations_for_strong_gates_are_launched_with_such(planned, monkeypatch):
    """In a process of their own: what has a fault there alone would be the end of the one that times."""
    kernel = next(k for k in planned.kernels if k.name == "outputs")
    mild = tuning.candidates(planned, kernel, TINY, CPU)[0]
    launched = []
    monkeypatch.setattr(work, "_run", lambda module, name, kernel, given: launched.append(given.arguments["g"].min()))
    oracle = work.Oracle(SOURCE, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    for x in (mild, replace(mild, kernel=f"{mild.kernel}{STRONG}")):
        assert work.is_built(oracle, (), x)
    assert launched[0] > -2 and launched[1] == -20  # a step: in all channels that are strong, and all chunks


def test_a_process_without_memory_leaves_it_to_what_times(planned, monkeypatch):
    candidate = tuning.candidates(planned, next(k for k in planned.kernels if k.name == "outputs"), TINY, CPU)[0]

    def raises(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(work, "_run", raises)
    assert work.is_built(work.Oracle(SOURCE, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read")), (), candidate)


def test_after_a_fault_a_process_gives_way(planned, monkeypatch):
    """A fault may be known of only when the GPU is done."""
    candidate = tuning.candidates(planned, next(k for k in planned.kernels if k.name == "outputs"), TINY, CPU)[0]
    monkeypatch.setattr(work, "_expected", lambda file: {})
    monkeypatch.setattr(work, "_run", lambda *_: None)
    monkeypatch.setattr(work, "_answers", lambda device: False)
    oracle = work.Oracle(SOURCE, TINY, CPU, Case(2, 40, 2, 16, 32), Path("not read"))
    for ok in (True, False):
        monkeypatch.setattr(work, "verify", lambda *_, ok=ok, **__: SimpleNamespace(ok=ok))
        assert work.is_right(oracle, (), candidate) is None
    assert work.is_built(oracle, (), candidate) is None


def _answer(folder: Path, n: int) -> bool | None:
    """Leaves which process was asked."""
    if n == 9:
        os._exit(1)
    (folder / str(n)).write_text(str(os.getpid()))
    return {1: None, 2: False}.get(n, True)


def test_a_process_of_no_more_use_is_replaced(tmp_path):
    with answers(1) as ask:
        assert [*ask(_answer, [(tmp_path, n) for n in range(4)])] == [True, False, False, True]
        assert [*ask(_answer, [(tmp_path, 4)])] == [True]
    asked = [(tmp_path / str(n)).read_text() for n in range(5)]
    assert asked[0] == asked[1] != asked[2] == asked[3] == asked[4]  # and kept from one question to the next


def test_a_process_that_is_killed_is_told(tmp_path):
    with pytest.raises(ChildProcessError, match="killed"), answers(2) as ask:
        list(ask(_answer, [(tmp_path, n) for n in (0, 9, 3)]))


def test_turns_that_ship_are_tried(planned):
    """So that the command can make the table anew."""
    for kernel in planned.kernels:
        first = choice.candidates(planned, kernel, TINY, CPU)
        more = choice.turned(kernel, first[0])
        assert not set(first) & set(more)
        assert {(x.block_K, x.block_V, x.warps) for x in more} == {(first[0].block_K, first[0].block_V, first[0].warps)}
        tried = {(x.stages, x.run) for x in (*first, *more)}
        assert {(x.stages, x.run) for x in shipped() if x.kernel == kernel.name} <= tried
    assert {x.warps for x in shipped()} <= set(choice.WARPS)


def test_a_module_is_itself_again_once_it_was_timed(planned, monkeypatch):
    """The rule's is one for all kernels: what measured one is not there for the next. Meanwhile no call repeats what an
    earlier one launched, past what measures."""
    module = import_text(compile_spec(SOURCE, Options(tuned=())))
    launched, stopped = [], []
    monkeypatch.setattr(module, "_launch", lambda called, *_, **__: launched.append(called))
    monkeypatch.setattr(module, "_alike_in", lambda *_: "known")
    before = dict(vars(module))

    def run(module, name, kernel, given):
        for one in ("states", "outputs") if module._alike_in(None, ()) is None else ():
            module._launch(getattr(module, f"gla_{one}_kernel"), 1, CPU)

    monkeypatch.setattr(work, "_run", run)
    monkeypatch.setattr(work, "stopwatch", lambda device: lambda: stopped.append(device) or (lambda: 1.0))
    given = SimpleNamespace(cotangents=[torch.empty(0)])
    assert [work.kernel_time(SOURCE, kernel, (), given) for kernel in ("states", "outputs", "states")] == [1.0] * 3
    times = work.WARM + work.REPEATS
    assert len(launched) == 6 * times and len(stopped) == 3 * times
    assert dict(vars(module)) == before
    with pytest.raises(AssertionError, match="key_gradients was not launched"):
        work.kernel_time(SOURCE, "key_gradients", (), given)


@pytest.mark.parametrize("name", ["gla", "gla_kv", "gla_v", "linear_attn", "simple_gla"])
def test_whatever_is_timed_is_launched(name, monkeypatch):
    """Of a kernel that is not, as on a GPU, nothing would be measured."""
    pytest.importorskip("triton")
    load, like, launched = tuning.import_text, choice.configuration, []
    stand_ins = {
        "_capability": lambda: 9,
        "_multiprocessors": lambda: 132,
        "_on_triton": lambda x: True,
        "_launch": lambda kernel, *_, **__: launched.append(kernel.fn.__name__),
        "_with_allocator": lambda by_tma, device, function, *given: function(*given),
    }

    def loaded(text):
        module = load(text)
        for function, stand_in in stand_ins.items():
            if hasattr(module, function):
                monkeypatch.setattr(module, function, stand_in)
        return module

    def configured(planned, *given):
        made = replace(like(planned, *given), architecture=9)
        return replace(made, chunk=planned.chunk * (2 if made.heads in planned.doubled else 1))

    monkeypatch.setattr(tuning, "import_text", loaded)
    monkeypatch.setattr(work, "import_text", loaded)
    monkeypatch.setattr(choice, "configuration", configured)
    monkeypatch.setattr(tuning, "_built", lambda oracle, base, tried, *_: (*{x.kernel: x for x in tried}.values(),))
    monkeypatch.setattr(tuning, "is_right", lambda *_: True)
    monkeypatch.setattr(work.Oracle, "run", lambda oracle: None)
    monkeypatch.setattr(work, "WARM", 0)
    monkeypatch.setattr(work, "REPEATS", 1)
    monkeypatch.setattr(tuning, "GAIN", 1e9)
    source = Source(f"{name}.yaml", spec_text(name))
    found = {x.kernel for x in tuning.tune(source, CPU, [Workload("few", 1, 40, 2, 128, 128)], 1)}
    assert found and {f"{name}_{work._function(x)}_kernel" for x in found} <= {*launched}


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
    table = tmp_path / "tuned.json"
    monkeypatch.setattr(tuning, "tune", lambda *_: iter([ONE]))
    for spec in ("gla", "retnet"):
        command = ["tune", str(ROOT / "specs" / f"{spec}.yaml"), "--device", "cpu", "-o", str(table)]
        result = CliRunner().invoke(main, command)
        text = "64 by 128; 8 warps, 2 stages: 0.700 ms, the rule's 0.850"
        assert result.exit_code == 0 and text in result.output
        assert read_table(table) == (ONE,)
    assert Path(table).read_text().count("architecture") == 1
