"""Kernels to Triton source, line by line."""

from __future__ import annotations

from dataclasses import dataclass

from glagen.emit.blocks import opening_text
from glagen.emit.lines import full_axes, summed_positions
from glagen.emit.pointwise import TRITON, Writer, tidy
from glagen.emit.words import identifier
from glagen.errors import InternalError
from glagen.ir.chunk import Operand
from glagen.ir.expr import Ref
from glagen.ir.kernel import Assign, Blocks, Dot, Kernel, Line, Load, Loop, RowSum, Scan, Store, written

EXTENT = {"i": "K", "j": "V"}
BOUND = {"t": "in_T", "i": "in_K", "j": "in_V"}
COORDINATE = {"t": "rows", "i": "i", "j": "j"}
BLOCK = {"i": "BLOCK_K", "j": "BLOCK_V", "t": "CHUNK", "s": "CHUNK"}
ROW_MASKS = {
    "causal": "row[:, None] >= row[None, :]",
    "earlier": "row[:, None] > row[None, :]",
    "causal_T": "row[:, None] <= row[None, :]",
    "earlier_T": "row[:, None] < row[None, :]",
    "diagonal": "row[:, None] == row[None, :]",
}
SELECT_MASK = {"through": "causal", "before": "earlier", "from": "causal_T", "after": "earlier_T"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument of a kernel: `kind` says how it lies in memory.

    rows: [B, T, H, axes]; head: [H, axes]; state: [B, H, K, V]; states: [B, H, chunks, K, V];
    row_parts: [B, T, H, axes, blocks]; head_parts: [B, chunks, H, axes, blocks].
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    optional: bool = False


class KernelPrinter:
    """Prints the body of one kernel. `tensors` collects its arguments in order of first use."""

    def __init__(self, kernel: Kernel, chunk: int, head_inputs: frozenset[str], wide: frozenset[str]) -> None:
        self.kernel = kernel
        self.chunk = chunk
        self.head_inputs = head_inputs  # inputs without t: one value per head
        self.float32 = wide  # tiles that are float32 in memory
        self.tensors: dict[str, Tensor] = {}
        self.masks: dict[str, None] = {}
        self.narrow: set[str] = set()  # tiles that may not be float32
        self.scalars: dict[str, None] = {}
        self.scopes: list[set[str]] = [set()]  # offsets named so far, by loop
        self.text: list[str] = []
        self.indent = 0
        self.writer = Writer(TRITON, self._tile)

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self.text.append("    " * self.indent + tidy(text))

    def _enter(self) -> None:
        self.indent += 1
        self.scopes.append(set())

    def _leave(self) -> None:
        self.indent -= 1
        self.scopes.pop()

    def _tile(self, r: Ref) -> str:
        if r.name.startswith("%"):
            return self._mask(r.name[1:])
        if not r.indices and r.name not in self.narrow and r.name not in self.defined:
            if r.name not in ("K", "V", "T", "H"):
                self.scalars[r.name] = None
            return identifier(r.name)
        name = identifier(r.name)
        return f"{name}.to(tl.float32)" if r.name in self.narrow else name

    def _mask(self, name: str) -> str:
        if name in ROW_MASKS:
            self.masks[name] = None
        return name

    def print(self) -> list[str]:
        """The lines of the kernel's body after the index arithmetic."""
        k = self.kernel
        self.defined = {n for n, _ in k.zeros} | _defined(k.body) | {s.tile for s in k.scans}
        if k.direction is None:
            self._axes_per_chunk()
            self._body(k.body)
            self._stores(k.stores)
            return self.text
        for scan in k.scans:
            self._first(scan)
        step = "chunks - 1 - n" if k.direction == "reverse" else "n"
        self._line("for n in range(0, chunks):")
        self._enter()
        if step != "n":
            self._line(f"chunk = {step}")
        else:
            self._line("chunk = n")
        for scan in k.scans:
            if scan.saved:
                self._line("# the state that enters this chunk" if k.direction == "forward" else
                           "# the gradient of the state that leaves this chunk")  # fmt: skip
                self._store(Tensor(scan.saved, "states", ("i", "j")), identifier(scan.tile))
        self._axes_per_chunk()
        self._body(k.body)
        for scan in k.scans:
            self._line(f"{identifier(scan.tile)} = {self.writer.write(scan.update, ('i', 'j'))}")
        self._stores(k.stores)
        self._leave()
        for scan in k.scans:
            self._last(scan)
        return self.text

    def _axes_per_chunk(self) -> None:
        self._line("step = chunk * CHUNK + row")
        self._line("in_T = step < T")
        self._line("rows = (b * T + step) * H + h")

    def _first(self, scan: Scan) -> None:
        tensor = Tensor(scan.first, "state", ("i", "j"), optional=True)
        self.tensors[tensor.name] = tensor
        name = identifier(scan.tile)
        self._line(f"{name} = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)")
        self._line(f"if {identifier(tensor.name)}_ptr is not None:")
        self.indent += 1
        self._line(f"{name} += {self._load_text(tensor)}")
        self.indent -= 1

    def _last(self, scan: Scan) -> None:
        tensor = Tensor(scan.last, "state", ("i", "j"), optional=True)
        self._line(f"if {identifier(tensor.name)}_ptr is not None:")
        self.indent += 1
        self._store(tensor, identifier(scan.tile))
        self.indent -= 1

    # -- memory ------------------------------------------------------------------------------------------------------

    def _address(self, tensor: Tensor) -> tuple[str, str]:
        """Pointer arithmetic and mask for a tile of a tensor; offsets that others share get a name."""
        self.tensors.setdefault(tensor.name, tensor)
        pointer = f"{identifier(tensor.name)}_ptr"
        offset, mask = self._offset(tensor)
        if tensor.kind not in ("rows", "states") or len(tensor.axes) < 2:
            return f"{pointer} + {offset}", mask
        tag = "".join(tensor.axes)
        if not any(tag in scope for scope in self.scopes):
            self.scopes[-1].add(tag)
            self._line(f"at_{tag} = {offset}")
            self._line(f"in_{tag} = {mask}")
        return f"{pointer} + at_{tag}", f"in_{tag}"

    def _offset(self, tensor: Tensor) -> tuple[str, str]:
        axes = tensor.axes

        def spread(text: str, axis: str) -> str:
            return text if len(axes) < 2 else f"{text}[:, None]" if axis == axes[0] else f"{text}[None, :]"

        offset = {
            "rows": "rows",
            "row_parts": "rows",
            "head": "h",
            "head_parts": "((b * chunks + chunk) * H + h)",
            "state": "head",
            "states": "(head * chunks + chunk)",
        }[tensor.kind]
        if "t" in axes:
            offset = spread(offset, "t")
        features = [a for a in axes if a in EXTENT]
        for a in features:
            offset = f"{offset} * {EXTENT[a]} + {spread(COORDINATE[a], a)}"
            if a != features[-1]:
                offset = f"({offset})"
        for a in self._part_axes(tensor):
            offset = f"({offset}) * blocks_{a} + block_{a}" if features else f"{offset} * blocks_{a} + block_{a}"
        return offset, " & ".join(spread(BOUND[a], a) for a in axes)

    def _part_axes(self, tensor: Tensor) -> list[str]:
        if not tensor.kind.endswith("_parts"):
            return []
        return [a for a in self.kernel.owned if a not in self.kernel.whole and a not in tensor.axes]

    def _load_text(self, tensor: Tensor) -> str:
        address, mask = self._address(tensor)
        return f"tl.load({address}, mask={mask}, other=0.0)" if mask else f"tl.load({address})"

    def _store(self, tensor: Tensor, value: str) -> None:
        address, mask = self._address(tensor)
        self._line(f"tl.store({address}, {value}, mask={mask})" if mask else f"tl.store({address}, {value})")

    def _load(self, line: Load) -> None:
        per_head = "head" if line.name in self.head_inputs else "rows"
        kind = "states" if line.axes == ("i", "j") else per_head
        if line.name not in self.float32:
            self.narrow.add(line.name)
        text = self._load_text(Tensor(line.name, kind, line.axes))
        self._line(f"{identifier(line.name)} = {text}  # {shape(line.axes)}")

    def _stores(self, stores: tuple[Store, ...]) -> None:
        for store in stores:
            rows = "t" in store.axes
            blocked = [a for a in self.kernel.owned if a not in self.kernel.whole and a not in store.axes]
            kind = "rows" if rows else "head_parts"
            if rows and blocked:
                kind = "row_parts"
            self._store(Tensor(f"{store.target}_out", kind, store.axes), identifier(store.tile))

    # -- lines -------------------------------------------------------------------------------------------------------

    def _body(self, body: tuple[Line | Loop, ...]) -> None:
        for name, axes in self.kernel.zeros:
            self._line(f"{identifier(name)} = tl.zeros([{', '.join(BLOCK[a] for a in axes)}], dtype=tl.float32)")
        for item in body:
            if isinstance(item, Loop):
                self._loop(item)
            else:
                self._any(item)

    def _loop(self, loop: Loop) -> None:
        a, extent = loop.axis, EXTENT[loop.axis]
        self._line(f"for block_{a} in range(0, tl.cdiv({extent}, BLOCK_{extent})):")
        self._enter()
        self._line(f"{a} = block_{a} * BLOCK_{extent} + tl.arange(0, BLOCK_{extent})")
        self._line(f"in_{extent} = {a} < {extent}")
        for line in loop.body:
            self._any(line)
        self._leave()

    def _any(self, line: Line) -> None:
        match line:
            case Load():
                self._load(line)
            case Assign():
                self._assign(line)
            case Dot():
                self._dot(line)
            case RowSum():
                self._row_sum(line)
            case Blocks():
                self._blocks(line)
            case _:
                raise InternalError(f"cannot print {line!r}")

    def _assign(self, line: Assign) -> None:
        axes = full_axes(line)
        value = self.writer.write(line.expr, axes)
        if line.guarded:
            bound = " & ".join(
                BOUND[a] + ("" if len(axes) == 1 else "[:, None]" if n == 0 else "[None, :]")
                for n, a in enumerate(axes)
            )
            value = f"tl.where({bound}, {value}, 0.0)"
        if line.over:
            positions = summed_positions(line)
            value = f"tl.sum({value})" if len(positions) == len(axes) else f"tl.sum({value}, axis={positions[0]})"
        if line.rounded:
            value = f"({value}).to({'WIDE' if line.rounded == 'wide' else 'DOT'})"
            self.narrow.add(line.name)
        sign = "+=" if line.accumulate else "="
        self._line(f"{identifier(line.name)} {sign} {value}")

    def _operand(self, operand: Operand, first: bool, shared: str, wide: bool) -> str:
        name = f"{identifier(operand.name)}.to({'WIDE' if wide else 'DOT'})"
        straight = operand.indices.index(shared) == (1 if first else 0)
        return name if straight else f"tl.trans({name})"

    def _dot(self, line: Dot) -> None:
        shared = next(a for a in line.x.indices if a in line.y.indices)
        x = self._operand(line.x, True, shared, line.wide)
        y = self._operand(line.y, False, shared, line.wide)
        sign = "+=" if line.accumulate else "="
        self._line(f"{identifier(line.name)} {sign} tl.dot({x}, {y}, input_precision=PRECISION)")

    def _row_sum(self, line: RowSum) -> None:
        select = self._mask(SELECT_MASK.get(line.select, line.select))
        source = identifier(line.source.name)
        if line.source.name in self.narrow:
            source += ".to(tl.float32)"
        if len(line.axes) == 1:
            value = f"tl.sum(tl.where({select}, {source}[None, :], 0.0), axis=1)"
        else:
            value = f"_sum_rows({select}, {source}, TERMS)"
        self._line(f"{identifier(line.name)} {'+=' if line.accumulate else '='} {value}")

    def _blocks(self, line: Blocks) -> None:
        header, definitions = opening_text(line, self.chunk, "tl.where")
        if header:
            self._line(header)
            self.indent += 1
        for text in definitions:
            self._line(text)
        for inner in line.body:
            self._any(inner)
        if header:
            self.indent -= 1


def _defined(body: tuple[Line | Loop, ...]) -> set[str]:
    names: set[str] = set()
    for item in body:
        for line in item.body if isinstance(item, Loop) else (item,):
            names |= set(written(line))
    return names


def shape(axes: tuple[str, ...]) -> str:
    return "[" + ", ".join({"t": "CHUNK", "i": "BLOCK_K", "j": "BLOCK_V"}[a] for a in axes) + "]"
