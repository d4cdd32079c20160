"""What is computed between states, at its corners: values that are the same at all steps, ends of running maxima."""

from __future__ import annotations

import math

import pytest
import torch

from glagen.regimes import Case
from glagen.verify import verify
from tests.numerics.helpers import compiled, document_of, generated

# A rise and a weight without time; the first input is a query, which may have more heads than the states.
TIMELESS = """
name: op
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  w: {kind: parameter, axes: [i]}
  u: {kind: parameter, axes: []}
  x: [t]
state: [m, "S[i, j]"]
equations:
  - m[t] = max(m[t-1] - softplus(u), x[t])
  - S[t,i,j] = exp(m[t-1] - softplus(u) - m[t]) * S[t-1,i,j] + exp(x[t] - m[t]) * softmax(i, w[i]) * k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t,i,j]) * sum(i, w[i])
"""
# A read in a softmax in a read, normalised keys, and a root mean square of outputs.
NESTED = """
name: op
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  g: {axes: [t, s], domain: "[-inf, 0]"}
state: ["P[i, s]", "R[s, j]"]
equations:
  - n[t,i] = k[t,i] / sqrt(1 + sum(i, k[t,i] ** 2))
  - P[t,i,s] = exp(g[t,s]) * P[t-1,i,s] + softmax(i, n[t,i]) * (1 - exp(g[t,s]))
  - p[t,s] = softmax(s, tanh(sum(i, q[t,i] * P[t-1,i,s])) * sum(i, softmax(i, q[t,i]) * n[t,i]))
  - R[t,s,j] = exp(-softplus(sum(s, p[t,s] * p[t,s]))) * exp(g[t,s]) * R[t-1,s,j] + p[t,s] * v[t,j]
  - r[t,j] = sum(s, p[t,s] * R[t,s,j])
  - o[t,j] = r[t,j] / sqrt(1 + sum(j, r[t,j] ** 2)) + softmax(j, v[t,j])
"""


@pytest.mark.parametrize("text", [TIMELESS, NESTED], ids=["timeless", "nested"])
@pytest.mark.parametrize("case", [Case(2, 19, 4, 5, 6), Case(1, 1, 2, 1, 1, state=False)], ids=str)
def test_values_between_states(text: str, case: Case) -> None:
    report = verify(document_of(text), compiled(text), cases=[case], precisions=["fp64"])
    assert report.ok, report.failures[:3]


def mlstm(x: list[float], g: list[float], ends: list[int] | None = None, start: list[float] | None = None):
    """Final maxima, and the gradients of inputs by their sum, of one head."""
    module = generated("mlstm")
    length = len(x)
    x_, g_ = (torch.tensor(y, dtype=torch.float64).reshape(1, length, 1).requires_grad_() for y in (x, g))
    rows = [torch.ones(1, length, 1, 2, dtype=torch.float64) for _ in range(3)]
    count = 1 if ends is None else len(ends) - 1
    states = None
    if start is not None:
        m = torch.tensor(start, dtype=torch.float64).reshape(count, 1).requires_grad_()
        states = (m, torch.zeros(count, 1, 2, dtype=torch.float64), torch.zeros(count, 1, 2, 2, dtype=torch.float64))
    cu_seqlens = None if ends is None else torch.tensor(ends)
    o, (last, *_) = module.mlstm(
        *rows, x=x_, g=g_, initial_state=states, output_final_state=True, cu_seqlens=cu_seqlens
    )
    assert o.isfinite().all()
    leaves = [x_, g_, *([states[0]] if states else [])]
    return last.flatten().tolist(), [d.flatten().tolist() for d in torch.autograd.grad(last.sum(), leaves)]


def test_a_maximum_follows_the_larger_and_shares_ties() -> None:
    last, (dx, dg) = mlstm([1.0, 0.0, 0.0], [-3.0, -0.5, -0.25])  # 1, then 0.5, then 0.25
    assert last == [0.25] and dx == [1.0, 0.0, 0.0] and dg == [0.0, 1.0, 1.0]
    last, (dx, dg) = mlstm([0.0, 0.0], [0.0, 0.0])  # max(0, 0) twice
    assert last == [0.0] and dx == [0.25, 0.5] and dg == [0.25, 0.5]


def test_a_reset_forgets_the_maximum() -> None:
    last, (dx, dg) = mlstm([5.0, -7.0], [0.0, -math.inf])
    assert last == [-7.0] and dx == [0.0, 1.0] and dg == [0.0, 0.0]


def test_maxima_of_packed_sequences() -> None:
    """Each begins with its own state; one that is empty keeps it; what lies past the end belongs to none."""
    last, (dx, dg, dm) = mlstm([9.0, 0.0, 0.0, 99.0], [-1.0, -1.0, -1.0, 0.0], [0, 1, 1, 3], [20.0, -4.0, 8.0])
    assert last == [19.0, -4.0, 6.0] and dm == [1.0, 1.0, 1.0]
    assert dx == [0.0, 0.0, 0.0, 0.0] and dg == [1.0, 1.0, 1.0, 0.0]
