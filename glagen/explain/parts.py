"""Several states: what is read of each, and what is made of it."""

from __future__ import annotations

from glagen.algebra import derivative
from glagen.explain.outline import Block, Listing, Section, say
from glagen.ir.expr import Index, Ref, refs, show
from glagen.ir.recurrence import Composite


def combined(composite: Composite) -> Section:
    """The reads, the outputs as functions of them, and the slopes that the backward multiplies."""
    reads, slopes = [], []
    for part, state in zip(composite.parts, composite.states, strict=True):
        for read, output in zip(part.reads, part.outputs, strict=True):
            s = Ref(state.name, (Index("t", -1 if read.before else 0), *(Index(axis) for axis in state.axes)))
            product = f"sum(i, {show(read.query, 2)} * {show(s)})" if "i" in state.axes else show(s)
            reads.append(f"{output.name}[{','.join(('t', *(a for a in state.axes if a == 'j')))}] = {product}")
    names = {output.name for part in composite.parts for output in part.outputs}
    for o in composite.outputs:
        for x in refs(o.value):
            if x.name in names:
                slopes.append(f"d {o.name}[t,j] / d {show(x)} = {show(derivative(o.value, x))}")
    count = "Each state is a recurrence of its own" if len(composite.parts) > 1 else "The state is read first"
    blocks: list[Block] = [
        say(f"{count}; what is read of it is kept in float32:"),
        Listing(tuple(reads)),
        say("The outputs are pointwise in what is read:"),
        Listing(tuple(f"{o.name}[t,j] = {show(o.value)}" for o in composite.outputs)),
        say("The backward multiplies the gradients of outputs by these slopes, and goes on with each state:"),
        Listing(tuple(slopes)),
    ]
    if any(len(state.axes) == 1 for state in composite.states):
        one = composite.one
        blocks.append(
            say(f"A state without keys, or without values, is one column wide there, and `{one}` is an input of ones.")
        )
    return Section("What is made of the states", tuple(blocks))
