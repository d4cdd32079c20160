"""Tiles of tensors are transposed where dots would transpose them as left operands, and nowhere else."""

from __future__ import annotations

import itertools

import pytest

from glagen.ir.chunk import Operand
from glagen.ir.expr import apply, ref
from glagen.ir.kernel import Assign, Dot, Kernel, Load, RowSum, Store
from glagen.schedule.operands import as_read
from tests.mutation.judge import COVERS, SPECS, plan_of

CASES = list(itertools.product(SPECS, COVERS))
K, V = Load("k", ("t", "i")), Load("v", ("t", "j"))
SCALED = Assign("k_to_end", ("t", "i"), apply("mul", ref("k", ("t", "i")), ref("gate", ("t",))), rounded="narrow")
ADDED = Dot("S", ("i", "j"), Operand("k_to_end", ("t", "i")), Operand("v", ("t", "j")))


def loads(kernel: Kernel) -> dict[str, Load]:
    return {line.name: line for line in kernel.lines if isinstance(line, Load)}


def kernel_of(spec: str, name: str) -> Kernel:
    return next(k for k in plan_of(spec, "").kernels if k.name == name)


@pytest.mark.parametrize(("spec", "kernel", "name", "axes"), [
    ("linear_attn", "states", "k", ("i", "t")),
    ("linear_attn", "adjoint_states", "q", ("i", "t")),
    ("simple_gla", "states", "k", ("i", "t")),  # scaled by a gate of the step first
    ("gla", "states", "k", ("t", "i")),  # scaled by a gate of its own, whose sums have steps first
    ("gla", "fused", "v", ("j", "t")),
    ("gla_v", "fused", "v", ("t", "j")),
    ("gla", "outputs", "k", ("t", "i")),  # right operands may lie either way
])  # fmt: skip
def test_inputs_lie_as_left_operands_are_read(spec, kernel, name, axes):
    assert loads(kernel_of(spec, kernel))[name].axes == axes


@pytest.mark.parametrize(("spec", "cover"), CASES)
def test_no_load_is_transposed_but_for_left_operands(spec, cover):
    """And those that were turned are left operands as they lie, wherever a dot has them on its left."""
    for kernel in plan_of(spec, cover).kernels:
        dots = [x for x in kernel.lines if isinstance(x, Dot)] + [d for s in kernel.scans for d in s.added]
        for name, load in loads(kernel).items():
            if load.axes == tuple(sorted(load.axes, key="tsij".index)):
                continue
            family = {name} | {x.name for x in kernel.lines if isinstance(x, Assign) and x.axes == load.axes}
            left = [dot for dot in dots if dot.x.name in family]
            assert left, (kernel.name, name)
            assert all(dot.x.indices[1] in dot.y.indices for dot in left)


def test_what_is_computed_element_by_element_goes_along():
    lines, _ = as_read([K, V], [SCALED, ADDED], (), ())
    axes = {line.name: line.axes for line in lines}
    assert axes == {"k": ("i", "t"), "v": ("t", "j"), "k_to_end": ("i", "t"), "S": ("i", "j")}
    assert lines[-1] == Dot("S", ("i", "j"), Operand("k_to_end", ("i", "t")), Operand("v", ("t", "j")))


SUM = RowSum("sums", ("t", "i"), Operand("k", ("t", "i")), "through")
BY_SUM = Assign("k_to_end", ("t", "i"), apply("mul", ref("k", ("t", "i")), ref("sums", ("t", "i"))))
STRAIGHT = Dot("scores", ("t", "s"), Operand("k", ("t", "i")), Operand("q", ("s", "i")))


@pytest.mark.parametrize(("lines", "stores"), [
    ([SCALED, ADDED, SUM], ()),  # a sum over steps has those first
    ([SUM, BY_SUM, ADDED], ()),
    ([SCALED, ADDED, STRAIGHT], ()),  # another dot reads it as it is
    ([SCALED, ADDED], (Store("dk", "k_to_end", ("t", "i")),)),
], ids=["summed", "scaled by a sum", "read both ways", "stored"])  # fmt: skip
def test_what_something_else_reads_stays(lines, stores):
    found, _ = as_read([K, V], lines, (), stores)
    assert found == [K, V, *lines]
