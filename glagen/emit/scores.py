"""Scores that a kernel of their own makes, for heads where that was measured to be faster."""

from __future__ import annotations

from glagen.emit.interface import arguments
from glagen.emit.launch import KernelText, configure, head, indented, new, noted, start
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram


def scores(program: ChunkProgram, kernels: dict[str, KernelText], steps: str) -> list[str]:
    """The module's function that makes them on Triton, if it has one. `steps`: those of a chunk."""
    if "scores" not in kernels:
        return []
    text = kernels["scores"]
    rows = "CHUNK" if steps == "CHUNK" else "chunk"
    names = [identifier(store.target) for store in text["kernel"].stores]
    none = ", ".join("None" for _ in names)
    lines = [
        f"def _scores_triton({', '.join([*arguments(program), 'packing', *noted(text)])}):",
        '    """Scores of each chunk; None where kernels that use them had better make them."""',
        *head(program),
        '    if ("scores", _capability(), dtype, *_powers(K, V)) not in TUNED:',
        f"        return {none}",
        *[f"    {rows} = {steps}"] * (rows != steps),
        *indented([new(name, "slots", "M", rows, rows, dtype="_kept_type(dtype)") for name in names]),
        # walks that note strong gates are along heads of the state, or of the outputs
        *indented([*configure(program, text), *start(program, text, {}, read="strong.shape[1]")]),
        f"    return {', '.join(names)}",
    ]
    return ["\n".join(lines)]
