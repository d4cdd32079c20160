"""Loads: what a kernel reads of tensors, and when.

Where chunks are taken in turn, Triton loads the tiles of later ones while it works on one; but not what has one number
a step, in less than the four bytes that a copy takes or not as threads want it, nor what is one number. Walks, in which
nothing else hides that wait, load it a chunk ahead. (H200, Triton 3.6.0, bf16, a scalar gate: walks for states of B1
T4096 H8 K=V=128 0.07 ms instead of 0.12 to 0.13; those that are given what they multiply, of B4 T4096 H64, 0.47 instead
of 0.51.) Other kernels load it before all else of a chunk (see `numbers_first` in schedule/order.py).

Where a walk's tiles have too many columns for a second one to lie in shared memory, nothing comes ahead: threads would
hold all that they load in registers, which they lack, and spill. Then Hopper's tensor memory accelerator (TMA) brings
what has all columns of keys to where it is multiplied, just before that, while the other program of a multiprocessor
works. What others have made, with columns, lies in one piece: of that one program a head has the L2 cache fetch the
next chunk's; in the walk forward rows of queries and keys, too. (H200, Triton 3.6.0, bf16, B8 T2048 H4 K256 V512, ms,
forward / with backward: gla 0.250 / 1.011 -> 0.232 / 0.949, and with that cache 0.223 / 0.904; simple_gla 0.278 / 0.828
-> 0.178 / 0.784, linear_attn 0.222 / 0.747 -> 0.170 / 0.694. With the cache asked for scores alone: 0.190 / 0.792,
0.171 / 0.686; for rows, linear_attn 0.172 -> 0.161 forward, simple_gla 0.178 -> 0.176, but in the walk back 0.791 ->
0.807, and for values' rows all are slower. All tiles by TMA, which threads wait for one after another: gla 0.252 /
1.008. Where tiles come ahead, by two buffers or more, TMA is no faster: linear_attn, B16 T2048 H4 K128 V256, 0.108 /
0.395 for 0.107 / 0.392.)
"""

from __future__ import annotations

from glagen.emit.memory import EXTENT, Tensor
from glagen.emit.states import KernelStates
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel, Line, Load, Loop, lines_of, read
from glagen.ir.tuned import ALONE_KERNELS, GIVEN_KERNELS


class KernelLoads(KernelStates):
    """The text of a kernel as far as it concerns those."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, by_tma: bool) -> None:
        super().__init__(kernel, program, by_tma)
        # inputs without t: one value per head
        self.head_inputs = {d.name for d in program.recurrence.declarations if d.kind != "scalar" and not d.timed}
        self.float32 = set(kernel.sums) | {x.name for x in self._given_loads() if len(x.axes) == 1}  # in memory
        self.narrow: set[str] = set()  # tiles that may not be float32
        self.loaded: set[str] = set()  # scores that were made before
        made = {x.name for x in self._given_loads()}
        loads = [x for x in kernel.lines if isinstance(x, Load)]
        self.ahead = [x for x in loads if kernel.direction and (x.axes == ("t",) or (x.name in made and not x.axes))]
        # tiles that TMA may load, and the tensors of these, and of those that it stores
        self.by_tiles = [x for x in loads if kernel.name in GIVEN_KERNELS and {*x.axes} == {"t", "i"}]
        if kernel.name in ALONE_KERNELS and program.gates:
            self.by_tiles = [x for x in loads if len(x.axes) == 2]
        self.tiled = [identifier(self._loaded(x).name) for x in self.by_tiles]

    def _given_loads(self) -> list[Load]:
        """What another kernel has made of each chunk."""
        return [x for x in self.kernel.lines if isinstance(x, Load) and x.name in self.kernel.given]

    def _load(self, line: Load) -> None:
        if line.name not in self.float32:
            self.narrow.add(line.name)
        name = identifier(line.name)
        if line not in self.ahead:
            tile = f"{self._by_tma_text(line)} if TMA_LOADS else " if line in self.by_tiles else ""
            self._line(f"{name} = {tile}{self._tile_text(line)}  # {self._shape(line.axes)}")
            return
        self._line(f"{name} = {name}_next  # {self._shape(line.axes)}")
        if line is self.ahead[-1]:
            back = self.kernel.direction == "reverse"
            sign = "-" if back else "+"
            self._load_ahead(f"first {sign} CHUNK", "chunk * CHUNK" if back else "left - CHUNK", f"slot {sign} 1")

    def _load_first(self) -> None:
        """Before a walk: what the loads of its first chunk would be ahead."""
        if self.ahead and self.kernel.direction == "reverse":
            self._line("last = tl.maximum(chunks - 1, 0)")
            self._load_ahead("start + last * CHUNK", "length - last * CHUNK", "first_slot + last")
        elif self.ahead:
            self._load_ahead("start", "length", "first_slot")

    def _load_ahead(self, first: str, left: str, slot: str) -> None:
        """That of the chunk which begins at `first`, has so many steps `left`, and is in this `slot`."""
        of_chunks = any(line.name in self.kernel.given for line in self.ahead)
        self._line(f"first_next = {first}")
        self._line(f"left_next = {left}")
        self._line("in_next = row < left_next")
        if of_chunks:
            self._line(f"slot_next = {slot}")
        for line in self.ahead:
            self._line(f"{identifier(line.name)}_next = {self._tile_text(line, '_next')}")

    def _keep_before(self, line: Line | Loop) -> None:
        if line in self.by_tiles:  # threads that wait for these need not wait for the other
            self._keep_by_tma()
        super()._keep_before(line)

    def _describe_loads(self) -> None:
        """Before a walk: what TMA is to know of tensors that it loads or stores tiles of."""
        if not self.by_tiles:
            return
        self._line("if TMA_LOADS:")
        for tensor in (*map(self._loaded, self.by_tiles), *self._stored_by_tma()):
            name, (heads, h) = identifier(tensor.name), self._heads(tensor)
            columns = EXTENT[tensor.axes[-1]]
            base, extents, step = f"(start * {heads} + {h}) * {columns}", f"[length, {columns}]", f"{heads} * {columns}"
            if tensor.kind == "chunks":
                base, extents, step = "first_slot * H * CHUNK * K", "[chunks * H * CHUNK, K]", "K"
            if tensor.kind == "states":
                base = f"(first_slot * {heads} + {h}) * K * V"
                extents, step = f"[((chunks - 1) * {heads} + 1) * K, V]", "V"
            tile = self._shape((tensor.axes[0], tensor.axes[-1]))
            described = f"{name}_ptr + {base}, {extents}, [{step}, 1], {tile}"
            self._line(f"    {name}_tiles = tl.make_tensor_descriptor({described})")

    def _stored_by_tma(self) -> list[Tensor]:
        """The results whose tiles TMA stores where it loads."""
        return []

    def _fetch_ahead(self) -> None:
        """Have the L2 cache fetch tiles of the next chunk: rows, and what others made if some has columns."""
        if self.kernel.name not in GIVEN_KERNELS or not self.by_tiles:
            return
        back = self.kernel.direction == "reverse"
        made = [tensor for tensor in map(self._loaded, self._given_loads()) if len(tensor.axes) == 2]
        made = made if any(tensor.kind == "chunks" for tensor in made) else []
        rows = [tensor for tensor in map(self._loaded, self.by_tiles) if tensor.kind == "rows" and not back]
        if not made and not rows:
            return
        self._line("if TMA_LOADS:  # one program of a head has the L2 cache fetch tiles of the next chunk")
        self._enter()
        self._line("if block_j == n % blocks_j:")
        self._enter()
        if made:
            following = "tl.maximum(slot - 1, first_slot)" if back else "tl.minimum(slot + 1, first_slot + chunks - 1)"
            self._line(f"ahead = {following}")
        for tensor in made:
            size = f"CHUNK * {'CHUNK' if tensor.kind == 'matrices' else 'K'}"
            self._line(f"_fetch({identifier(tensor.name)}_ptr + (ahead * H + h) * {size}, 2 * {size})")
        if rows:
            self._line("step = start + tl.minimum((chunk + 1) * CHUNK + row, length - 1)")
        for tensor in rows:
            heads, h = self._heads(tensor)
            self._line(f"_fetch({identifier(tensor.name)}_ptr + (step * {heads} + {h}) * K, 2 * K, CHUNK)")
        self._leave()
        self._leave()

    def _by_tma_text(self, line: Load) -> str:
        tensor = self._loaded(line)
        row = {"rows": "chunk * CHUNK", "states": f"chunk * {self._heads(tensor)[0]} * K"}
        tile = f"{identifier(tensor.name)}_tiles.load([{row.get(tensor.kind, '(chunk * H + h) * CHUNK')}, 0])"
        return tile if line.axes == tensor.axes else f"tl.trans({tile})"

    def _tile_text(self, line: Load, chunk: str = "") -> str:
        return self._load_text(self._loaded(line), line.axes, chunk=chunk)

    def _loaded(self, line: Load) -> Tensor:
        """The tensor that a tile is of."""
        axes = tuple(a for a in ("t", "i", "j") if a in line.axes)  # as the tensor lies in memory
        kind = "states" if axes == ("i", "j") else "head" if line.name in self.head_inputs else "rows"
        name = line.name
        if name in self.kernel.given and "s" in line.axes:
            name, kind = name.removesuffix("_T"), "matrices"
        elif name in self.kernel.given:
            kind = "chunks"
        return self._tensor(name, kind, ("t", "s") if kind == "matrices" else axes)

    def _load_ready(self, item: Line | Loop) -> None:
        """Scores that were made before, if any, ahead of what first uses them."""
        used = {name for line in lines_of(item) if line not in self.kernel.spared for name in read(line)}
        for ready in self.kernel.ready:
            if ready.tile in used and ready.tile not in self.loaded:
                self.loaded.add(ready.tile)
                tensor = self._tensor(ready.tensor, "matrices", ("t", "s"), optional=True)
                self._given(tensor, f"{identifier(ready.tile)} = {self._load_text(tensor, ready.axes)}")
