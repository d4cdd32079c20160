"""Hypothesis strategies: specs of the class as YAML text, extents of calls, and gate regimes.

A spec is put together the way a person would: gates on any side and of any kind, feature maps, weights of writes, reads
before or after the write, local terms. Whatever is drawn is within the class, so everything must compile and be right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from glagen.regimes import REGIMES, Case

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

AXIS = {"K": "i", "V": "j"}
FEATURE_MAPS = (
    "{}",
    "{}",
    "elu({}) + 1",
    "relu({})",
    "silu({})",
    "exp(min({}, 1))",
    "max({}, 0.1 * {})",
    "tanh({}) / 2",
    "abs({})",
    "softplus({})",
    "sqrt({} ** 2 + 1)",
)
GATES = ("log", "bounded", "linear", "sigmoid", "root", "softplus", "step", "constant", "parameter", "learned")


@dataclass
class Draft:
    """A spec in the making: declarations and equations, in order."""

    inputs: list[str] = field(default_factory=list)
    equations: list[str] = field(default_factory=list)

    def name(self, stem: str) -> str:
        taken = sum(line.startswith(f"{stem}") for line in self.inputs)
        return f"{stem}{taken}"

    def declare(self, stem: str, axes: str, rest: str = "") -> str:
        """Declares a fresh name; returns it with its subscripts."""
        name = self.name(stem)
        self.inputs.append(f"{name}: {{axes: [{axes}]{', ' + rest if rest else ''}}}")
        return f"{name}[{axes}]" if axes else name

    def define(self, stem: str, axes: str, body: str) -> str:
        target = f"{stem}{len(self.equations)}[{axes}]"
        self.equations.append(f"{target} = {body}")
        return target


def _gate(draft: Draft, kind: str, side: str) -> str:
    """A factor of S[t-1] of the given kind, between 0 and 1."""
    own = AXIS.get(side, "")
    timed = f"t,{own}" if own else "t"
    match kind:
        case "log":
            return f"exp({draft.declare('g', timed, _domain('[-inf, 0]'))})"
        case "bounded":
            return f"exp({draft.declare('g', timed, _domain('[-1, 0]'))})"
        case "linear":
            return draft.declare("a", timed, _domain("(0, 1]"))
        case "sigmoid":
            return f"sigmoid({draft.declare('x', timed)})"
        case "root":
            return f"sigmoid({draft.declare('x', timed)}) ** (1/16)"
        case "softplus":
            return f"exp(-softplus({draft.declare('x', timed)}))"
        case "step":
            x, w = draft.declare("x", "t"), draft.declare("w", own, "kind: parameter")
            return f"exp(-softplus({x}) * exp(min({w}, 1)))"
        case "constant":
            return draft.declare("gamma", own, f"kind: constant, value: 1 - 2**(-2 - h), {_domain('(0, 1)')}")
        case "parameter":
            return f"exp({draft.declare('w', own, 'kind: parameter, ' + _domain('[-6, 0]'))})"
        case "learned":
            return f"sigmoid({draft.declare('w', own, 'kind: parameter')})"
        case _:
            raise AssertionError(kind)


def _domain(text: str) -> str:
    return f'domain: "{text}"'


@st.composite
def specs(draw: st.DrawFn) -> str:
    """A spec of the class, as text. Its op is called `op`."""
    draft = Draft()
    sides = draw(st.lists(st.sampled_from(("K", "K", "V", "scalar")), max_size=3))
    kinds = [draw(st.sampled_from(GATES)) for _ in sides]
    q, k = (draft.declare(stem, "t,i") for stem in "qk")
    v = draft.declare("v", "t,j")
    factors, weights = [], []
    for side, kind in zip(sides, kinds, strict=True):
        factor = _gate(draft, kind, side)
        own = ",".join(
            x for x in ("" if kind in ("constant", "parameter", "learned") else "t", AXIS.get(side, "")) if x
        )
        if own and draw(st.booleans()):
            factor = draft.define("alpha", own, factor)
        if draw(st.integers(0, 3)) == 0:
            weights.append(f"(1 - {factor})")
        factors.append(f"({factor})" if "**" in factor else factor)
    if draw(st.integers(0, 3)) == 0:
        weights.append(f"sigmoid({draft.declare('beta', 't')})")
    feature = draw(st.sampled_from(FEATURE_MAPS))
    read_map = draw(st.sampled_from(FEATURE_MAPS))
    key = feature.replace("{}", k)
    if draw(st.booleans()):
        key = draft.define("f", "t,i", key)
    writes = [" * ".join([*weights, f"({key})", v])]
    if draw(st.integers(0, 5)) == 0:
        writes.append(f"{draft.declare('k', 't,i')} * {draft.declare('v', 't,j')}")
    decayed = " * ".join(draw(st.permutations([*factors, "S[t-1,i,j]"])))
    draft.equations.append(f"S[t,i,j] = {' + '.join([decayed, *writes])}")
    when = draw(st.sampled_from(("t", "t-1")))
    query = f"({read_map.replace('{}', q)})"
    if draw(st.booleans()):
        draft.inputs.append("scale: {kind: scalar, default: K**-0.5}")
        query = f"scale * {query}"
    out = _output(draw, draft, f"sum(i, {query} * S[{when},i,j])", q, k, v)
    draft.equations.append(f"o[t,j] = {out}")
    if draw(st.integers(0, 7)) == 0:
        other = draw(st.sampled_from(("t", "t-1")))
        draft.equations.append(f"p[t,j] = sum(i, {draft.declare('r', 't,i')} * S[{other},i,j])")
    chunk, subchunk = draw(st.sampled_from((("auto", "auto"), (16, "auto"), (32, "auto"), (32, 16), (16, 16))))
    equations = "\n".join(f"  - {e}" for e in draw(st.permutations(draft.equations)))
    inputs = "\n".join(f"  {line}" for line in draft.inputs)
    return (
        f"name: op\ninputs:\n{inputs}\nstate: S[i, j]\nequations:\n{equations}\nchunk: {chunk}\nsubchunk: {subchunk}\n"
    )


def _output(draw: st.DrawFn, draft: Draft, read: str, q: str, k: str, v: str) -> str:
    """A read with local terms of step t around it."""
    extra = draw(st.sampled_from(("", "", "bonus", "skip", "gate")))
    match extra:
        case "bonus":  # RWKV's u: what the read before the write has not seen
            u = draft.declare("u", "i", "kind: parameter")
            return f"{read} + sum(i, {q} * {u} * {k}) * {v}"
        case "skip":
            return f"{read} + {draft.declare('d', 'j', 'kind: parameter')} * {v}"
        case "gate":
            return f"silu({draft.declare('z', 't,j')}) * {read}"
        case _:
            return read


@st.composite
def cases(draw: st.DrawFn, longest: int = 80, widest: int = 24) -> Case:
    """Small extents, with what breaks tiles among them: 1, remainders, no powers of two, K unlike V."""
    length = draw(st.one_of(st.sampled_from((1, 2, 15, 16, 17, 31, 33, 64, 65)), st.integers(1, longest)))
    width = st.one_of(st.sampled_from((1, 3, 16)), st.integers(1, widest))
    return Case(draw(st.integers(1, 2)), length, draw(st.integers(1, 3)), draw(width), draw(width), draw(st.booleans()))


regimes = st.sampled_from(REGIMES)
seeds = st.integers(0, 2**31 - 1)
