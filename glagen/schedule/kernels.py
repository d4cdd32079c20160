"""Lines to kernels: which statements a kernel needs for its goals, and what stands in which loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glagen.errors import InternalError
from glagen.ir.chunk import Carry, ChunkProgram, Map, Operand, Statement, inputs_of
from glagen.ir.expr import Expr, apply, ref
from glagen.ir.kernel import (
    Assign,
    BlockLine,
    Blocks,
    Dot,
    Kernel,
    Line,
    Load,
    Loop,
    RowSum,
    Scan,
    Store,
    Tiles,
    read,
    written,
)
from glagen.schedule.covers import Cover
from glagen.schedule.lower import Lowering
from glagen.schedule.partial import local_sums, require_whole
from glagen.schedule.tiles import chunk_of, chunk_tiles, fused_tiles, scan_tiles


@dataclass(frozen=True, slots=True)
class Goal:
    """What a kernel is for: values to store under a tensor's name (summed), or states to carry."""

    target: str
    parts: tuple[Operand, ...]


def needed(program: ChunkProgram, names: list[str], loaded: set[str]) -> tuple[Statement, ...]:
    """The statements that define `names`, and all that those need, in program order; values in `loaded` come ready."""
    wanted = set(names)
    chosen = []
    for statement in reversed(program.forward + program.backward):
        if statement.out.name in wanted and statement.out.name not in loaded:
            chosen.append(statement)
            wanted |= set(inputs_of(statement))
    return tuple(reversed(chosen))


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel walks: see ir.kernel.Kernel."""

    name: str
    doc: str
    owned: tuple[str, ...]
    looped: str | None
    direction: str | None = None
    whole: tuple[str, ...] = ()
    save_states: bool = False
    reduces_heads: bool = False
    makes_sums: bool = False  # local ones, over the looped axis


def build(
    program: ChunkProgram, covers: dict[str, Cover], shape: Shape, goals: tuple[Goal, ...], carries: tuple[str, ...]
) -> Kernel:
    """The kernel of `shape` that stores `goals` and carries the states whose next value is in `carries`.

    Ensures: every tile is defined before it is used; sums over the looped axis are complete before they are; sums over
    an axis of which a program has one block are loaded, or parts that are stored as such.
    """
    states = {n for s in program.states for n in (s.name, s.adjoint_end)}
    wanted = [o.name for g in goals for o in g.parts] + list(carries)
    blocked = [a for a in shape.owned if a not in shape.whole]
    absent = {"i", "j"} - {shape.looped} if shape.makes_sums else set(blocked)
    sums = {n: o for n, (a, o) in local_sums(program).items() if a in absent and n not in wanted}
    statements = needed(program, wanted, states | set(sums))
    lowering = Lowering(program, covers, shape.looped, statements)
    lines: list[Line] = list(lowering.run())
    stores = []
    for goal in goals:
        tile_name, extra = _summed(goal)
        lines += extra
        stores.append(Store(goal.target, tile_name, goal.parts[0].indices))
    scans = tuple(
        scan_of(program, s, lowering.updates[s.out.name], s.carried.name if shape.save_states else None)
        for s in statements
        if isinstance(s, Carry)
    )
    carried = {scan.tile for scan in scans}
    loads = _loads(program, lines, scans, stores, carried, sums)
    roots = [s.tile for s in stores] + [r for s in scans for r in _names(s.update)]
    body = _begun(_phases([*loads, *lines], shape.looped, roots))
    for axis in blocked:
        require_whole(body, stores, axis)
    return Kernel(
        name=shape.name,
        doc=shape.doc,
        owned=shape.owned,
        looped=shape.looped,
        whole=shape.whole,
        direction=shape.direction,
        scans=scans,
        body=body,
        stores=tuple(stores),
        tiles=_tiles(program, shape),
        reduces_heads=shape.reduces_heads,
        sums=tuple(x.name for x in loads if x.name in sums),
    )


def _tiles(program: ChunkProgram, shape: Shape) -> Tiles:
    if shape.whole:
        return fused_tiles()
    if shape.direction:
        return scan_tiles(chunk_of(program))
    gated = frozenset(axis for gate in program.gates for axis in gate.axes)
    return chunk_tiles(shape.owned, gated, shape.reduces_heads)


def _names(expr: Expr) -> list[str]:
    return list(read(Assign("", (), expr)))


def _summed(goal: Goal) -> tuple[str, list[Line]]:
    if len(goal.parts) == 1:
        return goal.parts[0].name, []
    total: Expr = ref(goal.parts[0].name, goal.parts[0].indices)
    for part in goal.parts[1:]:
        total = apply("add", total, ref(part.name, part.indices))
    return f"{goal.target}_total", [Assign(f"{goal.target}_total", goal.parts[0].indices, total)]


def scan_of(program: ChunkProgram, carry: Carry, update: Expr, saved: str | None) -> Scan:
    state = next(s for s in program.states if carry.out.name in (s.end, s.adjoint))
    if carry.reverse:
        return Scan(
            carry.carried.name, update, f"{state.adjoint_end}_final", f"{state.adjoint}_initial", saved, reverse=True
        )
    return Scan(carry.carried.name, update, f"{state.name}_initial", f"{state.name}_final", saved)


def order_twin(
    program: ChunkProgram, lines: list[Line], scans: list[Scan], roots: list[str]
) -> tuple[Line | Scan, ...]:
    """Loads, lines and scans that lead to `roots`, definitions before uses."""
    loads = _loads(program, lines, tuple(scans), [], {s.tile for s in scans}, {})
    items: list[Line | Scan] = [*loads, *lines, *scans]
    ends = [scan.tile for scan in scans]
    return tuple(_prune(_sorted(items), roots + ends))


def _loads(
    program: ChunkProgram,
    lines: list[Line],
    scans: tuple[Scan, ...],
    stores: list[Store],
    carried: set[str],
    sums: dict[str, Operand],
) -> list[Load]:
    """What is used and not defined: inputs, cotangents, chunk states, local sums that another kernel has made."""
    defined = {n for line in lines for n in written(line)} | carried
    used = [n for line in lines for n in read(line)] + [n for s in scans for n in _names(s.update)]
    used += [s.tile for s in stores]
    axes = {d.name: d.axes for d in program.recurrence.declarations}
    axes |= {s.name: ("i", "j") for s in program.states} | {s.adjoint_end: ("i", "j") for s in program.states}
    axes |= {name: out.indices for name, out in zip(program.cotangents, program.outputs, strict=True)}
    axes |= {name: out.indices for name, out in sums.items()}
    loads = []
    for name in dict.fromkeys(used):
        if name in defined or name in ("K", "V", "T", "H") or name.startswith("%"):
            continue
        if name not in axes:
            raise InternalError(f"{name} is used and never defined")
        loads.append(Load(name, axes[name]))
    scalars = {d.name for d in program.recurrence.declarations if d.kind == "scalar"}
    return [x for x in loads if x.name not in scalars]


def _begun(body: tuple[Line | Loop, ...]) -> tuple[Line | Loop, ...]:
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
                item = first(item)
            case _:
                known |= set(written(item))
        found.append(item)
    return tuple(found)


def _axes_used(line: Line) -> set[str]:
    """Axes a line works on, those it sums over included."""
    match line:
        case Load(axes=axes):
            return set(axes)
        case Assign(axes=axes, over=over):
            return {*axes, *over}
        case Dot(axes=axes, x=x, y=y):
            return {*axes, *x.indices, *y.indices}
        case Blocks(body=body):
            return {a for x in body for a in _axes_used(x)}
        case _:
            return set(line.axes)


def _phases(lines: list[Line], looped: str | None, roots: list[str]) -> tuple[Line | Loop, ...]:
    """Order lines; put what has the looped axis into loops, as few as dependencies allow.

    A sum over the looped axis is complete after its loop; what needs it and the looped axis both goes to a later loop,
    where lines without sums of their own (loads, maps) are repeated.
    """
    ordered = _prune(_sorted(lines), roots)
    if looped is None:
        return tuple(ordered)
    phase: dict[str, int] = {}  # name -> first loop it can be used in (out of loops: before that loop)
    placed: list[tuple[int, bool, Line]] = []
    for line in ordered:
        inside = looped in _axes_used(line)
        at = max((phase[n] for n in read(line) if n in phase), default=0)
        sums = inside and _accumulates(line)
        placed.append((at, inside, line))
        for name in written(line):
            phase[name] = max(phase.get(name, 0), at + 1 if sums else at)
    placed = _late(placed)
    body: list[Line | Loop] = []
    last = max((at for at, _, _ in placed), default=0)
    for n in range(last + 1):
        body += [line for at, inside, line in placed if at == n and not inside]
        results = [line for at, inside, line in placed if at == n and inside and _accumulates(line)]
        available = [line for at, inside, line in placed if at <= n and inside and not _accumulates(line)]
        if results:
            inner = _prune([x for x in ordered if x in available or x in results], _needs(results))
            body.append(Loop(looped, tuple(inner)))
    return tuple(body)


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
    inner = line.body if isinstance(line, Blocks) else (line,)
    return any(not isinstance(x, Load) and x.accumulate for x in inner)


def _prune(lines: list[Any], roots: list[str]) -> list[Any]:
    """Only what leads to `roots`, within a cover's blocks too. Requires: definitions before uses."""
    wanted = set(roots)
    kept: list[Any] = []
    for line in reversed(lines):
        if set(_writes(line)) & wanted:
            if isinstance(line, Blocks):
                line = replace(line, body=tuple(_prune(list(line.body), list(wanted))))
            kept.append(line)
            wanted |= set(_reads(line))
    return kept[::-1]


def _writes(item: Line | Scan) -> tuple[str, ...]:
    return (item.tile,) if isinstance(item, Scan) else written(item)


def _reads(item: Line | Scan) -> tuple[str, ...]:
    return tuple(n for n in _names(item.update) if n != item.tile) if isinstance(item, Scan) else read(item)


def _sorted(lines: list[Any]) -> list[Any]:
    """Definitions before uses, else in the given order; a tile that accumulates is ready after its last addition."""
    remaining = list(lines)
    out: list[Line] = []
    while remaining:
        pending: dict[str, int] = {}
        for line in remaining:
            for name in _writes(line):
                pending[name] = pending.get(name, 0) + 1
        for line in remaining:
            own = set(_writes(line))
            if not any(pending.get(n, 0) - (n in own) > 0 for n in _reads(line)):
                remaining.remove(line)
                out.append(line)
                break
        else:
            raise InternalError(f"lines depend on each other: {[_writes(x) for x in remaining]}")
    return out


def gradient_goals(program: ChunkProgram, axis: str) -> tuple[Goal, ...]:
    """The parts of input gradients that the kernel owning `axis` computes: those made from values with that axis."""
    goals = []
    for gradient in program.gradients:
        parts = tuple(p for p in gradient.parts if _home(program, p) == axis)
        if parts:
            goals.append(Goal(f"d{gradient.name}", parts))
    return tuple(goals)


def _home(program: ChunkProgram, part: Operand) -> str:
    if "j" in part.indices:
        return "j"
    maker = next((s for s in program.backward if s.out.name == part.name), None)
    over = maker.over if isinstance(maker, Map) else ()
    return "j" if "j" in over else "i"
