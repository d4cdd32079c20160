"""States that stay on chip from chunk to chunk: how they begin and end, and what a walk along chunks keeps of them."""

from __future__ import annotations

from glagen.emit.memory import KernelMemory, Tensor, shape
from glagen.emit.pointwise import spread_triton
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import WALKS, Kernel, Scan, written


class KernelStates(KernelMemory):
    """The text of a kernel as far as it concerns those."""

    def __init__(self, kernel: Kernel, program: ChunkProgram) -> None:
        super().__init__(kernel, program)
        self.divisor = program.recurrence.divides and not kernel.of_gradients
        self.real = "REAL" if self.divisor else "tl.float32"  # the type of all that is not rounded
        self.turned = kernel.turned
        self.gates = program.gates

    def _begin(self) -> None:
        """Before the first chunk."""
        for scan in self.kernel.scans:
            self._first(scan)
        for tensor in self._remains():
            one = f"tl.full({shape(tensor.axes)}, 1.0, {self.real})" if tensor.axes else "1.0"
            self._line(f"{identifier(tensor.name)} = {one}")

    def _enter_chunk(self) -> None:
        for scan in self.kernel.scans:
            if scan.saved:
                self._line("# the state that enters this chunk" if self.kernel.direction == "forward" else
                           "# the gradient of the state that leaves this chunk")  # fmt: skip
                self._keep(scan, scan.saved)

    def _leave_chunk(self) -> None:
        for tensor in self._remains():
            name = identifier(tensor.name)
            self._given(tensor, f"{name} = {name} * {identifier(tensor.name.removesuffix('_remains'))}_whole")

    def _end(self) -> None:
        """After the last chunk."""
        for scan in self.kernel.scans:
            self._last(scan)
        for tensor in self._remains():
            self._store_remains(tensor)

    def _first(self, scan: Scan) -> None:
        tensor = self._tensor(scan.first, "state", ("i", "j"), optional=True)
        self.tensors[tensor.name] = tensor
        name = identifier(scan.tile)
        self._line(f"{name} = tl.zeros({shape(scan.axes)}, dtype={self.real})")
        once = self.kernel.direction == "reverse"  # the gradient of a final state is one for all heads that read it
        self._given(tensor, f"{name} += {spread_triton(self._load_text(tensor, once=once), tensor.axes, scan.axes)}")

    def _keep(self, scan: Scan, saved: str) -> None:
        """Store the state that enters a chunk, where wanted, beside outputs by one of the heads that read it; or its
        gradient, which is always wanted beside others, but for a first look at gates."""
        optional = not (self.kernel.stores and self.kernel.of_gradients) or self.kernel.runs_twice
        tensor = self._tensor(saved, "states", ("i", "j"), optional)
        if not optional:
            self._store(tensor, self._upright(scan.tile))
            return
        address, mask = self._address(tensor)
        mask += " & (h % READS == 0)" if tensor.shared else ""
        self._given(tensor, f"tl.store({address}, {self._upright(scan.tile)}, mask={mask})")

    def _last(self, scan: Scan) -> None:
        tensor = self._tensor(scan.last, "state", ("i", "j"), optional=True)
        address, mask = self._address(tensor)
        if tensor.shared:
            mask += " & (h % READS == 0)"
        self._given(tensor, f"tl.store({address}, {self._upright(scan.tile)}, mask={mask})")

    def _remains(self) -> list[Tensor]:
        """What the gates leave of a state in all the chunks of a walk: wanted where it is one piece of a sequence."""
        if self.kernel.name not in WALKS:
            return []
        made = {name for line in self.kernel.lines for name in written(line)}
        gates = [gate for gate in self.gates if f"{gate.name}_whole" in made]
        found = [self._tensor(f"{gate.name}_remains", "remains", gate.axes, optional=True) for gate in gates]
        self.tensors |= {tensor.name: tensor for tensor in found}
        return found

    def _store_remains(self, tensor: Tensor) -> None:
        """By one of the programs that walk along a head."""
        address, mask = self._address(tensor)
        others = [f"(block_{a} == 0)" for a in self.kernel.owned if a not in tensor.axes]
        mask = " & ".join([mask] * bool(mask) + others)
        self._given(tensor, f"tl.store({address}, {identifier(tensor.name)}, mask={mask})")

    def _upright(self, tile: str) -> str:
        """A tile as tensors lie in memory."""
        return f"tl.trans({identifier(tile)})" if tile in self.turned else identifier(tile)
