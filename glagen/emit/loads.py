"""Loads: what a kernel reads of tensors, and when.

Where chunks are taken in turn, Triton loads the tiles of later ones while it works on one; but not what has one number
a step, in less than the four bytes that a copy takes. Walks, in which nothing else hides that wait, load it a chunk
ahead. (H200, Triton 3.6.0, bf16, a scalar gate, B1 T4096 H8 K=V=128: 0.07 ms a walk, instead of 0.12 to 0.13.)
"""

from __future__ import annotations

from glagen.emit.memory import shape
from glagen.emit.states import KernelStates
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import WALKS, Kernel, Line, Load, Loop, lines_of, read


class KernelLoads(KernelStates):
    """The text of a kernel as far as it concerns those."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, by_tma: bool) -> None:
        super().__init__(kernel, program, by_tma)
        # inputs without t: one value per head
        self.head_inputs = {d.name for d in program.recurrence.declarations if d.kind != "scalar" and not d.timed}
        self.float32 = set(kernel.sums) | {x.name for x in self._given_loads() if len(x.axes) == 1}  # in memory
        self.narrow: set[str] = set()  # tiles that may not be float32
        self.loaded: set[str] = set()  # scores that were made before
        of_steps = [x for x in kernel.lines if isinstance(x, Load) and x.axes == ("t",)]
        self.ahead = of_steps if kernel.name in WALKS else []

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
            self._load_ahead("first - CHUNK" if back else "first + CHUNK", "chunk * CHUNK" if back else "left - CHUNK")

    def _load_first(self) -> None:
        """Before a walk: what the loads of its first chunk would be ahead."""
        if self.ahead and self.kernel.direction == "reverse":
            self._line("last = tl.maximum(chunks - 1, 0) * CHUNK")
            self._load_ahead("start + last", "length - last")
        elif self.ahead:
            self._load_ahead("start", "length")

    def _load_ahead(self, first: str, left: str) -> None:
        """What chunks have a number a step of, for that which begins at `first` and has so many steps `left`."""
        self._line(f"first_next = {first}")
        self._line(f"in_next = row < {left}")
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
