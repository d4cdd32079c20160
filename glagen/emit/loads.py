"""Loads: what a kernel reads of tensors, and when.

Where chunks are taken in turn, Triton loads the tiles of later ones while it works on one; but not what has one number
a step, in less than the four bytes that a copy takes or not as threads want it, nor what is one number. Walks, in which
nothing else hides that wait, load it a chunk ahead. (H200, Triton 3.6.0, bf16, a scalar gate: walks for states of B1
T4096 H8 K=V=128 0.07 ms instead of 0.12 to 0.13; those that are given what they multiply, of B4 T4096 H64, 0.47 instead
of 0.51.) Other kernels load it before all else of a chunk (see `numbers_first` in schedule/order.py).
"""

from __future__ import annotations

from glagen.emit.memory import shape
from glagen.emit.states import KernelStates
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel, Line, Load, Loop, lines_of, read


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

    def _given_loads(self) -> list[Load]:
        """What another kernel has made of each chunk."""
        return [x for x in self.kernel.lines if isinstance(x, Load) and x.name in self.kernel.given]

    def _load(self, line: Load) -> None:
        if line.name not in self.float32:
            self.narrow.add(line.name)
        if line not in self.ahead:
            self._line(f"{identifier(line.name)} = {self._tile_text(line)}  # {shape(line.axes)}")
            return
        name = identifier(line.name)
        self._line(f"{name} = {name}_next  # {shape(line.axes)}")
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

    def _tile_text(self, line: Load, chunk: str = "") -> str:
        axes = tuple(a for a in ("t", "i", "j") if a in line.axes)  # as the tensor lies in memory
        kind = "states" if axes == ("i", "j") else "head" if line.name in self.head_inputs else "rows"
        name = line.name
        if name in self.kernel.given and "s" in line.axes:
            name, kind = name.removesuffix("_T"), "matrices"
        elif name in self.kernel.given:
            kind = "chunks"
        lies = ("t", "s") if kind == "matrices" else axes
        return self._load_text(self._tensor(name, kind, lies), line.axes, chunk=chunk)

    def _load_ready(self, item: Line | Loop) -> None:
        """Scores that were made before, if any, ahead of what first uses them."""
        used = {name for line in lines_of(item) if line not in self.kernel.spared for name in read(line)}
        for ready in self.kernel.ready:
            if ready.tile in used and ready.tile not in self.loaded:
                self.loaded.add(ready.tile)
                tensor = self._tensor(ready.tensor, "matrices", ("t", "s"), optional=True)
                self._given(tensor, f"{identifier(ready.tile)} = {self._load_text(tensor, ready.axes)}")
