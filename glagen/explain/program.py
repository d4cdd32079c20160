"""Sections 4 and 5: the chunkwise forward and its backward, equation by equation."""

from __future__ import annotations

from glagen.explain.equations import crossing_words, equation
from glagen.explain.outline import Block, Equations, Formula, Items, Section, Subtitle, SumOver, Table, Total, say
from glagen.ir.chunk import Carry, ChunkProgram, Contract, GateGradient, InputGradient, Map, Statement
from glagen.ir.expr import Apply, refs, walk
from glagen.ir.schedule import CLOSED, Schedule

# What pointwise functions mean that papers have no common name for.
MEANING = {
    "clamp": "clamp(x) is x, but never below where exp(x) is 0 in the number type anyway (-128, in float64 -800): "
    "a reset of -inf then never meets another infinity (in kernels for 16-bit inputs, under a guarded cover, not below "
    f"{float(CLOSED):g}, where exp(x) is 1.4e-7)",
    "unclamped": "unclamped(x) is its derivative: 1 above that bound, 0 below",
    "passed": "passed(x, y) is y above that bound, and 0 below, where y may be 0/0",
    "step": "step(x) is 0, 1/2, 1 for x negative, zero, positive",
    "positive": "positive(x) is 1 for x > 0, else 0",
    "sign": "sign(x) is -1, 0, 1",
}


def forward(schedule: Schedule) -> Section:
    """Every statement of the forward, grouped by what it is for."""
    program = schedule.program
    declared = {d.name for d in program.recurrence.declarations} | {"K", "V", "T", "H"}
    groups: dict[str, list[Statement]] = {"values": [], "carry": [], "reads": [], "outputs": []}
    for statement in program.forward:
        match statement:
            case Map(expr=expr):
                own = all(r.name in declared for r in refs(expr))
                groups["values" if own else "outputs"].append(statement)
            case Contract(part=part):
                groups["carry" if part == "end" else "reads"].append(statement)
            case _:
                groups["carry"].append(statement)
    ends = ", ".join(f"`{s.end}`" for s in program.states)
    words = {
        "values": "The values of each step:",
        "carry": f"How the state crosses the chunk; {ends} enters the next chunk as its state:",
        "reads": "What every step reads: `inter` from the state that entered the chunk, `intra` from the writes "
        "within it. `scores` are zero above the diagonal:",
        "outputs": "The outputs:",
    }
    blocks: list[Block] = [
        say(
            "Substituting the unrolled state into the reads gives matrix products. Sums over $s$ and $t$ run over the "
            "chunk, sums over $i$ and $j$ over all columns."
        )
    ]
    for group, statements in groups.items():
        if statements:
            blocks += [say(words[group]), Equations(tuple(equation(s) for s in statements))]
    blocks += _meanings(program.forward, ())
    return Section("The chunkwise forward", tuple(blocks))


def _meanings(statements: tuple[Statement, ...], known: tuple[Statement, ...]) -> list[Block]:
    """What the functions of these statements mean that `known` ones have not used yet."""
    new, old = _functions(statements), _functions(known)
    texts = [text for name, text in MEANING.items() if name in new and name not in old]
    return [say("Here ", "; ".join(texts), ".")] if texts else []


def _functions(statements: tuple[Statement, ...]) -> set[str]:
    maps = [s for s in statements if isinstance(s, Map)]
    return {node.function for s in maps for node in walk(s.expr) if isinstance(node, Apply)}


def backward(schedule: Schedule) -> Section:
    """Every statement of the backward; gate gradients with the paths they sum over."""
    program = schedule.program
    given = ", ".join(f"`{c}` of `{o.name}`" for c, o in zip(program.cotangents, program.outputs, strict=True))
    blocks: list[Block] = [
        say(
            f"A name that begins with d is the gradient of the loss by what follows. Given are {given} and "
            + ", ".join(f"`{s.adjoint_end}` of `{s.end}`" for s in program.states)
            + ", which comes from the chunk after this one (at the last chunk: from the final state). Each statement "
            "of the forward is linear in each of its operands, so its adjoint is a statement of the same form. "
            "Taken in reverse order:"
        )
    ]
    plain = tuple(s for s in program.backward if not isinstance(s, GateGradient))
    last = {p.name for g in program.gradients for p in g.parts}
    gate_names = {s.out.name for s in program.backward if isinstance(s, GateGradient)}
    after = tuple(s for s in plain if isinstance(s, Map) and s.out.name in last and _uses(s, gate_names))
    blocks.append(Equations(tuple(equation(s) for s in plain if s not in after)))
    states = [s for s in plain if isinstance(s, Carry)]
    if states:
        names = ", ".join(f"`{s.out.name}`" for s in states)
        blocks.append(
            say(f"{names} goes on to the chunk before; that of the first chunk is the initial state's gradient.")
        )
    blocks += _gate_gradients(program)
    if after:
        blocks += [say("From the log gate to what it was computed from:"), Equations(tuple(equation(s) for s in after))]
    blocks += _meanings(program.backward, program.forward)
    blocks += _inputs(program)
    return Section("The backward", tuple(blocks))


def _uses(statement: Map, names: set[str]) -> bool:
    return any(r.name in names for r in refs(statement.expr))


def _gate_gradients(program: ChunkProgram) -> list[Block]:
    blocks: list[Block] = []
    state = program.states[0].name
    statements = [s for s in program.backward if isinstance(s, GateGradient)]
    if statements:
        blocks.append(Subtitle("Gradients of the log gates"))
        blocks.append(
            say(
                "A decay over an interval is the exponential of the log gates in it, so its derivative by the log gate "
                "of step $tau$ is the decay itself if $tau$ lies in the interval, else 0. The gradient is therefore "
                "the sum over all paths from a write to a read that cross step $tau$. Along each path, an operand "
                "times its own gradient is the derivative by the exponent. Paths that begin before the chunk or end "
                "after it pass through the states at its ends."
            )
        )
    for statement in statements:
        blocks.append(say(f"Paths that cross a step of `{statement.gate}` lead"))
        blocks.append(Items(tuple(dict.fromkeys(crossing_words(c, state) for c in statement.crossings))))
        blocks.append(Equations((equation(statement),)))
    return blocks


def _inputs(program: ChunkProgram) -> list[Block]:
    rows = tuple(((f"`{g.name}`",), (_gradient(program, g),)) for g in program.gradients)
    return [Subtitle("Gradients of the inputs"), Table(("gradient of", "is"), rows)]


def _gradient(program: ChunkProgram, gradient: InputGradient) -> Formula | str:
    if not gradient.parts:
        return "zero"
    total: Formula = gradient.parts[0] if len(gradient.parts) == 1 else Total(gradient.parts)
    declaration = next(d for d in program.recurrence.declarations if d.name == gradient.name)
    if declaration.timed:
        return total
    summed = all("t" in part.indices for part in gradient.parts)  # else over the steps of each chunk already
    return SumOver(("sequences", "t" if summed else "chunks"), total)
