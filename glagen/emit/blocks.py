"""The loops of a cover, and the masks their bodies use: the same text in Triton and in PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glagen.errors import InternalError
from glagen.ir.expr import refs
from glagen.ir.kernel import Assign, Blocks, Dot, RowSum
from glagen.ir.schedule import EIGHT

Definition = tuple[str, str, tuple[str, ...]]  # a mask's name, its text, the definitions that text needs
ROW, OTHER = "row[:, None]", "row[None, :]"  # of a [row, tau] matrix: the row that sums, and the step it sums over
BACK = f"{ROW} - {OTHER}"
# Steps of a chunk in whose gradients levels stand one after another, at most: of 64 they spill so much that forward and
# backward take 17 ms for 2. (H200, Triton 3.6.0, bf16, gla, B8 T2048 H4 K256 V512.)
UNROLLED = 32
EIGHTS = f"LEVELS - {EIGHT.bit_length() - 1}"  # levels of halves, down to blocks of eight rows


@dataclass(frozen=True, slots=True)
class Language:
    """How a language chooses by a mask (`where`); and, if a chunk is halved as often as a tile `{depth}` says: how many
    levels of `{most}` there are (`levels`), a mask `{mask}` in these (`reached`) and in the blocks that are left
    (`within`). If each row has a depth: the levels (`row_levels`), a row's depth beside columns (`row`), and a mask in
    `{those}` rows for which a mild chunk counts as well (`rows`), and the depth of blocks of eight rows (`eights`).
    The first `straight` levels stand one after another where registers last: which rows are halves is then known to the
    compiler, and one need not wait for the other. If gates are bounded, so do all that there are beside 16-bit inputs:
    loads of the next chunk then come while there is work on one, which a loop that ends as gates ask would not let.
    In a run for mild gates: pairs of rows that a product with decays serves (`past`), which are the mask `{mask}` in
    others (`mild`). When a row has its own apart (`apart`), and for rows of depth `{row}` (`own`)."""

    where: str
    levels: str
    reached: str
    within: str
    row_levels: str
    row: str
    rows: str
    eights: str
    straight: int
    past: str
    mild: str
    apart: str
    own: str


IN_TRITON = Language(
    where="tl.where",
    levels="{depth}",
    reached="{mask}",
    within="_in_blocks({mask}, {depth}, STRONG)",
    row_levels="tl.max({depth})",
    row="{depth}[:, None]",
    rows="({mask}) & ({those}) if STRONG else {mask}",
    eights=EIGHTS,
    straight=2,
    past="past",
    mild="{mask} if STRONG else past",
    apart="if STRONG or FEW:",
    own="diagonal if FEW else diagonal & ({row} > 0)",
)
IN_TORCH = Language(
    where="torch.where",
    levels="{most}",
    reached="{mask} & (level < {depth})",
    within="_blockwise({mask}, {depth})",
    row_levels="{most}",
    row="{depth}[..., :, None]",
    rows="({mask}) & ({those})",
    eights="{most}",
    straight=0,
    past=f"{ROW} > {OTHER}",
    mild="{mask}",
    apart="",
    own=f"{ROW} == {OTHER}",
)


def opening_text(line: Blocks, chunk: int, language: Language) -> tuple[list[str], list[str]]:
    """The headers of the loops that the body is for (none for a single pass), and the mask definitions it needs.

    A name that ends in _T is the transpose of the mask without it.
    """
    headers, definitions = _opening(line, chunk, language)
    wanted = {n for x in line.body if isinstance(x, Assign) for n in _mask_names(x)}
    wanted |= {x.select for x in line.body if isinstance(x, RowSum)}
    wanted |= {x.mask for x in line.body if isinstance(x, Dot)}
    texts: list[str] = []
    for name, text, needs in reversed(definitions):
        if f"{name}_T" in wanted:
            texts.append(f"{name}_T = {_transposed(text)}")
            wanted |= set(needs)
        if name in wanted:
            texts.append(f"{name} = {text}")
            wanted |= set(needs)
    return headers, texts[::-1]


def _mask_names(line: Assign) -> set[str]:
    return {r.name[1:] for r in refs(line.expr) if r.name.startswith("%")}


def _transposed(text: str) -> str:
    for left, right in (("[:, None]", "[None, :]"), ("[..., :, None]", "[..., None, :]")):
        text = text.replace(left, "[,]").replace(right, left).replace("[,]", right)
    return re.sub(r"\bpast\b", "past_T", text)


def _opening(line: Blocks, chunk: int, language: Language) -> tuple[list[str], list[Definition]]:
    leaf, where = line.leaf, language.where
    row = language.row.format(depth=line.depth)
    match line.kind:
        case "bisect":
            same = "(side[:, None] == side[None, :] + 1) & upper[:, None]"
            headers = [f"for level in range({_levels(chunk, leaf)}):  # halves of {chunk // 2} rows down to {leaf}"]
            if line.depth:
                straight = language.straight if line.adds_to_one else 0
                headers = _as_gates_ask(line, chunk, language, straight)
                reached = "{mask} & (level < {depth})" if line.by_row or straight else language.reached
                same = reached.format(depth=row if line.by_row else line.depth, mask=same)
            return headers, [
                ("half", "CHUNK >> (level + 1)", ()),
                ("side", "row // half", ("half",)),
                ("upper", "side % 2 == 1", ("side",)),
                ("same", same, ("side", "upper")),
                ("alike", "side[:, None] == side[None, :]", ("side",)),
                *_between(where),
            ]
        case "strips":
            return [f"for strip in range(1, {chunk // leaf}):"], [
                ("upper", f"row // {leaf} == strip", ()),
                ("lower", f"row < strip * {leaf}", ()),
                ("same", "upper[:, None] & lower[None, :]", ("upper", "lower")),
                ("alike", "(upper[:, None] & upper[None, :]) | (lower[:, None] & lower[None, :])", ("upper", "lower")),
                *_between(where),
            ]
        case "leaf" | "eights":
            pairs, sums = "", ""
            if line.kind == "eights":
                depth = language.eights.format(most=_levels(chunk, leaf))
                pairs, sums = f" & ({row} == {depth})", f" & ({row} <= {depth})"
            same = f"alike & ({ROW} > {OTHER}){pairs}"
            return [], [
                ("alike", f"(row // {leaf})[:, None] == (row // {leaf})[None, :]", ()),
                ("same", same, ("alike",)),
                ("same_or_own", f"({same}) | (({ROW} == {OTHER}) & ({row} > 0))", ("alike",)),
                ("decayed", "same if FEW else same_or_own", ("same", "same_or_own")),
                ("leaf", f"alike & ({ROW} >= {OTHER}){sums}", ("alike",)),
                ("leaf_before", f"alike & ({ROW} > {OTHER}){sums}", ("alike",)),
            ]
        case "guard" if line.by_row:
            masks = {"same": f"{ROW} > {OTHER}", "same_or_own": f"{ROW} >= {OTHER}", "decayed": language.past}
            return [], [
                (name, language.rows.format(mask=mask, those=f"{row} == 0"), ()) for name, mask in masks.items()
            ]
        case "guard":
            strictly, to_row = f"{ROW} > {OTHER}", f"{ROW} >= {OTHER}"
            masks = {"same": strictly, "leaf": to_row, "leaf_before": strictly}
            found = {name: language.within.format(mask=mask, depth=line.depth) for name, mask in masks.items()}
            found["decayed"] = language.mild.format(mask=found["same"])
            return [], [(name, text, ()) for name, text in found.items()]
        case "own" if not line.depth:
            return ["if FEW:"], [("own", "diagonal", ())]
        case "own":
            return [language.apart] * bool(language.apart), [("own", language.own.format(row=row), ())]
        case "offsets":
            return [f"for offset in range(1, {leaf}):"], [
                ("inside", f"row % {leaf} >= offset", ()),
                ("on_offset", f"({BACK} == offset) & inside[:, None]", ("inside",)),
                ("span", f"({BACK} >= 0) & ({BACK} < offset)", ()),
                ("span_before", f"({BACK} > 0) & ({BACK} < offset)", ()),
                ("shift", f"({BACK} == offset) & inside[:, None]", ("inside",)),
            ]
        case _:
            raise InternalError(f"unknown blocks {line.kind}")


def _levels(chunk: int, leaf: int) -> int:
    """How often a chunk is halved until blocks have `leaf` rows."""
    return (chunk // leaf).bit_length() - 1


def _as_gates_ask(line: Blocks, chunk: int, language: Language, straight: int) -> list[str]:
    """The headers of loops over the levels of a chunk that is halved as often as its gates ask."""
    levels = language.row_levels if line.by_row else language.levels
    until = levels.format(depth=line.depth, most=_levels(chunk, line.leaf))
    halves = "# halves of the chunk and of these"
    bounded = line.bounded and language is IN_TRITON
    if not straight:
        steps = "range"
        if bounded:
            steps = f"(tl.static_range if TERMS == 2 and CHUNK <= {UNROLLED} else range)"
            until = f"{EIGHTS} if TERMS == 2 else {until}"
        return [f"for level in {steps}({until}):  {halves}, as far as gates ask"]
    steps = EIGHTS if bounded else str(straight)
    until = f"{steps} if TERMS == 2 else {until}" if bounded else until
    first = f"for level in tl.static_range({steps}):  {halves}"
    return [first, f"for level in range({steps}, {until}):  # and so on, as far as gates ask"]


def _between(where: str) -> list[Definition]:
    """Rows above the anchor sum from it through (or to before) themselves, rows below it from themselves to it."""
    return [
        (name, f"alike & {where}(upper[:, None], {OTHER} {sign} {ROW}, {ROW} < {OTHER})", ("alike", "upper"))
        for name, sign in (("between", "<="), ("between_before", "<"))
    ]
