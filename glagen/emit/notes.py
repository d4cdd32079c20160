"""Notes of gates that are too strong for one anchor: who takes them, and what they say.

Walks note what they meet, for all chunks of a walk at once. A kernel that makes operands of others (see
schedule/given.py) goes before any: its first run notes it of each chunk, for its own second one, and for theirs.
"""

from __future__ import annotations

from glagen.emit.loads import KernelLoads
from glagen.emit.memory import BLOCK
from glagen.emit.words import identifier
from glagen.ir.chunk import GateInfo
from glagen.ir.expr import Apply, Ref
from glagen.ir.kernel import Assign, Depth, Judge, Kernel
from glagen.ir.schedule import SLACK, may_close

# Nats by which the strongest of many chunks passes a first one, as a rule.
BEYOND_FIRST = 16.0
DEEP = 4  # added to a walk's note, where gates go over in the first half of its first chunk (see later.py)


class KernelNotes(KernelLoads):
    """The text of a kernel as far as it concerns those."""

    def _begin_notes(self) -> None:
        """Before the sums of a chunk: that none has been met. (In a walk, that stands before its first chunk.)"""
        for judge in self.kernel.judges if notes_by_chunk(self.kernel) else ():
            self._line(f"{judge.least} = tl.zeros([{BLOCK[judge.axis]}], dtype=tl.float32)")

    def _note_least(self, looped: str | None, inside: bool) -> None:
        """The least sums of gates over a chunk, so far: inside of a loop over their axis, if there is one."""
        for judge in self.kernel.judges:
            if (judge.axis == looped) == inside:
                self._line(f"{judge.least} = tl.minimum({judge.least}, {judge.sums})")
                if self.kernel.scans and self.kernel.runs_twice and judge.far > judge.limit:
                    self._line("if PEEK and TERMS == 2:  # others come to more, and close gates more often")
                    closed = f"tl.where(tl.min({judge.gate}) <= FLOOR, -LIMIT, 0.0)"
                    self._line(f"    {judge.least} = tl.minimum({judge.least} - {BEYOND_FIRST}, {closed})")
        if self.kernel.leaves_values and not inside:
            self._line("if PEEK:")
            half = f"tl.where((row < CHUNK // 2)[:, None], {identifier(reaching(self.kernel))}, 0.0)"
            self._line(f"    deep |= tl.where(tl.min({half}) < -MOST, {DEEP}, 0)")

    def _store_notes(self) -> None:
        """After a chunk: what its second run is to know. (A walk stores what it met at its end.)"""
        if notes_by_chunk(self.kernel):
            self._line("if pieces is None and not STRONG:")
            self._line(f"    tl.store(strong_ptr + slot * H + h, {what_is_beyond(self.kernel)})")


def notes_by_chunk(kernel: Kernel) -> bool:
    """Does it judge chunks by itself, none of which follows another?"""
    return bool(kernel.judges) and not kernel.scans


def what_is_beyond(kernel: Kernel) -> str:
    """What a walk notes of the gates that it met: 1 if they are too strong for one anchor; 2 if they are for a run that
    reaches less far, this or another. (Of those who read the notes of a walk for gradients, all reach as far.)"""
    if not kernel.judges:
        return ""
    near, most = _below(kernel.judges, "LIMIT" if kernel.runs_twice else ""), _below(kernel.judges, "MOST")
    if notes_by_chunk(kernel):
        return f"({near}).to(tl.int8)"
    if near == most or (kernel.of_gradients and not kernel.runs_twice):
        return f"({most}).to(tl.int8)"
    between = f"tl.where({near}, 2, 0)"
    if kernel.runs_twice:  # what ran for that stays so
        between = f"2 if FAR else {between}"
    return f"tl.where({most}, {'1 + deep' if kernel.leaves_values else 1}, {between}).to(tl.int8)"


def reaching(kernel: Kernel) -> str:
    """The sums of gates since a chunk's start, by which a growth reaches what is written or does not."""
    for line in kernel.lines:
        match line:
            case Assign(expr=Apply(function="reached", args=(Ref(name=name),))):
                return name
    return ""


def closes(kernel: Kernel, gates: tuple[GateInfo, ...]) -> bool:
    """May gates, beside 16-bit inputs, count as more than they are, here?"""
    guarded = bool(kernel.judges) or any(isinstance(line, Depth) for line in kernel.lines)
    return guarded and may_close(gates)


def nearest(kernel: Kernel) -> float:
    """How far its growths reach in runs that are not shifted, in nats, if it has others."""
    limits = [x.limit for x in kernel.lines if isinstance(x, Depth) and x.shifted]
    return float(min([*limits, *(x.limit for x in kernel.judges if x.far > x.limit)], default=0))


def _below(judges: tuple[Judge, ...], limit: str = "") -> str:
    """Is a sum of gates below what is judged by? `limit`: what a kernel calls that, where runs reach further."""
    limits = [f"{float(SLACK)} - {limit}" if limit and x.far > x.limit else float(SLACK - x.limit) for x in judges]
    found = [f"tl.min({x.least}) < {low}" for x, low in zip(judges, limits, strict=True)]
    return found[0] if len(found) == 1 else " | ".join(f"({text})" for text in found)
