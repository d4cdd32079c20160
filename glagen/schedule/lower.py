"""Statements of a chunk program to lines of tile code.

A decay with a row at one end only becomes a factor on the operand (or the result) that has the row and the gate's
axes. A decay between two rows becomes a cover's blocks where it has a feature axis, and a matrix factor where not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from glagen.errors import InternalError
from glagen.ir.chunk import (
    Carry,
    ChunkProgram,
    Contract,
    Crossing,
    Decay,
    GateGradient,
    Map,
    Operand,
    Statement,
)
from glagen.ir.expr import Apply, Expr, Number, Ref, apply, ref
from glagen.ir.kernel import Assign, Blocks, Dot, Line, RowSum, read, written
from glagen.schedule.covers import Cover

ROW_SELECT = {"start": {False: "through", True: "before"}, "end": {False: "after"}}
SUFFIX = {"start": "from_start", "end": "to_end"}


def tile(name: str, *axes: str) -> Ref:
    return ref(name, axes)


def times(*factors: Expr) -> Expr:
    product, *rest = factors
    for f in rest:
        product = apply("mul", product, f)
    return product


def keep(mask: str, x: Expr, *axes: str) -> Expr:
    """x where the mask holds, else 0. A mask's name begins with %, as no name of a spec can."""
    return apply("keep", tile(f"%{mask}", *axes), x)


def natural(operand: Operand) -> Ref:
    """The tile of an operand: rows are called t unless there are two."""
    axes = operand.indices
    return tile(operand.name, *(axes if {"t", "s"} <= set(axes) else ("t" if x == "s" else x for x in axes)))


@dataclass(slots=True)
class Lowering:
    """The lines of one kernel (or of the PyTorch form), as they grow."""

    program: ChunkProgram
    covers: dict[str, Cover]  # by gate, vector gates only
    looped: str | None  # feature axis in blocks: sums over it accumulate
    statements: tuple[Statement, ...]
    lines: list[Line] = field(default_factory=list)
    updates: dict[str, Expr] = field(default_factory=dict)  # carried states: what they become
    _known: dict[object, str] = field(default_factory=dict)
    _transposed: set[str] = field(default_factory=set)
    _upright: set[str] = field(default_factory=set)
    _crossed: dict[str, tuple[str, Operand, str]] = field(default_factory=dict)  # part -> gate, partner, bucket

    # -- what the kernel needs ---------------------------------------------------------------------------------------

    def run(self) -> list[Line]:
        """Lower every statement. Ensures: each value a statement defines is written by the lines."""
        for statement in self.statements:
            self._note_uses(statement)
        for statement in self.statements:
            match statement:
                case Map():
                    self._map(statement)
                case Contract(order=None):
                    self._outer(statement)
                case Contract():
                    self._triangle(statement)
                case GateGradient():
                    self._gate_gradient(statement)
                case Carry():
                    self.updates[statement.out.name] = self._carry(statement)
                case _:
                    raise InternalError(f"cannot lower {statement!r}")
        return merge_blocks(self.lines)

    def _note_uses(self, statement: Statement) -> None:
        """Which way round each [t, s] matrix is used, and which parts feed a gate's gradient from within blocks."""
        match statement:
            case Contract(operands=operands, out=out, order=str()):
                for operand in operands:
                    if operand.indices == ("t", "s"):
                        (self._upright if "t" in out.indices else self._transposed).add(operand.name)
            case GateGradient(crossings=crossings):
                for crossing in crossings:
                    self._note_crossing(crossing)

    def _note_crossing(self, crossing: Crossing) -> None:
        if not (crossing.upper and crossing.lower):
            return
        decay = crossing.decay
        if not decay.axes:
            self._upright |= {o.name for o in crossing.upper}
            return
        read_bucket = f"crossed_{decay.gate}" + ("_before" if decay.upper.before else "")
        for pair, bucket in ((crossing.upper, read_bucket), (crossing.lower, f"crossed_{decay.gate}")):
            made = {s.out.name for s in self.statements if isinstance(s, Contract) and s.order}
            part, partner = sorted(pair, key=lambda o: o.name not in made)
            self._crossed[part.name] = (decay.gate, partner, bucket)

    def _emit(self, *lines: Line) -> None:
        self.lines.extend(lines)

    # -- pointwise ---------------------------------------------------------------------------------------------------

    def _map(self, statement: Map) -> None:
        out, over = statement.out, statement.over
        looped = self.looped is not None and self.looped in over
        axes = {*out.indices, *over} & {"t", "i", "j"}
        guarded = any(not self._vanishes(statement.expr, axis) for axis in axes)
        self._emit(Assign(out.name, out.indices, statement.expr, over, accumulate=looped, guarded=guarded))

    def _vanishes(self, expr: Expr, axis: str) -> bool:
        """Is the expression surely zero outside the tensor along an axis, given that inputs are?"""
        dense = {s.out.name for s in self.statements if isinstance(s, GateGradient)}
        match expr:
            case Ref(name=name, indices=indices):
                return name not in dense and any(index.axis == axis for index in indices)
            case Apply(function="mul", args=args):
                return any(self._vanishes(a, axis) for a in args)
            case Apply(function="add" | "sub" | "neg" | "max" | "min" as f, args=args):
                return all(self._vanishes(a, axis) for a in args) and f not in ("max", "min")
            case Apply(function="div", args=(x, y)):
                return self._vanishes(x, axis) and isinstance(y, Number)
            case Apply(function="relu" | "silu" | "tanh" | "abs" | "elu" | "clamp", args=(x,)):
                return self._vanishes(x, axis)
            case _:
                return False

    # -- decays with at most one row ---------------------------------------------------------------------------------

    def factor(self, decay: Decay) -> Ref:
        """The tile of a decay that has a row at one end at most."""
        gate = tile(decay.gate, "t", *decay.axes)
        row = decay.upper if decay.upper.is_row else decay.lower
        edge = decay.lower if decay.upper.is_row else decay.upper
        if not row.is_row:
            name, axes = f"{decay.gate}_whole", decay.axes
            if name not in self._known:
                self._known[name] = name
                self._emit(Assign(f"log_{name}", axes, gate, over=("t",)))
                self._emit(Assign(name, axes, apply("exp", tile(f"log_{name}", *axes))))
            return tile(name, *axes)
        name = f"{decay.gate}_{SUFFIX[edge.at]}" + ("_before" if row.before else "")
        axes = ("t", *decay.axes)
        if name not in self._known:
            self._known[name] = name
            select = ROW_SELECT[edge.at][row.before]
            self._emit(RowSum(f"log_{name}", axes, Operand(gate.name, axes), select))
            self._emit(Assign(name, axes, apply("exp", tile(f"log_{name}", *axes))))
        return tile(name, *axes)

    def _carry(self, carry: Carry) -> Expr:
        kept = times(natural(carry.carried), *(self.factor(d) for d in carry.decays))
        for added in carry.added:
            kept = apply("add", kept, natural(added))
        return kept

    def _outer(self, statement: Contract) -> None:
        """A product with at most one row index in each decay: scale operands, multiply, scale the result."""
        on_result: list[Decay] = []
        on_operand: dict[str, list[Decay]] = {o.name: [] for o in statement.operands}
        for decay in statement.decays:
            row = decay.upper.at if decay.upper.is_row else decay.lower.at
            needed = {row, *decay.axes}
            holders = [o for o in statement.operands if needed <= set(o.indices)]
            if needed <= set(statement.out.indices) and (not holders or not decay.axes):
                on_result.append(decay)
            elif holders:
                on_operand[holders[0].name].append(decay)
            else:
                raise InternalError(f"no operand of {statement.out} can carry {decay}")
        x, y = (self._scaled(o, tuple(on_operand[o.name])) for o in statement.operands)
        x, y = self._ordered(statement.out, x, y)
        out = natural(statement.out)
        axes = tuple(index.axis for index in out.indices)
        looped = self.looped in statement.over
        plain = f"{out.name}_undecayed" if on_result else out.name
        self._emit(Dot(plain, axes, x, y, accumulate=looped, wide=self._is_wide(x, y)))  # type: ignore[arg-type]
        if on_result:
            self._emit(Assign(out.name, axes, times(tile(plain, *axes), *(self.factor(d) for d in on_result))))

    def _ordered(self, out: Operand, x: Operand, y: Operand) -> tuple[Operand, Operand]:
        """The operand with the result's first index comes first."""
        return (x, y) if out.indices[0] in x.indices else (y, x)

    def _scaled(self, operand: Operand, decays: tuple[Decay, ...]) -> Operand:
        if not decays:
            return operand
        tag = "_".join(SUFFIX["start" if d.upper.is_row else "end"] for d in decays[:1])
        name = f"{operand.name}_{tag}" + ("_before" if decays[0].upper.before else "")
        if self._known.setdefault((operand.name, decays), name) and name not in self._known:
            self._known[name] = name
            value = natural(operand)
            axes = tuple(index.axis for index in value.indices)
            product = times(value, *(self.factor(d) for d in decays))
            self._emit(Assign(name, axes, product, rounded=True))
        return Operand(name, operand.indices)

    def _is_wide(self, *operands: Operand) -> bool:
        states = {n for s in self.program.states for n in (s.name, s.adjoint_end)}
        return any(o.indices in (("t", "s"), ("s", "t")) or o.name in states for o in operands)

    # -- products over the causal triangle ---------------------------------------------------------------------------

    def _triangle(self, statement: Contract) -> None:
        vector = [d for d in statement.decays if d.axes]
        if len(vector) > 1:
            raise InternalError(f"{statement.out} has two vector decays between rows")
        matrix = [d for d in statement.decays if not d.axes]
        if statement.out.indices == ("t", "s"):
            self._scores(statement, vector, matrix)
        else:
            self._apply(statement, vector, matrix)

    def _between(self, decay: Decay, transposed: bool) -> Ref:
        """A scalar decay as a matrix [t, s] (or [s, t]): sums over s < tau <= t, each over its own interval."""
        before = "_before" if decay.upper.before else ""
        name = f"{decay.gate}_between{before}" + ("_T" if transposed else "")
        axes = ("s", "t") if transposed else ("t", "s")
        if name not in self._known:
            self._known[name] = name
            gate = tile(decay.gate, "t")
            if transposed:  # rows s sum tau > s of the gates with tau <= t
                mask = "earlier_T" if decay.upper.before else "causal_T"
                source, select = keep(mask, tile(decay.gate, "s"), "s", "t"), "after"
            else:  # rows t sum tau <= t of the gates with tau > s
                source, select = keep("earlier", gate, "t", "s"), ROW_SELECT["start"][decay.upper.before]
            self._emit(Assign(f"{name}_steps", axes, source))
            self._emit(RowSum(f"log_{name}", axes, Operand(f"{name}_steps", axes), select))
            self._emit(Assign(name, axes, apply("exp", tile(f"log_{name}", *axes))))
        return tile(name, *axes)

    def _scores(self, statement: Contract, vector: list[Decay], matrix: list[Decay]) -> None:
        """[t, s]: every way round that is used. Above the diagonal they are zero."""
        name = statement.out.name
        reader = next(o for o in statement.operands if "t" in o.indices)
        writer = next(o for o in statement.operands if "s" in o.indices)
        for transposed in (False, True):
            if name not in (self._transposed if transposed else self._upright):
                continue
            out = f"{name}_T" if transposed else name
            axes = ("s", "t") if transposed else ("t", "s")
            mark = "_T" if transposed else ""
            looped = self.looped in statement.over
            x, y = (writer, reader) if transposed else (reader, writer)
            if vector:
                self._covered_scores(statement, vector[0], out, axes, mark)
                continue
            self._emit(Dot(f"{out}_all", axes, x, y, accumulate=looped, wide=self._is_wide(x, y)))
            mask = ("causal" if statement.order == "<=" else "earlier") + mark
            value = times(tile(f"{out}_all", *axes), *(self._between(d, transposed) for d in matrix))
            self._emit(Assign(out, axes, keep(mask, value, *axes)))

    def _apply(self, statement: Contract, vector: list[Decay], matrix: list[Decay]) -> None:
        """[t, x] or [s, x] from a [t, s] matrix and rows of the other kind."""
        weights = next(o for o in statement.operands if o.indices == ("t", "s"))
        rows = next(o for o in statement.operands if o is not weights)
        transposed = "s" in statement.out.indices
        if vector:
            self._covered_apply(statement, vector[0], weights, rows, transposed)
            return
        name = f"{weights.name}_T" if transposed else weights.name
        axes = ("s", "t") if transposed else ("t", "s")
        if matrix:
            decayed = f"{name}_decayed"
            if decayed not in self._known:
                self._known[decayed] = decayed
                factors = [self._between(d, transposed) for d in matrix]
                self._emit(Assign(decayed, axes, times(tile(name, *axes), *factors)))
            name = decayed
        out = natural(statement.out)
        out_axes = tuple(index.axis for index in out.indices)
        self._emit(Dot(out.name, out_axes, Operand(name, axes), rows, wide=True))  # type: ignore[arg-type]

    # -- covers ------------------------------------------------------------------------------------------------------

    def _ends(self, decay: Decay, kind: str) -> tuple[list[Line], Ref, Ref]:
        """Within a block: lines for the two halves of a decay, reading rows' and writing rows'."""
        axes = ("t", *decay.axes)
        gate = Operand(decay.gate, axes)
        before = "_before" if decay.upper.before else ""
        up, low = f"{decay.gate}_down{before}", f"{decay.gate}_up{before}"
        log = f"log_{decay.gate}_within{before}"
        exp_log = apply("exp", tile(log, *axes))
        if kind == "leaf":
            grow = f"log_{decay.gate}_leaf"
            lines: list[Line] = [
                RowSum(log, axes, gate, f"leaf{before}"),
                Assign(up, axes, exp_log),
                RowSum(grow, axes, gate, "leaf"),
                Assign(low, axes, apply("exp", apply("neg", tile(grow, *axes)))),
            ]
        else:
            lines = [
                RowSum(log, axes, gate, f"between{before}"),
                Assign(up, axes, keep("upper", exp_log, "t")),
                Assign(low, axes, keep("lower", exp_log, "t")),
            ]
        return lines, tile(up, *axes), tile(low, *axes)

    def _blocks(self, decay: Decay, kind: str, leaf: int, body: Iterable[Line]) -> None:
        self._emit(Blocks(kind, leaf, tuple(body)))  # type: ignore[arg-type]

    def _covered_scores(self, statement: Contract, decay: Decay, out: str, axes: tuple[str, ...], mark: str) -> None:
        reader = next(o for o in statement.operands if "t" in o.indices)
        writer = next(o for o in statement.operands if "s" in o.indices)
        over = statement.over
        for kind, leaf in self.covers[decay.gate].parts:
            if kind == "offsets":
                lines, fade, moved = self._offset(decay, writer)
                diagonal = f"{out}_offset"
                lines.append(Assign(diagonal, ("t",), times(natural(reader), fade, moved), over=over))
                hit = keep(f"on_offset{mark}", tile(diagonal, "t"), *axes)
                lines.append(Assign(out, axes, hit, accumulate=True))
            else:
                lines, up, low = self._ends(decay, kind)
                down_name, up_name = f"{reader.name}_down", f"{writer.name}_up"
                lines.append(Assign(down_name, up_axes(up), times(natural(reader), up), rounded=True))
                lines.append(Assign(up_name, up_axes(low), times(natural(writer), low), rounded=True))
                x, y = Operand(down_name, reader.indices), Operand(up_name, writer.indices)
                x, y = (y, x) if mark else (x, y)
                lines.append(Dot(f"{out}_block", axes, x, y))  # type: ignore[arg-type]
                hit = keep(f"same{mark}", tile(f"{out}_block", *axes), *axes)
                lines.append(Assign(out, axes, hit, accumulate=True))
            self._blocks(decay, kind, leaf, lines)
        if statement.order == "<=":
            own = f"{statement.out.name}_own"
            if own not in self._known:
                self._known[own] = own
                product = times(natural(reader), natural(writer))
                self._emit(Assign(own, ("t",), product, over=over, accumulate=self.looped in over))
            self._emit(Assign(out, axes, keep("diagonal", tile(own, axes[0]), *axes), accumulate=True))

    def _covered_apply(
        self, statement: Contract, decay: Decay, weights: Operand, rows: Operand, transposed: bool
    ) -> None:
        out = natural(statement.out)
        axes = up_axes(out)
        mark = "_T" if transposed else ""
        w_axes = ("s", "t") if transposed else ("t", "s")
        matrix = tile(weights.name + mark, *w_axes)
        crossed = self._crossed.get(out.name)
        for kind, leaf in self.covers[decay.gate].parts:
            if kind == "offsets":
                self._blocks(decay, kind, leaf, self._offset_apply(statement, decay, matrix, rows, transposed))
                continue
            lines, up, low = self._ends(decay, kind)
            own, other = (low, up) if transposed else (up, low)
            rounded = f"{rows.name}_{'down' if transposed else 'up'}"
            lines.append(Assign(rounded, axes, times(natural(rows), other), rounded=True))
            block = f"{matrix.name}_same"
            lines.append(Assign(block, w_axes, keep(f"same{mark}", matrix, *w_axes)))
            part = f"{out.name}_part"
            lines.append(Dot(part, axes, Operand(block, w_axes), Operand(rounded, rows.indices), wide=True))  # type: ignore[arg-type]
            lines.append(Assign(out.name, axes, times(own, tile(part, *axes)), accumulate=True))
            if crossed:
                _, partner, bucket = crossed
                consumed = f"{partner.name}_{'up' if transposed else 'down'}"
                lines.append(Assign(consumed, axes, times(natural(partner), own), rounded=True))
                path = times(tile(consumed, *axes), tile(part, *axes))
                path = apply("neg", path) if transposed else path
                lines.append(Assign(bucket, axes, path, accumulate=True))
            self._blocks(decay, kind, leaf, lines)
        if statement.order == "<=":
            own_weight = f"{weights.name}_diagonal{mark}"
            self._emit(Assign(own_weight, ("t",), keep("diagonal", matrix, *w_axes), over=w_axes[1:]))
            self._emit(Assign(out.name, axes, times(tile(own_weight, "t"), natural(rows)), accumulate=True))

    def _offset(self, decay: Decay, writer: Operand | None) -> tuple[list[Line], Ref, Ref]:
        """One diagonal of a leaf: the decay over the last `offset` steps, and the writer `offset` steps ago."""
        axes = ("t", *decay.axes)
        before = "_before" if decay.upper.before else ""
        log, fade = f"log_{decay.gate}_span{before}", f"{decay.gate}_span{before}"
        moved = f"{writer.name}_moved" if writer else ""
        lines: list[Line] = [
            RowSum(log, axes, Operand(decay.gate, axes), f"span{before}"),
            Assign(fade, axes, keep("inside", apply("exp", tile(log, *axes)), "t")),
        ]
        if writer:
            lines.append(RowSum(moved, axes, Operand(writer.name, axes), "shift"))
        return lines, tile(fade, *axes), tile(moved, *axes)

    def _offset_apply(
        self, statement: Contract, decay: Decay, matrix: Ref, rows: Operand, transposed: bool
    ) -> list[Line]:
        out = natural(statement.out)
        axes = up_axes(out)
        mark = "_T" if transposed else ""
        w_axes = up_axes(matrix)
        crossed = self._crossed.get(out.name)
        weight = f"{matrix.name}_offset"
        picked = Assign(weight, ("t",), keep(f"on_offset{mark}", matrix, *w_axes), over=("s",))
        if not transposed:
            lines, fade, moved = self._offset(decay, rows)
            lines.append(picked)
            part = f"{out.name}_part"
            lines.append(Assign(part, axes, times(tile(weight, "t"), fade, moved)))
            lines.append(Assign(out.name, axes, tile(part, *axes), accumulate=True))
        else:
            lines, fade, _ = self._offset(decay, None)
            lines.append(picked)
            sent, part = f"{out.name}_sent", f"{out.name}_part"
            lines.append(Assign(sent, axes, times(tile(weight, "t"), fade, natural(rows))))
            lines.append(RowSum(part, axes, Operand(sent, axes), "unshift"))
            lines.append(Assign(out.name, axes, tile(part, *axes), accumulate=True))
        if crossed:
            _, partner, bucket = crossed
            path = times(natural(partner), tile(part, *axes))
            lines.append(Assign(bucket, axes, apply("neg", path) if transposed else path, accumulate=True))
        return lines

    # -- gate gradients ----------------------------------------------------------------------------------------------

    def _gate_gradient(self, statement: GateGradient) -> None:
        """Suffix and prefix sums of what crosses each step. See derive/adjoint.py for why."""
        axes = statement.out.indices
        gate = statement.gate
        buckets: dict[str, list[Expr]] = {"from": [], "after": [], "before": []}
        whole: list[Expr] = []
        for number_, crossing in enumerate(statement.crossings):
            decay = crossing.decay
            if not decay.upper.is_row and not decay.lower.is_row:
                whole.append(self._whole_crossing(statement, crossing, number_))
            elif crossing.upper and crossing.lower:
                self._inner_crossing(statement, crossing, number_, buckets)
            elif crossing.upper:
                select = "after" if decay.upper.before else "from"
                buckets[select].append(self._product(crossing.upper, axes, f"{gate}_path_{number_}"))
            elif crossing.lower:
                buckets["before"].append(self._product(crossing.lower, axes, f"{gate}_path_{number_}"))
        total: list[Expr] = []
        for select, paths in buckets.items():
            if not paths:
                continue
            source, summed = f"{gate}_paths_{select}", f"d{gate}_{select}"
            value = paths[0]
            for path in paths[1:]:
                value = apply("add", value, path)
            self._emit(Assign(source, axes, value))
            self._emit(RowSum(summed, axes, Operand(source, axes), select))
            total.append(tile(summed, *axes))
        value = total[0] if total else (whole.pop(0))
        for path in (*total[1:], *whole):
            value = apply("add", value, path)
        self._emit(Assign(statement.out.name, axes, value))

    def _product(self, pair: tuple[Operand, Operand], axes: tuple[str, ...], name: str) -> Expr:
        x, y = (natural(o) for o in pair)
        over = tuple(a for a in up_axes(x) if a not in axes)
        if not over:
            return times(x, y)
        self._emit(Assign(name, axes, times(x, y), over=over, accumulate=self.looped in over))
        return tile(name, *axes)

    def _whole_crossing(self, statement: GateGradient, crossing: Crossing, number_: int) -> Expr:
        """Every step of the chunk lies on the path: sum S dS_end and its decays over the other axes."""
        assert crossing.upper
        x, y = crossing.upper
        axes = crossing.decay.axes
        over = tuple(a for a in x.indices if a not in axes)
        name = f"{statement.gate}_path_{number_}"
        product = times(natural(x), natural(y), *(self.factor(d) for d in crossing.factors))
        self._emit(Assign(name, axes, product, over=over, accumulate=self.looped in over))
        return tile(name, *axes)

    def _inner_crossing(
        self, statement: GateGradient, crossing: Crossing, number_: int, buckets: dict[str, list[Expr]]
    ) -> None:
        """Paths within the chunk: summed in the cover's blocks for a vector gate, rows minus columns for a scalar."""
        decay = crossing.decay
        read_select = "after" if decay.upper.before else "from"
        if decay.axes:
            axes = statement.out.indices
            names = [(read_select, f"crossed_{decay.gate}" + ("_before" if decay.upper.before else ""))]
            names += [("from", f"crossed_{decay.gate}")] if decay.upper.before else []
            for select, name in names:
                if tile(name, *axes) not in buckets[select]:
                    buckets[select].append(tile(name, *axes))
            return
        assert crossing.upper
        x, y = crossing.upper
        product = keep("earlier", times(natural(x), natural(y)), "t", "s")
        rows, columns = f"{statement.gate}_rows_{number_}", f"{statement.gate}_columns_{number_}"
        self._emit(Assign(rows, ("t",), product, over=("s",)))
        self._emit(Assign(columns, ("s",), product, over=("t",)))
        buckets[read_select].append(tile(rows, "t"))
        buckets["from"].append(apply("neg", tile(columns, "t")))


def up_axes(x: Ref) -> tuple[str, ...]:
    return tuple(index.axis for index in x.indices)


def merge_blocks(lines: list[Line]) -> list[Line]:
    """Join loops over the same blocks where nothing between them stands in the way."""
    out: list[Line] = []
    for line in lines:
        if isinstance(line, Blocks):
            host = next((n for n in range(len(out) - 1, -1, -1) if _joins(out, n, line)), None)
            if host is not None:
                first = out[host]
                assert isinstance(first, Blocks)
                body = tuple(dict.fromkeys((*first.body, *line.body)))
                passed = out[host + 1 :]
                if any(set(read(line)) & set(written(x)) for x in passed):
                    out = [*out[:host], *passed, replace(first, body=body)]
                else:
                    out[host] = replace(first, body=body)
                continue
        out.append(line)
    return out


def _joins(out: list[Line], n: int, line: Blocks) -> bool:
    """May `line` join the loop out[n], at its place or by moving that loop down to the end?"""
    first = out[n]
    if not isinstance(first, Blocks) or (first.kind, first.leaf, _gate(first)) != (line.kind, line.leaf, _gate(line)):
        return False
    accumulated = {x.name for x in first.body if isinstance(x, Assign) and x.accumulate}
    if accumulated & set(read(line)):
        return False
    passed = out[n + 1 :]
    needs_later = any(set(read(line)) & set(written(x)) for x in passed)
    blocks_later = any(set(written(first)) & set(read(x)) for x in passed)
    return not (needs_later and blocks_later)


def _gate(blocks: Blocks) -> str:
    return next(line.source.name for line in blocks.body if isinstance(line, RowSum))
