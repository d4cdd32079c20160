"""The stability certificate: every exponential the schedule computes, its worst exponent, and why it is finite."""

from __future__ import annotations

import math

from glagen.errors import InternalError
from glagen.ir.chunk import Carry, ChunkProgram, Contract, Decay
from glagen.ir.schedule import CLOSED, EIGHT, FARTHEST, SHIFT, Growth, may_close
from glagen.schedule.covers import GROWTH_LIMIT, Cover, reach


def certificate(program: ChunkProgram, covers: dict[str, Cover]) -> tuple[Growth, ...]:
    """One entry for each Decay of the program, and one for each growth factor of an anchored block."""
    decays: dict[Decay, None] = {}
    for statement in program.forward + program.backward:
        if isinstance(statement, Contract | Carry):
            decays |= dict.fromkeys(statement.decays)
    entries = []
    for decay in decays:
        between = decay.upper.is_row and decay.lower.is_row
        cover = covers.get(decay.gate) if between else None
        if cover:
            entries += _covered(program, decay, cover)
        else:
            entries.append(Growth(str(decay), f"({decay.lower}, {decay.upper}]", 0.0, _forward(program, decay)))
    return tuple(entries)


def _shifted(decay: Decay, cover: Cover) -> list[Growth]:
    """What blocks of the whole chunk have in runs that reach further (see schedule/shift.py)."""
    factor = SHIFT * math.log(2)
    run = (
        f"{cover.name}: beside 16-bit inputs, in runs for gates that come to -{float(FARTHEST):g} at least over a chunk"
    )
    decays = f"{run}: forward from the anchor, times 2^{SHIFT}, or in gradients from the middle of the sum"
    growths = f"{run}: growth over a chunk, times 2^-{SHIFT}, or in gradients from the middle of the sum"
    room = "times operands up to 1e10 stays below 3.4e38; never held in float16"
    return [
        Growth(f"2^{SHIFT} {decay}", f"(r, {decay.upper}]", factor, f"{decays}; exp({factor:.1f}) {room}"),
        Growth(
            f"2^-{SHIFT}/{decay}",
            f"(r, {decay.lower}]",
            float(FARTHEST) - factor,
            f"{growths}; exp({float(FARTHEST) - factor:.1f}) {room}",
        ),
    ]


def _by_eights(decay: Decay, cover: Cover) -> list[Growth]:
    """What blocks of eight rows have in runs for all other gates (see schedule/eights.py)."""
    half = float(FARTHEST / 2)
    run = (
        f"{cover.name}: beside 16-bit inputs, over {EIGHT} rows, where a log gate counts as {float(CLOSED):g} at least"
    )
    room = f"exp({half:g}) times operands up to 1e10 stays below 3.4e38; never held in float16"
    return [
        Growth(
            f"e^{half:g} {decay}", f"(r, {decay.upper}]", half, f"{run}: forward from the anchor, times that; {room}"
        ),
        Growth(f"e^-{half:g}/{decay}", f"(r, {decay.lower}]", half, f"{run}: growth, divided by that; {room}"),
    ]


def _forward(program: ChunkProgram, decay: Decay) -> str:
    gate = next(g for g in program.gates if g.name == decay.gate)
    return f"forward interval, log gate in {gate.domain}: the factor is at most 1"


def _covered(program: ChunkProgram, decay: Decay, cover: Cover) -> list[Growth]:
    """A cover's factors: split at an anchor r in its blocks, or whole along single diagonals."""
    gate = next(g for g in program.gates if g.name == decay.gate)
    split = f"({decay.lower}, r] and (r, {decay.upper}]"
    whole = f"({decay.lower}, {decay.upper}]"
    entries = []
    for kind, leaf in cover.parts:
        rows = "1 row" if leaf == 1 else f"{leaf} rows"
        match kind:
            case "bisect":
                down = f"{cover.name}: halves {'as far as gates ask' if cover.finds_depth else f'down to {rows}'}"
                reason = f"{down}, both factors forward: at most 1"
                entries.append(Growth(str(decay), split, 0.0, reason))
            case "strips":
                reason = f"{cover.name}: sub-chunks of {rows} against all before, both factors forward: at most 1"
                entries.append(Growth(str(decay), split, 0.0, reason))
            case "offsets":
                reason = f"{cover.name}: each diagonal of {rows} by itself, forward: at most 1"
                entries.append(Growth(str(decay), whole, 0.0, reason))
            case "guard":
                forward = f"{cover.name}: forward from the anchor: at most 1"
                entries.append(Growth(str(decay), f"(r, {decay.upper}]", 0.0, forward))
                reason = (
                    f"{cover.name}: growth over a chunk, for rows up to which its gates come to -{cover.limit:g} at "
                    "least in each channel, else over blocks so small that all rows with the strongest gate would; cut "
                    f"off there in rows that do not use it; exp({cover.limit:g}) times operands up to 1e12 stays below "
                    "3.4e38; never held in float16"
                )
                entries.append(Growth(f"1/{decay}", f"(r, {decay.lower}]", cover.limit, reason))
                if reach(cover.limit) > cover.limit:
                    entries += _shifted(decay, cover)
                    entries += _by_eights(decay, cover) if may_close(program.gates) else []
            case "leaf":
                worst = leaf * -gate.domain.low
                if not worst <= GROWTH_LIMIT:
                    raise InternalError(f"{decay} may grow by {worst} nats over {rows}")
                forward = f"{cover.name}: forward from the anchor over at most {rows}: at most 1"
                entries.append(Growth(str(decay), f"(r, {decay.upper}]", 0.0, forward))
                reason = (
                    f"{cover.name}: growth over at most {rows} of a log gate in {gate.domain}; exp({worst:g}) times "
                    f"operands up to 1e12 stays below 3.4e38; never held in float16"
                )
                entries.append(Growth(f"1/{decay}", f"(r, {decay.lower}]", worst, reason))
            case _:
                raise InternalError(f"unknown blocks {kind}")
    return entries
