"""Dots that sum into what they are added to, with no registers for a result of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from glagen.ir.expr import Apply, Expr, Ref
from glagen.ir.kernel import Assign, BlockLine, Blocks, Dot, Kernel, Line, Loop, RowSum, Scan, Store, read


def added_to_states(
    lines: list[Line], scans: tuple[Scan, ...], stores: list[Store]
) -> tuple[list[Line], tuple[Scan, ...]]:
    """The same, where dots that only add to a carried state sum into it: they need no registers of their own."""
    dots = _used_once(lines, users_of(lines, scans, stores))
    found = []
    for scan in scans:
        update, added = _without(scan.update, dots, set())
        found.append(replace(scan, update=update, added=tuple(_into(scan.tile, dot) for dot in added)))
        lines = [line for line in lines if line not in added]
    return lines, tuple(found)


def added_to_tiles(lines: list[Line], scans: tuple[Scan, ...], stores: list[Store]) -> list[Line]:
    """The same for the sums of a kernel's tiles; what is left of such a sum goes by its name."""
    users = users_of(lines, scans, stores)
    dots = _used_once(lines, users)
    found: list[Line] = []
    for line in lines:
        if not isinstance(line, Assign) or line.over or line.accumulate or line.rounded:
            found.append(line)
            continue
        rest, added = _without(line.expr, dots, {scan.tile for scan in scans})
        found = [x for x in found if x not in added]
        made = [x for x in found if isinstance(rest, Ref) and isinstance(x, Assign | Dot) and x.name == rest.name]
        if added and len(made) == 1 and users[made[0].name] == 1:
            found[found.index(made[0])] = replace(made[0], name=line.name)
        else:
            found.append(replace(line, expr=rest))
        found += [_into(line.name, dot) for dot in added]
    return found


def added_in_order(lines: list[Line]) -> list[Line]:
    """The same, where products that serve mild gates sum into what they are added to under a mask.

    Tensor cores add up products one after another, whatever the columns of a tile: so a sum over tiles has the same
    bits as one over all columns.
    """
    return [replace(x, body=_in_order(x)) if isinstance(x, Blocks) and x.kind == "guard" else x for x in lines]


def _in_order(blocks: Blocks) -> tuple[BlockLine, ...]:
    found: list[BlockLine] = []
    for line in blocks.body:
        match line, found[-1:]:
            case (
                Assign(accumulate=True, expr=Apply(function="keep", args=(Ref(name=mask), Ref(name=name)))),
                [Dot(split=False, accumulate=False) as dot],
            ) if dot.name == name:
                found[-1] = replace(_into(line.name, dot), mask=mask.removeprefix("%"))
            case _:
                found.append(line)
    return tuple(found)


def adds_in_order(kernel: Kernel) -> bool:
    """Does a kernel add up the columns that it loops over in their order, whatever tiles they come in? While gates are
    mild: what strong ones ask for, and a step's own score where steps are few, are sums for themselves."""
    inside = [line for item in kernel.body if isinstance(item, Loop) for line in item.body]
    mild: list[Line] = [x for x in inside if not isinstance(x, Blocks)]
    blocks = [x for x in inside if isinstance(x, Blocks) and x.kind != "own"]
    mild += [y for x in blocks if x.kind == "guard" or not x.depth for y in x.body]
    return not any(x.accumulate for x in mild if isinstance(x, Assign | RowSum))


def _used_once(lines: list[Line], users: Counter[str]) -> dict[str, Dot]:
    """The dots whose results are used once."""
    return {x.name: x for x in lines if isinstance(x, Dot) and not x.accumulate and users[x.name] == 1}


def users_of(lines: list[Line], scans: tuple[Scan, ...], stores: list[Store]) -> Counter[str]:
    """How many lines, updates of states and stores use each tile."""
    users = Counter(n for line in lines for n in read(line)) + Counter(store.tile for store in stores)
    return users + Counter(n for scan in scans for n in scan.reads)


def _without(total: Expr, dots: dict[str, Dot], carried: set[str]) -> tuple[Expr, list[Dot]]:
    """A sum without those of its terms that are results of `dots`, and these. One term stays: of two dots that which
    reads a carried state, for the state has its registers as long as the dot waits for others."""
    added: list[Dot] = []
    while isinstance(total, Apply) and total.function == "add":
        first, last = total.args
        pairs = [(y, dots[x.name]) for x, y in ((last, first), (first, last)) if isinstance(x, Ref) and x.name in dots]
        if not pairs:
            break
        total, dot = min(pairs, key=lambda pair: bool(carried & {pair[1].x.name, pair[1].y.name}))
        added.insert(0, dot)
    return total, added


def _into(name: str, dot: Dot) -> Dot:
    return replace(dot, name=name, accumulate=True)
