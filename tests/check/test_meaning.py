"""The roles say what the equations say: both are evaluated, in pure Python, on one step of random numbers."""

from __future__ import annotations

import math
import random

import pytest

from glagen.check import check
from glagen.errors import Source
from glagen.ir.document import Document
from glagen.ir.expr import Apply, Expr, Number, Ref, Sum
from glagen.ir.recurrence import Recurrence
from glagen.parse import parse
from tests.check.test_intervals import FLOAT

K, V = 3, 2
SIZES = {"i": K, "j": V}

INPUTS = """\
  q: [t, i]
  k: [t, i]
  v: [t, j]
  z: [t, j]
  w: [t]
  g: {axes: [t, i], domain: "[-inf, 0]"}
  gv: {axes: [t, j], domain: "[-inf, 0]"}
  a: {axes: [t, i], domain: "(0, 0.5]"}
  u: {kind: parameter, axes: [i]}
"""
UPDATES = [
    "exp(g[t,i] + gv[t,j]) * a[t,i] * S[t-1,i,j] + k[t,i] * v[t,j]",
    "(1 - a[t,i]) * S[t-1,i,j] - a[t,i] * exp(gv[t,j]) * (v[t,j] - k[t,i]) * exp(g[t,i]) / (1 + w[t]**2)",
    "S[t-1,i,j] * sqrt(a[t,i] * exp(gv[t,j])) + (k[t,i] + v[t,j]) * (z[t,j] - g[t,i]) - exp(k[t,i] - v[t,j] + w[t])",
    "S[t-1,i,j] - a[t,i] * S[t-1,i,j] + exp(gv[t,j] - 1) * exp(g[t,i]) * (k[t,i] * v[t,j] * -2)**3",
    "0.5 * (a[t,i] * exp(gv[t,j]) * S[t-1,i,j] + a[t,i] * S[t-1,i,j]) + exp(g[t,i]) * v[t,j] * k[t,i]",
]
READS = [
    "w[t] * sum(i, q[t,i] * S[t,i,j]) + z[t,j] * sum(i, u[i])",
    "sum(i, q[t,i] * (S[t-1,i,j] + u[i] * k[t,i] * v[t,j])) * z[t,j] + w[t]",
    "sum(i, (q[t,i] + z[t,j]) * (S[t,i,j] - u[i] * S[t-1,i,j]) / (2 + z[t,j]**2)) - w[t]",
    "sum(i, u[i] * sum(i, q[t,i] * S[t,i,j]) * z[t,j]) * w[t]",
    "-sum(i, exp(q[t,i] - z[t,j]) * (-S[t,i,j] * u[i] - w[t] * S[t,i,j])) - sum(i, q[t,i] * u[i] * w[t])",
]


def value(expr: Expr, tensors: dict[str, dict[tuple[int, ...], float]], at: dict[str, int]) -> float:
    match expr:
        case Number(value=exact):
            return float(exact)
        case Ref(name=name, indices=indices):
            before = any(index.shift for index in indices)
            place = tuple(at[index.axis] for index in indices if index.axis != "t")
            return tensors[f"{name} before" if before else name][place]
        case Sum(axis=axis, body=body):
            return sum(value(body, tensors, {**at, axis: n}) for n in range(SIZES[axis]))
        case Apply(function=function, args=args):
            return FLOAT[function](*(value(arg, tensors, at) for arg in args))
    raise AssertionError


def places(axes: tuple[str, ...]) -> list[dict[str, int]]:
    found: list[dict[str, int]] = [{}]
    for axis in axes:
        if axis != "t":
            found = [{**place, axis: n} for place in found for n in range(SIZES[axis])]
    return found


def example(document: Document) -> dict[str, dict[tuple[int, ...], float]]:
    """One step of inputs within their domains, and a state before it."""
    chance = random.Random(1)
    tensors = {}
    for d in document.declarations:
        low, high = (-1.0, 1.0) if d.domain is None else (max(d.domain.low, -1.0) + 1e-3, d.domain.high)
        tensors[d.name] = {tuple(p.values()): chance.uniform(low, high) for p in places(d.axes)}
    tensors["S before"] = {tuple(p.values()): chance.uniform(-1, 1) for p in places(("i", "j"))}
    return tensors


def by_equations(document: Document) -> dict[str, dict[tuple[int, ...], float]]:
    tensors = example(document)
    for name in ("S", "o"):
        (equation,) = (e for e in document.equations if e.target.name == name)
        axes = tuple(index.axis for index in equation.target.indices)
        tensors[name] = {tuple(p.values()): value(equation.body, tensors, p) for p in places(axes)}
    return tensors


def by_roles(document: Document, recurrence: Recurrence) -> dict[str, dict[tuple[int, ...], float]]:
    tensors = example(document)
    (state,) = recurrence.states
    tensors["S"] = {}
    for p in places(("i", "j")):
        log = sum(value(gate.log, tensors, p) for gate in state.gates)
        written = sum(value(w.key, tensors, p) * value(w.value, tensors, p) for w in state.writes)
        at = tuple(p.values())
        tensors["S"][at] = math.exp(log) * tensors["S before"][at] + written
    for read in recurrence.reads:
        states = tensors["S before" if read.before else "S"]
        tensors[read.name] = {
            (j,): sum(value(read.query, tensors, {"i": i}) * states[i, j] for i in range(K)) for j in range(V)
        }
    for output in recurrence.outputs:
        tensors[output.name] = {(j,): value(output.value, tensors, {"j": j}) for j in range(V)}
    return tensors


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("read", READS)
def test_roles_mean_what_equations_mean(update: str, read: str) -> None:
    words = set("".join(c if c.isalnum() else " " for c in f"{update} {read}").split())
    inputs = "\n".join(line for line in INPUTS.splitlines() if line.split(":")[0].strip() in words)
    equations = f"  - 'S[t,i,j] = {update}'\n  - 'o[t,j] = {read}'\n"
    document = parse(Source("m", f"name: m\ninputs:\n{inputs}\nstate: S[i, j]\nequations:\n{equations}"))
    expected, found = by_equations(document), by_roles(document, check(document))
    for name in ("S", "o"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-12)
