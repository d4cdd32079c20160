"""Buffers of gradients: which of them a kernel makes, how large they are, and what adds up to each gradient."""

from __future__ import annotations

from collections.abc import Iterable

from glagen.emit.interface import heads_of
from glagen.emit.launch import PACKED, KernelText
from glagen.emit.memory import EXTENT, Tensor
from glagen.emit.walks import of_whole
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel
from glagen.ir.tuned import ALONE_KERNELS, BOTH, KEPT_KERNELS, SHARING


def unshared_buffers(
    program: ChunkProgram, kernels: dict[str, KernelText], role: str
) -> tuple[dict[str, tuple[str, str, str]], list[str], dict[str, str]]:
    """The buffers of what a kernel makes that takes whole heads (see `gradient_buffer`); that no heads share a tensor
    whose gradient that is; and what its launch calls them."""
    text = kernels[role]
    tensors: list[Tensor] = [item["tensor"] for item in text["tensors"]]
    outs = {t.name.removesuffix("_out"): t for t in tensors if t.name.endswith("_out") and t.kind != "chunks"}
    buffers = {target: gradient_buffer(program, kernels, text, tensor, target) for target, tensor in outs.items()}
    unshared = [f"{heads_of(d)} == M" for d in program.recurrence.declarations if f"d{d.name}" in outs]
    renamed = {target: name for target, (name, _, _) in buffers.items()}
    return buffers, unshared, renamed | of_whole(f"{program.states[0].adjoint}_initial")


def gradient_buffer(
    program: ChunkProgram, kernels: dict[str, KernelText], text: KernelText, tensor: Tensor, target: str
) -> tuple[str, str, str]:
    """A gradient's buffer in one kernel: its name, its allocation, and what it adds to the gradient."""
    kernel: Kernel = text["kernel"]
    # a walk is in the place of another kernel, and so is one that is given what it multiplies
    others = *SHARING, BOTH, *KEPT_KERNELS
    chunkwise = [k for role, k in kernels.items() if not k["kernel"].scans and role not in others]
    parts = sum(any(t["tensor"].name == tensor.name for t in k["tensors"]) for k in chunkwise)
    shared = parts > 1 and kernel.name not in (*ALONE_KERNELS, BOTH)
    name = f"{target}_{'keys' if kernel.owned == ('i',) else 'values'}" if shared else f"{target}_out"
    features = [EXTENT[a] for a in tensor.axes if a in EXTENT]
    declaration = next(d for d in program.recurrence.declarations if d.name == target[1:])
    heads, source = heads_of(declaration), identifier(declaration.name)
    if tensor.kind == "rows" and (shared or program.recurrence.part_of):
        return name, f"_new({PACKED}, {source}.shape, torch.float32, device, rows)", name
    if tensor.kind == "rows":
        place = [f"d{g.name}" for g in program.gradients].index(target)
        return name, f"into[{place}] if into else _new({PACKED}, {source}.shape, {source}.dtype, device)", name
    split = [a for a in kernel.owned if a not in tensor.axes]
    config = f'_config("{kernel.name}", K, V, dtype)'
    counts = [f"{config}.blocks_{EXTENT[a]}" for a in split]
    if tensor.kind == "row_parts":
        extents = ", ".join(["B", "T", heads, *features, *counts])
        return name, f"_new({PACKED}, ({extents}), torch.float32, device, rows)", f"_summed({name}, -1)"
    dims = "(0, -1)" if split else "0"
    extents = ", ".join(["slots", "M", *features, *counts])
    return (
        name,
        f"_empty({extents}, dtype=torch.float32, device=device)",
        f"_over_heads(_summed({name}, {dims}), 0, {heads})",
    )


def any_asked(targets: Iterable[str], order: dict[str, int], around: bool = True) -> str:
    """Is any of these gradients asked for?"""
    wanted = [f"needs[{n}]" for n in sorted(order[target] for target in targets)]
    return f"({' or '.join(wanted)})" if around and len(wanted) > 1 else " or ".join(wanted)


def returned(program: ChunkProgram, sums: dict[str, list[str]], order: dict[str, int]) -> list[str]:
    """The gradients that were asked for; `sums`: what adds up to each, by name."""
    lines = ["return ("]
    for g in program.gradients:
        parts = sums.get(f"d{g.name}", [])
        value = " + ".join(parts) if parts else f"torch.zeros_like({identifier(g.name)})"
        plain = len(parts) == 1 and parts[0].isidentifier()
        lines.append(f"    {value}," if plain else f"    {value} if needs[{order[f'd{g.name}']}] else None,")
    for n, s in enumerate(program.states, len(program.gradients)):
        lines.append(f"    _over_heads({s.adjoint}_initial, 1, H) if needs[{n}] else None,")
    return [*lines, ")"]
