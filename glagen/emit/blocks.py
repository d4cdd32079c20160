"""The loops of a cover, and the masks their bodies use: the same text in Triton and in PyTorch."""

from __future__ import annotations

from glagen.errors import InternalError
from glagen.ir.expr import refs
from glagen.ir.kernel import Assign, Blocks, RowSum


def mask_names(line: Assign) -> set[str]:
    return {r.name[1:] for r in refs(line.expr) if r.name.startswith("%")}


Definition = tuple[str, str | None, tuple[str, ...]]


def blocks_opening(line: Blocks, chunk: int, where: str) -> tuple[str, list[Definition]]:
    """The loop header of a cover's blocks, and the masks its body may use (text, name, who needs it)."""
    leaf = line.leaf
    match line.kind:
        case "bisect":
            levels = (chunk // leaf).bit_length() - 1
            return f"for level in range({levels}):  # halves of {chunk // 2} rows down to {leaf}", [
                ("half = CHUNK >> (level + 1)", None, ()),
                ("side = row // half", None, ()),
                ("upper = side % 2 == 1", "upper", ("between", "between_before")),
                ("lower = side % 2 == 0", "lower", ()),
                ("same = (side // 2)[:, None] == (side // 2)[None, :]", "same", ("same_T",)),
                ("same_T = same", "same_T", ()),
                (_between(where, "(side[:, None] == side[None, :])", "<="), "between", ()),
                (_between(where, "(side[:, None] == side[None, :])", "<", "_before"), "between_before", ()),
            ]
        case "strips":
            return f"for strip in range(1, {chunk // leaf}):", [
                (f"upper = row // {leaf} == strip", "upper", ("between", "between_before", "same", "same_T")),
                (f"lower = row < strip * {leaf}", "lower", ("between", "between_before", "same", "same_T")),
                ("same = upper[:, None] & lower[None, :]", "same", ()),
                ("same_T = lower[:, None] & upper[None, :]", "same_T", ()),
                ("alike = upper[:, None] & upper[None, :] | lower[:, None] & lower[None, :]", None, ()),
                (_between(where, "alike", "<="), "between", ()),
                (_between(where, "alike", "<", "_before"), "between_before", ()),
            ]
        case "leaf":
            return "", [
                (f"alike = (row // {leaf})[:, None] == (row // {leaf})[None, :]", None, ()),
                ("same = alike & (row[:, None] > row[None, :])", "same", ()),
                ("same_T = alike & (row[:, None] < row[None, :])", "same_T", ()),
                ("leaf = alike & (row[:, None] >= row[None, :])", "leaf", ()),
                ("leaf_before = alike & (row[:, None] > row[None, :])", "leaf_before", ()),
            ]
        case "offsets":
            back = "row[:, None] - row[None, :]"
            return f"for offset in range(1, {leaf}):", [
                (f"inside = row % {leaf} >= offset", None, ()),
                (f"on_offset = ({back} == offset) & inside[:, None]", "on_offset", ()),
                ("on_offset_T = (row[None, :] - row[:, None] == offset) & inside[None, :]", "on_offset_T", ()),
                (f"span = ({back} >= 0) & ({back} < offset)", "span", ()),
                (f"span_before = ({back} > 0) & ({back} < offset)", "span_before", ()),
                (f"shift = ({back} == offset) & inside[:, None]", "shift", ()),
                ("unshift = (row[None, :] - row[:, None] == offset) & inside[None, :]", "unshift", ()),
            ]
        case _:
            raise InternalError(f"unknown blocks {line.kind}")


def _between(where: str, alike: str, sign: str, suffix: str = "") -> str:
    after = "row[:, None] < row[None, :]"
    return f"between{suffix} = {alike} & {where}(upper[:, None], row[None, :] {sign} row[:, None], {after})"


def opening_text(line: Blocks, chunk: int, where: str) -> tuple[str, list[str]]:
    """The loop header ("" for a single pass) and the mask definitions that the body needs."""
    used = {n for x in line.body if isinstance(x, Assign) for n in mask_names(x)}
    used |= {x.select for x in line.body if isinstance(x, RowSum)}
    header, definitions = blocks_opening(line, chunk, where)
    return header, [t for t, name, needs in definitions if name is None or name in used or used & set(needs)]
