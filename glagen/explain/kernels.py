"""Section 8: each kernel's grid, what it reads, writes and keeps on chip, its loops and its tiles."""

from __future__ import annotations

from collections.abc import Sequence

from glagen.emit.later import later_first
from glagen.emit.module import tensor_shape
from glagen.emit.notes import notes_by_chunk
from glagen.emit.triton import KernelPrinter
from glagen.errors import InternalError
from glagen.explain.outline import Block, Facts, Inline, Quote, Section, Subtitle, say
from glagen.ir.kernel import Blocks, Dot, Kernel, Line, Loop, RowSum
from glagen.ir.schedule import FARTHEST, Schedule
from glagen.ir.tuned import (
    ALONE,
    ALONE_KERNELS,
    BEYOND,
    BOTH,
    GIVEN_KERNELS,
    HALVED,
    IN_HALVES,
    KEPT_BACK,
    KEPT_BY_KEYS,
    KEPT_KERNELS,
    KEYS_GIVEN,
    OF_KEPT,
    OPERANDS,
    OTHERS,
    SHARED,
    SHARING,
    STRONG,
    Tuned,
    place,
)

SIDE = {"i": "key", "j": "value"}
POINTWISE = "pointwise work"
BLOCK = {"i": "BLOCK_K", "j": "BLOCK_V", "t": "C", "s": "C"}


def kernels(schedule: Schedule) -> Section:
    """Every kernel, in order of launch."""
    others = *GIVEN_KERNELS, HALVED, *ALONE_KERNELS, BOTH, *KEPT_KERNELS
    by_rule = [k for k in schedule.kernels if k.whole and k.name not in others]
    fused = [k for k in by_rule if not k.of_gradients]
    names = ", ".join(f"`{k.name}`" for k in fused)
    divisor = " (where not in float64, as said above)" if schedule.program.recurrence.divides else ""
    blocks: list[Block] = [
        say(
            f"$C$ is {schedule.chunk} steps; BLOCK_K and BLOCK_V are the columns of the key and value axis that a tile "
            "holds. $N$ is the number of sequences; tensors with `slots` hold one state per chunk of any of them. "
            "Heads are those of the tensor, which may be fewer than the op's. Matrix products accumulate in float32, "
            f"and sums of log gates are float32 throughout{divisor}."
        )
    ]
    if fused:
        blocks.append(
            say(
                f"{names} does the whole forward alone, for keys up to {schedule.widest_fused} wide, "
                f"{_fused(schedule)}. The two other forward kernels do it in turn, with more programs at a time and "
                "chunk states in memory."
            )
        )
    blocks += [say(_fused_back(schedule, k)) for k in by_rule if k.of_gradients]
    if any(k.name in GIVEN_KERNELS for k in schedule.kernels):
        blocks.append(say(_given(schedule)))
    if any(k.name == HALVED for k in schedule.kernels):
        blocks.append(say(_halved(schedule)))
    if any(k.may_halve for k in schedule.kernels):
        blocks.append(say(_in_halves(schedule)))
    if any(k.name in ALONE_KERNELS for k in schedule.kernels):
        blocks.append(say(_alone(schedule)))
    if any(k.name == BOTH for k in schedule.kernels):
        blocks.append(say(_both(schedule)))
    if any(k.name == KEPT_BACK for k in schedule.kernels):
        blocks.append(say(_kept(schedule)))
    if any(k.name in SHARING for k in schedule.kernels):
        blocks.append(say(_shared(schedule)))
    for kernel in schedule.kernels:
        blocks += [Subtitle(f"Kernel `{kernel.name}`"), say(Quote(kernel.doc)), Facts(tuple(_facts(schedule, kernel)))]
    return Section("The kernels", tuple(blocks))


def _fused(schedule: Schedule) -> str:
    asked = 'where `states="recomputed"` asks for it'
    return f"in bfloat16 {_where(schedule)}, else {asked}" if schedule.faster_fused else asked


def _where(schedule: Schedule) -> str:
    """Where kernels that keep a state on chip are faster."""
    enough = "two thirds of the multiprocessors" if schedule.fused_by_few else "each multiprocessor"
    sides = "keys and values" if any(k.waits for k in schedule.kernels) else "values"
    hopper = f"on Hopper (whose wgmma adds to the state), for {sides} at least 33 wide, "
    return f"{hopper if schedule.fused_by_wgmma else ''}wherever it has a program for {enough}"


def _fused_back(schedule: Schedule, kernel: Kernel) -> str:
    widest = dict(schedule.faster_fused)[kernel.name]
    return (
        f"`{kernel.name}` does the work of `adjoint_states` and `value_gradients` in bfloat16, for keys up to {widest} "
        f"wide, {_where(schedule)} and no head of a value is shared."
    )


def _given(schedule: Schedule) -> str:
    """What walks do that are given their operands."""
    forward, back = GIVEN_KERNELS
    measured = [x for x in schedule.tuned if x.walk == forward]
    found = []
    for chunk in dict.fromkeys(x.chunk for x in measured):
        heads = " and for ".join(place(x.heads) for x in measured if x.chunk == chunk)
        found.append(f"{heads}, {f'whose chunks have {chunk} steps, ' * bool(schedule.doubled)}")
    names = {k.name for k in schedule.kernels}
    walks_back, they = "", "It multiplies"
    if back in names:
        walks_back, they = f", and `{back}` the work of `adjoint_states` and `value_gradients`", "They multiply"
    maker = OPERANDS if OPERANDS in names else "scores"
    return (
        f"`{forward}` does the whole forward{walks_back}, for "
        f"{'and for '.join(found)}wherever there is a program for two thirds of the multiprocessors. {they} "
        f"what `{maker}` makes of each chunk{', whatever its gates are' if schedule.program.gates else ''}."
    )


def _halved(schedule: Schedule) -> str:
    """Where a forward takes chunks by halves."""
    heads = dict.fromkeys(place(x.heads) for x in schedule.tuned if x.kernel == HALVED)
    return (
        f"`{HALVED}` does the whole forward where no states are stored, for {' and for '.join(heads)}, wherever there "
        "is a program for five sixths of the multiprocessors. It takes half as many steps at once as a chunk has."
    )


def _in_halves(schedule: Schedule) -> str:
    """Where walks on chip take chunks by halves that store states as well."""
    halved = [x for x in schedule.tuned if x.kernel != x.walk]
    names = [f"`{k.name}`" for k in schedule.kernels if k.may_halve and k.scans]
    takes, store = ("takes", "stores") if len(names) == 1 else ("take", "store")
    scores = " Halves have scores of their own." if len({x.walk for x in halved}) > len(names) else ""
    heads = " and for ".join(dict.fromkeys(place(x.heads) for x in halved))
    return f"{' and '.join(names)} {takes} chunks by halves, for {heads}, and {store} states of whole ones.{scores}"


def _alone(schedule: Schedule) -> str:
    """Where one kernel makes all gradients, or all but those of queries."""
    heads = " and for ".join(dict.fromkeys(place(x.heads) for x in schedule.tuned if x.kernel in ALONE_KERNELS))
    where = f"for {heads}, wherever there is a program for two thirds of the multiprocessors"
    if not schedule.mirrored:
        return f"`{ALONE}` does the whole backward, {where}, all gradients are asked for and no heads share a tensor."
    (query, do), (key, value), _ = schedule.mirrored
    made = f"`d{query}` is what the op makes of `{do}` for `{query}`, `{value}` for `{key}` and `{key}` for `{value}`"
    return f"`{OTHERS}` and a forward do the backward, {where} and no heads share a tensor: {made}. No states are read."


def _both(schedule: Schedule) -> str:
    """Where one kernel makes a chunk's gradients on both sides."""
    heads = dict.fromkeys(place(x.heads) for x in schedule.tuned if x.kernel == BOTH)
    return (
        f"`{BOTH}` does the work of `key_gradients` and `value_gradients` where gates are mild, for "
        f"{' and for '.join(heads)}, if all gradients are asked for and no heads share a tensor."
    )


def _kept(schedule: Schedule) -> str:
    """Where gradients of values load no states."""
    heads = dict.fromkeys(place(x.heads) for x in schedule.tuned if x.kernel == OF_KEPT)
    return (
        "What gradients of values read of states is kept by those who have these at hand, for "
        f"{' and for '.join(heads)}, where `fused` does the forward and stores states, if all gradients are asked for "
        f"and no heads share a tensor: `fused`, `{KEPT_BACK}`, which then does the work of `adjoint_states`, and "
        f"`{KEPT_BY_KEYS}`, that of `key_gradients` where gates are mild. `{OF_KEPT}` does that of `value_gradients` "
        "then, and loads no state."
    )


def _shared(schedule: Schedule) -> str:
    """What a backward does whose kernels share what they multiply."""
    heads = dict.fromkeys(place(x.heads) for x in schedule.tuned if x.kernel == KEYS_GIVEN)
    made = " and ".join(f"`{name}`" for name in SHARED)
    return (
        f"In the backward, {made} make once for all kernels what they multiply, for {'; for '.join(heads)}. "
        f"{', '.join(f'`{name}`' for name in SHARING)} are given that, and do the work of those without `_given`."
    )


def _facts(schedule: Schedule, kernel: Kernel) -> list[tuple[str, Inline]]:
    reads, writes = _traffic(schedule, kernel)
    halves = "with as many halves in each chunk as gates ask"
    less = ["given `scores` of their chunks"] * kernel.late
    less += [f"without values beyond the reach of one growth, which `{BEYOND}` adds"] * kernel.leaves_values
    again = (
        "twice: for sequences of mild gates, whose chunks need no halves, and beside inputs of 16 bits without bounds "
        f"on gates; then for all others, {', '.join(less) or halves}"
    )
    if kernel.late and kernel.of_gradients:
        again += "; a forward on chip tells which, and keeps these scores; without one it finds out as that does"
    elif kernel.whole:
        again += "; before both along first chunks alone, for as a rule gates are strong there if anywhere"
    if kernel.whole and any(judge.far > judge.limit for judge in kernel.judges):
        again += (
            f"; between them, beside inputs of 16 bits, where gates come to -{float(FARTHEST):g} at least in a chunk"
        )
    if kernel.whole and not less:
        again += '; unless states="recomputed" forbids it, that run stores right states, and `outputs` reads them'
    if kernel.name == "scores" and not any(x.ready and not x.late for x in schedule.kernels):
        again = f"for walks on chip that met strong gates, {halves}"
    if kernel.name == BEYOND:
        again = f"for sequences in which walks on chip met strong gates, {halves}"
        if later_first(kernel, schedule.chunk):
            again += "; first along later halves of chunks, then along whole ones whose gates go over in the first half"
    if kernel.name in (BOTH, KEPT_BY_KEYS, OF_KEPT):
        again = "for sequences of mild gates; `key_gradients` and `value_gradients` take all others"
    if notes_by_chunk(kernel):
        again += "; chunk by chunk, which the first run finds out, where it makes what others are given"
    pieces = "once; on long sequences of few heads twice, in pieces: from zero, then from what enters each piece"
    runs = again if kernel.runs_twice else pieces if kernel.direction and not kernel.whole else ""
    return [
        ("programs", (_grid(kernel),)),
        *([("runs", (runs,))] if runs else []),
        ("reads", ("; ".join(reads) or "nothing",)),
        ("writes", ("; ".join(writes) or "nothing",)),
        ("keeps on chip", (_on_chip(kernel),)),
        ("work", (_work(schedule, kernel),)),
        ("tiles", (_tiles(kernel),)),
        *(("tiles, measured", (_measured(x),)) for x in schedule.tuned if x.kernel == kernel.name),
        *(("tiles for strong gates", (_measured(x),)) for x in schedule.tuned if x.kernel == f"{kernel.name}{STRONG}"),
        *(("tiles for halves", (_measured(x),)) for x in schedule.tuned if x.kernel == f"{kernel.name}{IN_HALVES}"),
    ]


def _grid(kernel: Kernel) -> str:
    parts = [f"block of the {SIDE[a]} axis" for a in kernel.owned if a not in kernel.whole]
    parts += [] if kernel.direction else ["chunk"]
    return f"one per {', per '.join([*parts, 'sequence and head'])}"


def _traffic(schedule: Schedule, kernel: Kernel) -> tuple[list[str], list[str]]:
    """Tensors read and written, with their shapes."""
    printer = KernelPrinter(kernel, schedule.program, schedule.chunk)
    printer.print()
    outputs = {f"{store.target}_out": store.target for store in kernel.stores}
    outputs |= {n: n for scan in kernel.scans for n in (scan.saved, scan.last) if n}
    outputs |= {tensor.name: tensor.name for tensor in printer.tensors.values() if tensor.kind == "remains"}
    reads, writes = [], []
    for tensor in printer.tensors.values():
        shape = tensor_shape(tensor.kind, tensor.axes)
        note = (
            " if given" if tensor.optional and tensor.name not in outputs else " if wanted" if tensor.optional else ""
        )
        if tensor.name in outputs:
            writes.append(f"`{outputs[tensor.name]}` ${shape}${note}")
        else:
            reads.append(f"`{tensor.name}` ${shape}${note}")
    return reads, writes


def _on_chip(kernel: Kernel) -> str:
    waits = ", and what a chunk adds, until the next" if kernel.waits else ""
    kept = [f"`{s.tile}` {_shape(s.axes)}, from chunk to chunk{waits}" for s in kernel.scans]
    sums = [f"`{name}` {_shape(axes)}" for name, axes in kernel.added.items()]
    kept += [f"sums of one chunk: {', '.join(sums)}"] if sums else []
    return "; ".join(kept) or "the tiles of one chunk, nothing beyond it"


def _shape(axes: tuple[str, ...]) -> str:
    return f"$[{', '.join(BLOCK[a] for a in axes)}]$" if axes else "(a number)"


# -- work --------------------------------------------------------------------------------------------------------------


def _work(schedule: Schedule, kernel: Kernel) -> str:
    """What stands in which loop, counted in matrix products."""
    parts: list[str] = []
    run: list[Line] = []
    for item in kernel.body:
        if isinstance(item, Loop):
            inside = _lines(item.body, schedule.chunk)
            parts += [
                _lines(run, schedule.chunk),
                f"for each block of the {SIDE[item.axis]} axis: {inside or POINTWISE}",
            ]
            run = []
        else:
            run.append(item)
    run += [dot for scan in kernel.scans for dot in scan.added]
    parts = [x for x in (*parts, _lines(run, schedule.chunk)) if x]
    text = "; ".join(parts) or POINTWISE
    order = {"forward": "from first to last", "reverse": "from last to first", None: ""}[kernel.direction]
    return f"walks over the chunks {order}, in each: {text}" if order else text


def _lines(lines: Sequence[Line], chunk: int) -> str:
    parts = [x for x in (_products(lines), _sums(lines)) if x]
    for line in lines:
        if isinstance(line, Blocks):
            work = [x for x in (_products(line.body), _sums(line.body)) if x]
            parts.append(f"{_passes(line, chunk)} with {' and '.join(work) or POINTWISE} each")
    return ", ".join(parts)


def _products(lines: Sequence[Line]) -> str:
    return _count(sum(isinstance(x, Dot) for x in lines), "matrix product")


def _sums(lines: Sequence[Line]) -> str:
    return _count(sum(isinstance(x, RowSum) for x in lines), "sum over steps")


def _count(number: int, word: str) -> str:
    plural = word.replace("sum ", "sums ") if word.startswith("sum") else f"{word}s"
    return f"{number} {word if number == 1 else plural}" if number else ""


def _passes(line: Blocks, chunk: int) -> str:
    match line.kind:
        case "bisect":
            levels = _count((chunk // line.leaf).bit_length() - 1, "level") + " of halves"
            return f"up to {levels}" if line.depth else levels
        case "strips":
            return _count(chunk // line.leaf - 1, "strip")
        case "guard":
            return "all blocks that are left at once"
        case "eights":
            return "all blocks of eight rows on the diagonal at once"
        case "own":
            return "single rows, of blocks of one or of few steps"
        case "leaf":
            return f"all diagonal blocks of {line.leaf} rows at once"
        case "offsets":
            return _count(line.leaf - 1, "diagonal")
        case _:
            raise InternalError(f"unknown blocks {line.kind}")


def _measured(x: Tuned) -> str:
    return f"{place(x.heads)}: {x.configuration}"


def _stages(count: int) -> str:
    return f"{count} stage{'s' * (count > 1)}"


def _tiles(kernel: Kernel) -> str:
    t = kernel.tiles
    wide, half, narrow = (f"{key} by {value}" for key, value in (t.bfloat16, t.float16, t.float32))
    return (
        f"BLOCK_K by BLOCK_V at most {wide} (float16: {half}, float32: {narrow}); {t.warps} warps, {_stages(t.stages)}"
    )
