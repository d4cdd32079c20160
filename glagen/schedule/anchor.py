"""Lines of a kernel with one anchor to a chunk, whatever its gates are: what needs more, others have made, or make."""

from __future__ import annotations

from dataclasses import replace

from glagen.ir.expr import Expr, Ref, rewrite
from glagen.ir.kernel import Assign, BlockLine, Blocks, Depth, Dot, Line, RowSum

# The masks of a cover's blocks where the whole chunk is one.
WHOLE = {"%decayed": "%past", "%same": "%earlier", "%same_or_own": "%causal"}
WHOLE |= {f"{block}_T": f"{chunk}_T" for block, chunk in WHOLE.items()}
ALL_ROWS = {"leaf": "through", "leaf_before": "before", "leaf_T": "from", "leaf_before_T": "after"}  # and of row sums


def with_one_anchor(line: Line, gates: set[str]) -> tuple[Line, ...]:
    """What is left of a line of a walk, if one anchor serves these gates."""
    match line:
        case Depth(source=source) if source.name in gates:
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
        return replace(x, name=WHOLE[x.name]) if isinstance(x, Ref) and x.name in WHOLE else None

    match line:
        case Assign():
            return replace(line, expr=rewrite(line.expr, mask))
        case Dot(mask=name) if name:
            return replace(line, mask=WHOLE[f"%{name}"].removeprefix("%"))
        case RowSum(select=select):
            return replace(line, select=ALL_ROWS.get(select, select))
        case _:
            return line
