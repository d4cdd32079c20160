"""Lines in an order in which every sum has begun before anything is added to it."""

from __future__ import annotations

import pytest

from glagen.check import check
from glagen.derive import derive
from glagen.errors import InternalError
from glagen.ir.chunk import Operand
from glagen.ir.expr import ref
from glagen.ir.kernel import Assign, Blocks, Dot, Kernel, Load, read, written
from glagen.ir.schedule import Options
from glagen.schedule import schedule
from glagen.schedule.order import begun, in_order
from tests.mutation.judge import COVERS, SPECS, plan_of
from tests.numerics.helpers import document_of
from tests.strategies import COMPUTED_GRADIENTS, COMPUTED_VALUES

# Two writes, read before and after: one cover's blocks add to the reads of both writes, of which one begins elsewhere.
TWO_WRITES = """
name: two_writes
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  x: [t, i]
  y: [t, j]
  r: [t, i]
  a: {axes: [t, j], domain: "(0, 1]"}
  b: {axes: [i], kind: constant, value: 1 - 2**(-2 - h), domain: "(0, 1)"}
state: S[i, j]
equations:
  - S[t,i,j] = b[i] * a[t,j] * S[t-1,i,j] + k[t,i] * v[t,j] + x[t,i] * y[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t-1,i,j])
  - p[t,j] = sum(i, r[t,i] * S[t,i,j])
chunk: 16
"""


def begun_too_late(kernel: Kernel) -> list[str]:
    known, late = set(kernel.zeros), []
    for line in kernel.lines:
        for x in line.body if isinstance(line, Blocks) else (line,):
            if not isinstance(x, Load) and x.accumulate and x.name not in known:
                late.append(x.name)
            known.add(x.name)
    return late


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize("name", SPECS)
def test_sums_begin_before_they_grow(name, cover):
    for kernel in plan_of(name, cover).kernels:
        assert not begun_too_late(kernel), kernel.name


@pytest.mark.parametrize("text", [TWO_WRITES, COMPUTED_VALUES, COMPUTED_GRADIENTS], ids=["two", "values", "gradients"])
def test_sums_of_computed_tiles_begin_before_they_grow(text):
    for kernel in schedule(derive(check(document_of(text))), Options()).kernels:
        assert not begun_too_late(kernel), kernel.name


def test_what_is_added_to_a_tile_comes_after_what_begins_it_though_it_is_ready_before():
    """For what comes first is what the tile begins with, whatever it had before."""
    square = ("t", "j")
    later = Dot("sum", square, Operand("scaled", ("t", "i")), Operand("S", ("i", "j")))
    added = Dot("sum", square, Operand("q", ("t", "i")), Operand("R", ("i", "j")), accumulate=True)
    scaled = Assign("scaled", ("t", "i"), ref("q", ("t", "i")))
    assert in_order([added, later, scaled]) == [scaled, later, added]
    assert begun((scaled, later, added)) == (scaled, later, added)
    with pytest.raises(InternalError, match="sum begins after"):
        begun((added, scaled, later))


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize("name", ["gla", "gla_sigmoid", "hgrn2", "rwkv6"])
def test_tiles_do_not_wait_for_their_sums_while_states_are_read(name, cover):
    """What sums a tile over an axis, of what is there before, comes before any dot with the state."""
    for kernel in (k for k in plan_of(name, cover).kernels if k.whole):
        carried, waits = {scan.tile for scan in kernel.scans}, set[str]()
        sums = 0
        for line in kernel.lines:
            if waits and isinstance(line, Assign) and line.over:
                assert set(read(line)) & waits, line.name
            if set(read(line)) & (carried | waits):
                waits |= set(written(line))
            sums += isinstance(line, Assign) and bool(line.over)
        assert waits and sums, kernel.name
