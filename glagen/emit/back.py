"""The backward on Triton: which kernels are launched, in which order, with which buffers."""

from __future__ import annotations

from glagen.emit.buffers import any_asked, gradient_buffer, returned, unshared_buffers
from glagen.emit.interface import arguments, differentiable, heads_of
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
    new,
    noted,
    start,
    sums_made,
    walk_back_arguments,
)
from glagen.emit.memory import Tensor
from glagen.emit.mirrored import two_walks
from glagen.emit.scores import operand_names, operands_call, scores_made, shared_call, shared_notes, walk_operands
from glagen.emit.walks import left_on_chip, looked, pieces
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.tuned import (
    ADJOINT_GIVEN,
    ALONE,
    ALONE_KERNELS,
    BOTH,
    GIVEN,
    GIVEN_BACK,
    KEPT_BACK,
    KEPT_BY_KEYS,
    KEYS_GIVEN,
    OF_KEPT,
    OTHERS,
    SHARED,
)


def backward(program: ChunkProgram, kernels: dict[str, KernelText], packing: str) -> list[str]:
    """The module's function that runs it. `packing`: the call that says how sequences lie."""
    (state,) = program.states
    name = identifier(state.name)
    initials = [f"{s.name}_initial" for s in program.states]
    finals = [f"{s.adjoint_end}_final" for s in program.states]
    cotangents = [identifier(c) for c in program.cotangents]
    again = ", ".join([*arguments(program), *initials, PACKED, "packing"])
    signature = [*arguments(program), *initials, PACKED, name, *walk_operands(kernels)]
    signature += [*cotangents, *finals, "needs", *INTO]
    lines = [
        f"def _backward_triton({', '.join(signature)}):",
        '    """Gradients of the tensors in order, then of the initial states: those that `needs` asks for, else None.',
        "",
        f"    Chunk states{' and operands' * (GIVEN in kernels)} that are empty are made again.",
        f"    {TO_PARTS}",
        '    """',
        f"    packing = {packing}",
        *head(program),
    ]
    states = [
        f"    if not {name}.numel():",
        f"        {name}{', _' * len(noted(kernels['states']))} = _states_triton({again})",
    ]
    lines += [] if OTHERS in kernels else states
    order = {f"d{g.name}": n for n, g in enumerate(program.gradients)}
    fused = "fused_value_gradients"
    lines += indented([pieces(kernels["adjoint_states"], "M")] if {fused, *ALONE_KERNELS} & set(kernels) else [])
    lines += indented(_alone(program, kernels, order))
    lines += states if OTHERS in kernels else []
    lines += indented(sums_made(program, kernels, "backward_sums"))
    both = _both(program, kernels, order)
    reads = _of_reads(program, kernels, order)
    others = "made" if both and reads else "both" if both else "reads" if reads else ""  # make those of mild gates
    walk_back = _walk_back(program, kernels["adjoint_states"])
    if fused in kernels:
        lines += indented(_walk_back_on_chip(program, kernels, fused, walk_back, order))
    elif ADJOINT_GIVEN in kernels:
        makers = [shared_call(program, kernels[role]) for role in SHARED]
        if GIVEN in kernels:
            makers[:1] = [f"if not {walk_operands(kernels)[0]}.numel():", f"    {makers[0]}"]
        lines += [
            f'    given = ("{KEYS_GIVEN}", _capability(), dtype, *_powers(K, V)) in TUNED',
            "    if given:",
            *indented([*makers, _walk_back(program, kernels[ADJOINT_GIVEN])], 2),
            "    else:",
            f"        {walk_back}",
        ]
    elif reads:
        lines += indented(
            [
                f"reads = {_are_reads(program, kernels, order)}",
                "if reads:",
                f"    {_walk_back(program, kernels[KEPT_BACK])}",
                "else:",
                f"    {walk_back}",
            ]
        )
    else:
        lines.append(f"    {walk_back}")
    lines += indented([*both, *reads, *["made = both or reads"] * (others == "made")])
    sums: dict[str, list[str]] = {}
    for role in ("key_gradients", "value_gradients"):
        if role not in kernels:
            continue
        text = kernels[role]
        renamed: dict[str, str] = {}
        allocations = []
        for item in text["tensors"]:
            tensor: Tensor = item["tensor"]
            if not tensor.name.endswith("_out"):
                continue
            target = tensor.name.removesuffix("_out")
            buffer, allocated, total = gradient_buffer(program, kernels, text, tensor, target)
            renamed[target] = buffer
            allocations.append(f"{buffer} = {allocated} if needs[{order[target]}] else None")
            sums.setdefault(target, []).append(total)
        on_chip = role == "value_gradients" and fused in kernels
        lines += indented([] if on_chip or others else allocations)
        first = ["not on_chip"] * on_chip + ["not given"] * (on_chip and GIVEN_BACK in kernels)
        lines.append(f"    if {' and '.join([*first, any_asked(renamed, order, around=bool(first))])}:")
        if GIVEN_BACK in kernels and not on_chip:
            renamed["walks"] = "None if given else strong.shape[0] // B"
        started = scores_made(program, kernels) if text["kernel"].ready else []
        started = [f"if not {others}:", *indented(started)] if others and started else started
        started += launch(program, text, renamed, unless=others)
        if f"{role}_given" in kernels:
            notes = {"walks": "None", "strong": shared_notes(role)}
            one = launch(program, kernels[f"{role}_given"], renamed | notes)
            started = ["if given:", *indented(one), "else:", *indented(started)]
        lines += indented(started, 2)
    return [*lines, *indented(returned(program, sums, order))]


def _alone(program: ChunkProgram, kernels: dict[str, KernelText], order: dict[str, int]) -> list[str]:
    """One kernel that walks back and makes all gradients, if all are asked for and no heads share any tensor."""
    if OTHERS in kernels:
        return two_walks(program, kernels, order)
    if ALONE not in kernels:
        return []
    buffers, unshared, renamed = unshared_buffers(program, kernels, ALONE)
    wanted = [f"all(needs[:{len(order)}])", *unshared, f'_is_alone("{ALONE}", N * M, K, V, T, dtype, {PACKED})']
    made = [
        *(f"{name} = {allocated}" for name, allocated, _ in buffers.values()),
        *left_on_chip(program, kernels),
        *launch(program, kernels[ALONE], renamed),
        *returned(program, {target: [total] for target, (_, _, total) in buffers.items()}, order),
    ]
    return [f"if {' and '.join(wanted)}:", *indented(made)]


def _both(program: ChunkProgram, kernels: dict[str, KernelText], order: dict[str, int]) -> list[str]:
    """One kernel that makes all gradients of chunks, if all are asked for and no heads share any tensor. Those of
    strong gates it leaves to others, of as many chunks in turn, or a multiple."""
    if BOTH not in kernels:
        return []
    text = kernels[BOTH]
    buffers, unshared, renamed = unshared_buffers(program, kernels, BOTH)
    asked = [f"all(needs[:{len(order)}])", *unshared, f'("{BOTH}", _capability(), dtype, *_powers(K, V)) in TUNED']
    asked += ["not reads"] * (KEPT_BACK in kernels)
    return [
        *(f"{name} = {made} if needs[{order[target]}] else None" for target, (name, made, _) in buffers.items()),
        f"both = {' and '.join(asked)}",
        "if both:",
        *indented(scores_made(program, kernels) if text["kernel"].ready else []),
        *indented([*configure(program, text), *start(program, text, renamed, passes="[:1]")]),
    ]


def _are_reads(program: ChunkProgram, kernels: dict[str, KernelText], order: dict[str, int]) -> str:
    """Are gradients of values made of what others read of states? Where the forward has kept that, if all gradients are
    asked for and no heads share any tensor."""
    unshared = [f"{heads_of(d)} == M" for d in differentiable(program.recurrence)]
    return " and ".join([f"all(needs[:{len(order)}])", *unshared, f"{walk_operands(kernels)[0]}.numel() > 0"])


def _of_reads(program: ChunkProgram, kernels: dict[str, KernelText], order: dict[str, int]) -> list[str]:
    """The kernels for that, where gates are mild. Those of strong gates are left to others, of as many chunks in turn;
    each of the two has to leave out the same."""
    if KEPT_BACK not in kernels:
        return []
    keys, values = kernels[KEPT_BY_KEYS], kernels[OF_KEPT]
    buffers = [
        buffer for text in (keys, values) for buffer in unshared_buffers(program, kernels, text["role"])[0].items()
    ]
    made = [f"{name} = {made} if needs[{order[target]}] else None" for target, (name, made, _) in buffers]
    renamed = {target: name for target, (name, _, _) in buffers}
    in_turn = [line for line in configure(program, values) if not line.startswith("RUN = ")]
    return [
        *(made if BOTH not in kernels else []),
        "if reads:",
        *indented([new(name, *extents, dtype=dtype) for name, extents, dtype in kept_reads(keys)]),
        *indented([*configure(program, keys), *start(program, keys, renamed, passes="[:1]")]),
        *indented(scores_made(program, kernels) if values["kernel"].ready else []),
        *indented([*in_turn, *start(program, values, renamed, passes="[:1]")]),
    ]


def _walk_back(program: ChunkProgram, text: KernelText) -> str:
    """The call of the walk back that makes the gradients of states alone."""
    (state,) = program.states
    more = walk_back_arguments(program, text)
    more += [f"{state.adjoint_end}_final", f"needs[{len(program.gradients)}]"]
    made = [identifier(state.adjoint_end), f"{state.adjoint}_initial", *noted(text)]
    made += [name for name, _, _ in kept_reads(text)]
    return f"{', '.join(made)} = _{text['role']}_triton({', '.join([*arguments(program), PACKED, 'packing', *more])})"


def _walk_back_on_chip(
    program: ChunkProgram, kernels: dict[str, KernelText], role: str, walk_back: str, order: dict[str, int]
) -> list[str]:
    """One kernel that walks back and makes the gradients of values, where that is faster; else `walk_back`."""
    (state,) = program.states
    text = kernels[role]
    buffers, unshared, renamed = unshared_buffers(program, kernels, role)
    on_chip = [any_asked(buffers, order), *unshared, f'_stays_on_chip("{role}", "saved", N * pieces * M, K, V, dtype)']
    states = chunk_states(state.adjoint_end, "M")
    if text["kernel"].late:
        walk = _given_scores(program, kernels, text, renamed)
    else:
        walk = [*(scores_made(program, kernels) if text["kernel"].ready else []), *launch(program, text, renamed)]
    given = []
    if GIVEN_BACK in kernels:
        operands = walk_operands(kernels)
        conditions = [*on_chip[:-1], f'_takes_over("{GIVEN_BACK}", N * pieces * M, K, V, dtype)']
        given = [
            f"given = {' and '.join(conditions)}",
            "if given:",
            *indented([states, *left_on_chip(program, kernels), f"if not {operands[0]}.numel():"]),
            f"        [{', '.join(operands)}] = {operands_call(program)}",
            *indented(launch(program, kernels[GIVEN_BACK], renamed | operand_names(kernels))),
        ]
    return [
        *(f"{name} = {made} if needs[{order[target]}] else None" for target, (name, made, _) in buffers.items()),
        f"on_chip = {' and '.join(on_chip)}",
        *given,
        "elif on_chip:" if given else "if on_chip:",
        *indented([states, *left_on_chip(program, kernels, "met")]),
        *indented(walk),
        "else:",
        f"    {walk_back}",
    ]


def _given_scores(
    program: ChunkProgram, kernels: dict[str, KernelText], text: KernelText, renamed: dict[str, str]
) -> list[str]:
    """The walk back that is given scores where gates are strong: those of the forward, and its notes of what is, if
    that walked along the same pieces. (One that was given what it multiplies has notes of each chunk.)"""
    (state,) = program.states
    nothing = dict.fromkeys(renamed, "None") | {state.adjoint_end: "None"}
    told = {"judged": "known"}
    unmade = {ready.tensor: "None" for ready in text["kernel"].ready}
    return [
        *configure(program, text),
        "known = strong.shape[0] == N < slots  # by a forward on chip, which has made scores of what is strong",
        "if known:",
        "    again, notes = strong, strong.numel() // (N * M)",
        *["el" * (n == 0) + line for n, line in enumerate(looked(program, text, nothing | unmade, "M", "met"))],
        *start(program, text, renamed | told | unmade, passes="[1:3]"),
        "if not known:",
        "    strong = again.view(N, M, -1)",
        *indented(scores_made(program, kernels, of_strong=True)),
        *start(program, text, renamed | told, passes="[3:]"),
    ]
