"""Kernels of their goals: which statements they need, what they load, store and carry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from glagen.errors import InternalError
from glagen.ir.chunk import Carry, ChunkProgram, Map, Operand, Statement, inputs_of
from glagen.ir.expr import Expr, plus, ref, refs
from glagen.ir.kernel import Assign, Judge, Kernel, Line, Load, Scan, Store, read, written
from glagen.ir.recurrence import Recurrence
from glagen.ir.schedule import may_close
from glagen.ir.tuned import ALONE_KERNELS, BOTH, FORWARD, HALVED, KEY_GRADIENTS, Tiles
from glagen.schedule.alone import carried_rounded, held_shortly, summed_as_they_lie
from glagen.schedule.both import of_states, sides_in_turn, summed_of_states
from glagen.schedule.covers import Cover, reach
from glagen.schedule.diagonals import put_on, read_off
from glagen.schedule.given import apart, by_those_of_scores, columns_first_from_memory, exact, of_exact
from glagen.schedule.joint import joined
from glagen.schedule.lean import lean
from glagen.schedule.lower import Lowering
from glagen.schedule.mild import for_any_gates, lightened, unguarded
from glagen.schedule.operands import as_read
from glagen.schedule.order import begun, heaviest_first, in_order, loaded_late, numbers_first, phases, pruned
from glagen.schedule.partial import local_sums, require_whole
from glagen.schedule.sums import added_in_order, added_to_states, added_to_tiles, users_of
from glagen.schedule.tiles import (
    ALONE_TILES,
    GIVEN_TILES,
    HALVED_TILES,
    SCORES_TILES,
    STATES_TURNED,
    WGMMA_ROWS,
    chunk_of,
    chunk_tiles,
    fused_tiles,
    gated_sides,
    is_light,
    scan_tiles,
)
from glagen.schedule.turn import columns_first, dealt, flipped, states_turned, turned
from glagen.schedule.wait import adds_from_shared, had_better_wait, read_beside_scores, waiting
from glagen.schedule.walks import summed_once


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
    exact: bool = False  # of what its scores are made, nothing is rounded
    own: tuple[str, ...] = ()  # it is given all but what needs a state, or all of these columns (see given.py)

    @property
    def on_chip(self) -> bool:
        """Does it walk with a state, or its gradient, on chip?"""
        return bool(self.whole and self.direction)

    @property
    def given(self) -> bool:
        """Does it load what another kernel makes of each chunk?"""
        return bool(self.own)


def build(
    program: ChunkProgram,
    covers: dict[str, Cover],
    shape: Shape,
    goals: tuple[Goal, ...],
    carries: tuple[str, ...],
    operands: tuple[Operand, ...] = (),
    kept: tuple[Operand, ...] = (),
) -> Kernel:
    """The kernel of `shape` that stores `goals` and carries the states whose next value is in `carries`.

    `operands`: tiles of a kernel that is given them, which this one makes (see given.py); `kept`: what gradients of
    values read of states, which it stores for them (see kept.py).

    Ensures: every tile is defined before it is used; sums over the looped axis are complete before they are; sums over
    an axis of which a program has one block are loaded, or parts that are stored as such.
    """
    states = {n for s in program.states for n in (s.name, s.adjoint_end)}
    wanted = [o.name for g in goals for o in g.parts] + list(carries)
    if operands and shape.looped == "i":
        wanted += [x.name for x in program.outputs] + [s.end for s in program.states]
    elif operands:
        wanted += [x.name for goal in gradient_goals(program, "i") for x in goal.parts]
        wanted += [s.adjoint for s in program.states]
    wanted += [x.name for goal in gradient_goals(program, "j") for x in goal.parts] if kept else []
    blocked = [a for a in shape.owned if a not in shape.whole]
    absent = {"i", "j"} - {shape.looped} if shape.makes_sums else set(blocked)
    sums = {n: o for n, (a, o) in local_sums(program).items() if a in absent and n not in wanted}
    statements = needed(program, wanted, states | set(sums))
    forward = shape.name in FORWARD
    alone = shape.name in ALONE_KERNELS
    adds_by_wgmma = wants_wgmma(program, covers, shape.name)
    turns = shape.on_chip and not (shape.given or alone)
    all_turned = turns and shape.name != HALVED and gated_sides(program) not in STATES_TURNED
    by_columns = all_turned or alone or (shape.on_chip and shape.given)
    by_rows = gated_sides(program) == "s" and not needs_exact_states(program.recurrence)
    lowering = Lowering(
        program,
        covers,
        shape.looped,
        statements,
        turned=all_turned or alone,
        by_columns=by_columns,
        causal=forward,
        by_rows=by_rows,
    )
    lines: list[Line] = lowering.run()
    stores = []
    for goal in goals:
        tile_name, extra = _summed(goal)
        lines += extra
        stores.append(Store(goal.target, tile_name, goal.parts[0].indices))
    stores += [Store(x.name, x.name, x.indices) for x in (*operands, *kept)]
    scans = tuple(
        scan_of(program, s, lowering.updates[s.out.name], s.carried.name if shape.save_states else None)
        for s in statements
        if isinstance(s, Carry) and s.out.name in carries
    )
    if kept:
        lines = pruned(in_order(lines), [x.tile for x in stores] + [n for scan in scans for n in scan.reads])
    lines = read_off(lightened(lines, forward, shape.on_chip, may_close(program.gates)))
    for_states = kept or not (shape.whole or shape.given)  # a walk that decays nothing else
    if shape.direction and for_states and not needs_exact_states(program.recurrence):
        lines = summed_once(lines, (gate.name for gate in program.gates if gate.axes))
    if alone and program.gates:
        lines = lean(lines, scans, stores)
    if not (shape.given or operands):
        lines = put_on(lines, users_of(lines, scans, stores))
    carried = {scan.tile for scan in scans}
    lines = of_exact(lines) if shape.given and not shape.whole else lines
    lines, given = apart(lines, scans, stores, shape.own, not shape.whole) if shape.given else (lines, ())
    if shape.exact:
        lines = exact(lines)
    elif operands:
        lines = summed_once(for_any_gates(lines), (gate.name for gate in program.gates if gate.axes))
        lines = by_those_of_scores(lines, stores)
    loads = _loads(program, lines, scans, stores, carried, sums | {x.name: x for x in given})
    lines, scans = added_to_states(unguarded(lines, stores), scans, stores)
    if shape.on_chip and (shape.given or alone):
        lines = added_to_tiles(lines, scans, stores)
        lines, scans = columns_first(lines, scans) if alone else (lines, scans)
    elif shape.on_chip:
        lines, scans = joined(lines, scans)
        lines = added_to_tiles(lines, scans, stores)
        if adds_by_wgmma and had_better_wait(scans, loads):
            scans = waiting(scans)
        else:
            lines, scans = (turned if all_turned else states_turned)(lines, scans)
    elif shape.name == BOTH:
        lines, scans = flipped(lines, scans, of_states(lines, states))
    elif shape.name == KEY_GRADIENTS and not program.gates:
        lines = columns_first_from_memory(lines, loads)
    lines, scans = as_read(loads, lines, scans, stores)
    if alone:
        lines, scans = carried_rounded(summed_as_they_lie(lines), scans)
    lines = added_in_order(lines) if forward and not shape.direction else lines
    judges = _judges(program, covers) if operands or shape.direction else ()
    judges = tuple(x for x in judges if not operands or x.axis == shape.looped)
    if shape.given:  # gates of which all comes from others are right at once
        judges = tuple(x for x in judges if any(x.sums in written(line) for line in lines))
    roots = [s.tile for s in stores] + [r for s in scans for r in s.reads] + [judge.sums for judge in judges]
    body = begun(phases(lines, shape.looped, roots, {x.tile for x in stores if shape.looped in x.axes}))
    if shape.on_chip:
        body = heaviest_first(body, roots, carried)
        body = read_beside_scores(body, scans)
        body = loaded_late(body) if shape.given else held_shortly(body) if alone and program.gates else body
    elif shape.name == BOTH:
        body = heaviest_first(body, [*summed_of_states(lines, states), *sides_in_turn(stores)], ())
    if not shape.direction:
        body = numbers_first(body)
    for axis in blocked:
        require_whole(body, stores, axis)
    kernel = Kernel(
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
        judges=judges,
        given=tuple(x.name for x in given or operands or kept),
    )
    if shape.on_chip and adds_by_wgmma and adds_from_shared(kernel):
        kernel = replace(kernel, body=dealt(body, scans))
    if is_light(kernel):
        kernel = replace(kernel, scans=tuple(replace(scan, ahead=scan.saved is not None) for scan in scans))
    return kernel


def wants_wgmma(program: ChunkProgram, covers: dict[str, Cover], name: str) -> bool:
    """Is a kernel of this name, if it keeps the state on chip, to add to it, and to nothing else, by wgmma, where
    Hopper can? Measured where covers are one product if gates are mild, and for one that takes chunks by halves."""
    if name == HALVED:
        return True
    alike = not program.recurrence.part_of and gated_sides(program) in STATES_TURNED
    return alike and all(cover.finds_depth for cover in covers.values()) and chunk_of(program) < WGMMA_ROWS


def needs_exact_states(recurrence: Recurrence) -> bool:
    """Must chunk states, and what is added to them, keep their digits?

    Where a gate depends on a parameter, whose gradient is a sum over all steps: what the rounding of a state adds to
    the gradient of a chunk's gates is alike in all of its steps, so that it grows in such a sum. And where reads of
    several states are combined, for what cancels between them.
    """
    parameters = {d.name for d in recurrence.declarations if d.kind == "parameter"}
    logs = [gate.log for state in recurrence.states for gate in state.gates]
    return bool(recurrence.part_of) or any(r.name in parameters for log in logs for r in refs(log))


def _judges(program: ChunkProgram, covers: dict[str, Cover]) -> tuple[Judge, ...]:
    """What tells chunks of strong gates: the sums that a state's decay over the chunk is made of."""
    guarded = [gate for gate in program.gates if gate.name in covers and covers[gate.name].finds_depth]
    limits = [Fraction(covers[gate.name].limit) for gate in guarded]
    return tuple(
        Judge(gate.name, f"log_{gate.name}_whole", gate.axes[0], limit, reach(limit))
        for gate, limit in zip(guarded, limits, strict=True)
    )


def _tiles(program: ChunkProgram, shape: Shape) -> Tiles:
    if shape.whole:
        if shape.name == HALVED:
            return HALVED_TILES
        if shape.name in (*ALONE_KERNELS, BOTH):
            return ALONE_TILES
        return GIVEN_TILES if shape.given else fused_tiles(program)
    if shape.direction:
        return scan_tiles(chunk_of(program))
    gated = frozenset(axis for gate in program.gates for axis in gate.axes)
    if shape.name == "scores" and shape.looped in gated:
        return SCORES_TILES
    return chunk_tiles(shape.owned, gated, shape.reduces_heads)


def _summed(goal: Goal) -> tuple[str, list[Line]]:
    if len(goal.parts) == 1:
        return goal.parts[0].name, []
    total = plus(*(ref(part.name, part.indices) for part in goal.parts))
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
    return tuple(pruned(in_order(items), roots + ends))


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
    used = [n for line in lines for n in read(line)] + [n for s in scans for n in s.reads]
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
