"""The same lines to PyTorch source: every chunk at once, tiles as [B, H, chunks, axes]."""

from __future__ import annotations

from glagen.emit.blocks import IN_TORCH, opening_text
from glagen.emit.lines import full_axes, summed_positions
from glagen.emit.pointwise import TORCH, Writer, tidy
from glagen.emit.triton import ROW_MASKS, SELECT_MASK
from glagen.emit.words import identifier
from glagen.errors import InternalError
from glagen.ir.chunk import Operand
from glagen.ir.expr import Ref, refs
from glagen.ir.kernel import Assign, Blocks, Depth, Dot, Line, Load, RowSum, Scan


class TwinPrinter:
    """Prints the body of the forward or the backward. `masks` collects the row masks it uses."""

    def __init__(
        self, chunk: int, head_inputs: frozenset[str], numbers: frozenset[str], lead: str, wanted: frozenset[str]
    ) -> None:
        self.chunk = chunk
        self.head_inputs = head_inputs
        self.masks: dict[str, None] = {}
        self.guards = False
        self.wanted = wanted  # final states that are returned
        self.lead = lead  # the input that B, T, H and the type are read from
        self.text: list[str] = []
        self.indent = 0
        self.started: set[str] = set()
        self.numbers = numbers | {"K", "V", "T", "H"}
        self.writer = Writer(TORCH, self._tile, self.numbers)

    def _line(self, text: str) -> None:
        self.text.append("    " * self.indent + tidy(text))

    def _tile(self, r: Ref) -> str:
        return self._mask(r.name[1:]) if r.name.startswith("%") else identifier(r.name)

    def _mask(self, name: str) -> str:
        if name in ROW_MASKS:
            self.masks[name] = None
        return name

    def print(self, lines: tuple[Line | Scan, ...]) -> list[str]:
        for line in lines:
            match line:
                case Load():
                    self._load(line)
                case Scan():
                    self._scan(line)
                case _:
                    self._any(line)
        return self.text

    def _any(self, line: Line) -> None:
        match line:
            case Assign():
                self._assign(line)
            case Dot():
                self._dot(line)
            case RowSum():
                self._row_sum(line)
            case Depth(name=name, source=source, limit=limit, since=since):
                gate = identifier(source.name)
                rows = f"_depths_by_row({gate}, {identifier(since)}, {float(limit)})"
                self._put(name, rows if since else f"_depths({gate}, {float(limit)})", False)
            case Blocks():
                self._blocks(line)
            case _:
                raise InternalError(f"cannot print {line!r}")

    def _load(self, line: Load) -> None:
        name = identifier(line.name)
        wrap = "_per_head" if line.name in self.head_inputs else "_chunked"
        self._line(f"{name} = {wrap}({name})")

    def _put(self, name: str, value: str, accumulate: bool) -> None:
        name = identifier(name)
        self._line(f"{name} = {name} + {value}" if accumulate and name in self.started else f"{name} = {value}")
        self.started.add(name)

    def _assign(self, line: Assign) -> None:
        axes = full_axes(line)
        value = self.writer.write(line.expr, axes, 1 if line.accumulate else 0)
        if all(r.name in self.numbers for r in refs(line.expr)):
            value = (
                f"torch.full((), {value}, dtype=torch.promote_types({self.lead}.dtype, torch.float32), device=device)"
            )
        if line.guarded:
            self.guards = "t" in axes or self.guards
            if "t" in axes:
                bound = "in_T" if len(axes) == 1 else "in_T[..., :, None]" if axes[0] == "t" else "in_T[..., None, :]"
                value = f"torch.where({bound}, {value}, 0.0)"
            extents = ", ".join({"t": "CHUNK", "i": "K", "j": "V"}[a] for a in axes)
            value = value if line.over else f"{value}.expand(B, H, chunks, {extents})"
        if line.over:
            dims = [n - len(axes) for n in summed_positions(line)]
            value = f"({value}).sum({dims[0] if len(dims) == 1 else tuple(dims)})"
        self._put(line.name, value, line.accumulate)

    def _operand(self, operand: Operand, first: bool, shared: str) -> str:
        name = identifier(operand.name)
        return name if operand.indices.index(shared) == (1 if first else 0) else f"{name}.mT"

    def _dot(self, line: Dot) -> None:
        shared = next(a for a in line.x.indices if a in line.y.indices)
        self._put(
            line.name,
            f"{self._operand(line.x, True, shared)} @ {self._operand(line.y, False, shared)}",
            line.accumulate,
        )

    def _row_sum(self, line: RowSum) -> None:
        name, select = identifier(line.source.name), SELECT_MASK.get(line.select, line.select)
        if line.apart:  # rows t sum what comes after s; transposed, rows s what comes up to t
            upright = line.axes == ("t", "s")
            rows, columns = (select, "earlier") if upright else ("earlier_T", f"{select}_T")
            name, select = f"torch.where({self._mask(columns)}, {name}[..., :, None], 0.0)", rows
        value = f"_row_sums({self._mask(select)}, {name}, {len(line.axes)})"
        self._put(line.name, value, line.accumulate)

    def _blocks(self, line: Blocks) -> None:
        headers, definitions = opening_text(line, self.chunk, IN_TORCH)
        inner = [x.name for x in line.body if x.accumulate]
        for name in dict.fromkeys(inner):
            if identifier(name) not in self.started:
                self._put(name, "0.0", False)
        for header in headers:  # one at most
            self._line(header)
        self.indent += len(headers)
        for text in definitions:
            self._line(text)
        for x in line.body:
            self._any(x)
        self.indent -= len(headers)

    def _scan(self, scan: Scan) -> None:
        """A loop over chunks that keeps the state entering each (backward: the gradient leaving each)."""
        name, first, last = (identifier(n) for n in (scan.tile, scan.first, scan.last))

        def at_chunk(r: Ref) -> str:
            return "carried" if r.name == scan.tile else f"{identifier(r.name)}[:, :, n]"

        update = Writer(TORCH, at_chunk, self.numbers).write(scan.update, ("i", "j"))
        order = "reversed(range(chunks))" if scan.reverse else "range(chunks)"
        self._line(f"carried, {name} = {first}, []")
        self._line(f"for n in {order}:")
        self._line(f"    {name}.append(carried)")
        self._line(f"    carried = {update}")
        flip = "[::-1]" if scan.reverse else ""
        self._line(f"{name} = torch.stack({name}{flip}, 2)")
        if scan.last in self.wanted:
            self._line(f"{last} = carried")
