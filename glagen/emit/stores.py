"""Stores: what a kernel writes to tensors."""

from __future__ import annotations

from glagen.emit.memory import Tensor
from glagen.emit.notes import KernelNotes
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel, Line, Loop, Store, written
from glagen.ir.tuned import ALONE_KERNELS, BOTH, KEPT_BACK


class KernelStores(KernelNotes):
    """The text of a kernel as far as it concerns those."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, by_tma: bool) -> None:
        super().__init__(kernel, program, by_tma)
        self.stored: list[Store] = []  # those that need not wait for a chunk's end
        self.tiled += [identifier(x.name) for x in self._stored_by_tma()]

    def _out(self, store: Store) -> Tensor:
        blocked = [a for a in self.kernel.owned if a not in self.kernel.whole and a not in store.axes]
        kind = ("row_parts" if blocked else "rows") if "t" in store.axes else "head_parts"
        kind = "matrices" if "s" in store.axes else "chunks" if store.target in self.kernel.given else kind
        # a gradient that nobody wants is not given, nor outputs where a second walk makes states, nor operands of walks
        # beside scores; sums for others are
        walks = bool(self.kernel.scans) and (self.kernel.of_gradients or self.kernel.runs_twice)
        optional = self.kernel.reduces_heads or walks or kind == "chunks"
        return self._tensor(f"{store.target}_out", kind, store.axes, optional)

    def _stored_by_tma(self) -> list[Tensor]:
        if not (self.kernel.name in ALONE_KERNELS and self.by_tiles):
            return []
        return [self._out(x) for x in self.kernel.stores if len(x.axes) == 2]

    def _store_out(self, store: Store) -> None:
        """A result; a gradient where it is wanted, summed over the heads that share its tensor's."""
        tensor = self._out(store)
        value = self._stored(store)
        if store.adds:
            value = f"{self._load_text(tensor)}.to({self.real}) + {value}"
        if not tensor.optional:
            self._store(tensor, value)
            return
        address, mask = self._address(tensor)
        if tensor.kind == "head_parts":
            value = f"tl.where(left > 0, {value}, 0.0)"  # of a chunk that no sequence has: whatever was in memory
        if tensor.name in {x.name for x in self._stored_by_tma()}:
            name = identifier(tensor.name)
            self._line("if TMA_LOADS:")
            self._line(f"    {name}_tiles.store([chunk * CHUNK, 0], ({value}).to({name}_ptr.dtype.element_ty))")
            self._line(f"elif {name}_ptr is not None:")
            self._line(f"    tl.store({address}, {value}, mask={mask})")
            return
        if tensor.shared and self.kernel.reduces_heads:
            total = f"{identifier(store.target)}_sum"
            self._line(f"{total} = _joined({total}, {value}, h, {tensor.shared})")
            value, mask = total, f"{mask} & (h % {tensor.shared} == {tensor.shared} - 1)"
        self._given(tensor, f"tl.store({address}, {value}, mask={mask})" if mask else f"tl.store({address}, {value})")

    def _stored(self, store: Store) -> str:
        """What a result is."""
        return self._upright(store.tile)

    def _store_soon(self, item: Line | Loop) -> None:
        """Results of a kernel that makes all gradients, or keeps what it reads of a state, each after the last line
        that makes it: that leaves registers to others. (H200, Triton 3.6.0, bf16, linear_attn, B4 T4096 H64 K=V=128,
        one chunk at a time: 1.17 ms for 1.23.)"""
        if self.kernel.name not in (*ALONE_KERNELS, BOTH, KEPT_BACK):
            return
        for store in self.kernel.stores:
            makers = [line for line in self.kernel.lines if store.tile in written(line)]
            if item == makers[-1]:
                self._store_out(store)
                self.stored.append(store)
