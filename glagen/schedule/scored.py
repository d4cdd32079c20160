"""Walks on chip that are given scores where gates are strong.

Halves and growths block by block are more work than all else of a chunk. A walk has no registers for that, and nothing
else to do meanwhile: made for all chunks at once, by a kernel of their own, scores are CHUNK by CHUNK numbers of each,
and the walk is left with what it does for mild gates. It stores states only where somebody asks for them. (H200, Triton
3.6.0, bf16, gates of -4 softplus of normal numbers, forward, ms, for a walk that stores chunk states, and outputs by
these: gla, B4 T4096 H64 K=V=128 0.46 + 0.60 for 0.60 + 1.00; B16 T2048 H4 K128 V256 0.06 + 0.15 for 0.16 + 0.20; B32
T2048 H16 K=V=64 0.25 + 0.25 for 0.19 + 0.42; hgrn2, as the first, 0.74 + 0.65 for 0.69 + 1.33. Four warps, which are
faster where gates are mild, spill 672 bytes of each thread's here, and take 1.09 ms for 0.60.)

Gates on values decay what scores have multiplied, for which a walk would need halves of its own.
"""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.chunk import Operand
from glagen.ir.expr import Expr, Ref, rewrite
from glagen.ir.kernel import Assign, BlockLine, Blocks, Depth, Kernel, Line, Loop
from glagen.schedule.apart import made_apart
from glagen.schedule.tile import matrix

# The masks of a cover's blocks where the whole chunk is one.
MILD = {"%decayed": "%past", "%same": "%earlier"}


def given_scores_of_strong(kernel: Kernel, matrices: tuple[Operand, ...]) -> Kernel:
    """The same walk, whose run for strong gates is given these scores, if nothing else that it makes goes by how strong
    gates are; else the kernel as it is."""
    gates = {x.source.name for x in kernel.lines if isinstance(x, Depth)}
    blocks = [x for x in kernel.lines if isinstance(x, Blocks) and x.gate in gates]
    made = {x.name for block in blocks for x in block.body if x.accumulate}
    if not made or made - {matrix(m.name, transposed).name for m in matrices for transposed in (False, True)}:
        return kernel
    mild = (x for line in kernel.body for x in ((line,) if isinstance(line, Loop) else _of_mild(line, gates)))
    taken = made_apart(replace(kernel, body=tuple(mild)), matrices)
    return replace(taken, late=True) if taken.ready else kernel


def _of_mild(line: Line, gates: set[str]) -> tuple[Line, ...]:
    """What is left of a line where these gates are mild."""
    match line:
        case Depth():
            return ()
        case Blocks(kind="own", gate=gate) if gate in gates:
            return (replace(line, depth="", by_row=False),)
        case Blocks(kind="guard", gate=gate, body=body) if gate in gates:
            return tuple(_of_whole(x) for x in body)
        case Blocks(gate=gate) if gate in gates:
            return ()
        case _:
            return (line,)


def _of_whole(line: BlockLine) -> BlockLine:
    """A block's line, of all pairs of rows of the chunk."""

    def mask(x: Expr) -> Expr | None:
        return replace(x, name=MILD[x.name]) if isinstance(x, Ref) and x.name in MILD else None

    return replace(line, expr=rewrite(line.expr, mask)) if isinstance(line, Assign) else line
