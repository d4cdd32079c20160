"""Products: what a kernel multiplies."""

from __future__ import annotations

from glagen.emit.stores import KernelStores
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram, Operand
from glagen.ir.kernel import Blocks, Dot, Kernel, Store


class KernelDots(KernelStores):
    """The text of a kernel as far as it concerns those."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, by_tma: bool) -> None:
        super().__init__(kernel, program, by_tma)
        self.last_dealt = {x.name: x for x in kernel.lines if isinstance(x, Dot) and x.dealt}
        # Scores that are sums over a loop: where gates are mild, what is not to count is left out once, at the end.
        summed = {store.tile for store in kernel.stores if "s" in store.axes and kernel.looped and kernel.runs_twice}
        dots = (x for line in kernel.lines for x in (line.body if isinstance(line, Blocks) else (line,)))
        self.masked_late = {x.name: x.mask for x in dots if isinstance(x, Dot) and x.mask and x.name in summed}

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
            product = f"tl.dot({x}, {y}, {name}, {precision})"
            masked = f"tl.where({line.mask}, {product}, {name})"
            # with few rows, each has its score with itself by another product
            few = " and not FEW" * (line.mask in ("decayed", "past"))
            late = f"{product} if MILD{few} else " if line.name in self.masked_late else ""
            self._line(f"{name} = {late}{masked}")
            return
        product = f"_dot_in_two({x}, {y}, PRECISION)" if line.split else f"tl.dot({x}, {y}, input_precision=PRECISION)"
        self._line(f"{name} {'+=' if line.accumulate else '='} {product}")
        if self.last_dealt.get(line.name) is line:
            self._line(f"{name} = _dealt({name}, DOT, True)")

    def _stored(self, store: Store) -> str:
        value = super()._stored(store)
        if store.tile not in self.masked_late:
            return value
        mask = "earlier" if self.masked_late[store.tile] in ("same", "earlier") else "causal"
        return f"tl.where({mask}, {value}, 0.0) if MILD else {value}"
