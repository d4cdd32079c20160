"""The forms a recurrence is compiled to, and the kernels of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from glagen.errors import UnprovableError
from glagen.ir.chunk import Carry, ChunkProgram, Operand, inputs_of
from glagen.ir.invariants import require_sound
from glagen.ir.kernel import Kernel, Line, Scan
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import (
    ALONE,
    ALONE_KERNELS,
    BOTH,
    GIVEN,
    GIVEN_BACK,
    HALVED,
    KEPT_KERNELS,
    ON_CHIP,
    OTHERS,
    SHARING,
    WALKS,
    Tuned,
)
from glagen.schedule.alone import may_walk_alone
from glagen.schedule.apart import made_apart, maker_of, scores
from glagen.schedule.beyond import leaving_values
from glagen.schedule.both import may_make_both
from glagen.schedule.certificate import certificate
from glagen.schedule.covers import GROWTH_LIMIT, Cover, choose_cover
from glagen.schedule.given import has_lefts_in_memory, may_share
from glagen.schedule.halves import agreeing, by_halves, has_halves, in_halves, may_take_halves
from glagen.schedule.kept import keeping, kept
from glagen.schedule.kernels import (
    Goal,
    Shape,
    build,
    gradient_goals,
    needed,
    needs_exact_states,
    order_twin,
    scan_of,
    wants_wgmma,
)
from glagen.schedule.lower import Lowering
from glagen.schedule.makers import given_tiles, maker_for_walk, makes_all_of, sharing, with_makers
from glagen.schedule.mild import for_mild_gates
from glagen.schedule.mirrored import mirrored, walk_alone
from glagen.schedule.partial import local_sums
from glagen.schedule.scored import are_for_strong_gates, changes_bits, with_scores
from glagen.schedule.sums import adds_in_order
from glagen.schedule.tiles import (
    FASTER_BY_WGMMA,
    FUSED_SIDES,
    NARROW,
    WGMMA_ROWS,
    WIDE,
    chunk_of,
    gated_sides,
    names_of,
    shipped,
    spared_tile,
)
from glagen.schedule.wait import adds_from_shared, reads_from_shared

_GIVEN_DOC = "All outputs of a sequence, of what is given of each chunk; the state stays on chip."


def schedule(program: ChunkProgram, options: Options) -> Schedule:
    """Requires: a program with its adjoint. Ensures: a cover with a certificate for every vector gate.

    Raises UnprovableError where `options` ask for a cover that has none.
    """
    require_sound(program)
    chunk = chunk_of(program)
    covers = _covers(program, chunk, options)
    table = _alike(program, chunk, options)
    exact = needs_exact_states(program.recurrence)
    of_strong = are_for_strong_gates(program, covers)
    apart = scores(program) if of_strong or any(x.walk in ("scores", GIVEN) for x in table) else ()
    keys, values = ({goal.target for goal in gradient_goals(program, axis)} for axis in ("i", "j"))
    of_sides = may_make_both(program, exact) and not keys & values
    beside = {
        ("scores", GIVEN): True,
        (GIVEN,): may_share(program, gated_sides(program), exact),
        SHARING: may_share(program, gated_sides(program), exact),
        (walk_alone(program),): may_walk_alone(program, exact),
        (HALVED,): may_take_halves(program, exact),
        (BOTH,): of_sides,
        KEPT_KERNELS: of_sides,
    }
    more = {names[0] for names, may in beside.items() if may and any(x.walk in names for x in table)}
    kernels = _kernels(program, covers, apart, more)
    doubles = _may_double(program, covers)  # without gates, if that is so of the walks as well
    may_give = bool(apart) and (doubles or not program.gates) and any(x.walk == GIVEN for x in table)
    walks = _given_walks(program, covers) if may_give else ()
    doubles = doubles and (bool(program.gates) or all(has_halves(walk) for walk in walks))
    measured = agreeing(_measured(table, chunk, doubles))
    if walks and any(x.walk == GIVEN and x.chunk >= WGMMA_ROWS for x in measured):
        kernels = _with_operands(program, covers, kernels, apart, walks)
    kernels = in_halves(kernels, measured)
    names = {name for kernel in kernels for name in names_of(kernel)}
    adding = {kernel.name for kernel in kernels if _adds_by_wgmma(program, covers, kernel)}
    by_wgmma = bool(adding & {*ON_CHIP})
    faster_fused = _faster_fused(program, by_wgmma, measured)
    by_columns = bool({"K", "V"} & set(gated_sides(program)))
    # TMA is faster beside gates with columns; beside a scalar gate or none it is not
    by_tma = {x.kernel for x in measured if x.kernel in WALKS} if by_columns and not exact else set()
    results = [o.name for o in program.outputs] + [s.end for s in program.states]
    gradients = [p.name for g in program.gradients for p in g.parts] + [s.adjoint for s in program.states]
    return Schedule(
        program,
        chunk,
        tuple((gate, cover.text) for gate, cover in covers.items()),
        kernels,
        _twin(program, covers, results, causal=True),
        _twin(program, covers, gradients, causal=False),
        certificate(program, covers),
        tuple((k.name, faster_fused[k.name]) for k in kernels if k.name in faster_fused),
        WIDE,
        by_columns,
        by_wgmma,
        tuple(k.name for k in kernels if k.name in adding or reads_from_shared(k)),
        tuple(k.name for k in kernels if k.name in by_tma or (by_wgmma and k.whole and not k.waits)),
        spared_tile(kernels, measured),
        exact,
        tuple(x for x in measured if x.kernel in names and not (of_strong and changes_bits(x))),
        tuple(dict.fromkeys(x.heads for x in measured if x.chunk > chunk)),
        tuple(k.name for k in kernels if not (k.of_gradients or adds_in_order(k))),
        mirrored(program) if OTHERS in names else (),
    )


def _alike(program: ChunkProgram, chunk: int, options: Options) -> tuple[Tuned, ...]:
    """The measured configurations for recurrences like this, in chunks of these steps or, if the spec leaves that to
    us, of twice as many; none for those that multiply float32 beside any inputs."""
    table = shipped() if options.tuned is None else options.tuned
    chunks = (chunk,) if program.recurrence.chunk else (chunk, 2 * chunk)
    alike = tuple(x for x in table if x.gates == gated_sides(program) and x.chunk in chunks)
    alike = tuple(x for x in alike if x.kernel not in ALONE_KERNELS or x.chunk >= WGMMA_ROWS)
    alike = tuple(x for x in alike if x.kernel == x.walk or x.chunk > chunk)  # the rule's chunks are not halved so
    if program.recurrence.part_of:
        return ()
    if needs_exact_states(program.recurrence):
        return tuple(x for x in alike if x.kernel not in WALKS)
    return alike


def _measured(table: tuple[Tuned, ...], chunk: int, may_double: bool) -> tuple[Tuned, ...]:
    """Those that count: for heads that have some for chunks of twice as many steps these, if that may be."""
    doubled = {x.heads for x in table if x.chunk > chunk and may_double}
    return tuple(x for x in table if (x.chunk > chunk) == (x.heads in doubled))


def _may_double(program: ChunkProgram, covers: dict[str, Cover]) -> bool:
    """May chunks have twice as many steps for some heads?

    If the same blocks serve, and what is beside them is for one side alone. (H200, Triton 3.6.0, bf16, B8 T2048 H4 K256
    V512, forward / with backward, ms: hgrn2 0.42 / 1.20 -> 0.22 / 0.92, with gates made of logits 0.65 / 1.57 -> 0.24 /
    1.06; but gates on both sides 0.57 / 1.81 -> 0.80 / 2.35, on values 0.30 / 1.44 -> 0.58 / 2.69.) With scalar gates
    there are no blocks, and tiles are as those without gates. These have chunks of 128 only if walks can take halves
    of what they are given (see halves.py), which is scores alone, as key gradients are then made of tensors.
    """
    one_side = gated_sides(program) in ("", "K", "s")
    return one_side and not needs_exact_states(program.recurrence) and all(x.finds_depth for x in covers.values())


def _covers(program: ChunkProgram, chunk: int, options: Options) -> dict[str, Cover]:
    covers = {}
    for gate in program.gates:
        if not gate.axes:
            continue
        cover = choose_cover(gate.domain, chunk, program.recurrence.subchunk, options.cover, gate.steep)
        if cover is None:
            raise UnprovableError(
                f"cover `{options.cover}` has no stability certificate: a log gate in {gate.domain} over {chunk} steps",
                f"declare a domain of at most {GROWTH_LIMIT:g} nats a chunk, or shorten the chunk, or use cover `auto`",
            )
        covers[gate.name] = cover
    return covers


def _kernels(
    program: ChunkProgram, covers: dict[str, Cover], apart: tuple[Operand, ...], more: set[str]
) -> tuple[Kernel, ...]:
    """In order of launch: the two forms of the forward, then the backward. `apart`: scores that a kernel of their own
    may make; `more`: kernels that may take the place of others (see ir/tuned.py), of those that go together one."""
    ends = tuple(s.end for s in program.states)
    adjoints = tuple(s.adjoint for s in program.states)
    outputs = tuple(Goal(o.name, (o,)) for o in program.outputs)
    both = ("i", "j")
    states = Shape("states", "Walk over the chunks and keep the state that enters each.", both, None, "forward")
    reads = Shape("outputs", "The outputs of one chunk, from the state that enters it.", ("j",), "i")
    fused = Shape("fused", "All outputs of a sequence; the state stays on chip.", ("j",), None, "forward", ("i",))
    back = "Walk back over the chunks and keep the gradient of the state that leaves each."
    adjoint = Shape("adjoint_states", back, both, None, "reverse", save_states=True)
    forward = [
        build(program, covers, replace(states, save_states=True), (), ends),
        build(program, covers, reads, outputs, ()),
    ]
    walk = build(program, covers, replace(fused, save_states=True), outputs, ends)
    on_chip = (walk,) if program.recurrence.part_of else leaving_values(walk, forward[1])
    if HALVED in more:
        walk = build(program, covers, by_halves(fused), outputs, ends)
        forward += [walk] if _adds_by_wgmma(program, covers, walk) and not walk.waits else []
    forward += on_chip
    chunkwise: list[tuple[Shape, tuple[Goal, ...], tuple[str, ...]]] = [(adjoint, (), adjoints)]
    for axis, other, name in (("i", "j", "key_gradients"), ("j", "i", "value_gradients")):
        goals = gradient_goals(program, axis)
        if goals:
            side = {"i": "key", "j": "value"}[axis]
            doc = f"One chunk's gradients on the {side} side, from the state at its start and its gradient at the end."
            chunkwise.append((Shape(name, doc, (axis,), other, reduces_heads=True), goals, ()))
    backward = [build(program, covers, *one) for one in chunkwise]
    goals = gradient_goals(program, "j")
    if _walks_back_on_chip(program, goals, _adds_by_wgmma(program, covers, on_chip[0])):
        doc = "Gradients of the values of a sequence, walking back; the state's gradient stays on chip."
        fused_back = Shape("fused_value_gradients", doc, ("j",), None, "reverse", ("i",), save_states=True)
        walk = for_mild_gates(build(program, covers, fused_back, goals, adjoints))
        if gated_sides(program) in ("", "s") or _adds_by_wgmma(program, covers, walk):
            backward.append(walk)
    every = tuple(Goal(f"d{gradient.name}", gradient.parts) for gradient in program.gradients if gradient.parts)
    if (name := walk_alone(program)) in more:
        which = "All gradients of a sequence" if name == ALONE else "All gradients of a sequence but those of queries"
        doc = f"{which}, walking back; the state's gradient stays on chip."
        ahead = {f"d{query}" for query, _ in mirrored(program)[:1]}
        goals = tuple(x for x in every if x.target not in ahead)
        walk = build(program, covers, Shape(name, doc, (), None, "reverse", both), goals, adjoints)
        backward += [walk] if has_lefts_in_memory(walk) else []
    if BOTH in more:
        doc = "One chunk's gradients on both sides, from the state at its start and its gradient at the end."
        backward.append(for_mild_gates(build(program, covers, Shape(BOTH, doc, both, None, None, both), every, ())))
    if SHARING[0] in more:
        given = [build(program, covers, sharing(shape), goals, carries) for shape, goals, carries in chunkwise]
        shared = with_makers(program, covers, given)
        backward += shared
        if GIVEN in more and shared:
            shape = replace(fused, name=GIVEN, doc=_GIVEN_DOC, save_states=True, own=("j",))
            walk, *_ = leaving_values(build(program, covers, shape, outputs, ends), forward[1])
            maker = maker_for_walk(program, covers, given)
            forward += [maker, walk] if makes_all_of([maker], [walk]) else []
    before, between = (_sums(program, covers, *x) for x in (("sums", forward), ("backward_sums", backward)))
    kernels = (*before, *forward, *between, *backward)
    kernels = with_scores(program, covers, kernels, apart, "scores" in more) if apart else kernels
    if KEPT_KERNELS[0] in more:
        of_both = kept(program, covers, next(k for k in backward if k.name == "value_gradients"))
        last = made_apart(of_both[-1], apart) if "scores" in more else of_both[-1]
        kernels = (*(keeping(k, last) if k.name == ON_CHIP[0] else k for k in kernels), *of_both[:-1], last)
    # a walk back has no registers for scores of strong gates: without one that is given them, there is none
    return tuple(x for x in kernels if x.late or not (x.name == ON_CHIP[1] and x.runs_twice))


def _given_walks(program: ChunkProgram, covers: dict[str, Cover]) -> tuple[Kernel, Kernel]:
    """The kernels that keep the state on chip, or its gradient, and are given what needs neither that nor value
    columns: forward, and back."""
    shape = Shape("", "", ("j",), None, whole=("i",), save_states=True, own=("j",))
    ahead = replace(shape, name=GIVEN, doc=_GIVEN_DOC, direction="forward")
    doc = "Gradients of the values of a sequence, of what is given of each chunk; the state's gradient stays on chip."
    back = replace(shape, name=GIVEN_BACK, doc=doc, direction="reverse")
    outputs = tuple(Goal(o.name, (o,)) for o in program.outputs)
    ends, adjoints = (tuple(s.end for s in program.states), tuple(s.adjoint for s in program.states))
    return (
        build(program, covers, ahead, outputs, ends),
        build(program, covers, back, gradient_goals(program, "j"), adjoints),
    )


def _with_operands(
    program: ChunkProgram,
    covers: dict[str, Cover],
    kernels: tuple[Kernel, ...],
    apart: tuple[Operand, ...],
    walks: tuple[Kernel, ...],
) -> tuple[Kernel, ...]:
    """The same kernels, with these walks, which are given what they multiply by the one that makes these scores."""
    maker = maker_of(program, covers, apart, tuple(given_tiles(walks)))
    found = [maker if k.name == maker.name else k for k in kernels]
    beside = dict(zip(ON_CHIP, walks, strict=True))
    return tuple(x for k in found for x in ((k, beside[k.name]) if k.name in beside else (k,)))


def _walks_back_on_chip(program: ChunkProgram, goals: tuple[Goal, ...], by_wgmma: bool) -> bool:
    """Is there to be one kernel for the gradients of values and for those of states? Where it may be faster, what is
    added to the gradients of the state is exact enough in 16 bits, and each value has a gradient of its own. (Gates of
    values have such a kernel read states as well, for which it has no registers. H200, bf16, gla_kv, B4 T4096 H64
    K=V=128: 2.8 ms for 2.7; B32 T2048 H16 K=V=64: 0.90 ms for 0.82.)"""
    sides, exact = gated_sides(program), needs_exact_states(program.recurrence)
    alone = all({"t", "j"} <= set(part.indices) for goal in goals for part in goal.parts)
    return bool(goals) and (sides in ("", "s") or (by_wgmma and "V" not in sides)) and alone and not exact


def _adds_by_wgmma(program: ChunkProgram, covers: dict[str, Cover], kernel: Kernel) -> bool:
    """Does Hopper add to the state that this kernel keeps on chip by wgmma, and multiply nothing else so?"""
    return bool(kernel.whole) and wants_wgmma(program, covers, kernel.name) and adds_from_shared(kernel)


def _faster_fused(program: ChunkProgram, by_wgmma: bool, measured: Iterable[Tuned]) -> dict[str, int]:
    """The kernels that are faster for they keep a state on chip, and how wide it may be where it is stored as well."""
    if by_wgmma:
        return FASTER_BY_WGMMA
    sides = gated_sides(program)
    if sides not in FUSED_SIDES or program.recurrence.part_of:
        return {}
    wider = any(x.kernel == "fused" and x.K > WIDE for x in measured)
    return dict(zip(ON_CHIP, (FUSED_SIDES[sides] if wider else WIDE, NARROW), strict=True))


def _sums(program: ChunkProgram, covers: dict[str, Cover], name: str, users: list[Kernel]) -> list[Kernel]:
    """The kernels that make the local sums which others load, in order: one for each run of sums over one axis."""
    doc = "Sums over the columns of each step, for kernels that hold a block of them at a time."
    runs = [list(run) for _, run in itertools.groupby(local_sums(program).items(), key=lambda item: item[1][0])]
    wanted = {n for kernel in users for n in kernel.sums}
    made: list[Kernel] = []
    for number, run in reversed(list(enumerate(runs))):
        goals = tuple(Goal(n, (out,)) for n, (_, out) in run if n in wanted)
        if goals:
            shape = Shape(f"{name}_{number}", doc, (), run[0][1][0], makes_sums=True)
            made.append(build(program, covers, shape, goals, ()))
            wanted |= set(made[-1].sums)
    return made[::-1]


def _twin(program: ChunkProgram, covers: dict[str, Cover], names: list[str], causal: bool) -> tuple[Line | Scan, ...]:
    """All lines of the PyTorch form in one order; carried states are loops over chunks of their own."""
    wanted = list(names)
    statements = needed(program, wanted, set())
    carried = {s.carried.name for s in statements if isinstance(s, Carry)}
    for info in program.states:  # a state that is read must be carried
        for tile, end in ((info.name, info.end), (info.adjoint_end, info.adjoint)):
            if tile not in carried and any(tile in inputs_of(s) for s in statements):
                wanted.append(end)
    statements = needed(program, wanted, set())
    lowering = Lowering(program, covers, None, statements, causal=causal)
    lines = lowering.run()
    scans = [scan_of(program, s, lowering.updates[s.out.name], None) for s in statements if isinstance(s, Carry)]
    return order_twin(program, lines, scans, names)
