"""Shares of what a gate decays: that which one growth from the chunk's start reaches, and the rest.

A growth serves until a gate's sum passes LIMIT; what is written later needs halves, and growths of eight rows. So each
column of each step counts in the product of the whole chunk, or in those of blocks, and no row need be asked how deep
it is halved (H200, Triton 3.6.0, bf16, gates of -4 softplus of normal numbers, scores of gla, B4 T4096 H64 K=V=128:
0.41 ms for 0.46). From LIMIT on it goes over from one to the other within a nat, so that nothing is lost, or there
twice, if two kernels make one each and their sums differ in the last bit. Until then it is all in the former, which has
the bits of runs for mild gates: the others add zeros.
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.expr import Apply, Expr, Ref, apply, factors, number, rewrite, times
from glagen.ir.kernel import Assign, BlockLine, Blocks, Depth, Dot, Kernel, Line, Loop, RowSum
from glagen.schedule.anchor import with_one_anchor
from glagen.schedule.tile import tile


def by_reach(maker: Kernel) -> Kernel:
    """The kernel that makes scores of keys with one gate, by shares; as it is where blocks have more to do."""
    depths = [x for x in maker.lines if isinstance(x, Depth)]
    if len(depths) != 1 or not (depths[0].shifted and depths[0].bounded and depths[0].since):
        return maker
    gate = depths[0].source.name
    body = [replace(x, body=_shared(x.body, gate, depths[0].since)) if isinstance(x, Loop) else x for x in maker.body]
    return replace(maker, body=tuple(body)) if all(x.body for x in body if isinstance(x, Loop)) else maker


def _shared(lines: tuple[Line, ...], gate: str, since: str) -> tuple[Line, ...]:
    """The lines of a loop over keys; none if they are not as scores are made."""
    own = any(isinstance(x, Blocks) and (x.kind, x.gate) == ("own", gate) for x in lines)
    found: list[Line] = []
    for x in lines:
        match x:
            case RowSum(name=name) if name == since:
                found += [x, *shares(x, gate)]
            case Depth():
                found.append(replace(x, always=True))
            case Blocks(kind="eights" | "bisect", gate=of) if of == gate:
                weighed = with_share(x, gate, "i")
                if weighed is None:
                    return ()
                found.append(_with_diagonal(weighed) if own and x.kind == "eights" else weighed)
            case Blocks(kind="guard" | "own", gate=of) if of == gate:
                for y in with_one_anchor(x, {gate}):
                    limited = within_reach(y, gate) if isinstance(y, Assign) and is_growth(y, gate) else y
                    if limited is None:
                        return ()
                    found.append(limited)
            case Blocks():
                return ()
            case _:
                found.append(x)
    return tuple(found)


def shares(since: RowSum, gate: str) -> list[Line]:
    """The lines that say how much of each step a growth reaches, and how much it does not."""
    share = reached(since.name, gate, since.axes)
    rest = apply("sub", number(1), tile(share.name, *since.axes))
    return [share, Assign(f"{gate}_unreached", since.axes, rest)]


def reached(since: str, gate: str, axes: tuple[str, ...]) -> Assign:
    """The line that says how much of each step a growth reaches, by its gates' sums since the chunk's start."""
    return Assign(f"{gate}_reached", axes, apply("reached", tile(since, *axes)))


def is_growth(line: Line, gate: str) -> bool:
    """Is it a growth from the chunk's start?"""
    return isinstance(line, Assign) and line.name.startswith(f"{gate}_up_anchored")


def within_reach(line: Assign, gate: str) -> Assign | None:
    """A growth times the share that it reaches. None if it is not as shift.py makes it."""
    match line.expr:
        case Apply(function="lowered", args=(Apply(function="max", args=(sums, _)),)) if line.strong is None:
            return replace(line, expr=apply("limited", sums, tile(f"{gate}_reached", *line.axes)))
    return None


def with_share(blocks: Blocks, gate: str, axis: str) -> Blocks | None:
    """Blocks in whose products that which is written, with columns of this axis, counts by what a growth from the
    chunk's start does not reach. None if it is used otherwise."""
    products = [x for x in blocks.body if isinstance(x, Dot)]
    written = {o.name for x in products for o in (x.x, x.y) if {"s", axis} == set(o.indices)}
    read = {o.name for x in products for o in (x.x, x.y) if {"t", axis} == set(o.indices)}
    share = tile(f"{gate}_unreached", "t", axis)
    body = tuple(_weighed(x, share, x.name in read) if x.name in written else x for x in blocks.body)
    whole = len(products) == len(written) and len([x for x in blocks.body if x.name in written]) == len(written)
    return replace(blocks, body=body) if whole and None not in body else None  # type: ignore[arg-type]


def _weighed(line: BlockLine, share: Ref, both: bool) -> Assign | None:
    """What is written times its share, next to it, so that compilers multiply them once for all blocks. `both`: upper
    rows of the tile are what is read."""
    if not isinstance(line, Assign) or line.accumulate or line.mild or line.strong:
        return None
    match factors(line.expr):
        case [Apply(function="keep", args=(Ref(name="%upper") as upper, x, y)), *growth] if both:
            return replace(line, expr=times(apply("keep", upper, x, times(y, share)), *growth))
        case [first, *growth] if not both:
            return replace(line, expr=times(first, share, *growth))
    return None


def _with_diagonal(eights: Blocks) -> Blocks:
    """With each step's product with itself, where that is not made apart."""

    def mask(x: Expr) -> Expr | None:
        return replace(x, name="%decayed") if isinstance(x, Ref) and x.name == "%same" else None

    body = (replace(x, expr=rewrite(x.expr, mask)) if isinstance(x, Assign) else x for x in eights.body)
    return replace(eights, body=tuple(body))
