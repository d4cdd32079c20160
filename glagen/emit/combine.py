"""What combines the reads of several states: the lines of its PyTorch function and of that function's gradient."""

from __future__ import annotations

from dataclasses import dataclass

from glagen.algebra import chained, derivative
from glagen.emit.interface import head_axis
from glagen.emit.step import torch_value
from glagen.emit.words import identifier
from glagen.ir.expr import Expr, Ref, Sum, free_axes, ref, refs, rewrite, walk
from glagen.ir.recurrence import Composite, Recurrence


@dataclass(frozen=True, slots=True)
class Combination:
    """The outputs as functions of tensors: reads, and declared inputs. Sums over an axis have names of their own."""

    rec: Recurrence  # its declarations say what is a number
    reads: tuple[tuple[str, tuple[str, ...]], ...]  # with the feature axes of their states
    tensors: tuple[tuple[str, int], ...]  # declared ones, with the axis of their heads: 2, or 0 without time
    numbers: tuple[str, ...]
    sums: tuple[tuple[str, Sum], ...]
    outputs: tuple[tuple[str, Expr], ...]

    @property
    def arguments(self) -> list[str]:
        return [identifier(n) for n in (*self.numbers, *(n for n, _ in self.tensors), *(n for n, _ in self.reads))]

    @property
    def narrow(self) -> bool:
        """Does an output not depend on the value axis?"""
        return any("j" not in free_axes(value) for _, value in self.outputs)

    def lines(self) -> list[str]:
        """Outputs [B, T, H, V], or without T."""
        lines = self.prepared()
        for name, value in self.outputs:
            text = torch_value(self.rec, value, ("j",))
            if "j" not in free_axes(value):
                text = f"({text}).expand(*{identifier(self.reads[0][0])}.shape[: axis + 1], V)"
            lines.append(f"{identifier(name)} = {text}{'.clone()' if isinstance(value, Ref) else ''}")
        return lines

    def prepared(self) -> list[str]:
        """All tensors with as many heads, and the sums."""
        lines = []
        for name, axes in self.reads:
            column = "" if "j" in axes else "[..., 0]"
            lines.append(f"{identifier(name)} = _of_all_heads({identifier(name)}, axis, M, steps){column}")
        for name, axis in self.tensors:
            at, where = ("axis", "steps") if axis == 2 else (axis, None)
            lines.append(f"{identifier(name)} = _of_all_heads({identifier(name)}, {at}, M, {where})")
        for name, total in self.sums:
            lines.append(f"{name} = ({torch_value(self.rec, total.body, (total.axis,))}).sum(-1)")
        return lines

    def backward(self, cotangents: list[str], wanted: list[str]) -> list[str]:
        """Gradients, `dx_sum` of x, of the names `wanted`, given those of the outputs."""
        parts: dict[str, list[str]] = {name: [] for name in wanted}
        lines = []
        for (_, value), cotangent in zip(self.outputs, cotangents, strict=True):
            gradient = ref(cotangent, ("t", "j"))
            for x in refs(value):
                self.add(parts, x, chained(gradient, derivative(value, x)), ("j",))
        for name, total in reversed(self.sums):
            lines.append(f"d{name}_sum = {' + '.join(parts.pop(name))}")
            for x in refs(total.body):
                self.add(parts, x, chained(ref(f"d{name}_sum", ("t",)), derivative(total.body, x)), (total.axis,))
        for name, terms in parts.items():
            lines.append(f"d{name}_sum = {' + '.join(terms)}")
        return lines

    def add(self, parts: dict[str, list[str]], x: Ref, gradient: Expr, axes: tuple[str, ...]) -> None:
        """Adds `gradient`, summed over the axes that x does not have, to the parts of dx."""
        if x.name in self.numbers:
            return
        features = tuple(index.axis for index in x.indices if index.axis != "t")
        text = torch_value(self.rec, gradient, axes)
        if not features:
            text = f"({text}).sum(-1)"
        if dict(self.tensors).get(x.name) == 0:
            text = f"({text}).sum((0, 1))"
        parts.setdefault(x.name, []).append(text)


def combination(composite: Composite, rec: Recurrence) -> Combination:
    """The outputs of a composite; sums in them are named `local_0` and so on."""
    sums: dict[Sum, str] = {}
    for output in composite.outputs:
        for node in walk(output.value):
            if isinstance(node, Sum):
                sums.setdefault(node, f"local_{len(sums)}")
    outputs = tuple((o.name, rewrite(o.value, lambda n: _named(n, sums))) for o in composite.outputs)
    used = {r.name for o in composite.outputs for r in refs(o.value)}
    declared = [d for d in composite.declarations if d.name in used]
    owned = zip(composite.parts, composite.states, strict=True)
    return Combination(
        rec,
        tuple((read.name, state.axes) for part, state in owned for read in part.outputs),
        tuple((d.name, axis) for d in declared if (axis := head_axis(d)) is not None),
        tuple(d.name for d in declared if d.kind == "scalar"),
        tuple((name, total) for total, name in sums.items()),
        outputs,
    )


def _named(node: Expr, sums: dict[Sum, str]) -> Expr | None:
    return ref(sums[node], tuple(sorted(free_axes(node)))) if isinstance(node, Sum) else None
