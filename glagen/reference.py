"""The definition of right: the equations of a parsed spec, executed step by step in float64.

Nothing here knows what `check` or `derive` make of a spec. Time runs in a Python loop, every equation is evaluated as
it is written, and torch differentiates the whole. It is slow, and meant to be too simple to be wrong.

Inside, every value is a tensor of five axes [B, H, K, S, V], of extent 1 along those it does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from glagen.errors import InternalError
from glagen.ir.document import EXTENT, Declaration, Document, Equation
from glagen.ir.expr import Apply, Expr, Number, Ref, Softmax, Sum, refs, walk

SEGMENT = 64  # steps between the states kept for the backward; what lies between is computed again
ONES = (1, 1, 1, 1, 1)
DIMENSIONS = {"i": 2, "s": 3, "j": 4}  # where an axis lies in [B, H, K, S, V]

POINTWISE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sigmoid": lambda x: torch.exp(F.logsigmoid(x)),  # the slope of torch.sigmoid, s (1 - s), cancels above 15
    "logsigmoid": F.logsigmoid,
    "softplus": lambda x: -F.logsigmoid(-x),  # F.softplus is the identity above 20, and float64 can tell
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": F.elu,
    "silu": F.silu,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "min": torch.minimum,
    "max": torch.maximum,
}


def run(
    document: Document, arguments: Mapping[str, Tensor | float | None], initial_state: Tensor | None = None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The outputs [B, T, H, V] and the final state [B, H, K, V] of a spec of one state: see `run_states`."""
    outputs, (final,) = run_states(document, arguments, (initial_state,))
    return outputs, final


def run_states(
    document: Document, arguments: Mapping[str, Tensor | float | None], initial_states: Sequence[Tensor | None]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The outputs [B, T, H, V] and the final states of a spec, in float64, differentiable.

    `arguments` by name: inputs [B, T, H, ...], parameters and constants [H, ...], scalars as numbers; a constant or
    scalar that is missing or None takes its default. States are [B, H, ...] with the extents of their axes, in order of
    declaration; one that is None is zero. Tensors of any floating dtype are taken as the numbers they hold.
    """
    if len(document.states) != len(initial_states):
        raise InternalError(f"{document.name} has {len(document.states)} states, not {len(initial_states)}")
    program = _prepare(document, arguments, initial_states)
    device = next(iter(program.fixed.values())).device
    states = tuple(
        torch.zeros(program.shape(d.axes), dtype=torch.float64, device=device)
        if given is None
        else given.double().reshape(program.shape(d.axes))
        for d, given in zip(document.states, initial_states, strict=True)
    )
    series = [x.split(SEGMENT, dim=1) for x in program.series.values()]
    outputs: list[tuple[Tensor, ...]] = []
    for pieces in zip(*series, strict=True):
        if program.sizes["T"] > SEGMENT and torch.is_grad_enabled():
            found = checkpoint(program.segment, states, *pieces, use_reentrant=False, preserve_rng_state=False)
        else:
            found = program.segment(states, *pieces)
        states = found[: len(states)]
        outputs.append(found[len(states) :])
    finals = []
    for declaration, state in zip(document.states, states, strict=True):
        shape = program.shape(declaration.axes)
        finals.append(state.reshape(*shape[:2], *(shape[DIMENSIONS[axis]] for axis in declaration.axes)))
    return tuple(torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True)), tuple(finals)


def output_names(document: Document) -> tuple[str, ...]:
    """The targets [t, j] that no other equation uses, in order of equations: what the op returns."""
    states = {s.name for s in document.states}
    names = []
    for equation in document.equations:
        name = equation.target.name
        others = (e for e in document.equations if e is not equation)
        used = any(name == r.name for e in others for r in refs(e.body))
        if name not in states and not used and tuple(i.axis for i in equation.target.indices) == ("t", "j"):
            names.append(name)
    return tuple(names)


def evaluate(expr: Expr, value_of: Callable[[Ref], Tensor], sizes: Mapping[str, int], device: torch.device) -> Tensor:
    """The value of an expression where its references have the values [B, H, K, S, V] that `value_of` gives them."""
    match expr:
        case Number(value=x):
            return _number(float(x), device)
        case Ref():
            return value_of(expr)
        case Sum(axis=axis, body=body):
            value = evaluate(body, value_of, sizes, device)
            dimension = DIMENSIONS[axis]
            shape = list(value.shape)
            shape[dimension] = sizes[EXTENT[axis]]
            return value.expand(shape).sum(dimension, keepdim=True)
        case Softmax(axis=axis, body=body):
            return torch.softmax(evaluate(body, value_of, sizes, device), DIMENSIONS[axis])
        case Apply(function=function, args=args):
            values = [evaluate(a, value_of, sizes, device) for a in args]
            full = any(sum(n > 1 for n in v.shape[2:]) > 1 for v in values)
            if function in ("add", "sub", "neg") or (function == "mul" and full):  # no slope here is infinite
                return POINTWISE[function](*values)
            result: Tensor = _Pointwise.apply(POINTWISE[function], *values)
            return result
        case _:
            raise InternalError(f"the reference cannot evaluate {expr!r}")


@functools.lru_cache(maxsize=1024)
def _number(x: float, device: torch.device) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, device=device).reshape(ONES)


class _Pointwise(torch.autograd.Function):
    """A pointwise function under the chain rule in which zero times infinity is zero.

    A gate of -inf is a limit: exp and sigmoid vanish there faster than any slope of what stands inside or around them
    grows, so the product of the two slopes is zero and not the NaN of 0 * inf.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*values)
        return function(*values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        saved = ctx.saved_tensors
        with torch.enable_grad():
            values = [v.detach().expand(gradient.shape).requires_grad_() for v in saved]
            total = ctx.function(*values).sum()  # each entry depends on its own operands alone: its slopes
            slopes = torch.autograd.grad(total, values)
        products = [torch.where((gradient == 0) | (s == 0), 0.0, gradient * s) for s in slopes]
        return None, *(p.sum_to_size(v.shape) for p, v in zip(products, saved, strict=True))


@dataclass(frozen=True, slots=True)
class _Program:
    """A document with its arguments in place, ready to step."""

    document: Document
    order: tuple[Equation, ...]
    outputs: tuple[str, ...]
    sizes: dict[str, int]
    series: dict[str, Tensor]  # what has a time axis: [B, T, H, K, S, V] with extents 1
    fixed: dict[str, Tensor]  # what has none: [B, H, K, S, V] with extents 1

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """[B, H, K, S, V], with extent 1 for each of i, s and j that `axes` lack."""
        s = self.sizes
        return s["B"], s["H"], *(s[EXTENT[axis]] if axis in axes else 1 for axis in DIMENSIONS)

    def segment(self, states: tuple[Tensor, ...], *pieces: Tensor) -> tuple[Tensor, ...]:
        """From the states before some steps and their inputs to the states after them and [steps, ...] outputs."""
        steps = zip(*(piece.unbind(1) for piece in pieces), strict=True)
        outputs: list[list[Tensor]] = [[] for _ in self.outputs]
        for inputs in steps:
            values = self.step(states, dict(zip(self.series, inputs, strict=True)))
            states = tuple(values[d.name] for d in self.document.states)
            for name, column in zip(self.outputs, outputs, strict=True):
                b, h, v = (self.sizes[n] for n in "BHV")
                column.append(values[name].expand(b, h, 1, 1, v).reshape(b, h, v))
        return *states, *(torch.stack(column, dim=1) for column in outputs)

    def step(self, states: tuple[Tensor, ...], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """All names of step t by value, from the states of step t-1 and the inputs of step t."""
        previous = dict(zip((d.name for d in self.document.states), states, strict=True))
        values = self.fixed | inputs

        def value_of(reference: Ref) -> Tensor:
            shift = sum(index.shift for index in reference.indices)
            if shift == 0:
                return values[reference.name]
            if shift == -1 and reference.name in previous:
                return previous[reference.name]
            raise InternalError(f"the reference cannot look up {reference}")

        for equation in self.order:
            values[equation.target.name] = evaluate(equation.body, value_of, self.sizes, states[0].device)
        for declaration in self.document.states:
            values[declaration.name] = values[declaration.name].expand(self.shape(declaration.axes))
        return values


def _prepare(
    document: Document, arguments: Mapping[str, Tensor | float | None], initial_states: Sequence[Tensor | None]
) -> _Program:
    sizes = _sizes(document, arguments, initial_states)
    device = next(x.device for x in arguments.values() if isinstance(x, Tensor))

    fixed = {name: _number(float(size), device) for name, size in sizes.items() if name != "B"}
    fixed["h"] = torch.arange(sizes["H"], dtype=torch.float64, device=device).reshape(1, -1, 1, 1, 1)
    extents = dict(fixed)
    series = {}
    for declaration in document.declarations:
        value = arguments.get(declaration.name)
        if value is None:
            if declaration.default is None:
                raise ValueError(f"{document.name}: argument {declaration.name} is missing")
            fixed[declaration.name] = evaluate(declaration.default, lambda r: extents[r.name], sizes, device)
        elif not isinstance(value, Tensor):
            fixed[declaration.name] = _number(float(value), device)
        elif "t" in declaration.axes:
            series[declaration.name] = _spread(declaration, value.double())
        else:
            fixed[declaration.name] = _spread(declaration, value.double())
    return _Program(document, _order(document), output_names(document), sizes, series, fixed)


def _spread(declaration: Declaration, value: Tensor) -> Tensor:
    """[B, T, H, ...] to [B, T, H, K, S, V], or [H, ...] to [1, H, K, S, V]; extent 1 along axes it does not have."""
    if declaration.kind == "scalar":
        return value.reshape(ONES)
    extents = dict(zip(reversed(declaration.axes), reversed(value.shape), strict=False))
    lead = value.shape[: value.dim() - sum(axis in DIMENSIONS for axis in declaration.axes)]
    value = value.reshape(*lead, *(extents.get(axis, 1) for axis in DIMENSIONS))
    return value if "t" in declaration.axes else value.unsqueeze(0)


def _sizes(
    document: Document, arguments: Mapping[str, Tensor | float | None], initial_states: Sequence[Tensor | None]
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for declaration in document.declarations:
        value = arguments.get(declaration.name)
        if not isinstance(value, Tensor) or declaration.kind == "scalar":
            continue
        lead = "BTH" if "t" in declaration.axes else "H"
        axes = [*lead, *(EXTENT[axis] for axis in declaration.axes if axis != "t")]
        if len(axes) != value.dim():
            raise ValueError(f"{document.name}: {declaration.name} has shape {tuple(value.shape)}, expected {axes}")
        for axis, size in zip(axes, value.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise ValueError(f"{document.name}: {declaration.name} has {axis} = {size}, others {sizes[axis]}")
    for state, given in zip(document.states, initial_states, strict=True):
        axes = ["B", "H", *(EXTENT[axis] for axis in state.axes)]
        for axis, size in zip(axes, given.shape if given is not None else (), strict=given is not None):
            if sizes.setdefault(axis, size) != size:
                raise ValueError(f"{document.name}: the initial state has {axis} = {size}, others {sizes[axis]}")
    return sizes


def _order(document: Document) -> tuple[Equation, ...]:
    """The equations so that each follows those whose values of the same step it uses."""
    targets = {equation.target.name for equation in document.equations}
    done: set[str] = set()
    waiting = list(document.equations)
    ordered = []
    while waiting:
        for equation in waiting:
            needs = {
                node.name
                for node in walk(equation.body)
                if isinstance(node, Ref) and node.name in targets and not any(i.shift for i in node.indices)
            }
            if needs <= done:
                break
        else:
            raise InternalError(f"{document.name}: equations depend on each other in a circle")
        waiting.remove(equation)
        ordered.append(equation)
        done.add(equation.target.name)
    return tuple(ordered)
