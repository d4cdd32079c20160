"""Joining loops over the same blocks."""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.chunk import Operand
from glagen.ir.expr import plus, ref
from glagen.ir.kernel import Assign, BlockLine, Blocks, Line, RowSum, read, written


def merge_blocks(lines: list[Line]) -> list[Line]:
    """Join loops over the same blocks where nothing between them stands in the way."""
    out: list[Line] = []
    for line in lines:
        if isinstance(line, Blocks):
            host = next((n for n in range(len(out) - 1, -1, -1) if _joins(out, n, line)), None)
            if host is not None:
                first = out[host]
                assert isinstance(first, Blocks)
                body = _joined(first.body, line.body)
                passed = out[host + 1 :]
                if any(set(read(line)) & set(written(x)) for x in passed):
                    out = [*out[:host], *passed, replace(first, body=body)]
                else:
                    out[host] = replace(first, body=body)
                continue
        out.append(line)
    return [replace(x, body=_join_sums(x.body)) if isinstance(x, Blocks) else x for x in out]


def _joined(first: tuple[BlockLine, ...], second: tuple[BlockLine, ...]) -> tuple[BlockLine, ...]:
    """Both bodies, with what they share once; what adds to a tile is never shared."""
    return (*first, *(line for line in second if line.accumulate or line not in first))


def _join_sums(body: tuple[BlockLine, ...]) -> tuple[BlockLine, ...]:
    """Sums of different tiles by the same matrix into the same tile: add the tiles first, and multiply once."""
    out = list(body)
    groups: dict[tuple[str, str], list[RowSum]] = {}
    for line in body:
        if isinstance(line, RowSum) and line.accumulate:
            groups.setdefault((line.name, line.select), []).append(line)
    for group in groups.values():
        if len(group) < 2:
            continue
        last = group[-1]
        total = plus(*(ref(line.source.name, line.source.indices) for line in group))
        joined = f"{last.name}_paths" + ("_anchored" if last.select.startswith("leaf") else "")
        at = out.index(last)
        axes = last.source.indices
        out[at : at + 1] = [Assign(joined, axes, total), replace(last, source=Operand(joined, axes))]
        out = [line for line in out if line not in group[:-1]]
    return tuple(out)


def _joins(out: list[Line], n: int, line: Blocks) -> bool:
    """May `line` join the loop out[n], at its place or by moving that loop down to the end?"""
    first = out[n]
    if not isinstance(first, Blocks) or (first.kind, first.leaf, first.gate) != (line.kind, line.leaf, line.gate):
        return False
    accumulated = {x.name for x in first.body if isinstance(x, Assign) and x.accumulate}
    if accumulated & set(read(line)):
        return False
    passed = out[n + 1 :]
    needs_later = any(set(read(line)) & set(written(x)) for x in passed)
    blocks_later = any(set(written(first)) & set(read(x)) for x in passed)
    return not (needs_later and blocks_later)
