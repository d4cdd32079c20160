"""Dumps of a tiny spec at each stage: what each stage makes of it, at a glance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glagen.check import check
from glagen.derive import derive
from glagen.errors import Source
from glagen.ir.dump import dump_kernel, dump_program, dump_recurrence
from glagen.ir.schedule import Options, schedules
from glagen.parse import parse
from glagen.pipeline import plan

TINY = """\
name: tiny
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  x: {axes: [t, i]}
  u: {kind: parameter, axes: [i]}
state: S[i, j]
equations:
  - S[t,i,j] = sigmoid(x[t,i]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t-1,i,j]) + sum(i, q[t,i] * u[i] * k[t,i]) * v[t,j]
chunk: 16
"""
SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
DOCUMENT = parse(Source("tiny.yaml", TINY))


def test_recurrence(golden: Callable[[str, str], None]) -> None:
    golden("dump/recurrence.txt", dump_recurrence(check(DOCUMENT)))


def test_program(golden: Callable[[str, str], None]) -> None:
    golden("dump/program.txt", dump_program(derive(check(DOCUMENT))))


def test_kernel(golden: Callable[[str, str], None]) -> None:
    kernel = next(k for k in plan(DOCUMENT, Options()).kernels if k.name == "outputs")
    golden("dump/kernel.txt", dump_kernel(kernel))


def test_kernel_of_gradients(golden: Callable[[str, str], None]) -> None:
    """With what is otherwise in runs for mild gates."""
    kernel = next(k for k in plan(DOCUMENT, Options()).kernels if k.name == "key_gradients")
    golden("dump/key_gradients.txt", dump_kernel(kernel))


@pytest.mark.parametrize("cover", ["auto", "subchunk", "bisect", "guarded"])
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_spec_can_be_dumped(path: Path, cover: str) -> None:
    document = parse(Source(path.name, path.read_text(encoding="utf-8")))
    for schedule in schedules(plan(document, Options(cover=cover))):
        program = dump_program(schedule.program)
        for statement in schedule.program.forward + schedule.program.backward:
            assert f"    {statement.out} = " in program
        for kernel in schedule.kernels:
            text = dump_kernel(kernel)
            for store in kernel.stores:
                assert f"store {store.target}[" in text or f"store {store.target} " in text
            assert "Ref(" not in text and "Operand(" not in text


def test_what_is_least_is_not_called_a_sum() -> None:
    kernel = next(k for k in plan(DOCUMENT, Options()).kernels if k.name == "fused")
    (line,) = (x for x in dump_kernel(kernel).splitlines() if x.strip().startswith("log_gate_k_whole"))
    assert "= least(t) log_gate_k_since" in line
