"""Products over the causal triangle whose decay is a vector: the blocks of a cover, and the diagonal."""

from __future__ import annotations

from fractions import Fraction

from glagen.ir.chunk import Contract, Decay, Operand
from glagen.ir.expr import Expr, Ref, apply, number, times
from glagen.ir.kernel import Assign, BlockLine, Blocks, Depth, Dot, RowSum
from glagen.ir.schedule import EIGHT
from glagen.schedule.factors import bare
from glagen.schedule.tile import Crossed, Workspace, axes_of, choose, keep, natural, paths_from_start, tile

ANCHORED = ("leaf", "guard", "eights")  # kinds of blocks with a growth
MARK = {"guard": "_anchored", "eights": "_by_eight"}  # of names, where a cover has several of these


def ends(work: Workspace, decay: Decay, kind: str) -> tuple[list[BlockLine], Ref, Ref]:
    """Within a block: lines for the two halves of a decay, reading rows' and writing rows'.

    Where blocks are halves of halves, a row of a level reads or writes: both halves of the decay are one tile, and what
    does not belong to a block is left to the mask `same`.
    """
    axes = ("t", *decay.axes)
    gate = Operand(decay.gate, axes)
    before = "_before" if decay.upper.before else ""
    anchored = MARK.get(kind, "")
    up, low = f"{decay.gate}_down{anchored}{before}", f"{decay.gate}_up{anchored}{before}"
    log = f"log_{decay.gate}_within{before}"
    exp_log = apply("exp", tile(log, *axes))
    lines: list[BlockLine]
    if kind in MARK:  # rows that do not use their growth, those of blocks of one row among them, have it finite
        of = "_by_eight" if kind == "eights" else ""
        log, grow = since(decay, of + before), since(decay, of)
        bound = apply("min", apply("neg", tile(grow, *axes)), number(Fraction(work.covers[decay.gate].limit)))
        sums = dict.fromkeys([(grow, "leaf"), (log, f"leaf{before}")])
        lines = [
            *(RowSum(name, axes, gate, select) for name, select in sums if name not in work.known),
            Assign(up, axes, apply("exp", tile(log, *axes))),
            Assign(low, axes, apply("exp", bound)),
        ]
    elif kind == "leaf":
        grow = f"log_{decay.gate}_leaf"
        lines = [
            RowSum(log, axes, gate, f"leaf{before}"),
            Assign(up, axes, apply("shrink", tile(log, *axes))),
            RowSum(grow, axes, gate, "leaf"),
            Assign(low, axes, apply("grow", tile(grow, *axes))),
        ]
    elif kind == "bisect":
        up = low = f"{decay.gate}_fade{before}"
        lines = [RowSum(log, axes, gate, f"between{before}"), Assign(up, axes, exp_log)]
    else:
        lines = [
            RowSum(log, axes, gate, f"between{before}"),
            Assign(up, axes, keep("upper", exp_log, "t")),
            Assign(low, axes, keep("lower", exp_log, "t")),
        ]
    return lines, tile(up, *axes), tile(low, *axes)


def covered_scores(
    work: Workspace, statement: Contract, decay: Decay, out: str, axes: tuple[str, ...], mark: str
) -> None:
    """Scores [t, s] (`mark` _T: [s, t]) block by block, then their diagonal."""
    reader = next(o for o in statement.operands if "t" in o.indices)
    writer = next(o for o in statement.operands if "s" in o.indices)
    find_depth(work, decay)
    for kind, leaf in parts(work, decay.gate):
        if kind == "offsets":
            lines, fade, moved = offset(decay, writer)
            diagonal = f"{out}_offset"
            lines.append(Assign(diagonal, ("t",), times(natural(reader), fade, moved), over=statement.over))
            hit = keep(f"on_offset{mark}", tile(diagonal, "t"), *axes)
            lines.append(Assign(out, axes, hit, accumulate=True))
        else:
            lines, up, low = ends(work, decay, kind)
            down_name, more = faded(work, decay, kind, "down", up, reader, writer)
            up_name, most = faded(work, decay, kind, "up", low, writer, reader)
            lines += dict.fromkeys([more, most])
            x, y = Operand(down_name, reader.indices), Operand(up_name, writer.indices)
            x, y = (y, x) if mark else (x, y)
            lines.append(Dot(f"{out}_block", axes, x, y, wide=kind in ANCHORED))  # type: ignore[arg-type]
            mask = "decayed" if kind == "guard" and statement.order == "<=" else "same"
            hit = keep(f"{mask}{mark}", tile(f"{out}_block", *axes), *axes)
            lines.append(Assign(out, axes, hit, accumulate=True))
        work.emit(Blocks(kind, leaf, decay.gate, tuple(lines), *depth(work, decay.gate)))
    if statement.order == "<=":
        own_product(work, statement, decay, reader, writer, out, axes, mark)


def own_product(
    work: Workspace,
    statement: Contract,
    decay: Decay,
    reader: Operand,
    writer: Operand,
    out: str,
    axes: tuple[str, ...],
    mark: str,
) -> None:
    """The diagonal of scores: of a product of what no decay has rounded, with numbers behind it. A step's score may be
    small beside its terms, whose roundings are then all there is of an output to which hardly any other step adds."""
    own, (known, by_row) = f"{statement.out.name}_own", depth(work, decay.gate)
    (reader, of_reader), (writer, of_writer) = bare(work, reader), bare(work, writer)
    x, y = (reader, writer) if axes[0] == "t" else (writer, reader)
    product = Dot(own, axes, x, y, accumulate=work.looped in statement.over and not known)  # type: ignore[arg-type]
    value = times(tile(own, *axes), *of_reader, *of_writer)
    hit = keep(f"own{mark}" if by_row else "diagonal", value, *axes)
    apart(work, decay, product, Assign(out, axes, hit, accumulate=True))


def apart(work: Workspace, decay: Decay, *lines: BlockLine) -> None:
    """Lines for the diagonal. Where a guarded block is the whole chunk, it has the diagonal of its rows as well, unless
    steps are few: it is rounded as others are then. (H200, bf16, B4 T4096 H64 K=V=128: gla's forward takes 0.62 ms for
    0.65, that of hgrn2 0.71 for 0.95.)"""
    known, by_row = depth(work, decay.gate)
    fresh = (line for line in lines if line.accumulate or line not in work.lines)
    work.emit(*([Blocks("own", 1, decay.gate, lines, known, by_row)] if known else fresh))


def covered_apply(
    work: Workspace, statement: Contract, decay: Decay, weights: Operand, rows: Operand, transposed: bool
) -> None:
    out = natural(statement.out)
    axes = axes_of(out)
    matrix = work.matrix(weights.name)
    w_axes = axes_of(matrix)
    mark = "_T" if w_axes == ("s", "t") else ""
    crossed = work.crossed.get(out.name)
    find_depth(work, decay)
    weight = f"{weights.name}_diagonal{mark}"
    picked = Assign(weight, ("t",), keep("diagonal", matrix, *w_axes), over=w_axes[1:])
    own_rows = Assign(out.name, axes, times(tile(weight, "t"), natural(rows)), accumulate=True)
    own, late = has_own_diagonal(work, statement), work.covers[decay.gate].finds_depth
    if own and not late:  # what a sum begins with needs no registers beside it: else that is a block of the whole chunk
        apart(work, decay, picked, own_rows)
    for kind, leaf in parts(work, decay.gate):
        if kind == "offsets":
            lines = offset_apply(work, statement, decay, matrix, rows, transposed)
            work.emit(Blocks(kind, leaf, decay.gate, tuple(lines)))
            continue
        lines, up, low = ends(work, decay, kind)
        here, other = (low, up) if transposed else (up, low)
        ways = ("down", "up") if transposed else ("up", "down")
        partner = crossed.partner if crossed else None
        rounded, line = faded(work, decay, kind, ways[0], other, rows, partner)
        lines.append(line)
        block = f"{matrix.name}_same"
        lines.append(Assign(block, w_axes, keep(f"{pairs(work, statement, kind)}{mark}", matrix, *w_axes)))
        part = f"{out.name}_part"
        x, y = Operand(block, w_axes), Operand(rounded, rows.indices)
        lines.append(Dot(part, axes, x, y, wide=True, split=crossed is not None and are_rounded(work, weights)))  # type: ignore[arg-type]
        lines.append(Assign(out.name, axes, times(here, tile(part, *axes)), accumulate=True))
        if crossed:
            consumed, line = faded(work, decay, kind, ways[1], here, crossed.partner, rows)
            lines += [line] if line not in lines else []
            path = times(tile(consumed, *axes), tile(part, *axes))
            lines += _paths(work, crossed, out.name, kind, decay, path, transposed, axes)
        work.emit(Blocks(kind, leaf, decay.gate, tuple(lines), *depth(work, decay.gate)))
    if own and late:
        apart(work, decay, picked, own_rows)


def are_rounded(work: Workspace, scores: Operand) -> bool:
    """Are these scores of operands that decays have rounded? Without gates on the other side they are of inputs alone.
    (H100, bf16, gates of 0 to -5, 64 by 64: gradients of `gla_kv`'s gates err by 4.1e-3 with scores in one term.)"""
    made = (s for s in work.statements if isinstance(s, Contract) and s.out.name == scores.name)
    return any(decay.axes for statement in made for decay in statement.decays)


def offset(decay: Decay, writer: Operand | None) -> tuple[list[BlockLine], Ref, Ref]:
    """One diagonal of a leaf: the decay over the last `offset` steps, and the writer `offset` steps ago."""
    axes = ("t", *decay.axes)
    before = "_before" if decay.upper.before else ""
    log, fade = f"log_{decay.gate}_span{before}", f"{decay.gate}_span{before}"
    moved = f"{writer.name}_moved" if writer else ""
    lines: list[BlockLine] = [
        RowSum(log, axes, Operand(decay.gate, axes), f"span{before}"),
        Assign(fade, axes, keep("inside", apply("exp", tile(log, *axes)), "t")),
    ]
    if writer:
        lines.append(RowSum(moved, axes, Operand(writer.name, axes), "shift"))
    return lines, tile(fade, *axes), tile(moved, *axes)


def offset_apply(
    work: Workspace, statement: Contract, decay: Decay, matrix: Ref, rows: Operand, transposed: bool
) -> list[BlockLine]:
    out = natural(statement.out)
    axes = axes_of(out)
    w_axes = axes_of(matrix)
    mark = "_T" if w_axes == ("s", "t") else ""
    crossed = work.crossed.get(out.name)
    weight = f"{matrix.name}_offset"
    picked = Assign(weight, ("t",), keep(f"on_offset{mark}", matrix, *w_axes), over=("s",))
    if not transposed:
        lines, fade, moved = offset(decay, rows)
        lines.append(picked)
        part = f"{out.name}_part"
        lines.append(Assign(part, axes, times(tile(weight, "t"), fade, moved)))
        lines.append(Assign(out.name, axes, tile(part, *axes), accumulate=True))
    else:
        lines, fade, _ = offset(decay, None)
        lines.append(picked)
        sent, part = f"{out.name}_sent", f"{out.name}_part"
        lines.append(Assign(sent, axes, times(tile(weight, "t"), fade, natural(rows))))
        lines.append(RowSum(part, axes, Operand(sent, axes), "shift_T"))
        lines.append(Assign(out.name, axes, tile(part, *axes), accumulate=True))
    if crossed and not transposed:  # one interval a diagonal: its reading end says it all
        path = times(natural(crossed.partner), tile(part, *axes))
        lines += _paths(work, crossed, out.name, "offsets", decay, path, transposed, axes)
    return lines


def _paths(
    work: Workspace,
    crossed: Crossed,
    out: str,
    kind: str,
    decay: Decay,
    path: Expr,
    transposed: bool,
    axes: tuple[str, ...],
) -> list[BlockLine]:
    """Hand a path's derivative to every step its exponent sums: the transpose of the sum that made the exponent.

    Both halves of other decays run forward, so nothing is ever subtracted; only a growth's paths are, by their sign.
    Where the anchor is always the chunk's start, the steps are all up to the row: one sum serves these and other paths.
    """
    before = "_before" if decay.upper.before and not (transposed and kind in ANCHORED) else ""
    signed = apply("neg", path) if transposed and kind in ANCHORED else path
    if work.covers[decay.gate].name == "anchored":
        name = paths_from_start(decay.gate, "after" if before else "from")
        work.crossing_tiles.add(name)
        return [Assign(name, axes, signed, accumulate=True)]
    name = f"{out}_paths{MARK.get(kind, '')}"
    select = {"bisect": "between", "strips": "between", "offsets": "span"}.get(kind, "leaf") + before
    work.crossing_tiles.add(crossed.bucket)
    return [
        Assign(name, axes, signed),
        RowSum(crossed.bucket, axes, Operand(name, axes), f"{select}_T", accumulate=True),
    ]


def _width(kind: str) -> str:
    """Growths, and decays that they are to meet, may leave float16's range."""
    return "wide" if kind in ANCHORED else "narrow"


def faded(
    work: Workspace, decay: Decay, kind: str, way: str, half: Ref, operand: Operand, other: Operand | None
) -> tuple[str, Assign]:
    """An operand times its half of a decay, by name: `down` from the anchor to a reading row, `up` to the anchor.

    Of halves of halves, the rows that do the opposite are of the `other` operand, if that is of the same shape.
    """
    before = "_before" if decay.upper.before and (way == "down" or kind == "bisect") else ""
    value: Expr = natural(operand)
    axes = axes_of(natural(operand))
    if kind == "bisect" and other and axes_of(natural(other)) == axes:
        reader, writer = (operand, other) if way == "down" else (other, operand)
        value = choose("upper", natural(reader), natural(writer), "t")
        base = f"{reader.name}_{writer.name}_fade{before}"
        name = work.unique(("faded", reader.name, writer.name, decay.gate, before), base)
    else:
        way += MARK.get(kind, "")
        name = work.unique(("faded", operand.name, decay.gate, way, before), f"{operand.name}_{way}{before}")
    return name, Assign(name, axes, times(value, half), rounded=_width(kind))


def since(decay: Decay, before: str = "") -> str:
    """The name of the sum of log gates from a block's first step through (or to before) each row."""
    return f"log_{decay.gate}_since{before}"


def parts(work: Workspace, gate: str) -> tuple[tuple[str, int], ...]:
    """The cover's parts; rows that find their depth one by one have two sizes of blocks."""
    if not finds_rows(work, gate):
        return work.covers[gate].parts
    chunk = dict(work.covers[gate].parts)["guard"]
    return (("guard", chunk), ("eights", EIGHT), ("bisect", 1))


def finds_rows(work: Workspace, gate: str) -> bool:
    """Does each row find its depth?"""
    return work.covers[gate].finds_depth and work.causal


def pairs(work: Workspace, statement: Contract, kind: str) -> str:
    """The mask of the pairs of rows in a block, of rows that take scores."""
    if statement.order != "<=" or kind not in MARK:
        return "same"
    return "decayed" if has_own_diagonal(work, statement) else "same_or_own"


def has_own_diagonal(work: Workspace, statement: Contract) -> bool:
    """Is the diagonal there, and in no block?"""
    (gate,) = (decay.gate for decay in statement.decays if decay.axes)
    return statement.order == "<=" and not finds_rows(work, gate)


def find_depth(work: Workspace, decay: Decay) -> None:
    """How often to halve the chunk, if the cover asks."""
    cover, name = work.covers[decay.gate], f"{decay.gate}_depth"
    if not cover.finds_depth:
        return
    gate = Operand(decay.gate, ("t", *decay.axes))
    if work.causal:  # rows go by sums from the chunk's start, which those blocks that are the chunk take as well
        logs = {since(decay): "through", **({since(decay, "_before"): "before"} if decay.upper.before else {})}
        for log, select in logs.items():
            if log not in work.known:
                work.known[log] = log
                work.emit(RowSum(log, gate.indices, gate, select))
    if name not in work.known:
        work.known[name] = name
        rows = (since(decay), ("t",)) if work.causal else ()
        work.emit(Depth(name, gate, Fraction(cover.limit), *rows))


def depth(work: Workspace, gate: str) -> tuple[str, bool]:
    """The tile that says so, and whether it does for each row; "" where halves are always as deep."""
    name = work.known.get(f"{gate}_depth", "")
    return name, bool(name) and work.causal
