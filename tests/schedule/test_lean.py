"""Less arithmetic for one walk back beside a scalar gate: the same numbers, and what is left of the work."""

from __future__ import annotations

import re
from collections.abc import Iterable
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from glagen.ir.expr import Apply, Expr, Number, Ref, refs
from glagen.ir.kernel import Assign, Dot, Line, RowSum, Scan, Store, read
from glagen.ir.schedule import Options
from glagen.pipeline import plan
from glagen.schedule import kernels
from glagen.schedule.lean import lean
from tests import strategies
from tests.numerics.helpers import document_of, half_chunks, spec_text

SIZES = {"t": 6, "s": 6, "i": 4, "j": 5}
ROWS = np.arange(SIZES["t"])
MASKS = {"causal": np.greater_equal, "earlier": np.greater, "diagonal": np.equal}
FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "pow": np.power,
    "exp": np.exp,
    "log": np.log,
    "clamp": lambda x: x,
    "passed": lambda x, y: y,
    "unclamped": np.ones_like,
    "keep": lambda mask, x, y=0.0: np.where(mask, x, y),
}
BEFORE = spec_text("simple_gla").replace("S[t,i,j])", "S[t-1,i,j])")
UNSCALED = spec_text("simple_gla").replace("scale * q", "q").replace("  scale: {kind: scalar, default: K**-0.5}\n", "")
TWICE = spec_text("simple_gla").replace("scale * q", "scale * scale * q").replace("+ k[t,i]", "+ scale * k[t,i]")
SUM = spec_text("simple_gla").replace("+ k[t,i]", "+ (k[t,i] + q[t,i])")
SPECS = {
    "simple_gla": spec_text("simple_gla"),
    "retnet": spec_text("retnet"),
    "lightning_attn": spec_text("lightning_attn"),
    "read before": BEFORE,
    "no scale": UNSCALED,
    "scales": TWICE,
    "sums": SUM,
    "two numbers": strategies.NUMBERED["scalar"],
}


def given(text: str) -> tuple[list[Line], tuple[Scan, ...], list[Store]]:
    """What `lean` is given for a spec."""
    document, calls = document_of(text), list[tuple[list[Line], tuple[Scan, ...], list[Store]]]()

    def noted(lines: Iterable[Line], scans: tuple[Scan, ...], stores: list[Store]) -> list[Line]:
        calls.append(([*lines], scans, stores))
        return lean(*calls[-1])

    with mock.patch.object(kernels, "lean", noted):
        plan(document, Options(tuned=half_chunks(document, 9, (200, 300))))
    (call,) = calls
    return call


def _apart(x: np.ndarray) -> np.ndarray:
    """[t, s]: the sum over the steps after s through t."""
    total = np.cumsum(x)
    return np.where(ROWS[:, None] > ROWS[None, :], total[:, None] - total[None, :], 0.0)


class Numbers:
    """Tiles as arrays of float64 with four axes; of what is loaded, random ones."""

    def __init__(self) -> None:
        self.random, self.tiles = np.random.default_rng(0), dict[str, np.ndarray]()

    def of(self, lines: Iterable[Line]) -> dict[str, np.ndarray]:
        for line in lines:
            match line:
                case Assign(expr=expr, mild=mild, over=over):
                    value = np.asarray(self.value(expr if mild is None else mild))
                    value = value.sum(axis=tuple("tsij".index(a) for a in over), keepdims=True) if over else value
                    self.tiles[line.name] = self.flat(value, line.axes)
                case Dot(x=x, y=y, axes=axes):
                    left, right = (self.tile(o.name, o.indices) for o in (x, y))
                    (summed,) = {*x.indices} & {*y.indices}
                    total = (left * right).sum(axis="tsij".index(summed), keepdims=True)
                    if "t" in {*axes} - ({*x.indices, *y.indices} - {summed}):  # rows are called t unless there are two
                        total = total.swapaxes(0, 1)
                    self.tiles[line.name] = self.flat(total, axes)
                case RowSum(source=source, select=select):
                    x = self.flat(self.tile(source.name, source.indices), source.indices)
                    selected = {"through": np.tri(6), "from": np.tri(6).T, "after": np.tri(6, k=-1).T}
                    selected |= {"before": np.tri(6, k=-1)}
                    self.tiles[line.name] = _apart(x) if line.apart else selected[select] @ x
        return self.tiles

    def flat(self, value: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
        """With these axes alone, in this order."""
        shape = [SIZES[a] if a in axes else 1 for a in "tsij"]
        value = np.broadcast_to(value, shape).reshape([n for n in shape if n != 1])
        order = [a for a in "tsij" if a in axes]
        return value.transpose([order.index(a) for a in axes])

    def tile(self, name: str, indices: tuple[str, ...]) -> np.ndarray:
        if name not in self.tiles:
            shape = [SIZES[a] for a in indices]
            self.tiles[name] = -self.random.random(shape) if name in ("g", "gate") else 0.2 + self.random.random(shape)
        order = [indices.index(a) for a in "tsij" if a in indices]
        return self.tiles[name].transpose(order).reshape([SIZES[a] if a in indices else 1 for a in "tsij"])

    def value(self, expr: Expr) -> np.ndarray | float:
        match expr:
            case Number(value=value):
                return float(value)
            case Ref(name=name) if name.startswith("%"):
                word = name[1:].removesuffix("_T")
                x, y = (ROWS.reshape([6 if a == index.axis else 1 for a in "tsij"]) for index in expr.indices)
                return MASKS[word](x, y) if not name.endswith("_T") else MASKS[word](y, x)
            case Ref(name=name, indices=indices):
                return self.tile(name, tuple(index.axis for index in indices))
            case Apply(function=function, args=args):
                return FUNCTIONS[function](*map(self.value, args))
        raise AssertionError(expr)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Specs with a scalar gate, whose equations have factors of all kinds."""
    number = st.sampled_from(["", "a * ", "b * ", "a * b * ", "a * a * ", "2 * ", "-"])
    keys = st.sampled_from(["q[t,i]", "k[t,i]", "(q[t,i] + k[t,i])", "(q[t,i] - a * k[t,i])"])
    values = st.sampled_from(["v[t,j]", "(v[t,j] + u[t,j])", "v[t,j] * u[t,j]", "b * (v[t,j] - u[t,j])"])
    gate = draw(st.sampled_from(["exp(g[t])", "exp(2 * g[t])", "exp(g[t]) * exp(g[t])"]))
    write = f"{draw(number)}{draw(keys)} * {draw(values)}"
    read, last = draw(st.sampled_from(["t", "t-1"])), draw(st.sampled_from(["", f" + {draw(number)}v[t,j]"]))
    equations = [
        f"S[t,i,j] = {gate} * S[t-1,i,j] + {write}",
        f"o[t,j] = {draw(number)}sum(i, {draw(number)}{draw(keys)} * S[{read},i,j]){last}",
    ]
    kinds = {"q": "[t, i]", "k": "[t, i]", "v": "[t, j]", "u": "[t, j]", "g": '{axes: [t], domain: "[-inf, 0]"}'}
    kinds |= dict.fromkeys("ab", "{kind: scalar, default: 0.7}")
    used = [f"  {name}: {kind}" for name, kind in kinds.items() if re.search(rf"\b{name}\b", "".join(equations))]
    return "\n".join(["name: op", "inputs:", *used, "state: S[i, j]", "equations:", *(f"  - {x}" for x in equations)])


@settings(max_examples=30, deadline=None)
@hypothesis.given(texts())
def test_so_are_those_of_drawn_specs(text):
    test_the_numbers_are_the_same(text)


@pytest.mark.parametrize("text", SPECS.values(), ids=[*SPECS])
def test_the_numbers_are_the_same(text):
    lines, scans, stores = given(text)
    wanted = [*(name for scan in scans for name in scan.reads), *(store.tile for store in stores)]
    numbers = Numbers()
    before = dict(numbers.of(lines))
    loaded = {name for name in before if name not in {line.name for line in lines}}
    again = Numbers()
    again.tiles = {name: before[name] for name in loaded}
    after = again.of(lean(lines, scans, stores))
    assert wanted and all(np.allclose(after[name], before[name], rtol=1e-9, atol=0) for name in wanted if name in after)
    assert {*wanted} <= {*after}


def test_it_is_less_of_that():
    """Of a scalar gate's kernel: masks, scales and decays of tiles."""
    call = given(spec_text("simple_gla"))

    def pointwise(lines: Iterable[Line]) -> int:
        tiles = [x for x in lines if isinstance(x, Assign) and len({*x.axes, *x.over}) == 2]
        return sum(_operations(x.expr if x.mild is None else x.mild) for x in tiles)

    found = lean(*call)
    names = {x.name: x for x in found if isinstance(x, Assign)}
    assert pointwise(found) < 0.6 * pointwise(call[0])
    masked = [x for x in names.values() if any(r.name.startswith("%") for r in refs(x.expr))]
    assert [x.name for x in masked] == ["gate_between"], "one mask serves for all"
    scaled = [x.name for x in names.values() if "scale" in read(x)]
    assert sorted(scaled) == ["gate_between_by_scale", "gate_from_start_by_scale"]


def _operations(expr: Expr) -> int:
    return 1 + sum(map(_operations, expr.args)) if isinstance(expr, Apply) else 0


def test_products_of_one_matrix_are_rounded_in_one_way():
    """For what cancels between gradients of queries and of keys is to cancel."""
    dots = [x for x in lean(*given(spec_text("simple_gla"))) if isinstance(x, Dot)]
    matrices = [o.name for dot in dots for o in (dot.x, dot.y) if {*o.indices} == {"t", "s"}]
    assert sorted(matrices) == ["dscores_decayed_by_scale", "dscores_decayed_by_scale", "scores"]
