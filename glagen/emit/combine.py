"""What is computed between states, and of all their reads: lines of PyTorch functions and of their gradients."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from glagen.algebra import chained, derivative
from glagen.emit.interface import head_axis
from glagen.emit.step import torch_value
from glagen.emit.words import identifier
from glagen.ir.document import FEATURES, Declaration
from glagen.ir.expr import Along, Expr, Ref, Softmax, free_axes, ref, refs
from glagen.ir.recurrence import Composite, Maximum, Recurrence, Value, needed


@dataclass(frozen=True, slots=True)
class Stage:
    """Values in order, and results: values that others need, or outputs. Arguments are declared, read or values too.

    Its functions are called `name` and `name`_backward; `heads` is what the number of its heads is called.
    """

    composite: Composite
    name: str
    heads: str  # H, those of the states, or M, those of the outputs
    values: tuple[Value, ...]
    results: tuple[tuple[str, tuple[str, ...], Expr | None], ...]  # with axes; an expression unless it is a value

    @property
    def used(self) -> tuple[str, ...]:
        """All names that it takes: declared ones first, in order of declaration."""
        exprs = [v.expr for v in self.values] + [e for *_, e in self.results if e is not None]
        found = [r.name for e in exprs for r in refs(e) if r.name not in {v.name for v in self.values}]
        found += [self.timed.name] if any(map(_timeless, self.values)) else []
        declared = [d.name for d in self.composite.declarations if d.name in found]
        return tuple(dict.fromkeys((*declared, *found)))

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.composite.declarations if d.kind == "scalar" and d.name in self.used)

    @property
    def tensors(self) -> tuple[tuple[str, int], ...]:
        """Tensors with the axis of their heads: 2, or 0 without time."""
        axes = {d.name: head_axis(d) for d in self.composite.declarations}
        return tuple((n, axis) for n in self.used if (axis := axes.get(n, 2)) is not None)

    @property
    def wanted(self) -> tuple[str, ...]:
        """What the gradients are of."""
        constants = {d.name for d in self.composite.declarations if d.kind == "constant"}
        return tuple(n for n, _ in self.tensors if n not in constants)

    @property
    def arguments(self) -> list[str]:
        return [identifier(n) for n in (*self.numbers, *(n for n, _ in self.tensors))]

    @property
    def narrow(self) -> bool:
        """Does an output not depend on the value axis?"""
        return any(e is not None and "j" not in free_axes(e) for *_, e in self.results)

    def lines(self) -> list[str]:
        """Results [B, T, heads, *], or without T."""
        lines = [*self.prepared(), *self.valued()]
        for name, _, expr in self.results:
            if expr is None:
                continue
            text = torch_value(self.composite, expr, ("j",))
            if "j" not in free_axes(expr):
                text = f"({text}).expand(*{identifier(self.tensors[-1][0])}.shape[: axis + 1], V)"
            lines.append(f"{identifier(name)} = {text}{'.clone()' if isinstance(expr, Ref) else ''}")
        return lines

    def prepared(self) -> list[str]:
        """All tensors with as many heads."""
        lines = []
        for name, axis in self.tensors:
            at, where = ("axis", "steps") if axis == 2 else (axis, None)
            lines.append(f"{identifier(name)} = _of_all_heads({identifier(name)}, {at}, M, {where})")
        return lines

    def valued(self) -> list[str]:
        lines = []
        for value in self.values:
            match value.expr:
                case Softmax(axis=axis, body=body):
                    text = f"torch.softmax({torch_value(self.composite, body, (axis,))}, -1)"
                case Along(axis=axis, body=body):
                    text = f"({torch_value(self.composite, body, (axis,))}).sum(-1)"
                case expr:
                    text = torch_value(self.composite, expr, value.axes[1:])
            if _timeless(value):
                text = f"({text}) + torch.zeros_like({self.like(value)})"
            elif isinstance(value.expr, Ref):
                text += ".clone()"
            lines.append(f"{identifier(value.name)} = {text}")
        return lines

    @property
    def timed(self) -> Declaration:
        """An input with no more heads than the results have."""
        inputs = [d for d in self.composite.declarations if d.timed]
        return next(d for d in inputs if self.heads == "M" or d.name in self.composite.written)

    def like(self, value: Value) -> str:
        """A tensor with the steps and heads of a value, one column wide where that has columns."""
        first = self.timed
        x = identifier(first.name)
        if value.axes == ("t",):
            return x if first.axes == ("t",) else f"{x}[..., 0]"
        return f"{x}[..., None]" if first.axes == ("t",) else f"{x}[..., :1]"

    def backward(self, cotangents: Sequence[str]) -> list[str]:
        """Gradients, `dx_sum` of x, of all that is `wanted`, given those of the results; heads added up."""
        lines = self.gradients(cotangents)
        for line in reversed([*self.prepared(), *self.valued()]):
            name = line.split(" = ")[0]
            if any(re.search(rf"\b{name}\b", other) for other in lines):
                lines.insert(0, line)
        return lines

    def gradients(self, cotangents: Sequence[str]) -> list[str]:
        parts: dict[str, list[str]] = {n: [] for n in (*self.wanted, *(v.name for v in self.values))}
        lines = []
        for (name, axes, expr), cotangent in zip(self.results, cotangents, strict=True):
            if expr is None:
                parts[name].append(cotangent)
            else:
                self.add(parts, expr, ref(cotangent, axes), ("j",))
        for value in reversed(self.values):
            terms, total = parts.pop(value.name), f"d{value.name}_sum"
            lines.append(f"{total} = {' + '.join(terms)}")
            match value.expr:
                case Softmax(axis=axis, body=body):
                    x, inside = identifier(value.name), f"d{value.name}_weighed"
                    lines.append(f"{inside} = {x} * {total}")
                    lines.append(f"{inside} = {inside} - {x} * {inside}.sum(-1, keepdim=True)")
                    self.add(parts, body, ref(inside, ("t", axis)), (axis,))
                case Along(axis=axis, body=body):
                    self.add(parts, body, ref(total, ("t",)), (axis,))
                case expr:
                    self.add(parts, expr, ref(total, value.axes), value.axes[1:])
        heads = dict(self.tensors)
        for name, terms in parts.items():
            text = " + ".join(terms)
            if not terms:
                text = f"torch.zeros_like({identifier(name)})"
            lines.append(f"d{name}_sum = _over_heads({text}, {heads[name]}, {identifier(name)}_own).contiguous()")
        return lines

    def add(self, parts: dict[str, list[str]], expr: Expr, gradient: Ref, axes: tuple[str, ...]) -> None:
        """Adds what a gradient of `expr`, of these axes, gives to those of its references."""
        for x in refs(expr):
            if x.name in parts:
                text = torch_value(self.composite, chained(gradient, derivative(expr, x)), axes)
                if axes and not any(index.axis in FEATURES for index in x.indices):
                    text = f"({text}).sum(-1)"
                if dict(self.tensors).get(x.name) == 0:
                    text = f"({text}).sum((0, 1))"
                parts[x.name].append(text)


def _timeless(value: Value) -> bool:
    """Is it the same at all steps?"""
    return "t" not in free_axes(value.expr)


@dataclass(frozen=True, slots=True)
class _Group:
    """Values next to each other, computed with as many heads."""

    heads: str
    values: tuple[Value, ...]


def stages(composite: Composite) -> tuple[Stage | Maximum | Recurrence, ...]:
    """A composite's steps, values that are next to each other in stages; last the stage that makes its outputs."""
    plan: list[_Group | Maximum | Recurrence] = []
    for is_value, run in itertools.groupby(composite.steps, key=lambda step: isinstance(step, Value)):
        group = tuple(run)
        plan += [step for step in group if not isinstance(step, Value)]
        for heads in "HM" if is_value else "":
            mine = tuple(v for v in group if isinstance(v, Value) and (v.name in composite.written) == (heads == "H"))
            plan += [_Group(heads, mine)] if mine else []
    last: tuple[Value, ...] = ()
    match plan[-1]:
        case _Group(heads="M", values=last):
            plan.pop()
    outputs = tuple((o.name, o.axes, o.value) for o in composite.outputs)
    final = Stage(composite, "_combine", "M", last, outputs)
    found: list[Stage | Maximum | Recurrence] = []
    for n, step in enumerate(plan):
        if isinstance(step, _Group):
            values = step.values
            others = {name for other in composite.steps if other not in values for name in needed(other)}
            results = tuple((v.name, v.axes, None) for v in values if v.name in others.union(final.used))
            found.append(Stage(composite, f"_values_{n + 1}", step.heads, values, results))
        else:
            found.append(step)
    return (*found, final)
