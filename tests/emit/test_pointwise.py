"""Helpers of the Triton dialect, some polynomials in float32: their values in Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import mpmath
import pytest
import torch

from glagen.emit.helpers import TRITON_HELPERS
from tests.numerics.helpers import ROOT

pytest.importorskip("triton")
FP32, FP64 = torch.float32, torch.float64
COUNT = 2**17
INF, NAN = float("inf"), float("nan")


def softplus(x):
    return x.clamp(min=0) + (-x.abs()).exp().log1p()


def shifted(x):
    """e to the x times 2**92, as growths and decays are."""
    return x.exp() * 2.0**92


# By helper: the range of its arguments, what it is in float64, and its values at what follows from no formula.
HELPERS = {
    "_expm1": ((-90.0, 20.0), torch.expm1, {0.0: 0.0, -INF: -1.0, INF: INF, NAN: NAN}),
    "_log1p": ((0.0, 1.0), torch.log1p, {0.0: 0.0, NAN: NAN}),
    "_raised": ((-126.0, 0.0), shifted, {-INF: 0.0, NAN: NAN}),
    "_lowered": ((-126.0, 0.0), lambda x: 1 / shifted(x), {-INF: INF, NAN: NAN}),
    "limited": ((-126.0, 0.0), lambda x: 1 / shifted(x), {-127.0: 0.0, -500.0: 0.0, -INF: 0.0}),
    "softplus": ((-100.0, 100.0), softplus, {-INF: 0.0, INF: INF, NAN: NAN}),
    "logsigmoid": ((-100.0, 100.0), lambda x: -softplus(-x), {-INF: -INF, INF: 0.0, NAN: NAN}),
}
# By type: errors relative to the result, and those of `_exp` relative to its own, for each nat: it is made of a product
# that is rounded, with a constant that was.
ERRORS = {FP32: (3e-7, 2**-24 + 2**-26), FP64: (1e-15, 2**-53)}
FITS = {
    "_log1p": (lambda x: mpmath.log1p(x) / x if x else mpmath.mpf(1), [0, 1], 10),
    "_expm1": (lambda x: (mpmath.expm1(x) - x) / x**2 if x else mpmath.mpf(1) / 2, [-0.5, 0.5], 6),
}

# Notes of gates, how many of them count, and whether none says that they were too strong in any run.
NOTES = [
    ([0], 1, True),
    ([1], 1, False),
    ([2, 0, 2, 1], 3, True),  # 2: too strong in runs that reach less far
    ([2, 0, 3], 3, False),
    ([0] * 1024, 1024, True),
    ([0] * 1023 + [1], 1024, False),
    ([0] * 1025, 1025, False),  # as one load takes no more, this is not known
]


def arguments(name: str, dtype: torch.dtype) -> torch.Tensor:
    """A helper's range, its part around 0, powers of all magnitudes down to denormals, and what is special."""
    (low, high), _, special = HELPERS[name]
    powers = torch.logspace(-44.8, 0, COUNT // 8, dtype=FP64)
    around = torch.linspace(max(low, -1.0), min(high, 1.0), COUNT // 4, dtype=FP64)
    rest = COUNT - 2 * len(powers) - len(around) - len(special)
    x = [torch.linspace(low, high, rest, dtype=FP64), around, powers, -powers if low < 0 else powers]
    return torch.cat([*x, torch.tensor(list(special), dtype=FP64)]).to(dtype)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """By helper and type, of its `arguments`; what is said of notes."""
    folder = tmp_path_factory.mktemp("pointwise")
    paths = {(name, dtype): folder / f"{name}_{str(dtype)[6:]}.pt" for name in HELPERS for dtype in ERRORS}
    for (name, dtype), path in paths.items():
        torch.save(arguments(name, dtype), path)
    paths["notes"] = folder / "notes.pt"
    torch.save([(torch.tensor(strong, dtype=torch.int8), count) for strong, count, _ in NOTES], paths["notes"])
    command = [sys.executable, "-m", "tests.emit.pointwise_worker", str(folder)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return {of: torch.load(path) for of, path in paths.items()}


@pytest.mark.parametrize("dtype", ERRORS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", HELPERS)
def test_values(values, name, dtype):
    _, exact, special = HELPERS[name]
    x, actual = arguments(name, dtype).to(FP64)[: -len(special)], values[name, dtype][: -len(special)].to(FP64)
    expected = exact(x)
    error, of_exp = ERRORS[dtype]
    allowed = error * expected.abs()
    if name == "_expm1":
        allowed += torch.where(x.abs() < 0.5, 0.0, of_exp * x.abs() * x.exp())
    elif name in ("_raised", "_lowered", "limited"):
        allowed += 2 * of_exp * x.abs() * expected
    elif name != "_log1p":
        allowed += of_exp * x.abs() * (-x.abs()).exp() + 2**-126  # what is smaller is 0 or has fewer digits
    worst = ((actual - expected).abs() - allowed).argmax()
    assert (actual - expected).abs()[worst] <= allowed[worst], f"{x[worst]}: {actual[worst]} for {expected[worst]}"


@pytest.mark.parametrize("dtype", ERRORS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", HELPERS)
def test_special_values(values, name, dtype):
    special = HELPERS[name][2]
    assert values[name, dtype][-len(special) :].tolist() == pytest.approx(list(special.values()), nan_ok=True)


def test_what_notes_say_of_all_walks(values):
    assert values["notes"] == [none for _, _, none in NOTES]


@pytest.mark.parametrize("name", FITS)
def test_coefficients_are_the_fit(name):
    """As float32 holds them, in the order in which the helper takes them."""
    text = TRITON_HELPERS[name].rsplit("else:", 1)[1]
    written = re.findall(r", (-?\d\.\d+)", text)
    with mpmath.workdps(30):
        fit = mpmath.chebyfit(*FITS[name])
    assert torch.equal(torch.tensor([float(c) for c in written]), torch.tensor([float(c) for c in fit]))
