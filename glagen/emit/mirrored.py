"""Backwards of two walks that read no chunk states: a forward of other tensors, and one back (schedule/mirrored.py)."""

from __future__ import annotations

from glagen.emit.buffers import any_asked, returned, unshared_buffers
from glagen.emit.interface import arguments
from glagen.emit.launch import PACKED, KernelText, indented, launch
from glagen.emit.walks import left_on_chip
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.tuned import OTHERS

ONLY = '"outputs"'  # what becomes of chunk states where nothing is of use but outputs


def mirrors(kernels: dict[str, KernelText]) -> dict[str, str]:
    """For arguments, the tensors in their place in the forward that makes the first one's gradient, if there is one."""
    return kernels[OTHERS]["mirrored"] if OTHERS in kernels else {}


def reads_no_states(kernels: dict[str, KernelText]) -> str:
    """Whether the backward is these two walks; nothing, if it never is."""
    tensors = ", ".join(map(identifier, mirrors(kernels)))
    return f"_reads_no_states(({tensors}), N, M, K, V, T, dtype, {PACKED})" if tensors else ""


def two_walks(program: ChunkProgram, kernels: dict[str, KernelText], order: dict[str, int]) -> list[str]:
    """This backward: each walk is made if what it makes is asked for."""
    buffers, _, renamed = unshared_buffers(program, kernels, OTHERS)
    query, initial = next(iter(mirrors(kernels))), f"d{program.states[0].name}"
    sums = {f"d{query}": [f"d{query}_out"]} | {target: [total] for target, (_, _, total) in buffers.items()}
    made = [
        *_mirrored(program, kernels, query, order),
        *(f"{name} = {new} if needs[{order[target]}] else None" for target, (name, new, _) in buffers.items()),
        f"if {any_asked([*buffers, initial], order | {initial: len(order)}, around=False)}:",
        *indented([*left_on_chip(program, kernels), *launch(program, kernels[OTHERS], renamed)]),
        *returned(program, sums, order),
    ]
    return [f"if {reads_no_states(kernels)}:", *indented(made)]


def _mirrored(program: ChunkProgram, kernels: dict[str, KernelText], query: str, order: dict[str, int]) -> list[str]:
    """The forward of other tensors, if the gradient that it makes is asked for."""
    found = {identifier(name): identifier(taken) for name, taken in mirrors(kernels).items()}
    place, initial = order[f"d{query}"], f"{program.states[0].name}_initial"
    given = [*(found.get(x, x) for x in arguments(program)), f"_changed_over({initial})", PACKED, ONLY, "rows"]
    return [
        f"d{query}_out = None",
        f"if needs[{place}]:  # what the op makes of {', '.join(f'{y} for {x}' for x, y in found.items())}",
        f"    d{query}_out, *_ = _forward_triton({', '.join(given)}, *into[{place}:{place + 1}])",
    ]
