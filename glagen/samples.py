"""Random specs of the class, as YAML text: whatever is chosen is within it, so everything must compile and be right.

A spec is put together the way a person would: gates on any side and of any kind, feature maps, weights of writes, reads
before or after the write, local terms. A chooser decides: random numbers (glagen fuzz) or hypothesis (the tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from glagen.regimes import Case

X = TypeVar("X")
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
    "{} / silu(2 + {} ** 2)",
    "({} / 3) ** 5",
    "(2 + tanh({})) ** (-3)",
    "1 / (1 + exp(min({}, 3)))",
    "log(1 + {} ** 2)",
    "-logsigmoid({})",
    "{} ** 2 / (1 + abs({}))",
)
GATES = (
    *("log", "bounded", "linear", "sigmoid", "root", "softplus", "step", "constant", "parameter", "learned"),
    *("number", "tanh", "capped", "floored"),
)


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
        case "number":
            return "sqrt(0.8)"
        case "tanh":  # 0 in floating point long before its logarithm is at its bound
            return f"(0.5 + 0.5 * tanh({draft.declare('x', timed)}))"
        case "capped":
            return f"min(1, exp({draft.declare('x', timed)}))"
        case "floored":
            return f"max(0.1, sigmoid({draft.declare('x', timed)}))"
        case _:
            raise AssertionError(kind)


def _domain(text: str) -> str:
    return f'domain: "{text}"'


def _feature_map(choose: Chooser) -> str:
    """One of them, or one of another."""
    outer, inner = choose.one(FEATURE_MAPS), choose.one(FEATURE_MAPS)
    return outer.replace("{}", f"({inner})") if choose.number(0, 2) == 0 else outer


class Chooser(Protocol):
    """Decides what a spec is made of."""

    def one(self, options: Sequence[X]) -> X: ...

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        ...

    def order(self, items: Sequence[X]) -> list[X]: ...


@dataclass(frozen=True, slots=True)
class Dice:
    """Chooses by random numbers: the same for the same seed."""

    random: Random

    def one(self, options: Sequence[X]) -> X:
        return self.random.choice(options)

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def order(self, items: Sequence[X]) -> list[X]:
        return self.random.sample(items, len(items))


def any_spec(choose: Chooser) -> str:
    """A spec of the class, or one in five of several states; as text. Its op is called `op`."""
    return spec_of_states(choose) if choose.number(0, 4) == 0 else spec(choose)


def spec(choose: Chooser) -> str:
    """A spec of one state with outputs that are linear in its reads, as text. Its op is called `op`."""
    draft = Draft()
    sides = [choose.one(("K", "K", "V", "scalar")) for _ in range(choose.number(0, 3))]
    kinds = [choose.one(GATES) for _ in sides]
    q, k = (draft.declare(stem, "t,i") for stem in "qk")
    v = draft.declare("v", "t,j")
    factors, weights = [], []
    for side, kind in zip(sides, kinds, strict=True):
        factor = _gate(draft, kind, side)
        own = ",".join(
            x for x in ("" if kind in ("constant", "parameter", "learned") else "t", AXIS.get(side, "")) if x
        )
        if own and choose.number(0, 1):
            factor = draft.define("alpha", own, factor)
        if choose.number(0, 3) == 0:
            weights.append(f"(1 - {factor})")
        factors.append(f"({factor})" if "**" in factor else factor)
    if choose.number(0, 3) == 0:
        weights.append(f"sigmoid({draft.declare('beta', 't')})")
    if choose.number(0, 3) == 0:
        draft.inputs.append("rate: {kind: scalar, default: 0.7}")
        weights.append(choose.one(("rate", "sqrt(2) * tanh(rate)")))
    feature, read_map = _feature_map(choose), _feature_map(choose)
    key = feature.replace("{}", k)
    if choose.number(0, 1):
        key = draft.define("f", "t,i", key)
    writes = [" * ".join([*weights, f"({key})", v])]
    if choose.number(0, 5) == 0:
        writes.append(f"{draft.declare('k', 't,i')} * {draft.declare('v', 't,j')}")
    decayed = " * ".join(choose.order([*factors, "S[t-1,i,j]"]))
    draft.equations.append(f"S[t,i,j] = {' + '.join([decayed, *writes])}")
    when = choose.one(("t", "t-1"))
    query = f"({read_map.replace('{}', q)})"
    if choose.number(0, 1):
        draft.inputs.append(f"scale: {{kind: scalar, default: {choose.one(('K**-0.5', '1/sqrt(K)'))}}}")
        query = f"scale * {query}"
    out = _output(choose, draft, f"sum(i, {query} * S[{when},i,j])", q, k, v)
    draft.equations.append(f"o[t,j] = {out}")
    if choose.number(0, 7) == 0:
        other = choose.one(("t", "t-1"))
        draft.equations.append(f"p[t,j] = sum(i, {draft.declare('r', 't,i')} * S[{other},i,j])")
    chunk, subchunk = choose.one((("auto", "auto"), (16, "auto"), (32, "auto"), (32, 16), (16, 16)))
    return f"{_text(choose, draft, 'S[i, j]')}chunk: {chunk}\nsubchunk: {subchunk}\n"


def _text(choose: Chooser, draft: Draft, states: str) -> str:
    equations = "\n".join(f"  - {e}" for e in choose.order(draft.equations))
    inputs = "\n".join(f"  {line}" for line in draft.inputs)
    return f"name: op\ninputs:\n{inputs}\nstate: {states}\nequations:\n{equations}\n"


# What two reads, [t,j] the first and [t,j] or [t] the second, are combined to.
COMBINATIONS = (
    "tanh({x}) + {y} * {v}",
    "{x} / (1 + ({y}) ** 2)",
    "{x} / max(abs({y}), 1)",
    "sigmoid({y}) * {x}",
    "{x} / sqrt(1 + ({y}) ** 2) + {v}",
    "min({x}, {y} + 1/7)",  # without it both may be the same number, of which rounding takes either
    "{x} * tanh({y} + sum(i, {q} * {k}))",
)


def spec_of_states(choose: Chooser) -> str:
    """A spec of one state or several, with and without keys or values, and outputs that combine their reads.

    Perhaps with a running maximum that stabilises them, with a state in the gate of another, or with slots.
    """
    draft = Draft()
    q, k = (draft.declare(stem, "t,i") for stem in "qk")
    v = draft.declare("v", "t,j")
    style = choose.one(("plain", "plain", "stabilised", "chained", "slots"))
    if style == "slots":
        return _of_slots(choose, draft, q, k, v)
    states = [("S", "i,j"), *choose.one(((), (("z", "i"),), (("y", "j"),), (("Z", "i,j"),)))]
    factor, weight = "", ""
    if style == "stabilised":
        g, x = draft.declare("g", "t", _domain("[-inf, 0]")), draft.declare("x", "t")
        draft.equations.append(f"m[t] = max({x}, {g} + m[t-1])")
        factor, weight = f"exp({g} + m[t-1] - m[t])", f"exp({x} - m[t]) * "
    reads: list[str] = []
    for name, axes in choose.order(states):
        sides = [side for side in ("K", "V", "scalar") if AXIS.get(side, "") in ("", *axes.split(","))]
        factors = [_gate(draft, choose.one(GATES), choose.one(sides)) for _ in range(choose.number(0, 2))]
        factors += [factor] if factor else []
        if style == "chained":
            factors.append(f"sigmoid({_number(reads[-1], v)})" if reads else f"sigmoid(sum(i, {q} * {k}))")
        decayed = " * ".join([*(f"({f})" for f in factors), f"{name}[t-1,{axes}]"])
        key = choose.one((k, f"softmax(i, {k})", f"{k} / sqrt(1 + sum(i, {k} ** 2))"))
        mapped = _feature_map(choose).replace("{}", f"({key})")
        write = {"i": f"({key})", "j": v, "i,j": f"({mapped}) * {v}"}[axes]
        draft.equations.append(f"{name}[t,{axes}] = {decayed} + {weight}{write}")
        state = f"{name}[{choose.one(('t', 't-1'))},{axes}]"
        reads.append(f"sum(i, {q} * {state})" if "i" in axes else state)
    reads.sort(key=lambda read: "z[" in read)  # what has no values comes second
    second = reads[1] if len(states) > 1 else f"sum(i, {k} * S[t-1,i,j])"
    body = choose.one(COMBINATIONS).format(x=reads[0], y=second, q=q, k=k, v=v)
    draft.equations.append(f"o[t,j] = {body}")
    listed = [*(["m"] if factor else []), *(f'"{name}[{axes}]"' for name, axes in states)]
    return _text(choose, draft, f"[{', '.join(listed)}]")


def _number(read: str, v: str) -> str:
    """One number a step, of a read."""
    return read if "z[" in read else f"sum(j, {v} * {read})"


def _of_slots(choose: Chooser, draft: Draft, q: str, k: str, v: str) -> str:
    """Keys are remembered by slot, and values by slot; what is read of the former reads the latter."""
    a = f"exp({draft.declare('g', 't,s', _domain('[-inf, 0]'))})"
    weight = choose.one(("(1 - {a})", "sigmoid({w})", "softmax(s, {w})"))
    weight = weight.format(a=a, w=draft.declare("w", "t,s") if "{w}" in weight else "")
    other = _gate(draft, choose.one(GATES), "scalar") if choose.number(0, 2) == 0 else ""
    times = f" * ({other})" if other else ""
    draft.equations.append(f"P[t,i,s] = {a} * P[t-1,i,s] + {k} * {weight}")
    draft.equations.append(f"R[t,s,j] = {a} * R[t-1,s,j]{times} + {weight} * {v}")
    found = draft.define("p", "t,s", f"sum(i, {q} * P[{choose.one(('t', 't-1'))},i,s])")
    reading = choose.one((f"softmax(s, {found})", found, f"tanh({found})"))
    draft.equations.append(f"o[t,j] = sum(s, {reading} * R[{choose.one(('t', 't-1'))},s,j])")
    return _text(choose, draft, '["P[i, s]", "R[s, j]"]')


def _output(choose: Chooser, draft: Draft, read: str, q: str, k: str, v: str) -> str:
    """A read with local terms of step t around it."""
    extra = choose.one(("", "", "bonus", "skip", "gate", "sum"))
    match extra:
        case "bonus":  # RWKV's u: what the read before the write has not seen
            u = draft.declare("u", "i", "kind: parameter")
            return f"{read} + sum(i, {q} * {u} * {k}) * {v}"
        case "skip":
            return f"{read} + {draft.declare('d', 'j', 'kind: parameter')} * {v}"
        case "sum":
            return f"{read} + tanh(sum(i, {q} * {k})) * {v}"
        case "gate":
            return f"silu({draft.declare('z', 't,j')}) * {read}"
        case _:
            return read


def case(choose: Chooser, longest: int = 80, widest: int = 24) -> Case:
    """Small extents, with what breaks tiles among them: 1, remainders, no powers of two, K unlike V."""
    length = choose.one((1, 2, 15, 16, 17, 31, 33, 64, 65, 0)) or choose.number(1, longest)
    key, value = (choose.one((1, 3, 16, 0)) or choose.number(1, widest) for _ in range(2))
    return Case(choose.number(1, 2), length, choose.number(1, 4), key, value, bool(choose.number(0, 1)))
