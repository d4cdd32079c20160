"""How far a result may be from the float64 recurrence, and how that is measured.

One table, by precision, each number with its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Precision:
    """A way to run an op, and the relative RMS error it is allowed.

    `budget` holds for the output, the final state and every gradient, over the whole tensor.
    """

    name: str
    dtype: torch.dtype
    tf32: bool  # products of float32 operands rounded to TF32 (CUDA only)
    budget: float
    reason: str


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(
            "bf16",
            torch.bfloat16,
            True,
            4e-3,
            "bf16 keeps 8 bits: storing normal numbers costs 1.7e-3 RMS, and rounding the operands of the two products "
            "behind them about as much again",
        ),
        Precision(
            "fp16",
            torch.float16,
            True,
            1.5e-3,
            "fp16 keeps 11 bits, 2e-4 RMS a rounding; the rest is room for results near 6e-5, where it turns "
            "subnormal, and for covers whose factors use its short range",
        ),
        Precision(
            "tf32",
            torch.float32,
            True,
            1e-3,
            "what torch's flag allows: TF32 keeps 11 bits of each operand (some GPUs cut rather than round), 2e-4 to "
            "4e-4 a product, and two to three lie behind a gradient. Kernels take three bfloat16 products, which "
            "err by 2**-16, and stay far below that",
        ),
        Precision(
            "fp32",
            torch.float32,
            False,
            1e-5,
            "float32 keeps 24 bits, 6e-8: sums over some hundred terms and exponents of up to 100 nats (whose last bit "
            "is 8e-6 of the factor, but then the factor is 1e-44) stay below 1e-6; 1e-5 leaves a factor of ten",
        ),
        Precision(
            "fp64",
            torch.float64,
            False,
            1e-10,
            "float64 keeps 53 bits, and the reference as many: 1e-13 is usual, 1e-10 leaves room for gates near their "
            "ends, where an equation as it is written cancels (1 - sigmoid(x) at x = 9) and the stable form does not",
        ),
    )
}

CHANNEL_FACTOR = 5.0  # a channel is a thousandth of the numbers, and the worst of some thousand is looked at

# A channel of n numbers is measured against its own RMS, and never against less than this or 1/n of the tensor's.
# Below 1e-3 of the tensor a channel is made of cancelled sums (a gate's gradient where almost nothing passes), and its
# error is that of the terms, not of the sum. 1/n: the RMS of n draws falls below 1/n of what it should be too often to
# be told from an error while n is 1 to 10, and never after. Where some steps are far larger than all others (a time
# step of 250 beside ones of 0.1), n is how many equal ones would have as much of a say.
CHANNEL_FLOOR = 1e-3

# Arguments are of order one, so a tensor whose RMS is below this is one that gates have all but closed, or whose terms
# cancel (the gradient of the only step's gate is zero); it counts as having this RMS. There float16 begins to lose
# bits (6e-5 keeps 11 of them, 6e-8 none), and below anything that matters to a model.
ZERO = 1e-4


# Rows are the steps of all sequences and heads. One rounding (a score, a row's gate) is common to a whole row of a
# gradient, so an average over fewer rows than this may be that of a few bad ones: it is held to what a channel is.
FEW_ROWS = 256


def budgets(precision: Precision, rows: int) -> tuple[float, float]:
    """The relative RMS errors allowed over a tensor and over any of its channels, for an op of B * T * H rows."""
    channel = CHANNEL_FACTOR * precision.budget
    return precision.budget if rows >= FEW_ROWS else channel, channel


def errors(x: Tensor, expected: Tensor, layout: str) -> tuple[float, float]:
    """The RMS error of a tensor relative to its RMS: over the whole, and the worst of its channels.

    The channels of BTHD are those of each head, (h, d); of BTH the heads; of a state, BHKV or with S, its rows and its
    columns, for a gate closes either; of a parameter, HD or H, its numbers. A channel that gates have closed is small
    and counts by its own size, so that it cannot hide behind an open one, down to CHANNEL_FLOOR and ZERO (which each
    counts as if all is to be zero), so that rounding noise around zero is no error. NaN if x has the wrong shape or
    holds a NaN; infinite or NaN if infinity.
    """
    if x.shape != expected.shape:
        return math.nan, math.nan
    x, expected = x.double(), expected.to(x.device, torch.float64)
    squares, difference = expected.square(), (x - expected).square()
    scale = squares.mean().sqrt().clamp(min=ZERO)
    over = difference.mean().sqrt() / scale
    worst = []
    for kept in [f"H{axis}" for axis in layout if axis in "KSV"] or ["HD"]:
        along = [n for n, axis in enumerate(layout) if axis not in kept]
        columns = [n for n, axis in enumerate(layout) if axis in kept[1:]]
        floor = (1 / _count(squares, columns, along)).clamp(min=CHANNEL_FLOOR if expected.any() else 1)
        own = squares.mean(along).sqrt() if along else squares.sqrt()
        off = difference.mean(along).sqrt() if along else difference.sqrt()
        worst.append((off / torch.maximum(own, floor * scale)).max())
    return float(over), float(torch.stack(worst).max())


def _count(squares: Tensor, columns: list[int], rows: list[int]) -> Tensor:
    """How many rows of each head have a say in its RMS, `columns` being one."""
    if not rows:
        return torch.ones_like(squares)
    energy = squares.mean(columns, keepdim=True) if columns else squares
    count = energy.sum(rows, keepdim=True).square() / energy.square().sum(rows, keepdim=True)
    return count.nan_to_num(nan=math.prod(squares.shape[n] for n in rows)).squeeze(rows)
