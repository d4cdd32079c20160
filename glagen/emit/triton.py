"""Kernels to Triton source, line by line."""

from __future__ import annotations

import itertools
import re

from glagen.emit.blocks import EIGHTS, IN_TRITON, opening_text
from glagen.emit.dots import KernelDots
from glagen.emit.lines import full_axes, summed_positions
from glagen.emit.memory import BOUND, EXTENT
from glagen.emit.pointwise import TRITON, Writer, spread_triton
from glagen.emit.states import weighed
from glagen.emit.words import identifier
from glagen.errors import InternalError
from glagen.ir.chunk import ChunkProgram
from glagen.ir.expr import Apply, Expr, Number, Ref, refs
from glagen.ir.kernel import (
    Assign,
    Blocks,
    Depth,
    Dot,
    Kernel,
    Line,
    Load,
    Loop,
    RowSum,
    Scan,
    lines_of,
    written,
)

ROW_MASKS = {
    "causal": "row[:, None] >= row[None, :]",
    "earlier": "row[:, None] > row[None, :]",
    "causal_T": "row[:, None] <= row[None, :]",
    "earlier_T": "row[:, None] < row[None, :]",
    "diagonal": "row[:, None] == row[None, :]",
    "past": "row[:, None] > row[None, :] if FEW else row[:, None] >= row[None, :]",
    "past_T": "row[:, None] < row[None, :] if FEW else row[:, None] <= row[None, :]",
}
SELECT_MASK = {"through": "causal", "before": "earlier", "from": "causal_T", "after": "earlier_T"}


def counted(turn: str, count: str) -> str:
    """The head of a loop of as many turns as a constant of the kernel says.

    Triton compiles the body of a loop twice, and so what stands in four of them 16 times, but not that of a static one:
    which it is where there is one turn.
    """
    return f"for {turn} in (tl.static_range if {count} == 1 else range)(0, {count}):"


def _used(text: list[str], *names: str) -> list[str]:
    """The lines without those that say what these are where no other line asks, in this order."""
    for name in names:
        asked = [line for line in text if re.search(rf"\b{name}\b", line) and not line.strip().startswith(f"{name} = ")]
        text = text if asked else [line for line in text if not line.strip().startswith(f"{name} = ")]
    return text


class KernelPrinter(KernelDots):
    """Prints the body of one kernel."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, chunk: int, by_tma: bool = False) -> None:
        super().__init__(kernel, program, by_tma)
        self.chunk = chunk
        self.states = {n for s in program.states for n in (s.name, s.adjoint_end)}
        self.has_same_bits = kernel.runs_twice and not kernel.of_gradients  # in both runs, where gates are mild
        self.asked = False  # is it known here whether another kernel has made scores?
        self.scalars: dict[str, None] = {}
        self.writer = Writer(TRITON, self._tile)
        self.as_it_is = Writer(TRITON, lambda r: self._tile(r).removesuffix(f".to({self.real})"))

    def _tile(self, r: Ref) -> str:
        if r.name.startswith("%"):
            return r.name[1:]
        if not r.indices and r.name not in self.narrow and r.name not in self.defined:
            if r.name not in ("K", "V", "T", "H"):
                self.scalars[r.name] = None
            return identifier(r.name)
        name = identifier(r.name)
        return f"{name}.to({self.real})" if r.name in self.narrow else name

    def print(self) -> list[str]:
        """The lines of the kernel's body after the index arithmetic."""
        k = self.kernel
        self.defined = {n for line in k.lines for n in written(line)} | {s.tile for s in k.scans} | set(self.carried)
        if k.direction:
            self._walk()
        elif k.reduces_heads:
            self._members()
        else:
            self._chunk()
        return _used(self.text, "in_T", "left", "first", "in_next", "left_next", "first_next")

    def _walk(self) -> None:
        """A loop over the chunks of a sequence, with the states on chip."""
        k = self.kernel
        self._begin()
        self._load_first()
        self._describe_loads()
        self._line(f"for n in range(0, chunks{' + 1' if self.waiting else ''}):")
        self._enter()
        self._line("chunk = chunks - 1 - n" if k.direction == "reverse" else "chunk = n")
        of_states = any(isinstance(line, Load) and {*line.axes} == {"i", "j"} for line in k.lines)
        if self.saved or k.given or of_states:
            self._line(f"slot = first_slot + chunk{' // HALVES' * k.may_halve}")
        self._line("first = start + chunk * CHUNK")
        left = "length - chunk * CHUNK"
        self._line(f"left = {f'tl.where(n < chunks, {left}, 0)' if self.waiting else left}")
        for scan in self.waiting:
            self._turn(scan)
        self._enter_chunk()
        self._fetch_ahead()
        self._chunk(scanned=True)
        self._leave_chunk()
        self._leave()
        self._end()

    def _members(self) -> None:
        """A loop over heads that share a head of some tensor, whose gradient is summed over them."""
        for store in self.kernel.stores:
            if self._out(store).shared:
                self._line(f"{identifier(store.target)}_sum = tl.zeros({self._shape(store.axes)}, dtype={self.real})")
        self._line(counted("member", "GROUP"))
        self._enter()
        self._line("h = group * GROUP + member")
        self._chunk()
        self._leave()

    def _chunk(self, scanned: bool = False) -> None:
        self._line("in_T = row < left")
        self._begin_notes()
        self._body(self.kernel.body)
        self._note_least(self.kernel.looped, inside=False)
        self._keep_by_tma()
        self._wait()
        for scan in self.kernel.scans if scanned and not self.waiting else ():
            self._turn(scan)
        for store in self.kernel.stores:
            if self.kernel.looped not in store.axes and store not in self.stored:
                self._store_out(store)
        self._store_notes()

    def _turn(self, scan: Scan) -> None:
        """What a state is for the next chunk."""
        if not (isinstance(scan.update, Ref) and scan.update.name == scan.tile):
            self._line(f"{identifier(scan.tile)} = {self.writer.write(scan.update, scan.axes)}")
        for dot in scan.added:
            self._dot(dot)
        if scan.late is not None:
            self._line(f"{identifier(scan.tile)} *= {self.writer.write(scan.late, scan.axes)}")
        self._round(scan)

    # -- lines -------------------------------------------------------------------------------------------------------

    def _body(self, body: tuple[Line | Loop, ...]) -> None:
        for name, axes in self.kernel.zeros.items():
            self._line(f"{identifier(name)} = tl.zeros({self._shape(axes)}, dtype={self.real})")
        self._items(body)

    def _items(self, items: tuple[Line | Loop, ...]) -> None:
        """Lines and loops in order; those that only make scores where nobody else has."""
        for spared, group in itertools.groupby(items, self._is_spared):
            asks = spared and not self.asked
            if asks:
                self._line(f"if {identifier(self.kernel.ready[0].tensor)}_ptr is None:")
                self._enter()
                self.asked = True
            for item in group:
                self._load_ready(item)
                self._keep_before(item)
                self._any(item)
                self._store_soon(item)
            if asks:
                self._leave()
                self.asked = False

    def _is_spared(self, item: Line | Loop) -> bool:
        return self.kernel.spared >= frozenset(lines_of(item))

    def _loop(self, loop: Loop) -> None:
        a, extent = loop.axis, EXTENT[loop.axis]
        self._line(counted(f"block_{a}", f"blocks_{a}"))
        self._enter()
        self._line(f"{a} = block_{a} * BLOCK_{extent} + tl.arange(0, BLOCK_{extent})")
        self._line(f"in_{extent} = {a} < {extent}")
        self._items(loop.body)
        self._note_least(a, inside=True)
        for store in self.kernel.stores:
            if a in store.axes:
                self._store_out(store)
        self._leave()

    def _any(self, line: Line | Loop) -> None:
        match line:
            case Loop():
                self._loop(line)
            case Load():
                self._load(line)
            case Assign():
                self._assign(line)
            case Dot():
                self._dot(line)
            case RowSum():
                self._row_sum(line)
            case Depth():
                self._depth(line)
            case Blocks():
                self._blocks(line)
            case _:
                raise InternalError(f"cannot print {line!r}")

    def _assign(self, line: Assign) -> None:
        axes, sign = full_axes(line), "+=" if line.accumulate else "="
        match line.expr:
            case Apply(function="clamp", args=(Ref(name=name),)) if (
                name in self.narrow and not line.guarded and len(axes) > 1
            ):
                mask = self._named(f"in_{''.join(axes)}", " & ".join(spread_triton(BOUND[a], (a,), axes) for a in axes))
                looped = self.kernel.looped
                late = f"blocks_{looped} > 1" if looped and looped not in axes else "False"
                value = f"_at_least({identifier(name)}, FLOOR, {mask}, {late})"
                self.narrow.add(line.name)
            case Apply(function="clamp" | "keep", args=(*_, Ref(name=name))) if (
                name in self.narrow and not line.guarded
            ):
                value = self.as_it_is.write(line.expr, axes)  # exact in the type that it has
                self.narrow.add(line.name)
            case _:
                value = self._value(line.expr, axes)
        if line.guarded:
            bound = " & ".join(spread_triton(BOUND[a], (a,), axes) for a in axes)
            value = f"tl.where({bound}, {value}, 0.0)"
        if line.over:
            value = self._reduced(line, axes, value)
        if line.rounded:
            value = f"({value}).to({'WIDE' if line.rounded == 'wide' else 'DOT'})"
            self.narrow.add(line.name)
        value = f"{self._value(line.strong, axes)} if TERMS == 2 else {value}" if line.strong is not None else value
        if line.mild is not None and line.mild != line.strong:
            value = f"{self._mild(line, axes)} else {value}"
        name = identifier(line.name)
        self._line(f"{name} {sign} {value}")
        if line.mild is not None and line.still_mild:
            sums, least = line.still_mild
            self._line("if STRONG and TERMS == 2:  # the bits of the first run, until gates are strong")
            enough = f"{self.writer.write(sums, axes)} >= {self.writer.write(least, ())}"
            self._line(f"    {name} = tl.where({enough}, {self.writer.write(line.mild, axes)}, {name})")

    def _value(self, expr: Expr, axes: tuple[str, ...]) -> str:
        """An expression's text; of a number, a tile of it."""
        text = self.writer.write(expr, axes)
        is_number = isinstance(expr, Number) or (isinstance(expr, Ref) and expr.name.startswith("%"))
        return f"tl.full({self._shape(axes)}, {text}, {self.real})" if is_number and axes else text

    def _reduced(self, line: Assign, axes: tuple[str, ...], value: str) -> str:
        """A tile's sums, or what is least, over some of its axes."""
        positions = summed_positions(line)
        if line.least:
            return f"tl.min({value}, axis={positions[0]})"
        tiles = {r.name for r in refs(line.expr) if len(r.indices) == 2}
        if len(tiles) == 2 and tiles <= self.states:
            product, weights = weighed(line)
            return self._sum_of_states(line, self.writer.write(product, axes), weights, axes)
        if self.has_same_bits and len(axes) == 2 and line.over in (("i",), ("j",)):
            rows = f"{value}, tl.full({self._shape(axes)}, 1.0, {self.real})"
            match line.expr:
                case Apply(function="mul", args=(x, Ref(indices=indices) as y)) if (
                    tuple(index.axis for index in indices) == axes and not line.guarded
                ):
                    rows = f"({self.writer.write(x, axes)}).to(WIDE), {self.as_it_is.write(y, axes)}.to(WIDE)"
            return f"_dots_of_rows({rows}, PRECISION)"
        return f"tl.sum({value})" if len(positions) == len(axes) else f"tl.sum({value}, axis={positions[0]})"

    def _mild(self, line: Assign, axes: tuple[str, ...]) -> str:
        """What a tile is beside 16-bit inputs, in a run that counts only where gates are mild; and when that holds."""
        assert line.mild is not None
        value = self._value(line.mild, axes)
        value = f"tl.min({value}, axis={summed_positions(line)[0]})" if line.over else value
        return f"{value} if MILD{' and not SHIFTED' if line.near else ''}"

    def _depth(self, line: Depth) -> None:
        source = identifier(line.source.name)
        found = f"_depth({source}, {float(line.limit)})"
        if line.since:
            most = "LIMIT" if line.shifted else float(line.limit)
            bounded = "TERMS == 2" if line.bounded and not line.always else "False"
            found = f"_row_depths({source}, {identifier(line.since)}, {float(line.limit)}, {most}, LEVELS, {bounded})"
            if line.always:
                eights = f"tl.full({self._shape(line.axes)}, {EIGHTS}, tl.int32)"
                found = f"({eights} if TERMS == 2 else {found})"
        elif line.bounded:
            found = f"({EIGHTS} if TERMS == 2 else {found})"
        self._line(f"{identifier(line.name)} = {found} if STRONG else 0")

    def _row_sum(self, line: RowSum) -> None:
        source = self._upright(line.source.name)
        if line.source.indices == ("t",):
            value = self._sums_of_steps(line, source)
            self._line(f"{identifier(line.name)} {'+=' if line.accumulate else '='} {value}")
            return
        select = SELECT_MASK.get(line.select, line.select)
        source += f".to({self.real})" if self.divisor and line.source.name in self.narrow else ""
        value = f"_sum_rows({select}, {source}, TERMS)"
        if line.spared:
            value = f"tl.zeros({self._shape(line.axes)}, dtype={self.real}) if MILD else {value}"
        self._line(f"{identifier(line.name)} {'+=' if line.accumulate else '='} {value}")

    def _sums_of_steps(self, line: RowSum, source: str) -> str:
        """Sums of what has one number a step."""
        source += f".to({self.real})" if line.source.name in self.narrow else ""
        if line.apart:
            if line.select not in ("through", "before"):
                raise InternalError(f"{line.name} sums {line.select}, apart")
            return f"_sum_between({source}, {line.axes == ('s', 't')}, {line.select == 'before'}, TERMS)"
        if line.select in ("through", "from"):
            return f"tl.cumsum({source}{', reverse=True' if line.select == 'from' else ''})"
        if line.exponent:
            return f"_sum_{line.select}({source}, TERMS)"
        return f"tl.sum(tl.where({SELECT_MASK[line.select]}, {source}[None, :], 0.0), axis=1)"

    def _blocks(self, line: Blocks) -> None:
        headers, definitions = self._opening(line)
        outside = self.indent, self.has_same_bits
        strong = bool(line.depth) and line.kind not in ("guard", "own")
        self.has_same_bits &= not strong
        if strong:
            self._line("if STRONG:")
            self.indent += 1
        for header in headers or [""]:
            if header:
                self._line(header)
            self.indent += bool(header)
            for text in definitions:
                self._line(text)
            for inner in line.body:
                self._any(inner)
            self.indent -= bool(header)
        self.indent, self.has_same_bits = outside

    def _opening(self, line: Blocks) -> tuple[list[str], list[str]]:
        """The headers of the loops that blocks are in, and the masks that they use."""
        return opening_text(line, self.chunk, IN_TRITON)
