"""Sections 6 and 7: how the causal triangle is tiled and why that is legal, and the stability certificate."""

from __future__ import annotations

from glagen.errors import InternalError
from glagen.explain.outline import (
    Block,
    Equation,
    Equations,
    Inline,
    Items,
    Listing,
    Product,
    Quote,
    Section,
    Table,
    say,
)
from glagen.ir.chunk import Carry, ChunkProgram, Contract, Decay, GateInfo, Point, Statement
from glagen.ir.kernel import Blocks
from glagen.ir.schedule import Growth, Schedule
from glagen.schedule.covers import guard_limit, reach

PICTURE = 16  # most rows of a picture
Part = tuple[str, int]  # kind and leaf of ir.kernel.Blocks
IN_KERNELS = (
    "That is the PyTorch form. Kernels take the diagonal so where there are no more steps than in a chunk, or gates "
    "are strong; else the block of the whole chunk has it, rounded as its other pairs are."
)


def parts_of(schedule: Schedule, gate: str) -> tuple[Part, ...]:
    """The kinds of blocks, and their sizes, that tile the triangle for a gate, in order."""
    found: dict[Part, None] = {}
    for line in schedule.twin_forward:
        if isinstance(line, Blocks) and line.gate == gate and line.kind != "own":
            found[(line.kind, line.leaf)] = None
    return tuple(found)


def covers(schedule: Schedule) -> Section:
    """The cover of each vector gate, and why it is legal."""
    program = schedule.program
    gates = {g.name: g for g in program.gates}
    blocks: list[Block] = []
    drawn: tuple[Part, ...] | None = None
    for name, text in schedule.covers:
        gate = gates[name]
        between = Decay(name, gate.axes, Point("s"), Point("t"))
        cover = text.split(" ")[0]
        side = "key" if "i" in gate.axes else "value"
        halves = (Decay(name, gate.axes, Point("s"), Point("r")), Decay(name, gate.axes, Point("r"), Point("t")))
        blocks.append(
            say(
                f"`{name}`: cover `{cover}`. Inside a chunk, ",
                between,
                f" differs from one {side} channel to the next, so products over $s$ and $t$ are matrix products only "
                "where it splits at an anchor $r$ into a factor of row $t$ and a factor of row $s$:",
            )
        )
        blocks.append(Equations((Equation(between, Product(halves)),)))
        own = _reads_own_write(program, name)
        order = "<=" if own else "<"
        blocks.append(say(f"Its product is then taken block by block; the triangle of all $s {order} t$ is tiled so:"))
        parts = parts_of(schedule, name)
        items = [_part(kind, leaf, schedule.chunk, gate) for kind, leaf in parts]
        if own:
            items.append((f"the diagonal, $s = t$, where there is no decay: {_diagonal(gate, parts)}.",))
            if any(kind == "guard" for kind, _ in parts):
                items.append((IN_KERNELS,))
        blocks.append(Items(tuple(items)))
        if parts == drawn:
            blocks.append(say("The picture is the same as above."))
            continue
        drawn, lines = parts, picture(schedule.chunk, parts)
        blocks += [Listing(tuple(lines)), say(_legend(schedule.chunk, "".join(lines)))]
    plain = [g for g in program.gates if not g.axes]
    for gate in plain:
        blocks.append(
            say(
                f"`{gate.name}` is one number a step: its decay multiplies the scores after their matrix product, "
                "as a triangular matrix whose exponents are each summed over their own interval. It needs no cover."
            )
        )
    if not program.gates:
        blocks.append(say("There is no gate, so nothing to cover: the triangle is one masked matrix product."))
    return Section("The cover of the causal triangle", tuple(blocks))


def _reads_own_write(program: ChunkProgram, gate: str) -> bool:
    """Is there a read, past this gate, of what the same step wrote?"""
    contracts = [x for x in program.forward if isinstance(x, Contract) and x.order == "<="]
    return any(decay.gate == gate for contract in contracts for decay in contract.decays)


def _diagonal(gate: GateInfo, parts: tuple[Part, ...]) -> str:
    """Where a step's own write comes from; scores are of a gate on keys, their gradients of one on values."""
    product = "from a product without decays, for its terms may cancel"
    if "i" in gate.axes:
        return f"scores have it {product}; what takes their gradients has it elementwise"
    within = any(kind == "eights" for kind, _ in parts)
    outputs = (
        "outputs have it from the blocks with a growth, gradients of values" if within else "what takes scores has it"
    )
    return f"{outputs} elementwise; gradients of scores have it {product}"


def _part(kind: str, leaf: int, chunk: int, gate: GateInfo) -> Inline:
    below = "Both factors sum log gates over forward intervals, so both are at most 1, whatever the gates."
    match kind:
        case "bisect":
            rows = f"{leaf} row{'s' * (leaf > 1)}"
            return (
                f"`bisect`: the chunk is halved, and its halves again, down to {rows}: {_levels(chunk, leaf)} in all. "
                "In each square the later half reads what the earlier half wrote, and $r$ is the last step of the "
                f"earlier half. {below}",
            )
        case "strips":
            return (
                f"`strips`: each sub-chunk of {leaf} rows reads what all sub-chunks before it wrote, and $r$ is the "
                f"step before its first. {below}",
            )
        case "guard":
            limit = guard_limit(gate.steep)
            far = float(reach(limit))
            return (
                "`guard`: the whole chunk, with $r$ the step before its first. The factor of row $s$ is then a growth. "
                f"It is used in those rows $t$ in which the gates since $r$ come to -{limit:g} at least, in "
                "every channel; gates are at most 0, so the exponents of all rows $s <= t$ are within that too. Which "
                "blocks a row takes depends on nothing after it. (For gradients, which depend on what comes after "
                "anyway, a chunk is halved for all rows alike, until the strongest log gate, in all rows of a block, "
                f"would come to -{limit:g} at least; the blocks have a growth each.)"
                + ("" if far == limit else f" Beside inputs of 16 bits kernels have runs in which that is -{far:g}."),
            )
        case "eights":
            own = "Of rows of stronger gates it takes the diagonal, with no decay. " if "j" in gate.axes else ""
            bounded = "" if gate.steep else " (beside inputs of 16 bits they always serve, see `clamp`)"
            return (
                f"`eights`: diagonal blocks of {leaf} rows, with $r$ the step before their first, for other rows: if "
                f"the strongest log gate up to row $t$, in all {leaf} rows, would come to -{guard_limit(gate.steep):g} "
                f"at least{bounded}. {own}What is left is covered by what follows.",
            )
        case "leaf":
            worst = leaf * -gate.domain.low
            return (
                f"`leaf`: diagonal blocks of {leaf} rows, with $r$ the step before their first. The factor of row $s$ "
                f"is then a growth over at most {leaf} steps; the log gate is in ${gate.domain}$, so its exponent "
                f"is at most {worst:g}, within the bound of the certificate below.",
            )
        case "offsets":
            return (
                f"`offsets`: diagonal blocks of {leaf} rows, one diagonal $t - s = 1 .. {leaf - 1}$ at a time, "
                "elementwise and with no split: the decay over the last $t - s$ steps is at most 1.",
            )
        case _:
            raise InternalError(f"unknown blocks {kind}")


def _levels(chunk: int, leaf: int) -> str:
    levels = (chunk // leaf).bit_length() - 1
    return f"{levels} level{'s' * (levels > 1)}"


def picture(chunk: int, parts: tuple[Part, ...]) -> list[str]:
    """The triangle as text, rows t down and columns s across; a cell stands for chunk / 16 rows of each."""
    size = min(chunk, PICTURE)
    scale = chunk // size
    return [" ".join(_cell(parts, t, s, scale, chunk) for s in range(t + 1)) for t in range(size)]


def _legend(chunk: int, shown: str) -> str:
    scale = max(chunk // PICTURE, 1)
    cell = "one row and column" if scale == 1 else f"{scale} rows and columns"
    marks = {
        "A": "equal letters side by side are one block",
        "=": "`=` is a block on the diagonal, with its anchor before its first row",
        "o": "`o` is taken one diagonal at a time",
        "*": "`*` holds blocks smaller than a cell, and the diagonal",
        "\\": "`\\` is the diagonal",
    }
    used = [text for mark, text in marks.items() if mark in shown]
    return f"Rows read ($t$) and columns write ($s$); a cell is {cell}; {'; '.join(used)}."


def _cell(parts: tuple[Part, ...], t: int, s: int, scale: int, chunk: int) -> str:
    """What stands for the block that holds the first row and column of a cell (t, s), s <= t."""
    row, column = t * scale, s * scale
    for kind, leaf in parts:
        if kind == "bisect":
            half, letter = chunk // 2, 0
            while half >= max(leaf, scale):
                if row // (2 * half) == column // (2 * half) and row // half != column // half:
                    return "ABCDEFGHIJ"[letter]
                half, letter = half // 2, letter + 1
        elif kind == "guard":
            return "="
        elif kind == "strips" and row // leaf != column // leaf:
            return "ABCDEFGHIJKLMNP"[min(row // leaf - 1, 14)]
        elif kind in ("leaf", "offsets") and row // leaf == column // leaf:
            small = leaf < scale or leaf == 1
            return (
                "*" if small else ("=" if kind == "leaf" else "*" if s == t and scale > 1 else "\\" if s == t else "o")
            )
    return "\\" if t == s and scale == 1 else "*"


# -- certificate -------------------------------------------------------------------------------------------------------


def certificate(schedule: Schedule) -> Section:
    """Every exponential with its worst exponent."""
    if not schedule.certificate:
        return Section("The stability certificate", (say("No exponential of a gate is computed."),))
    known = _decays(schedule)
    rows = tuple(_growth(growth, known) for growth in schedule.certificate)
    return Section(
        "The stability certificate",
        (
            say(
                "Every exponential of gates that is computed, in all kernels and in the PyTorch form, with the "
                "steps it sums over and the largest value its exponent can have, in nats:"
            ),
            Table(("exponential", "interval", "worst", "why it is finite"), rows),
        ),
    )


def _growth(growth: Growth, known: dict[str, Decay]) -> tuple[Inline, ...]:
    inverse, bare = growth.where.startswith("1/"), growth.where.removeprefix("1/")
    shown: Inline = ("1/" if inverse else "", known[bare]) if bare in known else (Quote(growth.where),)
    return (shown, (Quote(growth.interval),), (f"{growth.worst:g}",), (Quote(growth.reason),))


def _decays(schedule: Schedule) -> dict[str, Decay]:
    statements: tuple[Statement, ...] = schedule.program.forward + schedule.program.backward
    return {str(d): d for s in statements if isinstance(s, Contract | Carry) for d in s.decays}
