"""In which order a kernel's lines stand, and what stands in which loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace
from typing import Any

from glagen.errors import InternalError
from glagen.ir.kernel import (
    Assign,
    BlockLine,
    Blocks,
    Depth,
    Dot,
    Line,
    Load,
    Loop,
    RowSum,
    Scan,
    lines_of,
    read,
    written,
)


def begun(body: tuple[Line | Loop, ...]) -> tuple[Line | Loop, ...]:
    """The same, where what is first added to a tile is what the tile begins with, unless a loop or a condition is in
    the way: to add to zero is work that compilers may not leave out."""
    known: set[str] = set()

    def first(line: BlockLine) -> BlockLine:
        fresh = line.name not in known
        known.add(line.name)
        return replace(line, accumulate=False) if fresh and line.accumulate else line

    found: list[Line | Loop] = []
    for item in body:
        match item:
            case Loop(body=lines):
                known |= {name for line in lines for name in written(line)}
            case Blocks() if item.is_passed_once:
                item = replace(item, body=tuple(first(line) for line in item.body))
            case Assign() | Dot() | RowSum():
                if item.name in known and not item.accumulate:
                    raise InternalError(f"{item.name} begins after something was added to it")
                item = first(item)
            case _:
                known |= set(written(item))
        found.append(item)
    return tuple(found)


def heaviest_first(body: tuple[Line | Loop, ...], roots: list[str], carried: Container[str]) -> tuple[Line | Loop, ...]:
    """The same lines, in an order that keeps few results waiting: of what a line reads, first what takes most dots;
    before a sum begins, what dots are to add to it; before a carried state is read, the sums of tiles over an axis that
    can be taken by then. What is loaded stays in front. Requires: no loops."""
    lines = [line for line in body if not isinstance(line, Loop)]
    makers: dict[str, list[Line]] = {}
    for line in lines:
        for name in written(line):
            makers.setdefault(name, []).append(line)
    weights: dict[str, int] = {}
    for line in lines:
        inner = line.body if isinstance(line, Blocks) else (line,)
        weight = sum(isinstance(x, Dot) for x in inner) + sum(weights.get(name, 0) for name in read(line))
        for name in written(line):
            weights[name] = weights.get(name, 0) + weight
    ordered: list[Line] = [line for line in lines if isinstance(line, Load)]

    def visit(name: str) -> None:
        made = [line for line in makers.get(name, ()) if line not in ordered]
        for line in sorted(made, key=lambda x: not (isinstance(x, Dot) and x.accumulate)):
            for needed_first in sorted(read(line), key=lambda n: -weights.get(n, 0)):
                if needed_first not in written(line):
                    visit(needed_first)
        for line in made:
            place(line)

    def place(line: Line) -> None:
        """A line, after those that begin what it adds to: blocks may add to more than was asked for."""
        for name in written(line):
            first = makers[name][0]
            if first is not line and first not in ordered:
                for needed_first in read(first):
                    visit(needed_first)
                place(first)
        if line not in ordered:
            ordered.append(line)

    for name in roots:
        visit(name)
    return tuple(_summed_before(ordered, carried))


def _summed_before(lines: list[Line], carried: Container[str]) -> list[Line]:
    """The same lines, with sums of tiles over an axis, and what is computed of such, before states are read, where what
    they read is there by then: tiles need not wait for their sums while all registers are taken. (H200, Triton 3.6.0,
    gla's forward on chip, K=V=128, four warps: a thread spills 200 bytes, not 352, and it takes 0.65 ms, not 0.69.)
    Likewise decays that runs make by exponentials of their own, and what has them, for that is half as long. (The same,
    strong gates: none spilled, not 160 bytes; 0.38 ms, not 0.59.)"""
    first = next((n for n, line in enumerate(lines) if any(name in carried for name in read(line))), len(lines))
    early, late = lines[:first], list[Line]()
    summed, waiting = set[str](), set[str]()  # names that the lines after the first that reads a state write
    near = {line.name for line in lines if isinstance(line, Assign) and line.near and len(line.axes) == 2}
    decayed = pruned(lines[first:], [n for x in lines if near & set(read(x)) for n in written(x)])
    for line in lines[first:]:
        of_sums = isinstance(line, Assign) and len(line.axes) < 2 and bool(set(read(line)) & summed)
        if (_sums_a_tile(line) or of_sums or line in decayed) and not {*read(line), *written(line)} & waiting:
            early.append(line)
            summed.update(written(line))
        else:
            late.append(line)
            waiting.update(written(line))
    return early + late


def _sums_a_tile(line: Line) -> bool:
    return isinstance(line, Assign) and bool(line.over) and len({*line.axes, *line.over}) == 2


def numbers_first(body: tuple[Line | Loop, ...]) -> tuple[Line | Loop, ...]:
    """The same, with loads of numbers a step in front: threads wait for those, which come while others are on the way.
    (H100, Triton 3.6.0, bf16, simple_gla's key gradients, B4 T4096 H64 K=V=128: 1.23 ms for 1.35.)"""
    numbers = tuple(line for line in body if isinstance(line, Load) and line.axes == ("t",))
    return (*numbers, *(item for item in body if item not in numbers))


def loaded_late(body: tuple[Line | Loop, ...]) -> tuple[Line | Loop, ...]:
    """The same, with tiles that have all columns of keys loaded just before what first reads them; those that states
    alone add, after all else. So they may come one after another, to the same place (see emit/loads.py)."""
    late = [x for x in body if isinstance(x, Load) and {*x.axes} == {"t", "i"}]
    lines = [x for x in body if x not in late]
    for load in late:
        users = (n for n, x in enumerate(lines) if any(load.name in read(line) for line in lines_of(x)))
        lines.insert(next(users, len(lines)), load)
    return tuple(lines)


def axes_used(line: Line) -> set[str]:
    """Axes a line works on, those it sums over included."""
    match line:
        case Load(axes=axes):
            return set(axes)
        case Assign(axes=axes, over=over):
            return {*axes, *over}
        case Dot(axes=axes, x=x, y=y):
            return {*axes, *x.indices, *y.indices}
        case Depth(source=source):
            return set(source.indices)
        case Blocks(body=body):
            return {a for x in body for a in axes_used(x)}
        case _:
            return set(line.axes)


def phases(
    lines: list[Line], looped: str | None, roots: list[str], stored: Container[str] = ()
) -> tuple[Line | Loop, ...]:
    """Order lines; put what has the looped axis into loops, as few as dependencies allow. `stored`: tiles of that axis
    that are wanted block by block.

    A sum over the looped axis is complete after its loop; what needs it and the looped axis both goes to a later loop,
    where lines without sums of their own (loads, maps) are repeated.
    """
    ordered = pruned(in_order(lines), roots)
    if looped is None:
        return tuple(ordered)
    phase: dict[str, int] = {}  # name -> first loop it can be used in (out of loops: before that loop)
    placed: list[tuple[int, bool, Line]] = []
    for line in ordered:
        inside = looped in axes_used(line)
        at = max((phase[n] for n in read(line) if n in phase), default=0)
        sums = _added_to(line) if inside else ()
        placed.append((at, inside, line))
        for name in written(line):
            phase[name] = max(phase.get(name, 0), at + 1 if name in sums else at)
    placed = _late(placed)
    body: list[Line | Loop] = []
    last = max((at for at, _, _ in placed), default=0)
    for n in range(last + 1):
        body += [line for at, inside, line in placed if at == n and not inside]
        inner_lines = [line for at, inside, line in placed if at == n and inside]
        results = [x for x in inner_lines if _accumulates(x) or any(name in stored for name in written(x))]
        available = [line for at, inside, line in placed if at <= n and inside]
        if results:
            inner = [x if x in results else _without_sums(x) for x in ordered if x in available]
            inner = pruned([x for x in inner if x is not None], _needs(results))
            body.append(Loop(looped, _covers_first(inner)))
    return tuple(body)


def _covers_first(lines: list[Line]) -> tuple[Line, ...]:
    """The same lines, in an order that keeps few results waiting during the blocks of covers, which want most
    registers: what is loaded, what blocks need and the blocks, then all else."""
    blocks: list[Line] = [line for line in lines if isinstance(line, Blocks)]
    led = pruned(lines, _needs(blocks))
    late = [line for line in lines if blocks and line not in led and not isinstance(line, Load)]
    return (*(line for line in lines if line not in late), *late)


def _late(placed: list[tuple[int, bool, Line]]) -> list[tuple[int, bool, Line]]:
    """The same with each line outside of loops as late as its users allow: no loop holds what only later ones need."""
    last = max((at for at, _, _ in placed), default=0)
    due: dict[str, int] = {}  # name -> the first loop before or in which it is used
    late = []
    for at, inside, line in reversed(placed):
        if not inside:
            at = max(at, min((due.get(n, last) for n in written(line)), default=at))
        late.append((at, inside, line))
        for name in (*read(line), *written(line)):
            due[name] = min(due.get(name, last), at)
    return late[::-1]


def _needs(lines: list[Line]) -> list[str]:
    return [n for line in lines for n in (*read(line), *written(line))]


def _accumulates(line: Line) -> bool:
    return bool(_added_to(line))


def _added_to(line: Line) -> tuple[str, ...]:
    """Names that a line adds to."""
    inner = line.body if isinstance(line, Blocks) else (line,)
    return tuple(x.name for x in inner if not isinstance(x, Load) and x.accumulate)


def _without_sums(line: Line) -> Line | None:
    """What of a line adds to nothing; None if it all does."""
    if isinstance(line, Blocks):
        body = tuple(x for x in line.body if not x.accumulate)
        return replace(line, body=body) if body else None
    return None if _accumulates(line) else line


def pruned(lines: list[Any], roots: list[str]) -> list[Any]:
    """Only what leads to `roots`, within a cover's blocks too. Requires: definitions before uses."""
    wanted = set(roots)
    kept: list[Any] = []
    for line in reversed(lines):
        if set(_writes(line)) & wanted:
            if isinstance(line, Blocks):
                line = replace(line, body=tuple(pruned(list(line.body), list(wanted))))
            kept.append(line)
            wanted |= set(_reads(line))
    return kept[::-1]


def _writes(item: Line | Scan) -> tuple[str, ...]:
    return (item.tile,) if isinstance(item, Scan) else written(item)


def _reads(item: Line | Scan) -> tuple[str, ...]:
    return tuple(n for n in item.reads if n != item.tile) if isinstance(item, Scan) else read(item)


def _adds(item: Line | Scan) -> set[str]:
    return set() if isinstance(item, Scan) else set(_added_to(item))


def in_order(lines: list[Any]) -> list[Any]:
    """Definitions before uses, else in the given order; what is added to a tile after what begins it, and a tile that
    accumulates is ready after its last addition."""
    remaining = [(line, {*_writes(line)}, _reads(line), _adds(line)) for line in lines]
    pending = Counter(name for _, writes, _, _ in remaining for name in writes)
    begins = Counter(n for line, writes, _, adds in remaining if not isinstance(line, Blocks) for n in writes - adds)
    out: list[Any] = []
    while remaining:
        ready = (
            n
            for n, (_, writes, reads, adds) in enumerate(remaining)
            if not any(begins[name] for name in adds) and not any(pending[name] > (name in writes) for name in reads)
        )
        at = next(ready, None)
        if at is None:
            raise InternalError(f"lines depend on each other: {[_writes(line) for line, *_ in remaining]}")
        line, writes, _, adds = remaining.pop(at)
        out.append(line)
        pending.subtract(writes)
        begins.subtract(set() if isinstance(line, Blocks) else writes - adds)
    return out
