"""Sums over an axis of which a program holds a block: loaded, or refused."""

from __future__ import annotations

import pytest

from glagen.check import check
from glagen.derive import derive
from glagen.errors import InternalError, Source
from glagen.ir.schedule import Options
from glagen.parse import parse
from glagen.schedule import kernels as building
from glagen.schedule import schedule
from glagen.schedule.partial import local_sums
from tests.strategies import LOCAL_SUMS


def program(text: str):
    return derive(check(parse(Source("test.yaml", text))))


def test_local_sums_are_found_with_their_axes_in_order():
    found = local_sums(program(LOCAL_SUMS))
    assert [axis for axis, _ in found.values()] == ["i", "j", "j", "j"]
    assert all(out.indices == ("t",) for _, out in found.values())


def test_kernels_load_what_they_have_a_part_of():
    kernels = {k.name: k for k in schedule(program(LOCAL_SUMS), Options()).kernels}
    assert len(kernels["outputs"].sums) == 1 and len(kernels["value_gradients"].sums) == 2
    made = [s.target for k in kernels.values() if k.name.startswith("sums") for s in k.stores]
    assert set(kernels["outputs"].sums) <= set(made)
    order = list(kernels)
    assert order.index("sums_1") < order.index("states") and order.index("backward_sums_0") < order.index(
        "adjoint_states"
    )


def test_a_part_taken_for_the_whole_is_refused(monkeypatch):
    monkeypatch.setattr(building, "local_sums", lambda program: {})
    with pytest.raises(InternalError, match=r"part of a sum|sums over"):
        schedule(program(LOCAL_SUMS), Options())
