"""Products: what a kernel multiplies."""

from __future__ import annotations

from glagen.emit.stores import KernelStores
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram, Operand
from glagen.ir.kernel import Dot, Kernel


class KernelDots(KernelStores):
    """The text of a kernel as far as it concerns those."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, by_tma: bool) -> None:
        super().__init__(kernel, program, by_tma)
        self.last_dealt = {x.name: x for x in kernel.lines if isinstance(x, Dot) and x.dealt}

    def _operand(self, operand: Operand, first: bool, shared: str, kept: str) -> str:
        name = f"{identifier(operand.name)}.to({kept})" if kept else identifier(operand.name)
        straight = operand.indices.index(shared) == (1 if first else 0)
        return name if straight else f"tl.trans({name})"

    def _dot(self, line: Dot) -> None:
        shared = next(a for a in line.x.indices if a in line.y.indices)
        kept = "" if line.exact else "WIDE" if line.wide else "DOT"
        x = self._operand(line.x, True, shared, "" if line.split else kept)
        y = self._operand(line.y, False, shared, kept)
        y = f"_dealt({y}, DOT, False)" if line.dealt else y
        name = identifier(line.name)
        if line.mask:
            precision = f"input_precision=PRECISION{f', out_dtype={self.real}' * self.divisor}"
            self._line(f"{name} = tl.where({line.mask}, tl.dot({x}, {y}, {name}, {precision}), {name})")
            return
        product = f"_dot_in_two({x}, {y}, PRECISION)" if line.split else f"tl.dot({x}, {y}, input_precision=PRECISION)"
        self._line(f"{name} {'+=' if line.accumulate else '='} {product}")
        if self.last_dealt.get(line.name) is line:
            self._line(f"{name} = _dealt({name}, DOT, True)")
