"""Less arithmetic beside a scalar gate, in a kernel for inputs of 16 bits that is short of registers (see alone.py).

What gates leave between two steps is made of their sums from the chunk's start; the mask of earlier steps is in it, and
so are numbers like the scale. Dots then sum into what they are added to, and what a gate's gradient sums over tiles
takes other gradients as they are, a product at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard

from glagen.ir.expr import Apply, Expr, Ref, apply, factors, plus, rewrite, terms, times
from glagen.ir.kernel import Assign, Dot, Line, RowSum, Scan, Store, read, written
from glagen.schedule.order import in_order, pruned
from glagen.schedule.sums import users_of
from glagen.schedule.tile import axes_of, keep, tile


def lean(lines: Iterable[Line], scans: tuple[Scan, ...], stores: list[Store]) -> list[Line]:
    """The same, as far as it leads to what states and results take, with less arithmetic beside inputs of 16 bits."""
    wanted = [*(name for scan in scans for name in scan.reads), *(store.tile for store in stores)]
    found = _masked_once(pruned(in_order(_by_totals(_as_if_mild(lines))), wanted))
    found = _spread(found, users_of(found, scans, stores))
    for matrix in [x for x in found if isinstance(x, Assign) and set(x.axes) == {"t", "s"}]:
        found = _by_scaled(found, matrix, users_of(found, scans, stores))
    found = _with_decays(found)
    return pruned(in_order(_decayed_before(found, users_of(found, scans, stores))), wanted)


def _as_if_mild(lines: Iterable[Line]) -> list[Line]:
    """The same, with what lines are beside inputs of 16 bits while gates are mild."""
    return [
        replace(x, expr=x.expr if x.mild is None else x.mild, mild=None) if isinstance(x, Assign) else x for x in lines
    ]


def _by_totals(lines: list[Line]) -> list[Line]:
    """The same, where sums over tiles take other tiles by their names, and not what these are made of; and each product
    by itself."""
    tiles = [x for x in lines if isinstance(x, Assign) and len(x.axes) == 2 and not (x.over or x.rounded)]
    found: list[Line] = []
    for line in lines:
        if not isinstance(line, Assign) or not line.over:
            found.append(line)
            continue
        products = [(sign, _by_names(x, tiles)) for sign, x in _signed(line.expr)]
        if len(products) == 1:
            found.append(replace(line, expr=_with_sign(*products[0])))
            continue
        parts = [replace(line, name=f"{line.name}_{n}", expr=x) for n, (_, x) in enumerate(products)]
        names = [tile(x.name, *x.axes) for x in parts]
        total = plus(*(_with_sign(sign, x) for (sign, _), x in zip(products, names, strict=True)))
        found += [*parts, replace(line, expr=total, over=())]
    return found


def _signed(total: Expr, sign: int = 1) -> list[tuple[int, Expr]]:
    """The terms of a sum or a difference, with their signs."""
    match total:
        case Apply(function="neg", args=(x,)):
            return _signed(x, -sign)
        case Apply(function="add" | "sub" as function, args=(x, y)):
            return [*_signed(x, sign), *_signed(y, sign if function == "add" else -sign)]
    return [(sign, total)]


def _with_sign(sign: int, x: Expr) -> Expr:
    return x if sign > 0 else apply("neg", x)


def _by_names(product: Expr, tiles: list[Assign]) -> Expr:
    """A product in which tiles stand for what they are sums, or products, of."""

    def leaf(x: Expr) -> Expr | None:
        if not (isinstance(x, Apply) and x.function == "add"):
            return None
        return next((tile(y.name, *y.axes) for y in tiles if Counter(terms(y.expr)) == Counter(terms(x))), None)

    found = factors(rewrite(product, leaf))
    for made in reversed(tiles):  # of those that go into each other the last
        parts = factors(made.expr)
        if len(parts) > 1 and (rest := _without(found, parts)) is not None:
            found = [tile(made.name, *made.axes), *rest]
    return times(*found)


def _without(found: list[Expr], parts: Iterable[Expr]) -> list[Expr] | None:
    """The factors of a product but for these, each as often as it is one of them; None if some are not there."""
    rest = list(found)
    for x in parts:
        if x not in rest:
            return None
        rest.remove(x)
    return rest


def _masked_once(lines: list[Line]) -> list[Line]:
    """The same, with what gates leave between two steps made of their sums from the chunk's start, and zero for later
    ones: so what it multiplies needs no mask. (Such differences are off by a few 2^-24 of what gates come to.)"""
    apart = {x.name: x.source for x in lines if isinstance(x, RowSum) and x.apart and x.select == "through"}
    sums = {x.source: x.name for x in lines if isinstance(x, RowSum) and not x.apart and x.select == "through"}
    masked = {x.name: kept for x in lines if isinstance(x, Assign) and (kept := _kept(x.expr)) is not None}
    decays: set[str] = set()
    found: list[Line] = []
    for line in lines:
        match line:
            case Assign(expr=Apply(function="exp", args=(Ref(name=name),))) if apart.get(name) in sums:
                since = sums[apart[name]]
                between = apply("exp", apply("sub", tile(since, "t"), tile(since, "s")))
                line = replace(line, expr=keep("causal", between, *line.axes))
                decays.add(line.name)
            case Assign(expr=expr) if set(line.axes) == {"t", "s"}:
                parts = factors(_kept(expr) or expr)
                if any(isinstance(x, Ref) and x.name in decays for x in parts):
                    line = replace(line, expr=times(*(_unmasked(x, masked) for x in parts)))
        found.append(line)
    return found


def _kept(x: Expr) -> Expr | None:
    """What stands under the mask of a step and earlier ones."""
    match x:
        case Apply(function="keep", args=(Ref(name="%causal"), kept)):
            return kept
    return None


def _unmasked(x: Expr, masked: dict[str, Expr]) -> Expr:
    """A tile without that mask, if it is one that has it."""
    return masked.get(x.name, x) if isinstance(x, Ref) else x


def _spread(lines: list[Line], users: Counter[str]) -> list[Line]:
    """The same, where numbers multiply not a sum but each of its terms, which stand for the tiles that they were."""
    single = {x.name: x.expr for x in lines if isinstance(x, Assign) and users[x.name] == 1 and _is_plain(x)}
    spent: set[str] = set()

    def inlined(x: Expr) -> Expr:
        if not (isinstance(x, Ref) and x.name in single and len(x.indices) == 2):
            return x
        spent.add(x.name)
        return single[x.name]

    found: list[Line] = []
    for line in lines:
        match line:
            case Assign(expr=Apply(function="mul", args=(Ref(name=name) as total, Ref(indices=()) as number))) if (
                name in single and len(terms(single[name])) > 1
            ):
                parts = [times(*factors(inlined(x)), number) for x in terms(inlined(total))]
                line = replace(line, expr=plus(*parts))
        found.append(line)
    return [x for x in found if not spent & set(written(x))]


def _is_plain(line: Assign) -> bool:
    return not (line.over or line.rounded or line.accumulate or line.guarded)


def _by_scaled(lines: list[Line], matrix: Assign, uses: Counter[str]) -> list[Line]:
    """The same, with numbers in a matrix that multiply all products of it: so dots sum into what they are added to."""
    dots = {x.name for x in lines if isinstance(x, Dot) and matrix.name in read(x)}
    users = [x for x in lines if isinstance(x, Assign) and dots & set(read(x))]
    products = [found for line in users for x in terms(line.expr) if _of(found := factors(x), dots)]
    numbers = [{x for x in found if _is_number(x) and found.count(x) == 1} for found in products]
    common = sorted(set.intersection(*numbers), key=lambda x: x.name) if numbers else []
    alone = all(uses[name] == 1 for name in dots) and uses[matrix.name] == len(dots) == len(products)
    if not (common and alone):
        return lines
    scaled = replace(matrix, name=_scaled(matrix.name, common), expr=times(*factors(matrix.expr), *common))

    def without(total: Expr) -> Expr:
        parts = [factors(x) for x in terms(total)]
        return plus(*(times(*(_without(x, common) or x if x in products else x)) for x in parts))

    made: list[Line] = []
    called: dict[str, str] = {}  # dots of which now nothing but another name is made
    for line in lines:
        if line in users and isinstance(line, Assign):
            line = replace(line, expr=without(line.expr))
            if isinstance(line.expr, Ref):
                called[line.expr.name] = line.name
                continue
        made.append(scaled if line is matrix else line)
    return [
        _renamed(x, called, {matrix.name: scaled.name}) if isinstance(x, Dot) and x.name in dots else x for x in made
    ]


def _scaled(name: str, numbers: Iterable[Ref]) -> str:
    """The name of what these numbers multiply."""
    return "_".join((name, "by", *(x.name for x in numbers)))


def _is_number(x: Expr) -> TypeGuard[Ref]:
    return isinstance(x, Ref) and not x.indices and not x.name.startswith("%")


def _of(product: list[Expr], dots: set[str]) -> bool:
    """Is one factor of a product what one of these dots makes?"""
    return sum(isinstance(x, Ref) and x.name in dots for x in product) == 1


def _renamed(dot: Dot, results: dict[str, str], operands: dict[str, str]) -> Dot:
    x, y = (replace(o, name=operands.get(o.name, o.name)) for o in (dot.x, dot.y))
    return replace(dot, name=results.get(dot.name, dot.name), x=x, y=y)


def _with_decays(lines: list[Line]) -> list[Line]:
    """The same, where numbers beside what gates leave go to that, once for all that takes both."""
    decays = {x.name: x.axes for x in lines if isinstance(x, Assign) and _is_decay(_kept(x.expr) or x.expr)}
    made: dict[str, Assign] = {}

    def leaf(product: Expr) -> Expr | None:
        found = factors(product)
        numbers = sorted((x for x in found if _is_number(x)), key=lambda x: x.name)
        decay = next((x for x in found if isinstance(x, Ref) and x.name in decays and x.indices), None)
        if decay is None or not numbers:
            return None
        name, axes = _scaled(decay.name, numbers), decays[decay.name]
        made[name] = Assign(name, axes, times(tile(decay.name, *axes), *numbers))
        return times(*(x for x in found if x not in numbers and x is not decay), tile(name, *axes_of(decay)))

    found = [replace(x, expr=rewrite(x.expr, leaf)) if isinstance(x, Assign) and len(x.axes) == 2 else x for x in lines]
    return [*made.values(), *found]


def _is_decay(x: Expr) -> bool:
    return isinstance(x, Apply) and x.function == "exp"


def _decayed_before(lines: list[Line], users: Counter[str]) -> list[Line]:
    """The same, where a tile that decays for a state is multiplied by others so, too, and not what comes of it."""
    tiles = [x for x in lines if isinstance(x, Assign) and x.rounded and not x.over]
    decayed = {frozenset(pair): x.name for x in tiles if len(pair := factors(x.expr)) == 2}
    dots = {x.name: x for x in lines if isinstance(x, Dot) and users[x.name] == 1}
    found: dict[int, Line] = dict(enumerate(lines))
    for n, line in enumerate(lines):
        match line:
            case Assign(
                expr=Apply(function="add", args=(rest, Apply(function="mul", args=(Ref() as made, decay))))
            ) if made.name in dots:
                dot = dots[made.name]
                names = {o.name: decayed.get(frozenset((tile(o.name, *o.indices), decay))) for o in (dot.x, dot.y)}
                there = {name: other for name, other in names.items() if other}
                if len(there) == 1:
                    found[lines.index(dot)] = _renamed(dot, {}, there)
                    found[n] = replace(line, expr=plus(rest, made))
    return list(found.values())
