"""Walks along sequences that keep what enters or leaves each chunk: a state, or its gradient.

Where sequences and heads are too few to occupy a GPU, a sequence is cut into pieces that are walked along at once:
first from zero, which gives what each adds; then from what enters it, which follows from that and the pieces' decays.
"""

from __future__ import annotations

from glagen.emit.interface import arguments, head_axis, lead, ordered, sizes_call
from glagen.emit.launch import (
    PACKED,
    KernelText,
    chunk_states,
    head,
    indented,
    launch,
    new,
    noted,
    walk_back_arguments,
)
from glagen.emit.step import AT, torch_value
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.expr import Ref, free_axes, refs
from glagen.ir.recurrence import SIDE_AXES, Gate


def walks(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The module's functions that walk along sequences on Triton."""
    made = (_decays(program), _states(program, kernels["states"]), _adjoint_states(program, kernels["adjoint_states"]))
    return ["\n".join(function) for function in made]


def _decays(program: ChunkProgram) -> list[str]:
    rec = program.recurrence
    (state,) = rec.states
    factors = [_factor(program, gate) for gate in state.gates]
    plain = {g.log.name for g in state.gates if isinstance(g.log, Ref)}
    used = {r.name for gate in state.gates for r in refs(gate.log)}
    first = identifier(lead(rec).name)
    product = " * ".join(name for _, name in factors) or f"torch.ones(1, 1, 1, device={first}.device)"
    product = f"({product})" if len(factors) > 1 else product
    lines = [
        f"B, T, H, _, K, V = {sizes_call(rec)}",
        *(
            f"{x} = _spread({x}{'' if d.name in plain else '.float()'}, {head_axis(d)}, H)"
            for d in rec.declarations
            if d.kind != "scalar" and d.name in used
            for x in [identifier(d.name)]
        ),
        *(line for line, _ in factors),
        f"return {product}.expand(B, pieces, -1, -1, -1)",
    ]
    return [
        f"def _decays({', '.join([*arguments(program), 'pieces'])}):",
        '    """What each piece of a sequence leaves of a state: [B, pieces, H, K, V], or 1 where it is alike."""',
        *indented(lines),
    ]


def _factor(program: ChunkProgram, gate: Gate) -> tuple[str, str]:
    """The line that sums a gate's logarithms over each piece, and what that leaves, spread over the state."""
    axes = SIDE_AXES[gate.side]
    name = f"log_{gate.side}"
    if "t" in free_axes(gate.log):
        text = torch_value(program.recurrence, gate.log, axes)
        text = text if isinstance(gate.log, Ref) else f"({text})"
        total = f"{text}.unflatten(1, (pieces, -1)).sum(2, dtype=torch.float32)"
    else:
        total = f"{torch_value(program.recurrence, gate.log, axes, 2)} * (T // pieces)"
    return f"{name} = {total}", f"torch.exp({name}){AT[axes[0]] if axes else '[..., None, None]'}"


def _states(program: ChunkProgram, text: KernelText) -> list[str]:
    (state,) = program.states
    name, initial, final = identifier(state.name), f"{state.name}_initial", f"{state.name}_final"
    given = ", ".join(arguments(program))
    results = ", ".join([name, *noted(text)])
    return [
        f"def _states_triton({given}, {initial}, {PACKED}, packing, {final}=None):",
        f'    """The states that enter each chunk{_notes(text)}; the final ones go where they are wanted."""',
        *head(program),
        *_pieces("states", "H"),
        *indented(
            [
                f"given = ({_cut(program)})",
                "packing = (N * pieces, slots, None, None)",
                new("ends", "N * pieces", "H", "K", "V"),
                "_states_triton(*given, None, None, packing, ends)",
                f"starts = _carried(_decays({given}, pieces), ends, {initial})",
                f"{results} = _states_triton(*given, starts, None, packing, ends)",
                f"if {final} is not None:",
                f"    {final}.copy_(ends.unflatten(0, (N, pieces))[:, -1])",
                f"return {results}",
            ],
            2,
        ),
        f"    {chunk_states(state.name, 'H')}",
        *indented(launch(program, text)),
        f"    return {results}",
    ]


def _adjoint_states(program: ChunkProgram, text: KernelText) -> list[str]:
    (state,) = program.states
    name, initial = identifier(state.adjoint_end), f"{state.adjoint}_initial"
    final = f"{state.adjoint_end}_final"
    given = ", ".join(arguments(program))
    more = walk_back_arguments(program, text)
    cut = ", ".join(f"_cut({x}, pieces)" for x in more)
    notes = "".join(f", {x}" for x in noted(text))
    return [
        f"def _adjoint_states_triton({given}, {PACKED}, packing, {', '.join([*more, final])}, wanted):",
        '    """Gradients of the states that leave each chunk, and of the initial ones [N, M, K, V] if wanted'
        f'{_notes(text)}."""',
        *head(program),
        *_pieces("adjoint_states", "M"),
        *indented(
            [
                "packing = (N * pieces, slots, None, None)",
                f"given = ({_cut(program)}, None, packing, {cut})",
                f"_, starts{', _' * bool(notes)} = _adjoint_states_triton(*given, None, True)",
                f"ends = _carried(_decays({given}, pieces), _over_heads(starts, 1, H), {final}, reverse=True)",
                f"{name}, starts{notes} = _adjoint_states_triton(*given, ends, wanted)",
                f"return {name}, starts.unflatten(0, (N, pieces))[:, 0] if wanted else None{notes}",
            ],
            2,
        ),
        f"    {chunk_states(state.adjoint_end, 'M')}",
        f"    {new(initial, 'N', 'M', 'K', 'V')} if wanted else None",
        *indented(launch(program, text)),
        f"    return {name}, {initial}{notes}",
    ]


def _notes(text: KernelText) -> str:
    return "; and which walks met strong gates" if noted(text) else ""


def _pieces(kernel: str, heads: str) -> list[str]:
    return [
        f'    pieces = _pieces("{kernel}", N * {heads}, K, V, T, dtype) if {PACKED} is None else 1',
        "    if pieces > 1:",
    ]


def _cut(program: ChunkProgram) -> str:
    """The op's arguments, sequences in pieces."""
    return ", ".join(
        f"_cut({identifier(d.name)}, pieces)" if d.kind == "input" else identifier(d.name)
        for d in ordered(program.recurrence)
    )
