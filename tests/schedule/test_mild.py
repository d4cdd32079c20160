"""What a run that counts only for mild gates may leave out, and what it may not."""

from __future__ import annotations

import pytest

from glagen.ir.expr import Apply, Ref, refs
from glagen.ir.kernel import Assign, Blocks, Depth, Dot, Kernel, Loop, RowSum, Store, read, written
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import FORWARD
from glagen.pipeline import plan
from glagen.schedule.mild import unguarded
from tests import strategies
from tests.mutation.judge import SPECS, plan_of
from tests.numerics.helpers import document_of


def single(kernel: Kernel) -> list:
    return [x for line in kernel.lines for x in (line.body if isinstance(line, Blocks) else (line,))]


def assigns(kernel: Kernel) -> list[Assign]:
    return [x for x in single(kernel) if isinstance(x, Assign)]


def functions(expr) -> set[str]:
    if not isinstance(expr, Apply):
        return set()
    return {expr.function}.union(*(functions(x) for x in expr.args))


@pytest.mark.parametrize("text", strategies.PARAMETER_GATES)
def test_gates_of_parameters_are_tiles_and_sums(text):
    """A run for mild gates has the least of what is summed for the chunk's sum alone, and tiles where others have."""
    found = plan(document_of(text), Options(tuned=()))
    assert isinstance(found, Schedule)
    lines = [x for kernel in found.kernels for x in assigns(kernel) if x.mild is not None]
    assert {x.name for x in lines if x.over} <= {"log_gate_k_whole"}
    axes = [{i.axis for r in refs(x.mild) for i in r.indices} for x in lines if x.name == "gate_k"]
    assert axes == [] or axes == [{"t", "i"}] * len(axes)
    assert any(x.name == "dw" for kernel in found.kernels for x in assigns(kernel))


@pytest.mark.parametrize("name", SPECS)
def test_kernels_that_run_once_do_all_work(name):
    """Sums of gates in walks (see test_walks.py), and gradients of scalar ones (see test_crossings.py), do theirs."""
    for kernel in plan_of(name, "guarded").kernels:
        if not kernel.runs_twice:
            less = [x for x in assigns(kernel) if x.mild is not None and not kernel.scans]
            assert all(x.name == "dgate" and x.axes == ("t",) for x in less)
            assert not [x for x in single(kernel) if isinstance(x, RowSum) and x.spared]


@pytest.mark.parametrize("name", SPECS)
def test_each_vector_gate_finds_its_depth_and_is_judged(name):
    """All gates of a kernel's blocks have a depth, and every walk notes their sums: those of all gates."""
    plan = plan_of(name, "guarded")
    guarded = {f"log_{gate}_whole" for gate, _ in plan.covers}
    for kernel in plan.kernels:
        depths = {x.name: x for x in kernel.lines if isinstance(x, Depth)}
        used = {x.depth for x in kernel.lines if isinstance(x, Blocks) and (x.kind, x.depth) != ("own", "")}
        assert used == set(depths)
        assert all(bool(x.since) == (kernel.name in FORWARD) for x in depths.values()), "bits of a row by rows up to it"
        if kernel.direction:
            assert {judge.sums for judge in kernel.judges} == guarded
            assert guarded <= {n for line in kernel.lines for n in written(line)}
        assert kernel.runs_twice == (kernel.late or kernel.leaves_values or bool(depths))


@pytest.mark.parametrize("name", SPECS)
def test_gates_have_their_bound_in_all_runs(name):
    """For those who judge them, and for those who go by that."""
    for kernel in plan_of(name, "guarded").kernels:
        for x in assigns(kernel):
            assert x.mild is None or not functions(x.expr) & {"clamp"}


@pytest.mark.parametrize("name", SPECS)
def test_what_lines_read_in_a_mild_run_is_there(name):
    """In the loop that they stand in, or before it: the blocks of an earlier loop leave their last columns' tiles."""
    for kernel in plan_of(name, "guarded").kernels:
        made = {n for line in kernel.lines for n in written(line)}
        seen = set(kernel.zeros) | {scan.tile for scan in kernel.scans}
        for item in kernel.body:
            inside = set(seen)
            for line in item.body if isinstance(item, Loop) else (item,):
                assert {n for n in read(line) if n in made} <= inside, (kernel.name, line)
                inside |= set(written(line))
            seen |= inside if not isinstance(item, Loop) else {n for n in inside if n in kernel.added}


@pytest.mark.parametrize("name", SPECS)
def test_paths_within_a_chunk_are_summed_once(name):
    """What blocks with one anchor do not sum in a mild run, the sum over all steps takes in, and vice versa; of reads
    before the write, that over rows takes in what is written."""
    for kernel in plan_of(name, "guarded").kernels:
        spared = [x.source.name for x in single(kernel) if isinstance(x, RowSum) and x.spared]
        taken = [
            n
            for x in assigns(kernel)
            if x.mild is not None and "_paths_" in x.name
            for n in set(read(Assign(x.name, x.axes, x.mild))) - set(read(Assign(x.name, x.axes, x.expr)))
        ]
        made = {x.name: x for x in assigns(kernel)}
        for gate in (name.removesuffix("_reads_anchored") for name in made if name.endswith("_reads_anchored")):
            halves = [name for name in read(made[f"{gate}_rows_anchored"]) if name.endswith("_intra_anchored")]
            taken += [name.replace("_anchored", "_paths_anchored") for name in halves]
            assert f"crossed_{gate}" not in {r.name for r in refs(made[f"d{gate}"].mild)}
        assert sorted(spared) == sorted(taken)


@pytest.mark.parametrize("name", SPECS)
def test_growths_stay_in_their_loop(name):
    """A decay to the end that waited for a growth would need a loop of its own over the columns."""
    for kernel in plan_of(name, "guarded").kernels:
        loops = [item for item in kernel.body if isinstance(item, Loop)]
        assert len(loops) <= 1, kernel.name


def test_decays_to_the_end_take_growths_that_are_there():
    """In loops over a gate's columns, too, where the decay over the chunk is wanted as well."""
    kernels = {k.name: k for k in plan_of("gla_kv", "guarded").kernels}
    for name in ("key_gradients", "value_gradients"):
        ends = {x.name: x for x in assigns(kernels[name]) if x.name.endswith("_to_end") and "gate" in x.name[:5]}
        for side in ("k", "v"):
            mild = ends[f"gate_{side}_to_end"].mild
            assert mild is not None and {r.name for r in refs(mild)} == {
                f"gate_{side}_up_anchored",
                f"gate_{side}_half",
            }


def test_tiles_that_are_stored_alone_are_not_guarded():
    one = Assign("one", ("t",), Ref("x", ()), guarded=True)
    two = Assign("two", ("t",), Ref("one", ()), guarded=True)
    total = Assign("total", (), Ref("one", ()), over=("t",), guarded=True)
    stores = [Store("a", "one", ("t",)), Store("b", "two", ("t",)), Store("c", "total", ())]
    found = {x.name: x.guarded for x in unguarded([one, two, total], stores) if isinstance(x, Assign)}
    assert found == {"one": True, "two": False, "total": True}


@pytest.mark.parametrize("name", SPECS)
def test_the_diagonal_is_apart_only_for_few_steps_and_strong_gates(name):
    """No other line makes a step's own score, or picks its own gradient; masks of the whole chunk have the diagonal."""
    for kernel in plan_of(name, "guarded").kernels:
        if not kernel.runs_twice:
            continue
        apart = [x for x in kernel.lines if isinstance(x, Blocks) and x.kind == "own"]
        made = {n for blocks in apart for n in written(blocks) if n.endswith(("_own", "_diagonal", "_diagonal_T"))}
        for line in kernel.lines:
            assert line in apart or not made & set(written(line))
        masks = {r.name for x in assigns(kernel) for r in refs(x.expr)}
        inner = [x for line in kernel.lines if isinstance(line, Blocks) for x in line.body]
        masks |= {f"%{x.mask}" for x in inner if isinstance(x, Dot)}
        whole = {"%past", "%past_T"} if kernel.late else {"%decayed", "%decayed_T"}
        assert bool(apart) == bool(masks & whole)
        assert "%same_or_own" not in masks or kernel.name in FORWARD
