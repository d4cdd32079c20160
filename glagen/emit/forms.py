"""What runs on Triton (the backward: see back.py): which kernels are launched, in which order, with which buffers."""

from __future__ import annotations

from glagen.emit.back import backward
from glagen.emit.interface import arguments, sizes_call
from glagen.emit.later import FEWEST
from glagen.emit.launch import (
    INTO,
    PACKED,
    TO_PARTS,
    KernelText,
    chunk_states,
    configure,
    head,
    indented,
    kept_reads,
    launch,
    lead_name,
    new,
    noted,
    programs,
    start,
    sums_made,
)
from glagen.emit.memory import EXTENT
from glagen.emit.mirrored import ONLY, reads_no_states
from glagen.emit.scores import (
    made_scores,
    notes_go_back,
    operand_names,
    operands_call,
    scores_made,
    wait_for_walks,
    walk_operands,
)
from glagen.emit.states import stores_ahead
from glagen.emit.walks import entered, looked, of_whole, pieces
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.tuned import ALONE, BEYOND, GIVEN, HALVED

# Chunks that may be taken in turn by a program that is to have none of two walks: of a sequence's, and of a piece's.
OF_ONE_WALK = f"math.gcd(slots // B, _blocks(slots // B, pieces)) if {PACKED} is None else 1"


def launches(program: ChunkProgram, kernels: dict[str, KernelText], doubled: bool) -> list[str]:
    """The module's functions that run the forward and the backward on Triton. `doubled`: how many steps a chunk has
    depends on the heads."""
    packing = f"_packing({PACKED}, {sizes_call(program.recurrence)}{f', {lead_name(program)}.dtype' * doubled}, rows)"
    return ["\n".join(made(program, kernels, packing)) for made in (_forward, backward)]


def _forward(program: ChunkProgram, kernels: dict[str, KernelText], packing: str) -> list[str]:
    state = program.states[0].name
    name, initials, finals = identifier(state), [f"{state}_initial"], [f"{state}_final"]
    given = [*arguments(program), *initials, PACKED, "packing", *finals]
    outs = [identifier(o.name) for o in program.outputs]
    results = ", ".join([*outs, *finals])
    made = scores_made(program, kernels) if kernels["outputs"]["kernel"].ready else []
    soon, late = ([], made) if wait_for_walks(kernels) else (made, [])
    wide = "torch.float32" if program.recurrence.part_of else "dtype"
    two_walks = reads_no_states(kernels)
    unread, without = (f" and not {two_walks}", f" if states != {ONLY} else None") if two_walks else ("", "")
    return [
        f"def _forward_triton({', '.join([*arguments(program), *initials, PACKED, 'states', *INTO])}):",
        '    """Outputs, final states, and the states that enter each chunk (empty unless they are to be saved).',
        f"    {TO_PARTS}",
        '    """',
        f"    packing = {packing}",
        *head(program),
        *indented(
            [
                f"{identifier(o.name)} = into[{n}] if into else "
                f"_new({PACKED}, (B, T, M, {EXTENT[o.indices[-1]]}), {wide}, device)"
                for n, o in enumerate(program.outputs)
            ]
        ),
        *indented([new(f, "N", "H", "K", "V") + without for f in finals]),
        *indented(sums_made(program, kernels, "sums")),
        f'    kept = states == "saved"{unread}',
        f"    {pieces(kernels['states'], 'H')}",
        *indented(_by_halves(program, kernels)),
        *indented(_of_operands(program, kernels)),
        *indented(soon),
        '    if _stays_on_chip("fused", states, N * pieces * M, K, V, dtype):',
        *indented(entered(program, kernels["states"], "strong"), 2),
        *indented(_on_chip(program, kernels), 2),
        "    else:",
        f"        {', '.join([name, *noted(kernels['states'])])} = _states_triton({', '.join(given)})",
        *indented(late, 2),
        *indented(launch(program, kernels["outputs"]), 2),
        f"    return {results}, {name} if kept else {_nothing(kernels)}",
    ]


def _nothing(kernels: dict[str, KernelText]) -> str:
    """What a forward returns for the backward that keeps nothing: no chunk states, no operands if walks have any."""
    no_operands = ", *_new_operands(dtype, device)" * bool(walk_operands(kernels))
    return f"_empty(0, dtype=_kept_type(dtype), device=device){no_operands}"


def _by_halves(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The forward that takes chunks by halves, if there is one: where nothing is kept for a backward."""
    if HALVED not in kernels:
        return []
    final = f"{program.states[0].name}_final"
    results = ", ".join([*(identifier(o.name) for o in program.outputs), final])
    return [
        f'if not kept and _takes_over("{HALVED}", N * pieces * M, K, V, dtype):',
        *indented(entered(program, kernels["states"])),
        *indented(launch(program, kernels[HALVED], of_whole(final))),
        f"    return {results}, {_nothing(kernels)}",
    ]


def _of_operands(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The forward that keeps the state on chip and is given what it multiplies with it, if there is one. That is kept
    for the backward, but for one that makes all gradients in one walk."""
    if GIVEN not in kernels:
        return []
    text, state = kernels[GIVEN], program.states[0].name
    name, final = identifier(state), f"{state}_final"
    results = ", ".join([*(identifier(o.name) for o in program.outputs), final])
    last = f"{name} if kept else " * (ALONE in kernels) + _nothing(kernels)
    own = operand_names(kernels) | of_whole(final)
    alone = [f'alone = _is_alone("{ALONE}", N * M, K, V, T, dtype, {PACKED})'] * (ALONE in kernels)
    return [
        f'if _takes_over("{GIVEN}", N * pieces * M, K, V, dtype):',
        f"    [{', '.join(walk_operands(kernels))}] = operands = {operands_call(program)}",
        *indented([*alone, *entered(program, kernels["states"], "strong" if text["kernel"].runs_twice else "_")]),
        f"    {chunk_states(state, 'H')} if kept else None",
        *indented([*configure(program, text), *_given_walk(program, kernels, own)]),
        f"    if kept{' and not alone' * len(alone)}:",
        f"        return {results}, {name}, *operands",
        f"    return {results}, {last}",
    ]


def _given_walk(program: ChunkProgram, kernels: dict[str, KernelText], own: dict[str, str]) -> list[str]:
    """That forward, once it is configured; what is strong runs again, without values that another kernel adds."""
    text, state = kernels[GIVEN], program.states[0].name
    if not text["kernel"].runs_twice:
        return start(program, text, own, config=_crowded(text))
    nothing = own | dict.fromkeys([*(o.name for o in program.outputs), state, f"{state}_final"], "None")
    return [
        *looked(program, text, nothing, "H", "strong"),
        *start(program, text, own, passes="[1:3]", config=_crowded(text)),
        *_with_less(program, kernels, text, own),
    ]


def _on_chip(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The forward that keeps the state on chip. What is strong runs again: a second walk is given scores, or leaves
    values to another kernel, and does all else; or it stores right chunk states, from which the kernel of outputs takes
    chunks side by side; or does all, if states are to take no memory."""
    text, state = kernels["fused"], program.states[0].name
    name, final = identifier(state), f"{state}_final"
    last = of_whole(final)
    reads = kept_reads(text)
    kept = "if kept and _keeps_reads(K, V, dtype) else None"
    made = [f"{new(read, *extents, dtype=dtype)} {kept}" for read, extents, dtype in reads]
    if not text["kernel"].runs_twice:
        launched = [f"{chunk_states(state, 'H')} if kept else None", *made, *launch(program, text, last)]
        return [*launched, *(_kept_for_backward(program, kernels) if reads else [])]
    outs = {o.name: "None" for o in program.outputs}
    nothing = outs | dict.fromkeys([state, final, *(name for name, _, _ in reads)], "None")
    scored = text["kernel"].late
    unmade = {ready.tensor: "None" for ready in text["kernel"].ready if scored}
    lighter = scored or text["kernel"].leaves_values
    saved, asked = last | {state: f"{name} if kept else None"}, "kept" if lighter else 'states != "recomputed"'
    mild = saved | unmade
    far = not program.recurrence.part_of  # parts are in more terms than those which have a run between mild and strong
    passes = "[1:3]" if far and not text["crowds"] else "[1:2]"
    ahead = text["crowds"] and stores_ahead(text["kernel"])
    walk = [f"other = {_crowded(text)}"] if ahead else []
    walk += start(program, text, mild, passes=passes, config="other" if ahead else _crowded(text))
    walk += start(program, text, mild, passes="[2:3]") if far and text["crowds"] else []
    if lighter:
        roomy = "other" if ahead and scored else "config"
        walk += [*_with_less(program, kernels, text, saved, roomy), *_kept_for_backward(program, kernels)]
    else:
        walk += _with_right_states(program, kernels, last)
    return [
        f"{chunk_states(state, 'H')} if {asked} else None",
        *made,
        *configure(program, text),
        *looked(program, text, nothing | unmade, "H", "strong"),
        *walk,
    ]


def _with_less(
    program: ChunkProgram,
    kernels: dict[str, KernelText],
    text: KernelText,
    saved: dict[str, str],
    roomy: str = "config",
) -> list[str]:
    """The walk along what is strong, between scores of all its chunks at once, and what values add that it leaves.
    `roomy`: its configuration where it stores no states."""
    return [
        "strong = again.view(N, H, -1)",
        *(scores_made(program, kernels, of_strong=True) if text["kernel"].late else []),
        *start(program, text, saved, passes="[3:]", config=_spared(text, roomy)),
        *(_added(program, kernels[BEYOND]) if BEYOND in kernels else []),
    ]


def _added(program: ChunkProgram, text: KernelText) -> list[str]:
    """What a walk has left out of outputs. It is nothing where nothing is strong; but there are no scores there."""
    within = OF_ONE_WALK if text["kernel"].given else ""
    configured = configure(program, text, within=within)
    if not text["later_first"]:
        return [*configured, *start(program, text, {}, passes="[1:]")]
    noted = new("early", "programs", *["RUN"] * text["runs"], dtype="torch.int8")
    made = f"{noted} if programs{' * RUN' * text['runs']} >= {FEWEST} * _multiprocessors() else None"
    return [*configured, made, *start(program, text, {}, passes="[early is None :]")]


def _kept_for_backward(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """What this forward keeps, if walks back are given it as well: scores of what is strong, and what that is; or what
    it reads of states, for gradients of values."""
    state = program.states[0].name
    results = ", ".join([*(identifier(o.name) for o in program.outputs), f"{state}_final", identifier(state)])
    if reads := [name for name, _, _ in kept_reads(kernels["fused"])]:
        return [f"if {reads[0]} is not None:", f"    return {results}, {', '.join(reads)}"]
    if not notes_go_back(kernels):
        return []
    made = made_scores(kernels)
    others = f", *_new_operands(dtype, device)[{len(made)}:-1]" * (GIVEN in kernels)
    return ["if kept:", f"    return {results}, {', '.join(made)}{others}, again"]


def _with_right_states(program: ChunkProgram, kernels: dict[str, KernelText], last: dict[str, str]) -> list[str]:
    """The walk along what is strong for chunk states, and outputs of all its chunks at once, by these."""
    text, reads, name = kernels["fused"], kernels["outputs"], identifier(program.states[0].name)
    late = {o.name: f"{identifier(o.name)} if {name} is None else None" for o in program.outputs}
    scores = scores_made(program, kernels, of_strong=True) if wait_for_walks(kernels) else []
    return [
        *start(program, text, late | last, passes="[3:]", by_threads=True),
        f"if {name} is not None:  # of what is strong: outputs of all its chunks at once, by right states",
        *indented(
            [
                "strong = again.view(N, H, -1)",
                # others have no states
                *configure(program, reads, within=OF_ONE_WALK, strong=True),
                *scores,
                *start(program, reads, {}, passes="[1:]"),
            ]
        ),
    ]


def _crowded(text: KernelText) -> str:
    """The configuration of a forward on chip, which may have another where it stores no states, or does so ahead."""
    count = "programs" if text["kernel"].runs_twice else programs(text)
    other = f'_crowded("{text["role"]}", config, {count}, K, V, dtype)'
    other = other if stores_ahead(text["kernel"]) else f"config if kept else {other}"
    return other if text["crowds"] else "config"


def _spared(text: KernelText, roomy: str) -> str:
    """The configuration of a walk along what is strong, which may have fewer threads, or registers, where it stores no
    states."""
    without = f"_spared({roomy}, programs)" if text["spares"] else roomy
    return f"config if kept else {without}" if without != "config" else without
