"""Joining loops over the same blocks."""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.kernel import Assign, Blocks, Line, RowSum, read, written


def merge_blocks(lines: list[Line]) -> list[Line]:
    """Join loops over the same blocks where nothing between them stands in the way."""
    out: list[Line] = []
    for line in lines:
        if isinstance(line, Blocks):
            host = next((n for n in range(len(out) - 1, -1, -1) if _joins(out, n, line)), None)
            if host is not None:
                first = out[host]
                assert isinstance(first, Blocks)
                body = tuple(dict.fromkeys((*first.body, *line.body)))
                passed = out[host + 1 :]
                if any(set(read(line)) & set(written(x)) for x in passed):
                    out = [*out[:host], *passed, replace(first, body=body)]
                else:
                    out[host] = replace(first, body=body)
                continue
        out.append(line)
    return out


def _joins(out: list[Line], n: int, line: Blocks) -> bool:
    """May `line` join the loop out[n], at its place or by moving that loop down to the end?"""
    first = out[n]
    if not isinstance(first, Blocks) or (first.kind, first.leaf, _gate(first)) != (line.kind, line.leaf, _gate(line)):
        return False
    accumulated = {x.name for x in first.body if isinstance(x, Assign) and x.accumulate}
    if accumulated & set(read(line)):
        return False
    passed = out[n + 1 :]
    needs_later = any(set(read(line)) & set(written(x)) for x in passed)
    blocks_later = any(set(written(first)) & set(read(x)) for x in passed)
    return not (needs_later and blocks_later)


def _gate(blocks: Blocks) -> str:
    return next(line.source.name for line in blocks.body if isinstance(line, RowSum))
