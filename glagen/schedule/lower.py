"""Statements of a chunk program to lines of tile code.

A decay with a row at one end only becomes a factor on the operand (or the result) that has the row and the gate's
axes. A decay between two rows becomes a cover's blocks where it has a feature axis, and a matrix factor where not.
"""

from __future__ import annotations

from glagen.errors import InternalError
from glagen.ir.chunk import Carry, Contract, Crossing, Decay, GateGradient, Map, Operand, Statement
from glagen.ir.expr import Apply, Expr, Number, Ref, plus, times
from glagen.ir.kernel import Assign, Dot, Line
from glagen.schedule.crossings import gate_gradient
from glagen.schedule.factors import SUFFIX, bare, between, factor
from glagen.schedule.merge import merge_blocks
from glagen.schedule.tile import Crossed, Workspace, axes_of, keep, natural, tile
from glagen.schedule.triangle import covered_apply, covered_scores
from glagen.schedule.turn import COLUMN


class Lowering(Workspace):
    """Lowers statements one by one into the workspace it is."""

    # -- what the kernel needs ---------------------------------------------------------------------------------------

    def run(self) -> list[Line]:
        """Lower every statement. Ensures: each value a statement defines is written by the lines."""
        for statement in self.statements:
            self._note_uses(statement)
        self._transposed -= self._upright  # one way round is enough: dots transpose what they read
        for statement in self.statements:
            match statement:
                case Map():
                    self._map(statement)
                case Contract(order=None):
                    self._outer(statement)
                case Contract():
                    self._triangle(statement)
                case GateGradient():
                    gate_gradient(self, statement)
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
                        upright = ("t" in out.indices) != self.turned
                        (self._upright if upright else self._transposed).add(operand.name)
            case GateGradient(crossings=crossings):
                for crossing in crossings:
                    self._note_crossing(crossing)

    def _note_crossing(self, crossing: Crossing) -> None:
        if not (crossing.upper and crossing.lower):
            return
        decay = crossing.decay
        if not decay.axes:
            self._upright |= {o.name for o in crossing.upper}
            self.alike |= {part.name for _, part in crossing.rows or ()} if self.by_rows else set()
            return
        made = {s.out.name for s in self.statements if isinstance(s, Contract) and s.order}
        for pair in (crossing.upper, crossing.lower):
            part, partner = sorted(pair, key=lambda o: o.name not in made)
            self.crossed[part.name] = Crossed(partner, f"crossed_{decay.gate}")

    # -- pointwise ---------------------------------------------------------------------------------------------------

    def _map(self, statement: Map) -> None:
        out, over = statement.out, statement.over
        looped = self.looped is not None and self.looped in over
        axes = {*out.indices, *over} & {"t", "i", "j"}
        guarded = any(not self._vanishes(statement.expr, axis) for axis in axes)
        self.emit(Assign(out.name, out.indices, statement.expr, over, accumulate=looped, guarded=guarded))

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

    def _carry(self, carry: Carry) -> Expr:
        kept = times(natural(carry.carried), *(factor(self, d) for d in carry.decays))
        return plus(kept, *(natural(added) for added in carry.added))

    def _outer(self, statement: Contract) -> None:
        """A product with at most one row index in each decay: scale operands, multiply, scale the result."""
        on_result: list[Decay] = []
        on_operand: dict[str, list[Decay]] = {o.name: [] for o in statement.operands}
        for decay in statement.decays:
            row = decay.upper.at if decay.upper.is_row else decay.lower.at
            needed = {row, *decay.axes}
            holders = [o for o in statement.operands if needed <= set(o.indices)]
            if self.by_columns:  # the smaller one
                holders.sort(key=lambda o: COLUMN not in o.indices)
            if needed <= set(statement.out.indices) and (not holders or not decay.axes):
                on_result.append(decay)
            elif holders:
                on_operand[holders[0].name].append(decay)
            else:
                raise InternalError(f"no operand of {statement.out} can carry {decay}")
        numbers: tuple[Expr, ...] = ()
        operands = list(statement.operands)
        if self.by_columns and "t" in statement.over:  # the smaller one takes the other's numbers as well
            operands.sort(key=lambda o: COLUMN in o.indices)
            if not on_operand[operands[0].name]:
                operands[0], numbers = bare(self, operands[0])
            on_operand.setdefault(operands[0].name, [])
        x, y = (self._scaled(o, tuple(on_operand[o.name]), numbers if COLUMN in o.indices else ()) for o in operands)
        x, y = self._ordered(statement.out, x, y)
        numbers = ()
        if statement.part == "inter" and "t" in statement.out.indices:
            (x, of_x), (y, of_y) = bare(self, x), bare(self, y)
            numbers = (*of_x, *of_y)
        out = natural(statement.out)
        axes = tuple(index.axis for index in out.indices)
        looped = self.looped in statement.over
        factors = (*(factor(self, d) for d in on_result), *numbers)
        plain = f"{out.name}_{'undecayed' if on_result else 'unscaled'}" if factors else out.name
        self.emit(Dot(plain, axes, x, y, accumulate=looped, wide=self._is_wide(x, y)))  # type: ignore[arg-type]
        if factors:
            self.emit(Assign(out.name, axes, times(tile(plain, *axes), *factors)))

    def _ordered(self, out: Operand, x: Operand, y: Operand) -> tuple[Operand, Operand]:
        """The operand with the result's first index comes first."""
        return (x, y) if out.indices[0] in x.indices else (y, x)

    def _scaled(self, operand: Operand, decays: tuple[Decay, ...], numbers: tuple[Expr, ...]) -> Operand:
        if not decays and not numbers:
            return operand
        tag = SUFFIX["start" if decays[0].upper.is_row else "end"] if decays else "scaled"
        base = f"{operand.name}_{tag}" + ("_before" if decays and decays[0].upper.before else "")
        name = self.unique(("scaled", operand.name, decays, numbers), base)
        if name not in self.known:
            self.known[name] = name
            value = natural(operand)
            factors = tuple(factor(self, d) for d in decays)
            product = times(value, times(*factors, *numbers)) if numbers else times(value, *factors)
            self.emit(Assign(name, axes_of(value), product, rounded="narrow"))
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

    def _scores(self, statement: Contract, vector: list[Decay], matrix: list[Decay]) -> None:
        """[t, s], or [s, t] where it is only used that way round. Above the diagonal they are zero."""
        reader = next(o for o in statement.operands if "t" in o.indices)
        writer = next(o for o in statement.operands if "s" in o.indices)
        matrix_of = self.matrix(statement.out.name)
        out, axes = matrix_of.name, axes_of(matrix_of)
        transposed = axes == ("s", "t")
        mark = "_T" if transposed else ""
        if vector:
            covered_scores(self, statement, vector[0], out, axes, mark)
            return
        (reader, of_reader), (writer, of_writer) = bare(self, reader), bare(self, writer)
        x, y = (writer, reader) if transposed else (reader, writer)
        looped = self.looped in statement.over
        self.emit(Dot(f"{out}_all", axes, x, y, accumulate=looped, wide=self._is_wide(x, y)))  # type: ignore[arg-type]
        mask = ("causal" if statement.order == "<=" else "earlier") + mark
        factors = (*(between(self, d, transposed) for d in matrix), *of_reader, *of_writer)
        value = times(tile(f"{out}_all", *axes), *factors)
        self.emit(Assign(out, axes, keep(mask, value, *axes)))

    def _apply(self, statement: Contract, vector: list[Decay], matrix: list[Decay]) -> None:
        """[t, x] or [s, x] from a [t, s] matrix and rows of the other kind."""
        weights = next(o for o in statement.operands if o.indices == ("t", "s"))
        rows = next(o for o in statement.operands if o is not weights)
        transposed = "s" in statement.out.indices
        if vector:
            covered_apply(self, statement, vector[0], weights, rows, transposed)
            return
        stored = self.matrix(weights.name)
        name, axes = stored.name, axes_of(stored)
        if matrix:
            decayed = f"{name}_decayed"
            if decayed not in self.known:
                self.known[decayed] = decayed
                factors = [between(self, d, axes == ("s", "t")) for d in matrix]
                self.emit(Assign(decayed, axes, times(tile(name, *axes), *factors)))
            name = decayed
        # the smaller tile has its own numbers where it is the right operand, and the matrix lies in memory
        rows, numbers = (rows, ()) if self.by_columns and not self.turned else bare(self, rows)
        out = natural(statement.out)
        on_result = numbers if out.name in self.alike else ()
        plain = f"{out.name}_unscaled" if on_result else out.name
        if numbers and not on_result:
            scaled = self.unique(("scaled", name, numbers), f"{name}_scaled")
            if scaled not in self.known:
                self.known[scaled] = scaled
                self.emit(Assign(scaled, axes, times(tile(name, *axes), *numbers)))
            name = scaled
        out_axes = tuple(index.axis for index in out.indices)
        self.emit(Dot(plain, out_axes, Operand(name, axes), rows, wide=True))  # type: ignore[arg-type]
        if on_result:
            self.emit(Assign(out.name, out_axes, times(tile(plain, *out_axes), *on_result)))
