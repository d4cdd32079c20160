"""States that stay on chip from chunk to chunk: how they begin and end, and what a walk along chunks keeps of them.

Threads bring a state into the order of memory 16 bytes at a time, and wait for each other twice each time. Hopper's
tensor memory accelerator (TMA) takes it as it lies in shared memory. But before that is told what it may read there,
all copies that threads have under way must have come: so it stores the state only before that changes, when they have.
Threads store it where the chunk begins: for them, later is slower. (H200, Triton 3.6.0, bf16, B4 T4096 H64 K=V=128: a
forward of gla that stores states takes 0.77 ms instead of 0.97, and 0.71 without them; by TMA where the chunk begins,
1.15 ms. A walk back of linear_attn takes 0.28 ms by threads, and 0.51 ms where they store later.)

Forwards whose products take a state from registers (see schedule/turn.py) store it as soon as it is made, for the next
chunk: then no more than that is in registers. TMA saves 80 of 252 a thread so; and threads need no memory for it, so
that a multiprocessor has room for two programs: one works while the other waits. (H200, Triton 3.6.0, bf16, gla with
backward, B4 T4096 H64 K=V=128: 2.63 ms, by TMA so 2.61, by threads 2.52. B32 T2048 H16 K=V=64: 0.99 ms, so 1.05.)
"""

from __future__ import annotations

from glagen.emit.memory import BLOCK, KernelMemory, Tensor
from glagen.emit.pointwise import spread_triton
from glagen.emit.waiting import carried, of_waiting
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.expr import Apply, Expr, Ref, refs
from glagen.ir.kernel import Assign, Kernel, Line, Loop, Scan, lines_of, read, written
from glagen.ir.tuned import WALKS


def stores_ahead(kernel: Kernel) -> bool:
    """Does a walk store what enters a chunk at the end of the one before, if its tiles are large?"""
    return any(scan.ahead for scan in kernel.scans)


class KernelStates(KernelMemory):
    """The text of a kernel as far as it concerns those."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, by_tma: bool) -> None:
        super().__init__(kernel, program)
        self.by_tma = by_tma  # may TMA store states, as a constexpr says? They are optional then
        self.described: set[str] = set()  # the tensors of those
        self.unkept: list[Scan] = []  # states that this chunk is yet to store
        self.saved = [scan for scan in kernel.scans if scan.saved]
        self.early = stores_ahead(kernel)
        waiting = [scan for scan in kernel.scans if scan.waits]
        self.waiting = [of_waiting(scan) for scan in waiting]  # all or none
        self.carried = {x.name: x for scan in waiting for x in carried(scan)}
        self.divisor = program.recurrence.divides and not kernel.of_gradients
        self.real = "REAL" if self.divisor else "tl.float32"  # the type of all that is not rounded
        self.turned = kernel.turned
        self.gates = program.gates

    def _begin(self) -> None:
        """Before the first chunk."""
        for scan in self.kernel.scans:
            self._first(scan)
            self._round(scan)
        for name, x in self.carried.items():
            none = f"tl.zeros({self._shape(x.axes)}, dtype={x.kept})" if x.kept else self._ones(x.axes)
            self._line(f"{identifier(name)} = {none}")
        for tensor in self._remains():
            self._line(f"{identifier(tensor.name)} = {self._ones(tensor.axes)}")
        for scan in self.saved if self.by_tma else ():
            self._describe(self._chunk_states(scan.saved or ""))
        self._keep_ahead("first", "slot", "first_slot", "0")

    def _ones(self, axes: tuple[str, ...]) -> str:
        return f"tl.full({self._shape(axes)}, 1.0, {self.real})" if axes else "1.0"

    def _wait(self) -> None:
        """After a chunk: what the next turn adds."""
        for name, x in self.carried.items():
            self._line(f"{identifier(name)} = {identifier(x.made)}{f'.to({x.kept})' if x.kept else ''}")

    def _describe(self, tensor: Tensor) -> None:
        """What TMA is to know of a walk's chunk states: those of one head, so that no other's are written."""
        name, (heads, h) = identifier(tensor.name), self._heads(tensor)
        self.described.add(name)
        base = f"{name}_ptr + (first_slot * {heads} + {h}) * K * V"
        extents, steps, tile = "[chunks, K, V]", f"[{heads} * K * V, V, 1]", "[1, BLOCK_K, BLOCK_V]"
        self._line("if TMA:")
        self._line(f"    {name}_tiles = tl.make_tensor_descriptor({base}, {extents}, {steps}, {tile})")

    def _enter_chunk(self) -> None:
        for scan in self.saved:
            self._line("# the state that enters this chunk" if self.kernel.direction == "forward" else
                       "# the gradient of the state that leaves this chunk")  # fmt: skip
            self._keep(scan, more=" and not AHEAD" if self.early else self._by_threads())
        self.unkept = self.saved if self.by_tma and not self.early else []

    def _keep_before(self, line: Line | Loop) -> None:
        """Have TMA store a state, if that is yet to be done, before what makes another of it."""
        made = {name for x in lines_of(line) if isinstance(x, Assign) for name in read(x)}
        if any(scan.tile in made for scan in self.unkept):
            self._keep_by_tma()

    def _keep_ahead(self, which: str, name: str, slot: str, chunk: str) -> None:
        """Store the state that enters another chunk than this, if there is one, in a walk that does so ahead."""
        if self.early and self.saved:
            self._line(f"if AHEAD:  # the state that enters the {which} chunk")
            self._enter()
            self._line(f"{name} = {slot}")
            for scan in self.saved:
                self._keep(scan, name.removeprefix("slot"), f" & ({chunk} < chunks)", self._by_threads())
            self.unkept = self.saved if self.by_tma else []
            self._keep_by_tma(chunk)
            self._leave()

    def _leave_chunk(self) -> None:
        self._keep_ahead("next", "slot_next", "slot + 1", "chunk + 1")
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
        self._line(f"{name} = tl.zeros({self._shape(scan.axes)}, dtype={self.real})")
        once = self.kernel.direction == "reverse"  # the gradient of a final state is one for all heads that read it
        self._given(tensor, f"{name} += {spread_triton(self._load_text(tensor, once=once), tensor.axes, scan.axes)}")

    def _round(self, scan: Scan) -> None:
        """What a chunk reads of a state, if that is carried as well."""
        if scan.rounded:
            self._line(f"{identifier(scan.rounded)} = {identifier(scan.tile)}.to(WIDE)")

    def _keep(self, scan: Scan, which: str = "", there: str = "", more: str = "") -> None:
        """Store the state that enters a chunk, where wanted, by one of the heads that read it; or its gradient, which
        is always wanted beside others, but for a first look at gates. `which`: "_next" for another chunk's."""
        tensor = self._chunk_states(scan.saved or "")
        address, mask = self._address(tensor, chunk=which)
        if self.kernel.may_halve:
            back = scan.reverse  # into the last half of a whole chunk, or of a sequence
            mask += f" & {'((chunk % HALVES == HALVES - 1) | (n == 0))' if back else '(chunk % HALVES == 0)'}"
        mask += there + (" & (h % READS == 0)" if tensor.shared else "")
        store = f"tl.store({address}, {self._upright(scan.tile)}, mask={mask})"
        if tensor.optional:
            self._given(tensor, store, more)
        else:
            self._line(store)

    def _by_threads(self) -> str:
        return " and not TMA" * self.by_tma

    def _keep_by_tma(self, chunk: str = "chunk") -> None:
        """The same where TMA does it, which leaves out what is past the last chunk."""
        for scan in self.unkept:
            tensor = self._chunk_states(scan.saved or "")
            name = identifier(tensor.name)
            i, j = ("0" if a in self.kernel.whole else f"block_{a} * {BLOCK[a]}" for a in tensor.axes)
            rounded = f"{self._upright(scan.tile)}.to({name}_ptr.dtype.element_ty).reshape(1, BLOCK_K, BLOCK_V)"
            store = f"{name}_tiles.store([{chunk}, {i}, {j}], {rounded})"
            self._line("if TMA:")
            if tensor.shared:
                self._line(f"    if h % {tensor.shared} == 0:")
            self._line("    " * (2 if tensor.shared else 1) + store)
        self.unkept = []

    def _chunk_states(self, saved: str) -> Tensor:
        """The tensor of chunk states, or of their gradients."""
        optional = not (self.kernel.stores and self.kernel.of_gradients) or self.kernel.runs_twice or self.by_tma
        return self._tensor(saved, "states", ("i", "j"), optional)

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

    def _sum_of_states(self, line: Assign, value: str, weights: str, axes: tuple[str, ...]) -> str:
        """The sum of products of states and their gradients along an axis, as a rule that which other dots of them sum
        over: of so much of each, unless `weights` are None.

        H200, Triton 3.6.0, bf16, B4 T4096 H64 K=V=128: gradients on the value side of gla_v take 1.11 ms, with a dot of
        rows 1.69 ms; on the key side of gla 1.17 and 1.24. But such a dot takes fewer registers, which a scalar gate's
        kernels of two warps have none left of.
        """
        if {r.name for r in refs(line.expr)} & {scan.tile for scan in self.kernel.scans}:
            return f"tl.sum({value})"
        match line.expr:
            case Apply(function="mul", args=(Ref(name=x), Ref(name=y))) if len(line.over) == 2:
                return f"tl.sum(_row_products({identifier(x)}, {identifier(y)}))"
        across = axes[::-1] if self.kernel.looped == "j" and "j" in line.over else axes
        stored = min(r.name for r in refs(line.expr) if len(r.indices) == 2)
        sums = f"_column_sums({spread_triton(value, axes, across)}, {weights}, {identifier(stored)}.dtype)"
        return f"tl.sum({sums})" if len(line.over) == 2 else sums

    def _upright(self, tile: str) -> str:
        """A tile as tensors lie in memory."""
        return f"tl.trans({identifier(tile)})" if tile in self.turned else identifier(tile)


def weighed(line: Assign) -> tuple[Expr, str]:
    """What a line sums over an axis, without what it multiplies that by along this axis alone; and the name of this, or
    None."""
    match line.expr:
        case Apply(function="mul", args=(product, Ref(name=name, indices=(index,)))) if (index.axis,) == line.over:
            return product, identifier(name)
    return line.expr, "None"
