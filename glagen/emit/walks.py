"""Walks along sequences that keep what enters or leaves each chunk: a state, or its gradient.

Where sequences and heads are too few to occupy a GPU, a sequence is cut into pieces that are walked along at once:
first from zero, which gives what each adds, and what its gates leave of a state; then from what enters it, which
follows from those. The second walk may be one that keeps the state on chip, if pieces are as many as sequences have to
be for that. (H200, bf16, B1 T65536 H8 K=V=128, forward and backward, ms, with second walks back that only store the
state's gradient, and on chip: gla 1.80 and 1.62; simple_gla, whose forward is then given its operands, 1.73 and 1.39.)
"""

from __future__ import annotations

from glagen.emit.interface import arguments
from glagen.emit.launch import (
    PACKED,
    KernelText,
    chunk_states,
    configure,
    head,
    indented,
    kept_reads,
    new,
    noted,
    notes_of_walks,
    remains,
    start,
    walk_back_arguments,
)
from glagen.emit.memory import EXTENT
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.tuned import ADJOINT_GIVEN, KEPT_BACK

SIDES = {("i",): "keys", ("j",): "values", (): "scalar"}  # what `_carried` calls gates with these axes


def walks(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The module's functions that walk along sequences on Triton."""
    forward = kernels["states"]
    back: list[list[str]] = []
    for text in (kernels[role] for role in ("adjoint_states", ADJOINT_GIVEN) if role in kernels):
        back += [_leaving(program, text), _adjoint_states(program, text, text)]
    if KEPT_BACK in kernels:
        back.append(_adjoint_states(program, kernels[KEPT_BACK], kernels["adjoint_states"]))
    made = _entering(program, forward), _states(program, forward), *back
    return ["\n".join(function) for function in made]


def _entering(program: ChunkProgram, text: KernelText) -> list[str]:
    (state,) = program.states
    initial, final = f"{state.name}_initial", f"{state.name}_final"
    from_zero = {initial: "None", state.name: "None", final: "ends"}
    return [
        f"def _entering_triton({', '.join(arguments(program))}, {initial}, {PACKED}, packing, pieces, {final}):",
        f'    """The states that enter each piece of a sequence [N * pieces, H, K, V]{_notes(text)}; the final ones go',
        '    where they are wanted."""',
        *head(program),
        *indented(
            [
                "N = N * pieces",
                *configure(program, text),
                new("ends", "N", "H", "K", "V"),
                *_from_zero(program, text, from_zero, "H"),
                f"return {', '.join([f'_carried(pieces, ends, {initial}, {final}{_given(program)})', *noted(text)])}",
            ]
        ),
    ]


def _states(program: ChunkProgram, text: KernelText) -> list[str]:
    (state,) = program.states
    name, initial, final = identifier(state.name), f"{state.name}_initial", f"{state.name}_final"
    results = ", ".join([name, *noted(text)])
    from_there = of_whole(final) | _unwanted(program)
    return [
        f"def _states_triton({', '.join(arguments(program))}, {initial}, {PACKED}, packing, {final}=None):",
        f'    """The states that enter each chunk{_notes(text)}; the final ones go where they are wanted."""',
        *head(program),
        f"    {chunk_states(state.name, 'H')}",
        *indented(
            [
                pieces(text, "H"),
                *entered(program, text),
                *configure(program, text),
                *start(program, text, from_there),
                f"return {results}",
            ]
        ),
    ]


def _leaving(program: ChunkProgram, text: KernelText) -> list[str]:
    (state,) = program.states
    initial, final = f"{state.adjoint}_initial", f"{state.adjoint_end}_final"
    signature = [*arguments(program), PACKED, "packing", *walk_back_arguments(program, text), "pieces", final, "wanted"]
    from_zero = {final: "None", state.adjoint_end: "None", initial: "ends"}
    return [
        f"def {_leaving_name(text)}({', '.join(signature)}):",
        '    """Gradients of the states that leave each piece of a sequence [N * pieces, H, K, V], and of initial ones',
        f'    if wanted{_notes(text)}."""',
        *head(program),
        *indented(
            [
                f"{new(initial, 'N', 'H', 'K', 'V')} if wanted else None",
                "N = N * pieces",
                *configure(program, text),
                new("ends", "N", "M", "K", "V"),
                *_from_zero(program, text, from_zero, "M"),
                "ends = _over_heads(ends, 1, H)",
                f"{final} = _carried(pieces, ends, {final}, {initial}{_given(program)}, reverse=True)",
                f"return {', '.join([final, initial, *noted(text)])}",
            ]
        ),
    ]


def _adjoint_states(program: ChunkProgram, text: KernelText, from_zero: KernelText) -> list[str]:
    """`from_zero`: the kernel of the first walks, if there are pieces."""
    (state,) = program.states
    name, initial = identifier(state.adjoint_end), f"{state.adjoint}_initial"
    final = f"{state.adjoint_end}_final"
    more = walk_back_arguments(program, text)
    from_there = of_whole(initial) | _unwanted(program)
    reads = kept_reads(text)
    return [
        f"def _{text['role']}_triton({', '.join([*arguments(program), PACKED, 'packing', *more, final, 'wanted'])}):",
        '    """Gradients of the states that leave each chunk, and of the initial ones if wanted: [N, M, K, V], or of',
        f'    as many heads as states have{_notes(text)}{"; and what values read of them" * bool(reads)}."""',
        *head(program),
        f"    {chunk_states(state.adjoint_end, 'M')}",
        *indented([new(read, *extents, dtype=dtype) for read, extents, dtype in reads]),
        *indented(
            [
                pieces(text, "M"),
                *left(program, from_zero, "wanted"),
                *configure(program, text),
                *start(program, text, from_there),
                f"return {', '.join([name, initial, *noted(text), *(read for read, _, _ in reads)])}",
            ]
        ),
    ]


def _leaving_name(text: KernelText) -> str:
    """The function that gives the gradients of states which leave pieces."""
    return f"_leaving{text['role'].removeprefix('adjoint_states')}_triton"


def entered(program: ChunkProgram, text: KernelText, notes: str = "_") -> list[str]:
    """What enters pieces, if there are any, which count as sequences from here on. `notes`: the name of what those who
    walked along them noted."""
    (state,) = program.states
    initial, final = f"{state.name}_initial", f"{state.name}_final"
    given = [*arguments(program), initial, PACKED, "packing", "pieces", final]
    return [
        "if pieces > 1:",
        f"    {', '.join([initial, *(notes for _ in noted(text))])} = _entering_triton({', '.join(given)})",
        "N = N * pieces",
    ]


def left(program: ChunkProgram, text: KernelText, wanted: str, notes: str = "_") -> list[str]:
    """Gradients of what leaves pieces, if there are any, which count as sequences from here on; else a buffer for those
    of initial states, if they are `wanted`. `notes` as above."""
    (state,) = program.states
    initial, final = f"{state.adjoint}_initial", f"{state.adjoint_end}_final"
    given = [*arguments(program), PACKED, "packing", *walk_back_arguments(program, text), "pieces", final, wanted]
    made = [final, initial, *(notes for _ in noted(text))]
    return [
        "if pieces > 1:",
        f"    {', '.join(made)} = {_leaving_name(text)}({', '.join(given)})",
        "else:",
        f"    {new(initial, 'N', 'M', 'K', 'V')} if {wanted} else None",
        "N = N * pieces",
    ]


def left_on_chip(program: ChunkProgram, kernels: dict[str, KernelText], notes: str = "_") -> list[str]:
    """The same of a walk back on chip: what each piece begins with, and a buffer for the initial state's gradient."""
    return left(program, kernels["adjoint_states"], f"needs[{len(program.gradients)}]", notes)


def looked(program: ChunkProgram, text: KernelText, nothing: dict[str, str], heads: str, notes: str) -> list[str]:
    """A look at first chunks, by a walk on chip that stores `nothing`; unless walks that gave what enters pieces, or
    leaves them, have seen all chunks, and have left `notes`: if there was one for each of its own."""
    return [
        f"if pieces > 1 and programs == N * {heads}:  # walks along the same have seen all chunks",
        f"    again, notes = {notes}, {notes}.shape[-1]",
        "else:",
        f"    {notes_of_walks('again', text)}",
        "    notes = 1",
        *indented(start(program, text, nothing, passes="[:1]")),
    ]


def of_whole(end: str) -> dict[str, str]:
    """What a launch calls the last state, or the gradient of the first: in pieces, walks from zero have led to that."""
    return {end: f"{end} if pieces == 1 else None"}


def pieces(text: KernelText, heads: str) -> str:
    """Into how many pieces sequences are cut."""
    return f'pieces = _pieces("{text["kernel"].name}", N * {heads}, K, V, T, dtype) if {PACKED} is None else 1'


def _from_zero(program: ChunkProgram, text: KernelText, renamed: dict[str, str], heads: str) -> list[str]:
    """The first of two walks: it keeps nothing but how pieces end, and what gates leave in each."""
    buffers = [new(identifier(remains(g)), "N", heads, *(EXTENT[a] for a in g.axes)) for g in program.gates]
    return [*buffers, *start(program, text, renamed)]


def _unwanted(program: ChunkProgram) -> dict[str, str]:
    return {remains(gate): "None" for gate in program.gates}


def _given(program: ChunkProgram) -> str:
    """Arguments of `_carried`: what gates leave, by their sides."""
    return "".join(f", {SIDES[gate.axes]}={identifier(remains(gate))}" for gate in program.gates)


def _notes(text: KernelText) -> str:
    return "; and which walks met strong gates" if noted(text) else ""
