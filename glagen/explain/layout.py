"""Breaking long formulas into lines: at the outermost operators first, sums before products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Marks where a formula may break; a printer puts one before an operator.
SUM, PRODUCT = "\x1e", "\x1f"
_OPEN, _CLOSE = "([", ")]"


@dataclass(frozen=True, slots=True)
class _Piece:
    mark: str  # what stands before it: SUM, PRODUCT or nothing
    level: int  # how deep it lies: breaks at lower levels come first
    text: str


def break_lines(
    marked: str, width: float, measure: Callable[[str], float], joins: dict[str, tuple[str, str]]
) -> list[str]:
    """A formula with marks as lines no wider than `width` where its marks allow it.

    `joins` says for each mark what takes its place within a line and at the start of one.
    """

    def text(pieces: list[_Piece]) -> str:
        first, *rest = pieces
        return first.text + "".join(joins[p.mark][0] + p.text for p in rest)

    def lines(pieces: list[_Piece]) -> list[list[_Piece]]:
        if len(pieces) == 1 or measure(text(pieces)) <= width:
            return [pieces]
        outermost = min(p.level for p in pieces[1:])
        segments = [[pieces[0]]]
        for piece in pieces[1:]:
            if piece.level == outermost:
                segments.append([piece])
            else:
                segments[-1].append(piece)
        found: list[list[_Piece]] = []
        for segment in segments:
            first, *rest = [segment] if not found else lines(segment)
            if found and measure(text(found[-1] + first)) <= width:
                found[-1] = found[-1] + first
                found += rest
            else:
                found += lines(segment)
        return found

    result = lines(_pieces(marked))
    return [(joins[line[0].mark][1] if line[0].mark else "") + text(line) for line in result]


def _pieces(marked: str) -> list[_Piece]:
    pieces, depth, mark, level, start = [], 0, "", 0, 0
    for n, character in enumerate(marked):
        if character in (SUM, PRODUCT):
            pieces.append(_Piece(mark, level, marked[start:n]))
            mark, level, start = character, 2 * depth + (character == PRODUCT), n + 1
        depth += (character in _OPEN) - (character in _CLOSE)
    return [*pieces, _Piece(mark, level, marked[start:])]


def unmarked(marked: str, joins: dict[str, tuple[str, str]]) -> str:
    """The formula on one line."""
    for mark, (inline, _) in joins.items():
        marked = marked.replace(mark, inline)
    return marked
