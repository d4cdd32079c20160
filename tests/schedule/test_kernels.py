"""Kernels keep their promises: nothing is used before it is there, sums are complete, nothing is done for nothing."""

from __future__ import annotations

import itertools

import pytest

from glagen.ir.kernel import Blocks, Dot, Kernel, Load, Loop, Scan, read, written
from glagen.schedule.merge import merge_blocks
from tests.mutation.judge import COVERS, SPECS, document_of, plan_of

CASES = list(itertools.product(SPECS, COVERS))
OUTSIDE = {"K", "V", "T", "H"}


def planned(name: str, cover: str):
    return document_of(name, **COVERS[cover]), plan_of(name, cover)


def lines_of(kernel: Kernel) -> list[tuple[str | None, object]]:
    """(the loop it is in, line) in order."""
    found = []
    for n, item in enumerate(kernel.body):
        inside = item.body if isinstance(item, Loop) else (item,)
        found += [(f"loop {n}" if isinstance(item, Loop) else None, line) for line in inside]
    return found


def sums(line) -> set[str]:
    """Names a line adds to."""
    inner = line.body if isinstance(line, Blocks) else (line,)
    return {x.name for x in inner if not isinstance(x, Load) and x.accumulate}


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_nothing_is_used_before_it_is_defined(name, cover):
    document, plan = planned(name, cover)
    scalars = {d.name for d in document.declarations if d.kind == "scalar"} | OUTSIDE
    for kernel in plan.kernels:
        ready = scalars | {s.tile for s in kernel.scans} | set(kernel.zeros)
        loops: dict[str, set[str]] = {}
        for loop, line in lines_of(kernel):
            used = {n for n in read(line) if not n.startswith("%")}
            here = ready | loops.get(loop, set())
            assert used <= here, f"{kernel.name}: {written(line)} uses {used - here}"
            own = set(written(line))
            if loop is None or own <= set(kernel.zeros):
                ready |= own
            else:
                loops.setdefault(loop, set()).update(own)  # a loop's tiles are those of its last block outside
        for store in kernel.stores:
            assert store.tile in ready or any(store.tile in x for x in loops.values()), store
        for scan in kernel.scans:
            assert {n for n in scan.reads if n not in scalars} <= ready


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_sums_are_complete_before_they_are_used(name, cover):
    """No line reads a tile to which a later line of the same kernel adds."""
    _, plan = planned(name, cover)
    for kernel in plan.kernels:
        lines = lines_of(kernel)
        for n, (_, line) in enumerate(lines):
            later = set().union(*(sums(x) for _, x in lines[n + 1 :])) if lines[n + 1 :] else set()
            own = sums(line)
            used = {x for x in read(line) if x not in own}
            assert not used & (later | (own - set(written(line)))), f"{kernel.name}: {written(line)} reads a part"
    for lines in (plan.twin_forward, plan.twin_backward):
        for n, line in enumerate(lines):
            used = set(line.reads) if isinstance(line, Scan) else set(read(line))
            for later in lines[n + 1 :]:
                names = {later.tile} if isinstance(later, Scan) else set(written(later))
                own = {line.tile} if isinstance(line, Scan) else set(written(line))
                assert not (used - own) & names, f"{names} after its use"


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_tiles_are_assigned_once(name, cover):
    _, plan = planned(name, cover)
    for kernel in plan.kernels:
        begun = dict.fromkeys(kernel.zeros, "at zero")
        plain: dict[tuple[str, str | None], int] = {}
        for loop, line in lines_of(kernel):
            always = loop is None and (not isinstance(line, Blocks) or line.is_passed_once)
            for x in line.body if isinstance(line, Blocks) else (line,):
                if not isinstance(x, Load) and x.accumulate:
                    assert begun.get(x.name) in ("at zero", "by a line"), f"{x.name} is added to, and nothing begins it"
                    continue
                assert begun.get(x.name) != "at zero", f"{x.name} is a sum, and a line begins it anew"
                begun.setdefault(x.name, "by a line" if always else "where it is used")
                if not isinstance(line, Blocks):
                    plain[x.name, loop] = plain.get((x.name, loop), 0) + 1
        assert all(count == 1 for count in plain.values()), {n for n, c in plain.items() if c > 1}


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_nothing_is_computed_for_nothing(name, cover):
    _, plan = planned(name, cover)
    for kernel in plan.kernels:
        used = {s.tile for s in kernel.stores} | {n for s in kernel.scans for n in s.reads}
        for _, line in lines_of(kernel):
            inner = line.body if isinstance(line, Blocks) else (line,)
            used |= {n for x in inner for n in read(x) if n != x.name}
            used |= {line.depth} if isinstance(line, Blocks) else set()
        made = {x.name for _, line in lines_of(kernel) for x in (line.body if isinstance(line, Blocks) else (line,))}
        assert made <= used, f"{kernel.name}: nothing uses {made - used}"


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_every_gradient_is_computed_in_full(name, cover):
    """All parts of every gradient are stored by some kernel, and each by one."""
    _, plan = planned(name, cover)
    stored = [s for k in plan.kernels if k.name != "scores" for s in k.stores]
    outputs = {o.name for o in plan.program.outputs}
    wanted = {f"d{g.name}" for g in plan.program.gradients if g.parts}
    assert {s.target for s in stored} == outputs | wanted
    assert {k.name for k in plan.kernels} >= {"states", "outputs", "fused", "adjoint_states"}


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_joining_blocks_keeps_lines_and_order(name, cover):
    """Joined again, nothing changes; every line is there once in a block."""
    _, plan = planned(name, cover)
    for kernel in plan.kernels:
        plain = [line for _, line in lines_of(kernel)]
        for line in plain:
            if isinstance(line, Blocks):
                assert len(set(line.body)) == len(line.body)
        again = merge_blocks(plain)
        assert sorted(map(repr, written_all(again))) == sorted(map(repr, written_all(plain)))


def written_all(lines) -> set[str]:
    return {n for line in lines for n in written(line)}


@pytest.mark.parametrize(("name", "cover"), CASES)
def test_scores_that_decays_have_rounded_count_in_two_terms_where_gates_have_gradients(name, cover):
    """Those of the other side's gates; what has no vector gate there has none that are rounded."""
    plan = plan_of(name, cover)
    sides = {axis for gate in plan.program.gates for axis in gate.axes}
    for kernel in plan.kernels:
        dots = [x for line in kernel.lines for x in (line.body if isinstance(line, Blocks) else (line,))]
        split = [x for x in dots if isinstance(x, Dot) and x.split]
        makes = any(store.target.startswith("d") for store in kernel.stores)
        assert bool(split) == (len(sides) == 2 and makes and kernel.name.endswith("_gradients")), kernel.name
        assert all(set(x.x.indices) == {"t", "s"} for x in split)
