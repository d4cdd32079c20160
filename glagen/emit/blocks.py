"""The loops of a cover, and the masks their bodies use: the same text in Triton and in PyTorch."""

from __future__ import annotations

from glagen.errors import InternalError
from glagen.ir.expr import refs
from glagen.ir.kernel import Assign, Blocks, RowSum

Definition = tuple[str, str, tuple[str, ...]]  # a mask's name, its text, the definitions that text needs
ROW, OTHER = "row[:, None]", "row[None, :]"  # of a [row, tau] matrix: the row that sums, and the step it sums over
BACK = f"{ROW} - {OTHER}"


def opening_text(line: Blocks, chunk: int, where: str) -> tuple[str, list[str]]:
    """The loop header ("" for a single pass) and the mask definitions that the body needs.

    A name that ends in _T is the transpose of the mask without it.
    """
    header, definitions = _opening(line, chunk, where)
    wanted = {n for x in line.body if isinstance(x, Assign) for n in _mask_names(x)}
    wanted |= {x.select for x in line.body if isinstance(x, RowSum)}
    texts: list[str] = []
    for name, text, needs in reversed(definitions):
        if f"{name}_T" in wanted:
            texts.append(f"{name}_T = {_transposed(text)}")
            wanted |= set(needs)
        if name in wanted:
            texts.append(f"{name} = {text}")
            wanted |= set(needs)
    return header, texts[::-1]


def _mask_names(line: Assign) -> set[str]:
    return {r.name[1:] for r in refs(line.expr) if r.name.startswith("%")}


def _transposed(text: str) -> str:
    return text.replace("[:, None]", "[,]").replace("[None, :]", "[:, None]").replace("[,]", "[None, :]")


def _opening(line: Blocks, chunk: int, where: str) -> tuple[str, list[Definition]]:
    leaf = line.leaf
    match line.kind:
        case "bisect":
            levels = (chunk // leaf).bit_length() - 1
            return f"for level in range({levels}):  # halves of {chunk // 2} rows down to {leaf}", [
                ("half", "CHUNK >> (level + 1)", ()),
                ("side", "row // half", ("half",)),
                ("upper", "side % 2 == 1", ("side",)),
                ("lower", "side % 2 == 0", ("side",)),
                ("same", "(side // 2)[:, None] == (side // 2)[None, :]", ("side",)),
                ("alike", "side[:, None] == side[None, :]", ("side",)),
                *_between(where),
            ]
        case "strips":
            return f"for strip in range(1, {chunk // leaf}):", [
                ("upper", f"row // {leaf} == strip", ()),
                ("lower", f"row < strip * {leaf}", ()),
                ("same", "upper[:, None] & lower[None, :]", ("upper", "lower")),
                ("alike", "(upper[:, None] & upper[None, :]) | (lower[:, None] & lower[None, :])", ("upper", "lower")),
                *_between(where),
            ]
        case "leaf":
            return "", [
                ("alike", f"(row // {leaf})[:, None] == (row // {leaf})[None, :]", ()),
                ("same", f"alike & ({ROW} > {OTHER})", ("alike",)),
                ("leaf", f"alike & ({ROW} >= {OTHER})", ("alike",)),
                ("leaf_before", f"alike & ({ROW} > {OTHER})", ("alike",)),
            ]
        case "guard":
            return "", [
                ("same", f"{ROW} > {OTHER}", ()),
                ("leaf", f"{ROW} >= {OTHER}", ()),
                ("leaf_before", f"{ROW} > {OTHER}", ()),
            ]
        case "offsets":
            return f"for offset in range(1, {leaf}):", [
                ("inside", f"row % {leaf} >= offset", ()),
                ("on_offset", f"({BACK} == offset) & inside[:, None]", ("inside",)),
                ("span", f"({BACK} >= 0) & ({BACK} < offset)", ()),
                ("span_before", f"({BACK} > 0) & ({BACK} < offset)", ()),
                ("shift", f"({BACK} == offset) & inside[:, None]", ("inside",)),
            ]
        case _:
            raise InternalError(f"unknown blocks {line.kind}")


def _between(where: str) -> list[Definition]:
    """Rows above the anchor sum from it through (or to before) themselves, rows below it from themselves to it."""
    return [
        (name, f"alike & {where}(upper[:, None], {OTHER} {sign} {ROW}, {ROW} < {OTHER})", ("alike", "upper"))
        for name, sign in (("between", "<="), ("between_before", "<"))
    ]
