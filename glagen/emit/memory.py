"""Where a kernel's tensors lie: pointer arithmetic, masks, loads and stores."""

from __future__ import annotations

from dataclasses import dataclass

from glagen.emit.pointwise import spread_triton, tidy
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel

EXTENT = {"i": "K", "j": "V"}
BLOCK = {"i": "BLOCK_K", "j": "BLOCK_V"}
READS = "READS"  # the constexpr: how many heads of the outputs read one head of the state
BOUND = {"t": "in_T", "i": "in_K", "j": "in_V"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument of a kernel: `kind` says how it lies in memory.

    rows: [B, T, H, axes]; head: [H, axes]; state: [N, H, K, V]; states: [slots, H, K, V];
    remains: [N, H, axes]; row_parts: [B, T, H, axes, blocks]; head_parts: [slots, H, axes, blocks];
    matrices: [slots, H, CHUNK, CHUNK]; chunks: [slots, H, axes], with CHUNK for t.
    `shared`: the constexpr that says how many heads of the kernel share one of the tensor's; "" if each has its own.
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    optional: bool = False
    shared: str = ""


class KernelMemory:
    """The text of a kernel as far as it concerns memory. `tensors` collects its arguments in order of first use."""

    def __init__(self, kernel: Kernel, program: ChunkProgram) -> None:
        declarations = program.recurrence.declarations
        self.kernel = kernel
        self.tensors: dict[str, Tensor] = {}
        self.scopes: list[set[str]] = [set()]  # offsets named so far, by loop
        self.text: list[str] = []
        self.indent = 0
        self.rows = "CHUNK"  # as many as tiles have
        # a gradient lies as its tensor does
        self.sources = {f"d{d.name}": d.name for d in declarations}
        self.shared = {d.name: f"GROUP_{d.name}" for d in declarations if d.kind != "scalar"}
        self.shared |= {f"d{name}_out": group for name, group in self.shared.items()}
        if not kernel.of_states:
            forward = (n for s in program.states for n in (s.name, f"{s.name}_initial", f"{s.name}_final"))
            self.shared |= dict.fromkeys(forward, READS)
            self.shared |= {f"{s.adjoint_end}_final": READS for s in program.states}

    def _line(self, text: str) -> None:
        self.text.append("    " * self.indent + tidy(text))

    def _enter(self) -> None:
        self.indent += 1
        self.scopes.append(set())

    def _leave(self) -> None:
        self.indent -= 1
        self.scopes.pop()

    def _tensor(self, name: str, kind: str, axes: tuple[str, ...], optional: bool = False) -> Tensor:
        """An argument; parts of a sum over programs are of the kernel's own heads."""
        shared = "" if kind == "head_parts" else self.shared.get(name, "")
        return Tensor(name, kind, axes, optional, shared)

    def _address(self, tensor: Tensor, axes: tuple[str, ...] = (), chunk: str = "") -> tuple[str, str]:
        """Pointer arithmetic and mask for a tile of a tensor, with these axes, if not the tensor's own; what is used
        again gets a name. `chunk`: "_next" for numbers of another chunk, or of its steps.

        Only where a tile begins may be beyond what 32 bits count: in it, fewer bits are fewer instructions.
        """
        self.tensors.setdefault(tensor.name, tensor)
        axes = axes or tensor.axes
        if tensor.kind == "matrices":
            return self._matrix(tensor, axes), "n < chunks" if self.kernel.waits else ""  # its last turn has no chunk
        parts = self._offsets(tensor, axes, chunk)
        if tensor.kind in ("rows", "states") and len(axes) > 1:
            name = tensor.name.removesuffix("_out")
            owner = self.sources.get(name, name)
            words = f"of_{owner}{chunk}", f"at_{owner}" + "_T" * (axes != tensor.axes)
            parts = [self._named(word, part) for word, part in zip(words, parts, strict=True)]
        if tensor.kind == "chunks":  # rows past the end of a sequence are there as well
            features = [a for a in axes if a in EXTENT]
            mask = " & ".join(spread_triton(BOUND[a], (a,), axes) for a in features)
            if chunk and not features:  # there may be no other chunk
                mask = "left_next > 0"
            return " + ".join([f"{identifier(tensor.name)}_ptr", *parts]), mask
        steps = "t" in axes
        mask = "in_next" if chunk and steps else " & ".join(spread_triton(BOUND[a], (a,), axes) for a in axes)
        if tensor.kind == "states" and self.kernel.waits:
            mask += " & (n < chunks)"
        if len(axes) > 1 and tensor.kind != "state":
            mask = self._named(f"in_{''.join(axes)}", mask)
        return " + ".join([f"{identifier(tensor.name)}_ptr", *parts]), mask

    def _matrix(self, tensor: Tensor, axes: tuple[str, ...]) -> str:
        """Where a chunk's matrix lies, in a tile with these axes; rows are t."""
        row, column = (spread_triton("row", (axis,), axes) for axis in tensor.axes)
        # a walk that takes halves has a slot for two, each of which has a matrix
        slot = "(first_slot * HALVES + chunk)" if self.kernel.may_halve and self.kernel.scans else "slot"
        return f"{identifier(tensor.name)}_ptr + ({slot} * H + h) * (CHUNK * CHUNK) + {row} * CHUNK + {column}"

    def _named(self, name: str, value: str) -> str:
        if not any(name in scope for scope in self.scopes):
            self.scopes[-1].add(name)
            self._line(f"{name} = {value}")
        return name

    def _offsets(self, tensor: Tensor, axes: tuple[str, ...], chunk: str) -> list[str]:
        """Where the tile begins, which is before its rows and columns, and where its elements are from there on."""
        heads, h = self._heads(tensor)
        begin = {
            "rows": f"first{chunk} * {heads} + {h}",
            "row_parts": f"first * {heads} + {h}",
            "head": h,
            "head_parts": f"slot * {heads} + {h}",
            "state": f"sequence * {heads} + {h}",
            "remains": f"sequence * {heads} + {h}",
            "states": f"slot{chunk} * {heads} + {h}",
            "chunks": f"slot{chunk} * {heads} + {h}",
        }[tensor.kind]
        of_chunk = [("CHUNK", spread_triton("row", ("t",), axes))] if tensor.kind == "chunks" and "t" in axes else []
        steps = of_chunk + [(EXTENT[a], spread_triton(a, (a,), axes)) for a in tensor.axes if a in EXTENT]
        steps += [(f"blocks_{a}", f"block_{a}") for a in self._part_axes(tensor)]
        extents = [extent for extent, _ in steps]
        begin = " * ".join([f"({begin})" if steps else begin, *extents])
        terms = [" * ".join([index, *extents[n + 1 :]]) for n, (_, index) in enumerate(steps)]
        if "t" in axes and not of_chunk:  # how far it is from one step to the next is one number
            stride = f"({' * '.join([heads, *extents])})" if extents else heads
            terms.insert(0, f"{spread_triton('row', ('t',), axes)} * {stride}")
        inside = " + ".join(terms)
        return [begin, inside] if inside else [begin]

    def _heads(self, tensor: Tensor) -> tuple[str, str]:
        """How many heads a tensor has, and which of them is that of the kernel's head h."""
        return (f"(H // {tensor.shared})", f"h // {tensor.shared}") if tensor.shared else ("H", "h")

    def _part_axes(self, tensor: Tensor) -> list[str]:
        if not tensor.kind.endswith("_parts"):
            return []
        return [a for a in self.kernel.owned if a not in self.kernel.whole and a not in tensor.axes]

    def _load_text(self, tensor: Tensor, axes: tuple[str, ...] = (), once: bool = False, chunk: str = "") -> str:
        address, mask = self._address(tensor, axes, chunk)
        if once:  # for the first of the heads that share it
            mask += " & (h % READS == 0)"
        return f"tl.load({address}, mask={mask}, other=0.0)" if mask else f"tl.load({address})"

    def _store(self, tensor: Tensor, value: str) -> None:
        address, mask = self._address(tensor)
        self._line(f"tl.store({address}, {value}, mask={mask})" if mask else f"tl.store({address}, {value})")

    def _given(self, tensor: Tensor, text: str, more: str = "") -> None:
        """A line that runs where an optional tensor is given; `more`: and what else holds."""
        self._line(f"if {identifier(tensor.name)}_ptr is not None{more}:")
        self._line(f"    {text}")

    def _shape(self, axes: tuple[str, ...]) -> str:
        """The extents of a tile, as Triton takes them."""
        return f"[{', '.join(BLOCK.get(a, self.rows) for a in axes)}]"
