"""Scores of a chunk, made by a kernel of their own.

Scores have no value columns, but a kernel that owns a block of those needs them whole: where heads have several blocks,
each of its programs makes the same scores. Made once they are small, CHUNK by CHUNK numbers beside K by V of a state.
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.chunk import ChunkProgram, Contract, Operand, inputs_of
from glagen.ir.kernel import Kernel, Ready, read, written
from glagen.schedule.covers import Cover
from glagen.schedule.kernels import Goal, Shape, build, needed
from glagen.schedule.order import pruned
from glagen.schedule.reach import by_reach
from glagen.schedule.tile import axes_of, matrix


def scores(program: ChunkProgram, of_gradients: bool = False) -> tuple[Operand, ...]:
    """Matrices [t, s] of the forward that are made of no state and no value columns; or, of the backward, their
    gradients, which are made of no state and no key columns."""
    states = {name for state in program.states for name in (state.name, state.adjoint_end)}
    found = []
    for statement in program.backward if of_gradients else program.forward:
        if isinstance(statement, Contract) and statement.out.indices == ("t", "s"):
            made_of = needed(program, [statement.out.name], states)
            if not states & {name for s in made_of for name in inputs_of(s)}:
                found.append(statement.out)
    return tuple(found)


def maker_of(
    program: ChunkProgram, covers: dict[str, Cover], apart: tuple[Operand, ...], operands: tuple[Operand, ...]
) -> Kernel:
    """The kernel that makes scores, and these operands of a walk."""
    more = ", and what else a walk is given," if operands else ","
    doc = f"The scores of one chunk{more} for kernels that hold a block of value columns at a time."
    goals = tuple(Goal(x.name, (x,)) for x in apart)
    return by_reach(build(program, covers, Shape("scores", doc, (), "i", makes_sums=True), goals, (), operands))


def made_apart(kernel: Kernel, matrices: tuple[Operand, ...]) -> Kernel:
    """The same kernel, with what it does without where these scores are given."""
    lines = kernel.lines
    made = {name for line in lines for name in written(line)}
    tiles_of = ((m.name, matrix(m.name, transposed)) for m in matrices for transposed in (False, True))
    ready = tuple(Ready(name, x.name, axes_of(x)) for name, x in tiles_of if x.name in made)
    tiles = {way.tile for way in ready}
    roots = [s.tile for s in kernel.stores] + [r for s in kernel.scans for r in s.reads]
    roots += [judge.sums for judge in kernel.judges]
    kept = frozenset(pruned([line for line in lines if not tiles & set(written(line))], roots))
    there = {name for line in kept for name in written(line)} | tiles
    lost = {name for line in kept for name in read(line)} & made - there
    if lost or not kept <= frozenset(lines):  # of blocks that make scores, a part is needed
        return kernel
    return replace(kernel, ready=ready, spared=frozenset(lines) - kept)
