"""Scores that a kernel of their own makes, for heads where that was measured to be faster; and what else it makes."""

from __future__ import annotations

from glagen.emit.interface import arguments
from glagen.emit.launch import KernelText, configure, head, indented, new, noted, start
from glagen.emit.memory import EXTENT
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Store


def scores(program: ChunkProgram, kernels: dict[str, KernelText], steps: str) -> list[str]:
    """The module's function that makes them on Triton, if it has one. `steps`: those of a chunk."""
    if "scores" not in kernels:
        return []
    text = kernels["scores"]
    made = [store for store in text["kernel"].stores if store.target not in text["kernel"].given]
    names = [identifier(store.target) for store in made]
    none = ", ".join("None" for _ in names)
    lines = [
        f"def _scores_triton({', '.join([*arguments(program), 'packing', *noted(text)])}):",
        '    """Scores of each chunk; None where kernels that use them had better make them."""',
        *head(program),
        '    if ("scores", _capability(), dtype, *_powers(K, V)) not in TUNED:',
        f"        return {none}",
        *indented(_buffers(made, steps)),
        # walks that note strong gates are along heads of the state, or of the outputs
        *indented(configure(program, text)),
        *indented(start(program, text, dict.fromkeys(text["kernel"].given, "None"), read="strong.shape[1]")),
        f"    return {', '.join(names)}",
    ]
    return ["\n".join(lines)]


def operands(program: ChunkProgram, kernels: dict[str, KernelText], steps: str) -> list[str]:
    """The module's function that makes scores together with what else a walk is given, if it has one."""
    if "scores" not in kernels or not kernels["scores"]["kernel"].given:
        return []
    text = kernels["scores"]
    made, no_more = text["kernel"].stores, dict.fromkeys(text["kernel"].given, "None")  # all else is right at once
    lines = [
        f"def _operands_triton({', '.join([*arguments(program), 'packing'])}):",
        '    """Scores of each chunk, what walks multiply with states there, and whether its gates are strong."""',
        *head(program),
        *indented(_buffers(made, steps)),
        *indented([new("strong", "slots", "M", "1", dtype="torch.int8"), *configure(program, text)]),
        *indented(start(program, text, {"walks": "None"}, read="strong.shape[1]", passes="[:1]")),
        *indented(start(program, text, no_more | {"walks": "None"}, read="strong.shape[1]", passes="[1:]")),
        f"    return {', '.join([*(identifier(store.target) for store in made), 'strong'])}",
    ]
    return ["\n".join(lines)]


def _buffers(stores: tuple[Store, ...] | list[Store], steps: str) -> list[str]:
    """A tensor for each of what is stored of a chunk."""
    rows = "CHUNK" if steps == "CHUNK" else "chunk"
    lines = [f"{rows} = {steps}"] * (rows != steps)
    for store in stores:
        dtype = "_kept_type(dtype)" if "s" in store.axes else "dtype" if "t" in store.axes else "torch.float32"
        extents = [EXTENT.get(axis, rows) for axis in store.axes]
        lines.append(new(identifier(store.target), "slots", "M", *extents, dtype=dtype))
    return lines
