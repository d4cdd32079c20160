"""Several states: what is read of each, what is computed between them, and what is made of it all."""

from __future__ import annotations

from collections.abc import Iterator

from glagen.algebra import derivative
from glagen.explain.outline import Block, Listing, Section, say
from glagen.ir.expr import Along, Expr, Index, Ref, Softmax, ref, refs, show, with_axes
from glagen.ir.recurrence import Composite, Maximum, Recurrence, Step, Value


def combined(composite: Composite) -> Section:
    """The steps in order, the outputs as functions of what they give, and the slopes that the backward multiplies."""
    steps = [line for step in composite.steps for line in _lines(composite, step)]
    slopes = [
        line for step in composite.steps if isinstance(step, Value) for line in _slopes(step.name, step.axes, step.expr)
    ]
    slopes += [line for o in composite.outputs for line in _slopes(o.name, o.axes, o.value)]
    kinds = {type(step) for step in composite.steps}
    count = "Each state is a recurrence of its own" if len(composite.parts) > 1 else "The state is read first"
    blocks: list[Block] = [
        say(f"{count}; what is read of it is kept in float32. One after the other:"),
        Listing(tuple(steps)),
    ]
    dividing = ", ".join(f"`{part.states[0].name}`" for part in composite.parts if part.divides)
    if dividing:
        blocks.append(
            say(
                f"There is a division by what is read of {dividing}, which may be a small sum of large terms. It is "
                "computed in float64 beside float32 inputs; beside 16-bit ones in float32, with all bits of its "
                "factors."
            )
        )
    if Maximum in kinds:
        blocks.append(
            say(
                "A state without axes is a running maximum, found over runs of steps that are doubled until they are "
                "all. Its gradient goes to whichever of the two was larger, and back in time while that was the first."
            )
        )
    blocks += [
        say("The outputs are pointwise in that:"),
        Listing(tuple(f"{o.name}[t,j] = {show(o.value)}" for o in composite.outputs)),
        say("The backward goes the other way, and multiplies gradients by these slopes:"),
        Listing(tuple(slopes)),
    ]
    if any(len(state.axes) == 1 for state in composite.states):
        one = composite.one
        blocks.append(
            say(f"A state without keys, or without values, is one column wide there, and `{one}` holds ones.")
        )
    if any("s" in state.axes for state in composite.states):
        blocks.append(say("What follows calls the axes of each state $i$ and $j$, and their extents $K$ and $V$."))
    return Section("What is made of the states", tuple(blocks))


def _lines(composite: Composite, step: Step) -> Iterator[str]:
    match step:
        case Value(name=name, axes=axes, expr=expr):
            yield f"{show(ref(name, axes))} = {show(expr)}"
        case Maximum(state=state, rise=rise, floor=floor, before=before):
            yield f"{before}[t] = {state}[t-1]"
            yield f"{state}[t] = max({state}[t-1] + {rise}[t], {floor}[t])"
        case Recurrence():
            declared = next(s for s in composite.states if s.name == step.states[0].name)
            called = {"i": declared.key or "i", "j": declared.value or "j"}
            for read, output in zip(step.reads, step.outputs, strict=True):
                read_from = Ref(
                    step.states[0].name, (Index("t", -1 if read.before else 0), *(Index(a) for a in declared.axes))
                )
                product = show(read_from)
                if declared.key:
                    product = f"sum({called['i']}, {show(with_axes(read.query, called), 2)} * {product})"
                yield f"{show(ref(output.name, composite.read_axes[output.name]))} = {product}"


def _slopes(name: str, axes: tuple[str, ...], expr: Expr) -> Iterator[str]:
    """The slope of a name by each reference of its expression."""
    row = ""
    if isinstance(expr, Along):
        row = f"[t,{expr.axis}]"
    if isinstance(expr, Softmax):
        p = show(ref(name, axes))
        yield f"d body{row} = {p} * (d {p} - sum({expr.axis}, {p} * d {p})), for {p} = softmax({expr.axis}, body{row})"
    inside = expr.body if isinstance(expr, Along) else expr
    left = f"body{row}" if isinstance(expr, Softmax) else f"{name}[{','.join(axes)}]"
    for x in refs(inside):
        yield f"d {left} / d {show(x)} = {show(derivative(inside, x))}"
