"""Launches: Python that allocates buffers and starts the kernels of each form."""

from __future__ import annotations

from typing import Any

from glagen.emit.interface import arguments, lead, sizes_call
from glagen.emit.triton import EXTENT, Tensor
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel

KernelText = dict[str, Any]  # what emit/module.py knows of a printed kernel


def launches(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    """The module's functions that run on Triton."""
    return ["\n".join(f) for f in (_states(program, kernels), _forward(program, kernels), _backward(program, kernels))]


def _launch(program: ChunkProgram, text: KernelText, renamed: dict[str, str] | None = None) -> list[str]:
    """Configure and start one kernel; its outputs are local variables (`renamed`, where not of the same name)."""
    kernel: Kernel = text["kernel"]
    renamed = renamed or {}
    values = []
    for item in text["tensors"]:
        tensor: Tensor = item["tensor"]
        name = tensor.name.removesuffix("_out")
        values.append(renamed.get(name, identifier(name)))
    values += text["scalars"]
    grid = [f'_blocks({EXTENT[a]}, config["BLOCK_{EXTENT[a]}"])' for a in kernel.owned if a not in kernel.whole]
    grid += ([] if kernel.scans else ["chunks"]) + ["B", "H"]
    return [
        f'config = _config("{kernel.name}", K, V, dtype)',
        f"{text['function']}[({' * '.join(grid)},)](",
        f"    {', '.join([*values, 'T', 'H', 'chunks'])}, **config",
        ")",
    ]


def _head(program: ChunkProgram, device: bool = True) -> list[str]:
    x = identifier(lead(program).name)
    return [
        f"    B, T, H, K, V = {sizes_call(program)}",
        f"    chunks, dtype, device = _blocks(T, CHUNK), {x}.dtype, {x}.device",
    ]


def _indented(lines: list[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def _new(name: str, *extents: str, dtype: str = "torch.float32") -> str:
    return f"{name} = torch.empty({', '.join(extents)}, dtype={dtype}, device=device)"


def _states(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    names = ", ".join(s.name for s in program.states)
    initials = [f"{s.name}_initial" for s in program.states]
    finals = [f"{s.name}_final" for s in program.states]
    return [
        f"def _states_triton({', '.join([*arguments(program), *initials, *(f'{f}=None' for f in finals)])}):",
        '    """The states that enter each chunk; the final ones go where they are wanted."""',
        *_head(program),
        *_indented([_new(s.name, "B", "H", "chunks", "K", "V") for s in program.states]),
        *_indented(_launch(program, kernels["states"])),
        f"    return ({names},)",
    ]


def _forward(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    names = ", ".join(s.name for s in program.states)
    initials = [f"{s.name}_initial" for s in program.states]
    finals = [f"{s.name}_final" for s in program.states]
    outs = [identifier(o.name) for o in program.outputs]
    results = ", ".join([*outs, *finals])
    return [
        f"def _forward_triton({', '.join([*arguments(program), *initials, 'fused'])}):",
        '    """Outputs, final states, and the states that enter each chunk (None where they stay on chip)."""',
        *_head(program),
        *_indented(
            [_new(identifier(o.name), "B", "T", "H", EXTENT[o.indices[-1]], dtype="dtype") for o in program.outputs]
        ),
        *_indented([_new(f, "B", "H", "K", "V") for f in finals]),
        "    if fused:",
        *_indented(_launch(program, kernels["fused"]), 2),
        f"        return {results}, [None] * {len(program.states)}",
        f"    ({names},) = _states_triton({', '.join([*arguments(program), *initials, *finals])})",
        *_indented(_launch(program, kernels["outputs"])),
        f"    return {results}, [{names}]",
    ]


def _backward(program: ChunkProgram, kernels: dict[str, KernelText]) -> list[str]:
    names = [s.name for s in program.states]
    initials = [f"{s.name}_initial" for s in program.states]
    finals = [f"{s.adjoint_end}_final" for s in program.states]
    starts = [f"{s.adjoint}_initial" for s in program.states]
    cotangents = [identifier(c) for c in program.cotangents]
    again = ", ".join([*arguments(program), *initials])
    lines = [
        f"def _backward_triton({', '.join([*arguments(program), *initials, *names, *cotangents, *finals])}):",
        '    """Gradients of the tensors in order, then of the initial states. States that are None are made again."""',
        *_head(program),
        f"    if {names[0]} is None:",
        f"        ({', '.join(names)},) = _states_triton({again})",
    ]
    for s in program.states:
        lines.append("    " + _new(s.adjoint_end, "B", "H", "chunks", "K", "V"))
        lines.append("    " + _new(f"{s.adjoint}_initial", "B", "H", "K", "V"))
    lines += _indented(_launch(program, kernels["adjoint_states"]))
    sums: dict[str, list[str]] = {}
    for role in ("key_gradients", "value_gradients"):
        if role not in kernels:
            continue
        text = kernels[role]
        renamed = {}
        for item in text["tensors"]:
            tensor: Tensor = item["tensor"]
            if not tensor.name.endswith("_out"):
                continue
            target = tensor.name.removesuffix("_out")
            buffer, allocate, total = _buffer(program, kernels, text, tensor, target)
            renamed[target] = buffer
            lines += _indented(allocate)
            sums.setdefault(target, []).append(total)
        lines += _indented(_launch(program, text, renamed))
    grads = [sums.get(f"d{g.name}", ["None"]) for g in program.gradients]
    lines.append("    return (")
    lines += [f"        {' + '.join(parts)}," for parts in grads]
    lines += [f"        {start}," for start in starts]
    lines.append("    )")
    return lines


def _buffer(
    program: ChunkProgram, kernels: dict[str, KernelText], text: KernelText, tensor: Tensor, target: str
) -> tuple[str, list[str], str]:
    """A gradient's buffer in one kernel: its name, its allocation, and what it adds to the gradient."""
    kernel: Kernel = text["kernel"]
    shared = sum(any(t["tensor"].name == tensor.name for t in k["tensors"]) for k in kernels.values()) > 1
    name = f"{target}_{'keys' if kernel.owned == ('i',) else 'values'}" if shared else f"{target}_out"
    features = [EXTENT[a] for a in tensor.axes if a in EXTENT]
    if tensor.kind == "rows":
        source = identifier(target[1:])
        dtype = "torch.float32" if shared else f"{source}.dtype"
        return name, [_new(name, "B", "T", "H", *features, dtype=dtype)], name
    split = [a for a in kernel.owned if a not in tensor.axes]
    config = f'_config("{kernel.name}", K, V, dtype)'
    counts = [f'_blocks({EXTENT[a]}, {config}["BLOCK_{EXTENT[a]}"])' for a in split]
    if tensor.kind == "row_parts":
        return name, [_new(name, "B", "T", "H", *features, *counts)], f"{name}.sum(-1)"
    dims = "(0, 1, -1)" if split else "(0, 1)"
    return name, [_new(name, "B", "chunks", "H", *features, *counts)], f"{name}.sum({dims})"
