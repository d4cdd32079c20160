"""Extents worth measuring, and tensors of those extents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glagen.ir.document import Document
from glagen.regimes import Case, draw
from glagen.variants import with_constants

DRAWN = 2  # heads drawn, of one sequence; all others repeat them: what a tensor holds does not change the time


@dataclass(frozen=True, slots=True)
class Workload:
    """The extents of a call."""

    name: str
    B: int
    T: int
    H: int
    K: int
    V: int

    def __str__(self) -> str:
        return f"B{self.B} T{self.T} H{self.H} K{self.K} V{self.V}"


WORKLOADS = {
    w.name: w
    for w in (
        Workload("fla", 4, 4096, 64, 128, 128),
        Workload("gla340m", 16, 2048, 4, 128, 256),
        Workload("gla1.3b", 8, 2048, 4, 256, 512),
        Workload("long", 1, 65536, 8, 128, 128),
        Workload("small", 1, 4096, 8, 128, 128),
        Workload("fig2", 32, 2048, 16, 64, 64),
    )
}
# The paper's Figure 2: as many steps in all, in longer and longer sequences.
FIGURE_2 = [Workload(f"fig2-{t}", 32 * 2048 // t, t, 16, 64, 64) for t in (1024, 2048, 4096, 8192, 16384)]


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of an op on a device, those that have gradients, and cotangents of its outputs."""

    arguments: dict[str, Tensor | float | None]
    leaves: tuple[Tensor, ...]
    cotangents: tuple[Tensor, ...]

    @property
    def forward_bytes(self) -> int:
        """Every input read once, every output written once."""
        tensors = [x for x in self.arguments.values() if isinstance(x, Tensor)]
        return _bytes(tensors) + _bytes(self.cotangents)

    @property
    def both_bytes(self) -> int:
        """The forward's, and then: every input and cotangent read once, every gradient written once."""
        return 2 * self.forward_bytes + _bytes(self.leaves)


def _bytes(tensors: list[Tensor] | tuple[Tensor, ...]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def call(
    document: Document, workload: Workload, device: torch.device, dtype: torch.dtype, regime: str = "mild"
) -> Call:
    """Gates as the regime says, everything else normal, no states in or out."""
    case = Case(1, workload.T, DRAWN, workload.K, workload.V, state=False)
    few = with_constants(document, draw(document, regime, case))

    def spread(x: Tensor, timed: bool) -> Tensor:
        x = x.to(device, dtype)
        heads = -(-workload.H // DRAWN)
        if not timed:
            return x.repeat(heads, *(1 for _ in x.shape[1:]))[: workload.H].contiguous()
        counts = (workload.B, 1, heads, *(1 for _ in x.shape[3:]))
        return x.repeat(counts)[:, :, : workload.H].contiguous()

    arguments: dict[str, Tensor | float | None] = {}
    leaves = []
    for d in document.declarations:
        x = few.arguments[d.name]
        if isinstance(x, Tensor):
            x = spread(x, d.timed)
            if d.differentiable:
                leaves.append(x.requires_grad_())
        arguments[d.name] = x
    cotangents = tuple(spread(x, True) for x in few.output_cotangents)
    return Call(arguments, tuple(leaves), cotangents)
