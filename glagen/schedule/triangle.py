"""Products over the causal triangle whose decay is a vector: the blocks of a cover, then the diagonal."""

from __future__ import annotations

from fractions import Fraction

from glagen.ir.chunk import Contract, Decay, Operand
from glagen.ir.expr import Expr, Ref, apply, number
from glagen.ir.kernel import Assign, BlockLine, Blocks, Dot, RowSum
from glagen.schedule.tile import Crossed, Workspace, axes_of, keep, natural, paths_from_start, tile, times

ANCHORED = ("leaf", "guard")  # kinds of blocks with a growth


def ends(work: Workspace, decay: Decay, kind: str) -> tuple[list[BlockLine], Ref, Ref]:
    """Within a block: lines for the two halves of a decay, reading rows' and writing rows'."""
    axes = ("t", *decay.axes)
    gate = Operand(decay.gate, axes)
    before = "_before" if decay.upper.before else ""
    anchored = "_anchored" if kind == "guard" else ""
    up, low = f"{decay.gate}_down{anchored}{before}", f"{decay.gate}_up{anchored}{before}"
    log = f"log_{decay.gate}_within{before}"
    exp_log = apply("exp", tile(log, *axes))
    lines: list[BlockLine]
    if kind == "guard":
        bound = apply("min", apply("neg", tile(since(decay), *axes)), number(Fraction(work.covers[decay.gate].limit)))
        lines = [
            Assign(up, axes, apply("exp", tile(since(decay, before), *axes))),
            Assign(low, axes, apply("exp", bound)),
        ]
    elif kind == "leaf":
        grow = f"log_{decay.gate}_leaf"
        lines = [
            RowSum(log, axes, gate, f"leaf{before}"),
            Assign(up, axes, exp_log),
            RowSum(grow, axes, gate, "leaf"),
            Assign(low, axes, apply("grow", apply("neg", tile(grow, *axes)))),
        ]
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
    over = statement.over
    judge_rows(work, decay)
    for kind, leaf in work.covers[decay.gate].parts:
        if kind == "offsets":
            lines, fade, moved = offset(work, decay, writer)
            diagonal = f"{out}_offset"
            lines.append(Assign(diagonal, ("t",), times(natural(reader), fade, moved), over=over))
            hit = keep(f"on_offset{mark}", tile(diagonal, "t"), *axes)
            lines.append(Assign(out, axes, hit, accumulate=True))
        else:
            lines, up, low = ends(work, decay, kind)
            down_name, up_name = faded(work, reader, decay, "down", kind), faded(work, writer, decay, "up", kind)
            lines.append(Assign(down_name, axes_of(up), times(natural(reader), up), rounded=_width(kind)))
            lines.append(Assign(up_name, axes_of(low), times(natural(writer), low), rounded=_width(kind)))
            x, y = Operand(down_name, reader.indices), Operand(up_name, writer.indices)
            x, y = (y, x) if mark else (x, y)
            lines.append(Dot(f"{out}_block", axes, x, y, wide=kind in ANCHORED))  # type: ignore[arg-type]
            hit = guarded(work, decay, kind, keep(f"same{mark}", tile(f"{out}_block", *axes), *axes))
            lines.append(Assign(out, axes, hit, accumulate=True))
        work.emit(Blocks(kind, leaf, decay.gate, tuple(lines), when(work, decay, kind)))
    if statement.order == "<=":
        own = f"{statement.out.name}_own"
        if own not in work.known:
            work.known[own] = own
            product = times(natural(reader), natural(writer))
            work.emit(Assign(own, ("t",), product, over=over, accumulate=work.looped in over))
        work.emit(Assign(out, axes, keep("diagonal", tile(own, axes[0]), *axes), accumulate=True))


def covered_apply(
    work: Workspace, statement: Contract, decay: Decay, weights: Operand, rows: Operand, transposed: bool
) -> None:
    out = natural(statement.out)
    axes = axes_of(out)
    matrix = work.matrix(weights.name)
    w_axes = axes_of(matrix)
    mark = "_T" if w_axes == ("s", "t") else ""
    crossed = work.crossed.get(out.name)
    judge_rows(work, decay)
    for kind, leaf in work.covers[decay.gate].parts:
        if kind == "offsets":
            lines = offset_apply(work, statement, decay, matrix, rows, transposed)
            work.emit(Blocks(kind, leaf, decay.gate, tuple(lines)))
            continue
        lines, up, low = ends(work, decay, kind)
        own, other = (low, up) if transposed else (up, low)
        rounded = faded(work, rows, decay, "down" if transposed else "up", kind)
        lines.append(Assign(rounded, axes, times(natural(rows), other), rounded=_width(kind)))
        block = f"{matrix.name}_same"
        lines.append(Assign(block, w_axes, guarded(work, decay, kind, keep(f"same{mark}", matrix, *w_axes))))
        part = f"{out.name}_part"
        lines.append(Dot(part, axes, Operand(block, w_axes), Operand(rounded, rows.indices), wide=True))  # type: ignore[arg-type]
        lines.append(Assign(out.name, axes, times(own, tile(part, *axes)), accumulate=True))
        if crossed:
            consumed = faded(work, crossed.partner, decay, "up" if transposed else "down", kind)
            lines.append(Assign(consumed, axes, times(natural(crossed.partner), own), rounded=_width(kind)))
            path = times(tile(consumed, *axes), tile(part, *axes))
            lines += _paths(work, crossed, out.name, kind, decay, path, transposed, axes)
        work.emit(Blocks(kind, leaf, decay.gate, tuple(lines), when(work, decay, kind)))
    if statement.order == "<=":
        own_weight = f"{weights.name}_diagonal{mark}"
        if own_weight not in work.known:
            work.known[own_weight] = own_weight
            work.emit(Assign(own_weight, ("t",), keep("diagonal", matrix, *w_axes), over=w_axes[1:]))
        work.emit(Assign(out.name, axes, times(tile(own_weight, "t"), natural(rows)), accumulate=True))


def offset(work: Workspace, decay: Decay, writer: Operand | None) -> tuple[list[BlockLine], Ref, Ref]:
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
        lines, fade, moved = offset(work, decay, rows)
        lines.append(picked)
        part = f"{out.name}_part"
        lines.append(Assign(part, axes, times(tile(weight, "t"), fade, moved)))
        lines.append(Assign(out.name, axes, tile(part, *axes), accumulate=True))
    else:
        lines, fade, _ = offset(work, decay, None)
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

    Both halves of an anchored decay run forward, so nothing is ever subtracted; only a leaf's growth is, by its sign.
    Where the anchor is the chunk's start, the steps are all up to the row: one sum serves these and the other paths.
    """
    before = "_before" if decay.upper.before and not (transposed and kind in ANCHORED) else ""
    signed = apply("neg", path) if transposed and kind in ANCHORED else path
    if kind == "guard" or work.covers[decay.gate].name == "anchored":
        select = "after" if before else "from"
        name = paths_from_start(decay.gate, select)
        work.crossing_tiles.add(name)
        return [Assign(name, axes, signed, accumulate=True)]
    name = f"{out}_paths"
    select = {"bisect": "between", "strips": "between", "offsets": "span"}.get(kind, "leaf") + before
    work.crossing_tiles.add(crossed.bucket)
    return [
        Assign(name, axes, signed),
        RowSum(crossed.bucket, axes, Operand(name, axes), f"{select}_T", accumulate=True),
    ]


def _width(kind: str) -> str:
    """Growths, and decays that they are to meet, may leave float16's range."""
    return "wide" if kind in ANCHORED else "narrow"


def faded(work: Workspace, operand: Operand, decay: Decay, way: str, kind: str) -> str:
    """The name of an operand times its half of a decay: `down` from the anchor to a reading row, `up` to the anchor."""
    before = "_before" if way == "down" and decay.upper.before else ""
    way += "_anchored" if kind == "guard" else ""
    return work.unique(("faded", operand.name, decay.gate, way, before), f"{operand.name}_{way}{before}")


def since(decay: Decay, before: str = "") -> str:
    """The name of the sum of log gates from the chunk's first step through (or to before) each row."""
    return f"log_{decay.gate}_since{before}"


def judge_rows(work: Workspace, decay: Decay) -> None:
    """In how many channels the gates of each reading row are too strong for one anchor, if the cover asks."""
    before = "_before" if decay.upper.before else ""
    if "guard" not in dict(work.covers[decay.gate].parts) or strong(decay) in work.known:
        return
    axes, gate = ("t", *decay.axes), Operand(decay.gate, ("t", *decay.axes))
    for name, select in ((since(decay), "through"), (since(decay, before), "before" if before else "through")):
        if name not in work.known:
            work.known[name] = name
            work.emit(RowSum(name, axes, gate, select))
    work.known[strong(decay)] = strong(decay)
    beyond = apply(
        "positive", apply("sub", number(-Fraction(work.covers[decay.gate].limit)), tile(since(decay, before), *axes))
    )
    work.emit(Assign(strong(decay), ("t",), beyond, over=decay.axes, at_hand=True))


def strong(decay: Decay) -> str:
    return f"{decay.gate}_strong{'_before' if decay.upper.before else ''}"


def when(work: Workspace, decay: Decay, kind: str) -> str:
    """The tile that says which reading rows need blocks of this kind; none if all may."""
    return strong(decay) if kind != "guard" and "guard" in dict(work.covers[decay.gate].parts) else ""


def guarded(work: Workspace, decay: Decay, kind: str, x: Expr) -> Expr:
    """A matrix in the reading rows that take blocks of this kind, else zero."""
    rest = apply("positive", tile(strong(decay), "t"))
    if kind == "guard":
        return times(x, apply("sub", number(1), rest))
    return times(x, rest) if when(work, decay, kind) else x
