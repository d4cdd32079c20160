"""Tiles with the columns of values first, in kernels that keep the state on chip.

The rows of a dot's result are spread over warps. Where they are the state's value columns, a warp keeps its share of
the state in registers from chunk to chunk, as the sum of one dot and the left operand of another: it never passes
through shared memory. (H200, bf16, forward without gates, B4 T4096 H64 K=V=128: 0.47 ms; with keys first 0.82 ms.)

Where keys have gates, the state alone is turned. What is added to it is then a product of values as they lie in memory
and of keys, both in shared memory, which Hopper multiplies by wgmma; a chunk's own products have too few rows for that.
(H200, bf16, gla without gradients, the same call: 0.72 ms; with all turned 1.04 ms.) With nothing turned it is faster
still, 0.66 ms for 0.71, as what rows decay by is two numbers a thread, not 32. But Triton then has keys, as the left
operand, in registers, where assemblers before CUDA 13.3 may reuse them too early (see templates/hopper.py.j2).
Where values are computed as well, as with gates on both sides, nothing is turned, and the sum waits (see wait.py).

A turned state is the right operand of a product that has steps first, and as such goes to mma.sync in the registers in
which wgmma has summed it, for these have its rows as others have columns, but for an order: a warp has 16 rows in a
row, and columns by eights. In a sum that order does not count, so products have theirs by it, and are brought into
their own when all is added (`Dot.dealt`). By shared memory a state would pass in each chunk, with barriers, and by more
registers: with four warps gla had 200 bytes of each thread's in memory, and has 8. (H200, Triton 3.6.0, bf16, gla
without gradients, same bits: B4 T4096 H64 K=V=128 0.40 ms for 0.61, B1 T65536 H8 0.33 for 0.43; B16 T2048 H4 K128
V256 0.15 for 0.18.)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from glagen.ir.chunk import Operand
from glagen.ir.expr import Expr, Ref, ref, refs, rewrite
from glagen.ir.kernel import (
    Assign,
    BlockLine,
    Blocks,
    Depth,
    Dot,
    Line,
    Load,
    Loop,
    RowSum,
    Scan,
    lines_of,
    read,
    written,
)

COLUMN = "j"
STATE = ("i", "j")


def turned(lines: Iterable[Line], scans: Iterable[Scan]) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, with carried states, and what dots make with value columns, columns first."""
    lines, scans = list(lines), tuple(scans)
    return flipped(lines, scans, _names(list(single_lines(lines)), {scan.tile for scan in scans}, (COLUMN,)))


def states_turned(lines: Iterable[Line], scans: Iterable[Scan]) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, with carried states columns first, and what is computed of such alone; all else as it is."""
    lines, scans = list(lines), tuple(scans)
    names = {scan.tile for scan in scans}
    names |= {
        x.name for x in lines if isinstance(x, Assign) and x.axes == STATE and {r.name for r in refs(x.expr)} <= names
    }
    return flipped(lines, scans, names)


def columns_first(lines: Iterable[Line], scans: Iterable[Scan]) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, with what dots make of steps and columns, and what is computed of such, columns first; states as they
    are."""
    lines, scans = list(lines), tuple(scans)
    return flipped(lines, scans, _names(list(single_lines(lines)), set(), ("i", "j")))


def flipped(lines: Iterable[Line], scans: Iterable[Scan], names: Container[str]) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, with the axes of these tiles the other way round."""
    return [_line(line, names) for line in lines], tuple(_scan(scan, names) for scan in scans)


def dealt(body: tuple[Line | Loop, ...], scans: Iterable[Scan]) -> tuple[Line | Loop, ...]:
    """The same, with columns in the order of a turned state's rows in products with it, and in those added to them
    before anything else uses that."""
    states = {scan.tile for scan in scans if scan.axes == STATE[::-1]}
    names = {x.name for x in body if isinstance(x, Dot) and x.y.name in states}
    made: list[Line | Loop] = []
    for item in body:
        if isinstance(item, Dot) and item.name in names and item.axes[1] == COLUMN and not item.mask:
            made.append(replace(item, dealt=True))
        else:
            names -= {n for line in lines_of(item) for n in (*written(line), *read(line))}
            made.append(item)
    return tuple(made)


def single_lines(lines: Iterable[Line]) -> Iterator[Load | Depth | BlockLine]:
    """The lines, with those of blocks in their place."""
    for line in lines:
        yield from line.body if isinstance(line, Blocks) else (line,)


def _names(lines: list[Load | Depth | BlockLine], carried: set[str], columns: tuple[str, ...]) -> frozenset[str]:
    """Carried states, results of dots with these columns, and what is computed of such column by column; but not what
    sums over steps give or add to, which have steps first."""
    upright = {line.name for line in lines if isinstance(line, Load | RowSum)}
    names, more = set(carried), True
    while more:
        more = False
        for line in lines:
            made = isinstance(line, Dot) or (isinstance(line, Assign) and {r.name for r in refs(line.expr)} & names)
            found = made and len(line.axes) == 2 and {*columns} & {*line.axes} and line.name not in upright
            more |= bool(found) and line.name not in names
            names |= {line.name} if found else set()
    return frozenset(names)


def _line(line: Line, names: Container[str]) -> Line:
    match line:
        case Blocks(body=body):
            return replace(line, body=tuple(_single_line(x, names) for x in body))
        case Load(name=name, axes=axes):
            return replace(line, axes=axes[::-1]) if name in names else line
        case Depth():
            return line
        case _:
            return _single_line(line, names)


def _single_line(line: BlockLine, names: Container[str]) -> BlockLine:
    match line:
        case Dot():
            return _dot(line, names)
        case RowSum(source=source):
            return replace(line, source=_operand(source, names))
        case Assign(expr=expr, axes=axes, mild=mild, strong=strong):
            mild, strong = (x if x is None else _expr(x, names) for x in (mild, strong))
            axes = axes[::-1] if line.name in names else axes
            return replace(line, axes=axes, expr=_expr(expr, names), mild=mild, strong=strong)


def _dot(dot: Dot, names: Container[str]) -> Dot:
    x, y = _operand(dot.x, names), _operand(dot.y, names)
    return replace(dot, axes=dot.axes[::-1], x=y, y=x) if dot.name in names else replace(dot, x=x, y=y)


def _scan(scan: Scan, names: Container[str]) -> Scan:
    added = tuple(_dot(dot, names) for dot in scan.added)
    axes = scan.axes[::-1] if scan.tile in names else scan.axes
    return replace(scan, axes=axes, update=_expr(scan.update, names), added=added)


def _operand(operand: Operand, names: Container[str]) -> Operand:
    return Operand(operand.name, operand.indices[::-1]) if operand.name in names else operand


def _expr(expr: Expr, names: Container[str]) -> Expr:
    def leaf(x: Expr) -> Expr | None:
        if isinstance(x, Ref) and x.name in names:
            return ref(x.name, tuple(index.axis for index in x.indices)[::-1])
        return None

    return rewrite(expr, leaf)
