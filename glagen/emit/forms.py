"""The forward and the backward on Triton: which kernels are launched, in which order, with which buffers."""

from __future__ import annotations

from collections.abc import Iterable

from glagen.emit.interface import arguments, heads_of, sizes_call
from glagen.emit.launch import (
    PACKED,
    KernelText,
    chunk_states,
    configure,
    head,
    indented,
    launch,
    lead_name,
    new,
    noted,
    start,
    walk_back_arguments,
)
from glagen.emit.memory import EXTENT, Tensor
from glagen.emit.scores import operand_names, operands_call, shared_call, shared_notes, walk_operands
from glagen.emit.walks import pieces
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel
from glagen.ir.tuned import ADJOINT_GIVEN, GIVEN, GIVEN_BACK, KEYS_GIVEN, SHARED, SHARING


def launches(program: ChunkProgram, kernels: dict[str, KernelText], doubled: bool) -> list[str]:
    """The module's functions that run the forward and the backward on Triton. `doubled`: how many steps a chunk has
    depends on the heads."""
    packing = f"_packing({PACKED}, {sizes_call(program.recurrence)}{f', {lead_name(program)}.dtype' * doubled})"
    return ["\n".join(made(program, kernels, packing)) for made in (_forward, _backward)]


def _forward(program: ChunkProgram, kernels: dict[str, KernelText], packing: str) -> list[str]:
    state = program.states[0].name
    name, initials, finals = identifier(state), [f"{state}_initial"], [f"{state}_final"]
    given = [*arguments(program), *initials, PACKED, "packing", *finals]
    outs = [identifier(o.name) for o in program.outputs]
    results = ", ".join([*outs, *finals])
    wide = "torch.float32" if program.recurrence.part_of else "dtype"
    return [
        f"def _forward_triton({', '.join([*arguments(program), *initials, PACKED, 'states'])}):",
        '    """Outputs, final states, and the states that enter each chunk (empty unless they are to be saved)."""',
        f"    packing = {packing}",
        *head(program),
        *indented(
            [
                f"{identifier(o.name)} = _new({PACKED}, (B, T, M, {EXTENT[o.indices[-1]]}), {wide}, device)"
                for o in program.outputs
            ]
        ),
        *indented([new(f, "N", "H", "K", "V") for f in finals]),
        *indented(_sums(program, kernels, "sums")),
        '    kept = states == "saved"',
        *indented(_of_operands(program, kernels)),
        *indented([] if _judged(kernels) else _scores(program, kernels)),
        f"    {pieces(kernels['states'], 'H')}",
        '    if _stays_on_chip("fused", states, N * pieces * M, K, V, dtype):',
        "        if pieces > 1:",
        f"            {', '.join([*initials, *noted(kernels['states'])])} = _entering_triton("
        f"{', '.join([*given[:-1], 'pieces', *finals])})",
        "        N = N * pieces",
        *indented(_on_chip(program, kernels), 2),
        "    else:",
        f"        {', '.join([name, *noted(kernels['states'])])} = _states_triton({', '.join(given)})",
        *indented(_scores(program, kernels) if _judged(kernels) else [], 2),
        *indented(launch(program, kernels["outputs"]), 2),
        f"    return {results}, {name} if kept else {_nothing(kernels)}",
    ]


def _nothing(kernels: dict[str, KernelText]) -> str:
    """What a forward returns for the backward that keeps nothing: no chunk states, no operands if walks have any."""
    return "_empty(0, dtype=_kept_type(dtype), device=device)" + ", *_new_operands(dtype, device)" * (GIVEN in kernels)


def _of_operands(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The forward that keeps the state on chip and is given what it multiplies with it, if there is one."""
    if GIVEN not in kernels:
        return []
    text, state = kernels[GIVEN], program.states[0].name
    name, final = identifier(state), f"{state}_final"
    results = ", ".join([*(identifier(o.name) for o in program.outputs), final])
    return [
        f'if _is_given("{GIVEN}", N * M, K, V, dtype):',
        f"    [{', '.join(walk_operands(kernels))}] = operands = {operands_call(program)}",
        f"    {chunk_states(state, 'H')} if kept else None",
        *indented(launch(program, text, {"pieces": "1", **operand_names(kernels)})),
        "    if kept:",
        f"        return {results}, {name}, *operands",
        f"    return {results}, {_nothing(kernels)}",
    ]


def _on_chip(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The forward that keeps the state on chip. What is strong runs again: a second walk stores right chunk states,
    from which the kernel of outputs takes chunks side by side; or does all, if states are to take no memory."""
    text, state = kernels["fused"], program.states[0].name
    name, final = identifier(state), f"{state}_final"
    last = {final: f"{final} if pieces == 1 else None"}
    if not text["kernel"].runs_twice:
        return [f"{chunk_states(state, 'H')} if kept else None", *launch(program, text, last)]
    outs = {o.name: "None" for o in program.outputs}
    nothing = outs | {state: "None", final: "None"}
    late = {o.name: f"{identifier(o.name)} if {name} is None else None" for o in program.outputs}
    reads, saved = kernels["outputs"], last | {state: f"{name} if kept else None"}
    crowded = "config if kept else _crowded(config, programs, K, V, dtype)" if text["crowds"] else "config"
    far = not program.recurrence.part_of  # parts are in more terms than those which have a run between mild and strong
    passes = "[1:3]" if far and not text["crowds"] else "[1:2]"
    walk = start(program, text, saved, passes=passes, config=crowded)
    walk += start(program, text, saved, passes="[2:3]") if far and text["crowds"] else []
    each = "math.gcd(slots // B, _blocks(slots // B, pieces))"  # of the chunks of a sequence, and of a piece
    unmade = {ready.tensor: "None" for ready in reads["kernel"].ready if _judged(kernels)}  # nor were they for the walk
    return [
        f'{chunk_states(state, "H")} if states != "recomputed" else None',
        *configure(program, text),
        "judged = pieces > 1 and programs == N * H  # by the same walks",
        "if judged:",
        "    again = strong",
        "else:",
        *indented(start(program, text, nothing, passes="[:1]")),
        *walk,
        *start(program, text, late | last, passes="[3:]", by_threads=True),
        f"if {name} is not None:  # of what is strong: outputs of all its chunks at once, by right states",
        *indented(
            [
                "strong = again.view(N, H, -1)",
                *configure(program, reads, within=f"{each} if {PACKED} is None else 1"),  # others have no states
                *start(program, reads, unmade, passes="[1:]"),
            ]
        ),
    ]


def _scores(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """Scores for kernels that load them, if there is a kernel that makes any."""
    if "scores" not in kernels:
        return []
    text = kernels["scores"]
    names = [identifier(s.target) for s in text["kernel"].stores if s.target not in text["kernel"].given]
    given = [*arguments(program), "packing", *noted(text)]
    return [f"{', '.join(names)} = _scores_triton({', '.join(given)})"]


def _judged(kernels: dict[str, KernelText]) -> bool:
    """Do scores wait for walks, which note where gates are strong?"""
    return "scores" in kernels and kernels["scores"]["kernel"].runs_twice


def _sums(program: ChunkProgram, kernels: dict[str, KernelText], prefix: str) -> list[str]:
    """Local sums [B, T, M] that other kernels load."""
    lines = []
    for role, text in kernels.items():
        if role.startswith(f"{prefix}_"):
            lines += [
                f"{identifier(s.target)} = _new({PACKED}, (B, T, M), torch.float32, device)"
                for s in text["kernel"].stores
            ]
            lines += launch(program, text)
    return lines


def _backward(program: ChunkProgram, kernels: dict[str, KernelText], packing: str) -> list[str]:
    (state,) = program.states
    name = identifier(state.name)
    initials = [f"{s.name}_initial" for s in program.states]
    finals = [f"{s.adjoint_end}_final" for s in program.states]
    cotangents = [identifier(c) for c in program.cotangents]
    again = ", ".join([*arguments(program), *initials, PACKED, "packing"])
    signature = [*arguments(program), *initials, PACKED, name, *walk_operands(kernels), *cotangents, *finals, "needs"]
    lines = [
        f"def _backward_triton({', '.join(signature)}):",
        '    """Gradients of the tensors in order, then of the initial states: those that `needs` asks for, else None.',
        "",
        f'    Chunk states{" and operands" * (GIVEN in kernels)} that are empty are made again."""',
        f"    packing = {packing}",
        *head(program),
        f"    if not {name}.numel():",
        f"        {name}{', _' * len(noted(kernels['states']))} = _states_triton({again})",
    ]
    lines += indented(_sums(program, kernels, "backward_sums"))
    count = len(program.gradients)
    walk_back = _walk_back(program, kernels["adjoint_states"])
    order = {f"d{g.name}": n for n, g in enumerate(program.gradients)}
    fused = "fused_value_gradients"
    if fused in kernels:
        lines += indented(_walk_back_on_chip(program, kernels, fused, walk_back, order))
    elif ADJOINT_GIVEN in kernels:
        makers = [shared_call(program, kernels[role]) for role in SHARED]
        lines += [
            f'    given = ("{KEYS_GIVEN}", _capability(), dtype, *_powers(K, V)) in TUNED',
            "    if given:",
            *indented([*makers, _walk_back(program, kernels[ADJOINT_GIVEN])], 2),
            "    else:",
            f"        {walk_back}",
        ]
    else:
        lines.append(f"    {walk_back}")
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
            buffer, allocated, total = _buffer(program, kernels, text, tensor, target)
            renamed[target] = buffer
            allocations.append(f"{buffer} = {allocated} if needs[{order[target]}] else None")
            sums.setdefault(target, []).append(total)
        on_chip, twice = role == "value_gradients" and fused in kernels, text["kernel"].runs_twice
        lines += indented([] if on_chip else allocations)
        first = ["not on_chip"] * (on_chip and not twice) + ["not given"] * (on_chip and GIVEN_BACK in kernels)
        lines.append(f"    if {' and '.join([*first, _asked(renamed, order, around=bool(first))])}:")
        if GIVEN_BACK in kernels and not on_chip:
            renamed["walks"] = "None if given else strong.shape[0] // B"
        passes = "[1 if on_chip else 0 :]" if on_chip and twice else ""
        started = _scores(program, kernels) if text["kernel"].ready else []
        started += [*configure(program, text), *start(program, text, renamed, passes=passes)]
        if f"{role}_given" in kernels:
            notes = {"walks": "None", "strong": shared_notes(role)}
            one = launch(program, kernels[f"{role}_given"], renamed | notes)
            started = ["if given:", *indented(one), "else:", *indented(started)]
        lines += indented(started, 2)
    lines.append("    return (")
    for g in program.gradients:
        parts = sums.get(f"d{g.name}", [])
        value = " + ".join(parts) if parts else f"torch.zeros_like({identifier(g.name)})"
        plain = len(parts) == 1 and parts[0].isidentifier()
        lines.append(f"        {value}," if plain else f"        {value} if needs[{order[f'd{g.name}']}] else None,")
    for n, s in enumerate(program.states, count):
        lines.append(f"        _over_heads({s.adjoint}_initial, 1, H) if needs[{n}] else None,")
    lines.append("    )")
    return lines


def _walk_back(program: ChunkProgram, text: KernelText) -> str:
    """The call of the walk back that makes the gradients of states alone."""
    (state,) = program.states
    more = walk_back_arguments(program, text)
    more += [f"{state.adjoint_end}_final", f"needs[{len(program.gradients)}]"]
    made = [identifier(state.adjoint_end), f"{state.adjoint}_initial", *noted(text)]
    return f"{', '.join(made)} = _{text['role']}_triton({', '.join([*arguments(program), PACKED, 'packing', *more])})"


def _walk_back_on_chip(
    program: ChunkProgram, kernels: dict[str, KernelText], role: str, walk_back: str, order: dict[str, int]
) -> list[str]:
    """One kernel that walks back and makes the gradients of values, where that is faster; else `walk_back`. Where gates
    are strong it walks again, for right gradients of states, from which those of values are made chunk by chunk."""
    (state,) = program.states
    text = kernels[role]
    tensors: list[Tensor] = [item["tensor"] for item in text["tensors"]]
    outs = {t.name.removesuffix("_out"): t for t in tensors if t.name.endswith("_out")}
    buffers = {target: _buffer(program, kernels, text, tensor, target) for target, tensor in outs.items()}
    heads = [heads_of(d) for d in program.recurrence.declarations if f"d{d.name}" in outs]
    on_chip = [_asked(outs, order), *(f"{number} == M" for number in heads)]
    on_chip.append(f'_stays_on_chip("{role}", "saved", N * M, K, V, dtype)')
    renamed = {target: name for target, (name, _, _) in buffers.items()} | {"pieces": "1"}
    states = [
        chunk_states(state.adjoint_end, "M"),
        f"{new(f'{state.adjoint}_initial', 'N', 'M', 'K', 'V')} if needs[{len(program.gradients)}] else None",
    ]
    given = []
    if GIVEN_BACK in kernels:
        operands = walk_operands(kernels)
        conditions = [*on_chip[:-1], f'_is_given("{GIVEN_BACK}", N * M, K, V, dtype)']
        given = [
            f"given = {' and '.join(conditions)}",
            "if given:",
            *indented([*states, f"if not {operands[0]}.numel():"]),
            f"        [{', '.join(operands)}] = {operands_call(program)}",
            *indented(launch(program, kernels[GIVEN_BACK], renamed | operand_names(kernels))),
        ]
    return [
        *(f"{name} = {made} if needs[{order[target]}] else None" for target, (name, made, _) in buffers.items()),
        f"on_chip = {' and '.join(on_chip)}",
        *given,
        "elif on_chip:" if given else "if on_chip:",
        *indented(states),
        *indented(_scores(program, kernels) if text["kernel"].ready else []),
        *indented(_twice(program, text, renamed) if text["kernel"].runs_twice else launch(program, text, renamed)),
        "else:",
        f"    {walk_back}",
    ]


def _twice(program: ChunkProgram, text: KernelText, renamed: dict[str, str]) -> list[str]:
    """The walk back where gates may be strong: of what is mild all, of all else the gradients of states alone."""
    nothing = dict.fromkeys(renamed, "None") | {"pieces": "1"}
    return [
        *configure(program, text),
        *start(program, text, nothing | {f"{program.states[0].adjoint}_initial": "None"}, passes="[:1]"),
        *start(program, text, renamed, passes="[1:3]"),
        *start(program, text, nothing, passes="[3:]", by_threads=True),
        "strong = again.view(N, M, -1)",
    ]


def _asked(targets: Iterable[str], order: dict[str, int], around: bool = True) -> str:
    """Is any of these gradients asked for?"""
    wanted = [f"needs[{n}]" for n in sorted(order[target] for target in targets)]
    return f"({' or '.join(wanted)})" if around and len(wanted) > 1 else " or ".join(wanted)


def _buffer(
    program: ChunkProgram, kernels: dict[str, KernelText], text: KernelText, tensor: Tensor, target: str
) -> tuple[str, str, str]:
    """A gradient's buffer in one kernel: its name, its allocation, and what it adds to the gradient."""
    kernel: Kernel = text["kernel"]
    # a walk is in the place of another kernel, and so is one that is given what it multiplies
    chunkwise = [k for role, k in kernels.items() if not k["kernel"].scans and role not in SHARING]
    shared = sum(any(t["tensor"].name == tensor.name for t in k["tensors"]) for k in chunkwise) > 1
    name = f"{target}_{'keys' if kernel.owned == ('i',) else 'values'}" if shared else f"{target}_out"
    features = [EXTENT[a] for a in tensor.axes if a in EXTENT]
    declaration = next(d for d in program.recurrence.declarations if d.name == target[1:])
    heads, source = heads_of(declaration), identifier(declaration.name)
    if tensor.kind == "rows":
        dtype = "torch.float32" if shared or program.recurrence.part_of else f"{source}.dtype"
        return name, f"_new({PACKED}, {source}.shape, {dtype}, device)", name
    split = [a for a in kernel.owned if a not in tensor.axes]
    config = f'_config("{kernel.name}", K, V, dtype)'
    counts = [f"{config}.blocks_{EXTENT[a]}" for a in split]
    if tensor.kind == "row_parts":
        extents = ", ".join(["B", "T", heads, *features, *counts])
        return name, f"_new({PACKED}, ({extents}), torch.float32, device)", f"_summed({name}, -1)"
    dims = "(0, -1)" if split else "0"
    extents = ", ".join(["slots", "M", *features, *counts])
    return (
        name,
        f"_empty({extents}, dtype=torch.float32, device=device)",
        f"_over_heads(_summed({name}, {dims}), 0, {heads})",
    )
