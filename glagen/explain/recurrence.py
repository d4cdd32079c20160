"""Sections 1 to 3: the spec, the recurrence as recognised, and its unrolled form."""

from __future__ import annotations

from glagen.explain.equations import definition, unrolled, writes
from glagen.explain.outline import (
    Block,
    Equation,
    Equations,
    Exponential,
    Facts,
    Formula,
    Inline,
    Listing,
    Product,
    Quote,
    Section,
    SumOver,
    Table,
    Total,
    say,
)
from glagen.ir.chunk import ChunkProgram, Operand, Point
from glagen.ir.document import EXTENT, Declaration, Document
from glagen.ir.expr import Apply, Expr, Ref, refs
from glagen.ir.recurrence import Gate, Recurrence
from glagen.ir.schedule import Schedule
from glagen.ir.tuned import place

SIDES = {"K": "key side", "V": "value side", "scalar": "both sides alike"}
KINDS = {
    "input": "input",
    "parameter": "parameter, learned",
    "constant": "constant, no gradient",
    "scalar": "number",
}


def spec(document: Document, schedule: Schedule) -> Section:
    """The spec as it was written."""
    blocks: list[Block] = []
    if document.doc:
        blocks.append(say(Quote(document.doc)))
    blocks.append(Listing(tuple(equation.text for equation in document.equations)))
    rows = tuple(_declaration(d) for d in document.declarations)
    blocks.append(Table(("name", "kind", "shape in a call", "values", "meaning, default"), rows))
    slots = ", $S$ is the number of slots (axis $s$)" if any("s" in d.axes for d in document.declarations) else ""
    auto = "chosen by glagen" if document.chunk is None else "as the spec asks"
    twice = f"; {2 * schedule.chunk} for {' and for '.join(map(place, schedule.doubled))}" if schedule.doubled else ""
    blocks.append(
        say(
            "There are $B$ sequences of $T$ steps with $H$ heads; $K$ and $V$ are the widths of keys (axis $i$) and "
            f"values (axis $j$){slots}. Each head of each sequence has a state of its own. "
            f"A chunk has {schedule.chunk} steps ({auto}{twice}).",
        )
    )
    return Section(f"The spec `{document.name}`", tuple(blocks))


def _declaration(d: Declaration) -> tuple[Inline, ...]:
    lead = ["B", "T", "H"] if d.timed else ["H"]
    shape = f"$[{', '.join([*lead, *(EXTENT[a] for a in d.axes if a != 't')])}]$" if d.kind != "scalar" else ""
    meaning: list[str | Quote | Formula] = [Quote(d.doc)] if d.doc else []
    if d.default is not None:
        meaning += ["; default " if d.doc else "default ", d.default]
        meaning += [" for head $h$" if d.kind == "constant" else ""]
    domain = f"in ${d.domain}$" if d.domain else "any"
    return ((f"`{d.name}`",), (KINDS[d.kind],), (shape,), (domain,), tuple(meaning))


# -- roles -------------------------------------------------------------------------------------------------------------


def recognised(schedule: Schedule) -> Section:
    """The recurrence with its roles."""
    program = schedule.program
    rec = program.recurrence
    blocks: list[Block] = []
    for state in rec.states:
        blocks.append(
            say(
                f"The state `{state.name}` is a $K by V$ matrix. At every step it decays, elementwise, and receives "
                "a product of a key and a value, or several:"
            )
        )
        blocks.append(Equations((_generic(state.name, [g.side for g in state.gates], len(state.writes)),)))
    blocks.append(say("What stands for each letter here:"))
    blocks.append(Table(("role", "symbol", "expression", "axes", "range"), tuple(_roles(rec))))
    blocks += _outputs(rec)
    folded = any(g.side == "scalar" for s in rec.states for g in s.gates) and all(g.axes for g in program.gates)
    if folded:
        blocks.append(say("The scalar gate is added to a vector gate below: one exponential instead of two."))
    return Section("The recurrence as recognised", tuple(blocks))


SYMBOL = {"K": ("gK", ("t", "i")), "V": ("gV", ("t", "j")), "scalar": ("gs", ("t",))}


def _generic(state: str, sides: list[str], count: int) -> Equation:
    """S_t = exp(g) S_{t-1} + sum of a b, with the gates that there are."""
    after, before = Operand(state, ("t", "i", "j")), Operand(state, ("t-1", "i", "j"))
    logs = tuple(Operand(*SYMBOL[side]) for side in sides)
    kept: Formula = before
    if logs:
        kept = Product((Exponential(Total(logs) if len(logs) > 1 else logs[0]), before))
    terms = tuple(Product((Operand(a, ("t", "i")), Operand(b, ("t", "j")))) for a, b in _pairs(count))
    return Equation(after, Total((kept, *terms)))


def _pairs(count: int) -> list[tuple[str, str]]:
    return [("a", "b")] if count == 1 else [(f"a{n}", f"b{n}") for n in range(1, count + 1)]


def _roles(rec: Recurrence) -> list[tuple[Inline, ...]]:
    rows: list[tuple[Inline, ...]] = []
    for state in rec.states:
        found = {g.side: g for g in state.gates}
        for side, (name, axes) in SYMBOL.items():
            rows.append(_gate(side, Operand(name, axes), found.get(side)))
        for (a, b), write in zip(_pairs(len(state.writes)), state.writes, strict=True):
            rows.append((("written key",), (Operand(a, ("t", "i")),), (write.key,), (_axes(write.key),), ()))
            rows.append((("written value",), (Operand(b, ("t", "j")),), (write.value,), (_axes(write.value),), ()))
    for number, read in enumerate(rec.reads, 1):
        name = "c" if len(rec.reads) == 1 else f"c{number}"
        when = "before the write" if read.before else "after the write"
        rows.append(((f"query, read {when}",), (Operand(name, ("t", "i")),), (read.query,), (_axes(read.query),), ()))
    return rows


def _gate(side: str, symbol: Operand, gate: Gate | None) -> tuple[Inline, ...]:
    role: Inline = (f"log gate, {SIDES[side]}",)
    if gate is None:
        return (role, (symbol,), ("none",), (), ())
    return (role, (symbol,), (gate.log,), (_listed(gate.axes) or "per head",), (f"${gate.domain}$",))


def _axes(expr: Expr) -> str:
    found = {index.axis for r in refs(expr) for index in r.indices}
    return _listed(tuple(axis for axis in EXTENT if axis in found)) or "a number"


def _listed(axes: tuple[str, ...]) -> str:
    return f"${', '.join(axes)}$" if axes else ""


def _outputs(rec: Recurrence) -> list[Block]:
    """The reads as equations, the outputs made of them, and which terms never touch the state."""
    equations = []
    for number, read in enumerate(rec.reads, 1):
        query = Operand("c" if len(rec.reads) == 1 else f"c{number}", ("t", "i"))
        step = "t-1" if read.before else "t"
        body = Product((query, Operand(read.state, (step, "i", "j"))))
        equations.append(Equation(Operand(read.name, ("t", "j")), SumOver(("i",), body)))
    blocks: list[Block] = [say("The state is read, and outputs are made of what was read:")]
    equations += [Equation(Operand(o.name, o.axes), o.value) for o in rec.outputs]
    blocks.append(Equations(tuple(equations)))
    names = {read.name for read in rec.reads}
    local: list[tuple[str, Inline]] = []
    for output in rec.outputs:
        for term in _terms(output.value):
            if not names & {r.name for r in refs(term)}:
                local.append((output.name, (term,)))
    if local:
        blocks.append(say("Local terms, which depend on step $t$ alone and not on the state:"))
        blocks.append(Facts(tuple(local)))
    return blocks


def _terms(expr: Expr) -> list[Expr]:
    match expr:
        case Apply(function="add" | "sub", args=(x, y)):
            return [*_terms(x), *_terms(y)]
        case Apply(function="neg", args=(x,)) if not isinstance(x, Ref):
            return _terms(x)
        case _:
            return [expr]


# -- unrolled ----------------------------------------------------------------------------------------------------------


def unrolling(schedule: Schedule) -> Section:
    """The state at step t of a chunk, from the state that enters the chunk."""
    program = schedule.program
    blocks: list[Block] = [_counting(program)]
    if program.gates:
        blocks.append(say("Every exponential of gates is the decay from one step to a later one:"))
        blocks.append(Equations(tuple(definition(g) for g in program.gates)))
        blocks.append(
            say(
                "It is at most 1, since every log gate is at most 0; decays over neighbouring intervals multiply to "
                "the decay over both; and the decay from a step to itself is 1. Applying the recurrence until the "
                "chunk's start gives"
            )
        )
    else:
        blocks.append(say("Nothing decays. Applying the recurrence until the chunk's start gives"))
    blocks.append(Equations(tuple(_states(program))))
    return Section("The unrolled form", tuple(blocks))


def _counting(program: ChunkProgram) -> Block:
    names = ", ".join(f"`{s.name}[i,j]`" for s in program.states)
    maker = [w for s in program.states for pair in writes(program, s) for w in pair]
    used = ", ".join(f"`{n}`" for n in dict.fromkeys([o.name for o in maker] + [g.name for g in program.gates]))
    return say(
        "Steps of a chunk are numbered $1$ to $C$; $t$ is a step that reads, $s$ one that writes, and $0$ is the step "
        f"before the first. {names} without a step is the state that enters the chunk. {used} are the values of "
        "section 2 under the names they have from here on (section 4 defines those that are not inputs themselves).",
    )


def _states(program: ChunkProgram) -> list[Equation]:
    befores = dict.fromkeys(read.before for read in program.recurrence.reads)
    return [unrolled(program, state, Point("t", before)) for state in program.states for before in befores]
