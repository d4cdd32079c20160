"""Values that gates close within a chunk, in a kernel of their own beside a walk on chip.

One growth from the chunk's start serves values until a gate's sum passes LIMIT; what reads the others needs halves, and
growths of eight rows. A walk has no registers for that, and nothing else to do meanwhile: it leaves those values out of
the chunk's outputs, and does all else as it does for mild gates. Another kernel adds what they write within the chunk,
for all chunks at once, and needs no states for that, so that none are stored unless somebody asks for them. (H200,
Triton 3.6.0, bf16, gates of -4 softplus of normal numbers, forward, ms, for a walk that stores chunk states, and
outputs by these, B4 T4096 H64 K=V=128: gla_v 0.73 + 0.52 for 0.50 + 0.85; gla_kv, whose scores take 0.41, 0.92 + 0.45
for 0.98 + 1.79. B32 T2048 H16 K=V=64: 0.26 + 0.26 for 0.24 + 0.38, and 0.22, 0.38 + 0.22 for 0.35 + 0.67.)

Until a value goes over (see reach.py) all of it is the walk's, whose bits are those of the other runs.
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.chunk import Operand
from glagen.ir.kernel import Assign, Blocks, Depth, Kernel, Line, Load, Loop, RowSum, lines_of, read, written
from glagen.ir.tuned import BEYOND
from glagen.schedule.anchor import with_one_anchor
from glagen.schedule.apart import made_apart
from glagen.schedule.reach import is_growth, reached, shares, with_share, within_reach

DOC = "What values beyond the reach of one growth add to the outputs of their chunk."


def leaving_values(walk: Kernel, outputs: Kernel) -> tuple[Kernel, ...]:
    """The walk on chip, without halves for values, and the kernel that adds what these made, if it can have one: if
    blocks of a gate on values do nothing but add to outputs. Else the walk as it is.

    `outputs`: the kernel that makes these chunk by chunk, from stored states.
    """
    gates = [x for x in outputs.lines if isinstance(x, Depth) and "j" in x.source.indices]
    if len(gates) != 1 or not (gates[0].shifted and gates[0].bounded):
        return (walk,)
    gate = gates[0].source.name
    if not (_only_adds(walk, gate) and _only_adds(outputs, gate)):
        return (walk,)
    left = [y for x in walk.body for y in ((x,) if isinstance(x, Loop) else with_one_anchor(x, {gate}))]
    body: list[Line | Loop] = []
    for x in left:
        if isinstance(x, Assign) and is_growth(x, gate):
            limited = within_reach(x, gate)
            if limited is None:
                return (walk,)
            body += [reached(gates[0].since, gate, x.axes), limited]
        else:
            body.append(x)
    return replace(walk, body=tuple(body), leaves_values=True), _beyond(outputs, gate, gates[0].since)


def given_scores(kernel: Kernel, scores: tuple[Operand, ...]) -> Kernel:
    """The same, which always loads these scores, for whoever launches it has them made."""
    able = made_apart(kernel, scores)
    tiles = [Load(ready.tile, ready.axes) for ready in able.ready]
    if not tiles or any(isinstance(item, Loop) and not {*item.body} <= able.spared for item in able.body):
        return able
    lines = [x for x in able.lines if x not in able.spared]
    first = next(n for n, x in enumerate(lines) if {load.name for load in tiles} & {*read(x)})
    lines[first:first] = tiles
    names = tuple(load.name for load in tiles)
    return replace(able, body=tuple(lines), looped=None, ready=(), spared=frozenset(), given=names)


def _only_adds(kernel: Kernel, gate: str) -> bool:
    """Do blocks of a gate, but for a chunk as one, add products with values to outputs, which nothing else reads?"""
    blocks = [x for x in kernel.lines if isinstance(x, Blocks) and x.gate == gate]
    strong = [x for x in blocks if x.kind != "guard"]
    outputs = {store.tile for store in kernel.stores}
    others = [x for x in kernel.lines if x not in strong]
    used = {name for x in others for name in read(x)} | outputs
    adds = all({*written(x)} & used <= outputs and with_share(x, gate, "j") for x in strong)
    return adds and {x.kind for x in blocks} == {"guard", "eights", "bisect"} and not outputs & _all_read(kernel)


def _all_read(kernel: Kernel) -> set[str]:
    """What lines and states take."""
    return {n for x in kernel.lines for n in read(x)} | {n for scan in kernel.scans for n in scan.reads}


def _beyond(outputs: Kernel, gate: str, since: str) -> Kernel:
    """The kernel that adds what is left out, in place of the one that makes all."""

    def of(x: Line) -> list[Line]:
        match x:
            case Blocks() if x.gate == gate:
                weighed = None if x.kind == "guard" else with_share(x, gate, "j")
                return [] if weighed is None else [weighed]
            case RowSum() if x.name == since:
                return [x, *shares(x, gate)]
            case Depth() if x.source.name == gate:
                return [replace(x, always=True)]
            case _:
                return [] if targets & {*written(x)} else [x]

    targets = {store.tile for store in outputs.stores}
    wanted, body = set(targets), list[Line | Loop]()
    for item in reversed(outputs.body):
        kept: list[Line] = []
        for x in reversed([y for line in lines_of(item) for y in of(line)]):
            if wanted & {*written(x)}:
                wanted |= {*read(x)}
                kept.insert(0, x)
        body[:0] = kept if not isinstance(item, Loop) else [replace(item, body=tuple(kept))] * bool(kept)
    made = {name for item in body for x in lines_of(item) for name in written(x)}
    stores = tuple(replace(x, adds=True) for x in outputs.stores if x.tile in made)
    looped = outputs.looped if any(isinstance(x, Loop) for x in body) else None
    return replace(outputs, name=BEYOND, doc=DOC, body=tuple(body), stores=stores, looped=looped)
