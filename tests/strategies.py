"""Hypothesis strategies: specs of the class as YAML text, extents of calls, gate regimes (see glagen/samples.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from glagen import samples
from glagen.regimes import REGIMES, Case

X = TypeVar("X")
# Sums over both feature axes, through nonlinear functions: a kernel that holds a block of an axis has a part of them.
LOCAL_SUMS = """
name: local_sums
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  w: [t, j]
  g: {axes: [t, i], domain: "[-inf, 0]"}
state: S[i, j]
equations:
  - a[t] = sum(i, q[t,i] * k[t,i])
  - b[t] = sum(j, v[t,j] * w[t,j])
  - S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t,i,j]) + tanh(a[t] * sigmoid(b[t])) * v[t,j]
"""

# Numbers multiply what is written and what is read; {gate} is a gate's declaration, {decay} its factor of the state.
NUMBERS = """
name: numbers
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  a: {{kind: scalar, default: 0.7}}
  b: {{kind: scalar, default: 1.3}}
  {gate}
state: S[i, j]
equations:
  - S[t,i,j] = {decay}S[t-1,i,j] + a * k[t,i] * v[t,j]
  - o[t,j] = sum(i, b * q[t,i] * S[t,i,j])
"""
NUMBERED = {
    "none": NUMBERS.format(gate="", decay=""),
    "scalar": NUMBERS.format(gate='g: {axes: [t], domain: "[-inf, 0]"}', decay="exp(g[t]) * "),
    "keys": NUMBERS.format(gate='g: {axes: [t, i], domain: "[-inf, 0]"}', decay="exp(g[t,i]) * "),
    "values": NUMBERS.format(gate='g: {axes: [t, j], domain: "[-inf, 0]"}', decay="exp(g[t,j]) * "),
}

# Functions whose text in a kernel is more than one operation, among others; of numbers alone; of what is near 0.
FUNCTIONS = tuple(
    f"""
name: functions
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  beta: {{kind: scalar, default: 1/sqrt(K)}}
state: S[i, j]
equations:
  - S[t,i,j] = {gate} * S[t-1,i,j] + {key} * v[t,j]
  - o[t,j] = sum(i, {query} * S[t,i,j])
"""
    for gate, key, query in (
        ("0.5", "k[t,i] ** 5 / silu(1 + k[t,i] ** 2)", "q[t,i] * tanh(beta)"),
        ("exp(-abs(beta))", "tanh(k[t,i] / 1000)", "q[t,i] ** 1 * (2 + tanh(q[t,i])) ** (-3)"),
    )
)

# Gates on keys, where both operands are computed of what a chunk adds: to the state, and to its gradient.
# Gates on keys that have no steps of their own, and that come of a parameter and of inputs.
PARAMETER_GATES = tuple(
    f"""\
name: {name}
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  w: {{axes: [i], kind: parameter, domain: "[-6, 0]"}}
  x: [t, i]
state: S[i, j]
equations:
  - S[t,i,j] = exp(w[i]){gate} * S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * sigmoid(x[t,i]) * S[t,i,j])
"""
    for name, gate in (("of_parameters", ""), ("of_both", " * sigmoid(x[t,i])"))
)

# The state is read twice, once beside a gate of the output: gradients of value gates take two loops over blocks then.
# Decays by key column as given: too much for one growth over a whole chunk, but not over a few steps.
FIXED_DECAYS = """\
name: fixed_decays
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  gamma: {axes: [i], kind: constant, domain: "(0, 1)", value: 1 - 2**(-2 - h)}
state: S[i, j]
equations:
  - S[t,i,j] = gamma[i] * S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t,i,j])
"""
READ_TWICE = """\
name: read_twice
inputs:
  q: [t, i]
  r: [t, i]
  k: [t, i]
  v: [t, j]
  z: [t, j]
  gk: {axes: [t, i], domain: "[-inf, 0]"}
  gv: {axes: [t, j], domain: "[-inf, 0]"}
state: S[i, j]
equations:
  - S[t,i,j] = exp(gk[t,i] + gv[t,j]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - p[t,j] = sum(i, r[t,i] * S[t,i,j])
  - o[t,j] = silu(z[t,j]) * sum(i, q[t,i] * S[t,i,j])
"""

# Likewise, once by what is negative: gradients of gates have two reads, and two writes, on each side then.
READ_NEGATIVE = """\
name: read_negative
inputs:
  q: [t, i]
  r: [t, i]
  k: [t, i]
  v: [t, j]
  g: {axes: [t, i], domain: "[-inf, 0]"}
state: S[i, j]
equations:
  - S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - p[t,j] = sum(i, r[t,i] * S[t,i,j])
  - o[t,j] = sum(i, -q[t,i] * S[t,i,j])
"""

COMPUTED_VALUES, COMPUTED_GRADIENTS = (
    f"""\
name: {name}
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  g: {{axes: [t, i], domain: "[-inf, 0]"}}
state: S[i, j]
equations:
  - S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + k[t,i] * {values}
  - o[t,j] = {outputs}sum(i, q[t,i] * S[t,i,j])
"""
    for name, values, outputs in (
        ("computed_values", "silu(v[t,j])", ""),
        ("computed_gradients", "v[t,j]", "tanh(v[t,j]) * "),
    )
)

# Both reads divide, and their terms differ in sign; gates as they are given, for a scalar and for a vector.
DIVISORS = """
name: divisors
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  g: {axes: [t, i], domain: "[-inf, 0]"}
  w: {axes: [t], domain: "[-inf, 0]"}
state: ["z[i]", "S[i, j]"]
equations:
  - z[t,i] = exp(w[t]) * z[t-1,i] + k[t,i]
  - S[t,i,j] = exp(g[t,i]) * S[t-1,i,j] + k[t,i] * v[t,j]
  - a[t] = sum(i, q[t,i] * z[t,i])
  - o[t,j] = a[t] / (1 + a[t] ** 2) + 1 / (1 + sum(i, q[t,i] * S[t-1,i,j]) ** 2)
"""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Chooses as hypothesis draws, so that what fails is made smaller."""

    draw: st.DrawFn

    def one(self, options: Sequence[X]) -> X:
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def order(self, items: Sequence[X]) -> list[X]:
        return list(self.draw(st.permutations(items)))


# Without gates, and with left operands of all products in memory: as such, and where outputs do not see their own step.
UNGATED = tuple(
    f"""
name: op
inputs:
  q: [t, i]
  k: [t, i]
  v: [t, j]
  scale: {{kind: scalar, default: K**-0.5}}
state: S[i, j]
equations:
  - S[t,i,j] = S[t-1,i,j] + k[t,i] * v[t,j]
  - o[t,j] = sum(i, scale * q[t,i] * S[{read},i,j])
"""
    for read in ("t", "t-1")
)


# The same where values have no gradient, so that there is no kernel for one.
UNGATED_CONSTANT = """
name: op
inputs:
  q: [t, i]
  k: [t, i]
  u: {axes: [j], kind: constant}
state: S[i, j]
equations:
  - S[t,i,j] = S[t-1,i,j] + k[t,i] * u[j]
  - o[t,j] = sum(i, q[t,i] * S[t,i,j])
"""


@st.composite
def specs(draw: st.DrawFn) -> str:
    """A spec of one state, as text. Its op is called `op`."""
    return samples.spec(Drawn(draw))


@st.composite
def any_specs(draw: st.DrawFn) -> str:
    """A spec of one state or of several, as text. Its op is called `op`."""
    return samples.any_spec(Drawn(draw))


@st.composite
def cases(draw: st.DrawFn, longest: int = 80, widest: int = 24) -> Case:
    """Small extents, with what breaks tiles among them."""
    return samples.case(Drawn(draw), longest, widest)


regimes = st.sampled_from(REGIMES)
seeds = st.integers(0, 2**31 - 1)
