"""Lines of tile code, and the kernels made of them: what both printers (Triton and PyTorch) print.

A tile is a name with axes; a row axis is t or s (both number the steps of a chunk). Lines are in single assignment,
apart from `accumulate`, which adds to a tile: one that another line begins, or that starts at zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from glagen.errors import InternalError
from glagen.ir.chunk import Operand
from glagen.ir.expr import Expr, Ref, refs, walk
from glagen.ir.tuned import ALONE_KERNELS, FORWARD, KEY_GRADIENTS, Tiles

# Which steps tau a row x sums over (`RowSum.select`), as 0/1 matrices [x, tau] of a chunk:
#   through: tau <= x    before: tau < x    from: tau >= x    after: tau > x; inside a cover's blocks (see `Blocks`):
#   between: from the block's anchor through x for rows above it, from after x to the anchor for rows below it
#   leaf: from the first step of x's block through x
#   span: the `offset` steps that end at x;    shift: the one step `offset` earlier
# With _before they stop a step short of a reading row; with _T they are transposed: from rows that x was summed into.


@dataclass(frozen=True, slots=True)
class Load:
    """The tile of an input, a state or a cotangent, zero outside the tensor."""

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """name = sum over `over` of a pointwise expression of tiles, broadcast by their axes.

    `rounded`: "narrow" or "wide", the type of dot operands it is kept in (see Dot), so that all see what dots see.
    `guarded`: zero outside the tensor, which the expression would not give. `mild`: what is as good, for less work,
    beside 16-bit inputs, in runs that only count for mild gates (see `Depth`; `near`: in those that reach no further,
    see schedule/shift.py); for a sum, the least. `still_mild`: sums of log gates, and how low they may be for runs for
    strong gates to take that, for the same bits. `strong`: what it is there, for 16 bits. `least`: so in all runs.
    """

    name: str
    axes: tuple[str, ...]
    expr: Expr
    over: tuple[str, ...] = ()
    accumulate: bool = False
    rounded: str = ""
    guarded: bool = False
    mild: Expr | None = None
    still_mild: tuple[Ref, Expr] | None = None
    strong: Expr | None = None
    near: bool = False
    least: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """name = x @ y over the index they share. `wide`: an operand is a sum or a growth, which may outgrow float16.
    `split`: x counts with what its rounding to bfloat16 cuts off, for too much else was rounded before; `exact`: so do
    both, and neither is rounded. `mask`: it is added there, by name. `dealt`: columns are in another order until the
    last such dot of this name (see schedule/turn.py)."""

    name: str
    axes: tuple[str, str]
    x: Operand
    y: Operand
    accumulate: bool = False
    mask: str = ""
    wide: bool = False
    split: bool = False
    exact: bool = False
    dealt: bool = False


@dataclass(frozen=True, slots=True)
class RowSum:
    """name[x, ...] = sum over the steps tau that `select` gives row x of source[tau, ...], in float32 throughout.

    `apart`: name[t, s] (or [s, t]) = the same sum for row t, but only over steps after s; 0 if s is t or later.
    `exponent`: the sum is only seen by an exponential. That of a narrow type may then be a difference of longer sums.
    `spared`: runs that only count for mild gates (see `Assign.mild`) do without it.
    """

    name: str
    axes: tuple[str, ...]
    source: Operand
    select: str
    accumulate: bool = False
    exponent: bool = False
    spared: bool = False

    @property
    def apart(self) -> bool:
        return len(self.axes) > len(self.source.indices)


BlockLine = Assign | Dot | RowSum


@dataclass(frozen=True, slots=True)
class Depth:
    """name = how often a chunk is halved until a growth serves each block of rows: until the strongest of a gate's log
    values, in all rows of a block, comes to `limit` nats at most. It is one number for the columns at hand.

    With axes (t,): name[t] = the same for row t, by rows up to it, so that no bit of a result depends on others: 0 if
    gates in sum (`since` the chunk's start) come to `limit` at most, down to eight rows if they would in these, else
    down to single rows.

    `bounded`: beside 16-bit inputs gates count as CLOSED at least, so that growths always serve in eight rows; to these
    a chunk is halved there, whatever its gates are, unless they serve in the whole chunk (`always`: even then).

    A kernel with such a line runs twice: as if it were 0, for sequences whose gates come to `limit` at most in sum over
    any chunk; then for all others (see `Judge`). `shifted`: some of its runs reach further (see schedule/shift.py).
    """

    name: str
    source: Operand
    limit: Fraction
    since: str = ""
    axes: tuple[str, ...] = ()
    accumulate: bool = False
    shifted: bool = False
    bounded: bool = False
    always: bool = False


@dataclass(frozen=True, slots=True)
class Blocks:
    """A cover's loop over blocks of the causal triangle; the body sees which rows read (`upper`) and write (`lower`).

    bisect: halves of halves down to `leaf` rows; strips: rows n*leaf .. (n+1)*leaf against all before them;
    leaf: the diagonal blocks of `leaf` rows at once; offsets: their diagonals 1 .. leaf-1 one by one; guard: the
    diagonal blocks that are left after halves; eights: those of `leaf` rows; own: the diagonal, of rows that have
    none of it in blocks with a growth, or of all where steps are few. `depth`: the tile that says how often the chunk
    is halved (see `Depth`, as of `bounded`); if it has rows (`by_row`), those of depth 0 take the chunk as one block of
    kind guard, those of eights' depth these, others the diagonal with no decay to an anchor. "": always down to `leaf`
    rows.
    """

    kind: str
    leaf: int
    gate: str
    body: tuple[BlockLine, ...]
    depth: str = ""
    by_row: bool = False
    bounded: bool = False

    @property
    def is_passed_once(self) -> bool:
        """Is the body always run, and no more than once?"""
        return self.kind in ("leaf", "guard")

    @property
    def adds_to_one(self) -> bool:
        """Is there one tile that the body adds to? Work on more, as of gradients, fills all registers."""
        return len({line.name for line in self.body if line.accumulate}) == 1


Line = Load | Assign | Dot | RowSum | Depth | Blocks


@dataclass(frozen=True, slots=True)
class Store:
    """Write tile `tile` to the tensor `target`; `adds`: add it to what is there."""

    target: str
    tile: str
    axes: tuple[str, ...]
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """Lines repeated for every block of a feature axis (i or j)."""

    axis: str
    body: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """A state that stays on chip while the kernel walks over chunks.

    `tile` is read by the body; after it, or before that of the next chunk if it `waits`, tile = `update`, to which the
    dots of `added` are added; where `late` is not None, it multiplies the sum. Chunk states go to `saved` unless None.
    `rounded`: dots of the body read this tile instead, the same in their type, which the loop carries as well.
    """

    tile: str
    update: Expr
    first: str  # tensor it starts from (may be absent in a call)
    last: str  # tensor it ends in (may be absent)
    saved: str | None
    reverse: bool = False
    added: tuple[Dot, ...] = ()
    axes: tuple[str, str] = ("i", "j")  # of the tile
    late: Ref | None = None
    waits: bool = False
    rounded: str = ""
    ahead: bool = False  # what enters a chunk is stored, in large tiles, at the end of the one before

    @property
    def reads(self) -> tuple[str, ...]:
        """Names that make the next state, its own among them."""
        late = () if self.late is None else (self.late.name,)
        return (*(r.name for r in refs(self.update)), *(o.name for dot in self.added for o in (dot.x, dot.y)), *late)


@dataclass(frozen=True, slots=True)
class Judge:
    """What a kernel notes that walks: whether `sums`, of log values of `gate` over a chunk, are ever below -`limit`
    nats, too strong for one anchor, or below -`far` where runs reach further (both less SLACK)."""

    gate: str
    sums: str
    axis: str
    limit: Fraction
    far: Fraction

    @property
    def least(self) -> str:
        """The name of the least of them, of all chunks."""
        return f"{self.sums}_least"


@dataclass(frozen=True, slots=True)
class Ready:
    """Scores that another kernel may have made: their tensor, and the tile, [t, s] or [s, t], they are loaded in."""

    tensor: str
    tile: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: a program per block of `owned` axes, per chunk unless it scans, per sequence and head.

    `reduces_heads`: it makes gradients, and a program takes in turn all heads that share a head of some tensor. `sums`:
    local sums that it loads, for it has a block of the axis they are over. `judges`: by what one that walks, or goes
    before walks, notes whether gates are strong. `ready`: scores that it loads, all or none, where another made them,
    and no lines of `spared` then (`late`: of strong gates). `given`: tiles of, or for, others. `may_halve`: see
    halves.py; `leaves_values`: see beyond.py.
    """

    name: str
    doc: str
    owned: tuple[str, ...]  # feature axes blocked over the grid
    looped: str | None  # feature axis the program loops over
    whole: tuple[str, ...]  # axes of which one block holds everything
    direction: str | None  # scans: "forward" or "reverse"; None: one chunk a program
    scans: tuple[Scan, ...]
    body: tuple[Line | Loop, ...]
    stores: tuple[Store, ...]
    tiles: Tiles
    reduces_heads: bool = False
    sums: tuple[str, ...] = ()
    judges: tuple[Judge, ...] = ()
    ready: tuple[Ready, ...] = ()
    spared: frozenset[Line] = frozenset()
    late: bool = False
    given: tuple[str, ...] = ()
    may_halve: bool = False
    leaves_values: bool = False

    @property
    def of_gradients(self) -> bool:
        """Does it make gradients, or sums that those need?"""
        return self.name not in FORWARD

    @property
    def of_states(self) -> bool:
        """Does it walk for the states alone? Its heads are then the state's."""
        return self.direction == "forward" and not self.stores

    @property
    def runs_twice(self) -> bool:
        """Does it run as if all gates were mild, then again where some are not? With halves, or what others make so."""
        return self.late or self.leaves_values or any(isinstance(line, Depth) for line in self.lines)

    @property
    def waits(self) -> bool:
        """Does what its states take wait for the next turn?"""
        return any(scan.waits for scan in self.scans)

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, in loops and out of them."""
        return tuple(line for item in self.body for line in lines_of(item))

    @property
    def turned(self) -> frozenset[str]:
        """The tiles that have the columns of values first (see schedule/turn.py), and results with any before steps."""
        first = ("ji", "jt", "js", *(("it", "is") if self.name in (*ALONE_KERNELS, KEY_GRADIENTS) else ()))
        written = {x.name for x in self._single_lines() if "".join(x.axes) in first and not isinstance(x, Load)}
        return frozenset(written | {scan.tile for scan in self.scans if scan.axes[0] == "j"})

    @property
    def added(self) -> dict[str, tuple[str, ...]]:
        """The tiles that lines add to, with their axes."""
        return {x.name: x.axes for x in self._single_lines() if not isinstance(x, Load) and x.accumulate}

    @property
    def zeros(self) -> dict[str, tuple[str, ...]]:
        """Those of them that no line begins: they start at zero."""
        begun = {x.name for x in self._single_lines() if isinstance(x, Load) or not x.accumulate}
        return {name: axes for name, axes in self.added.items() if name not in begun}

    def _single_lines(self) -> Iterator[Load | Depth | BlockLine]:
        """All lines, with those of blocks in their place."""
        for line in self.lines:
            yield from line.body if isinstance(line, Blocks) else (line,)


def lines_of(item: Line | Loop) -> tuple[Line, ...]:
    """The lines of a loop, or the one that stands alone."""
    return item.body if isinstance(item, Loop) else (item,)


def written(line: Line) -> tuple[str, ...]:
    """Names a line defines or adds to."""
    return tuple(dict.fromkeys(n for x in line.body for n in written(x))) if isinstance(line, Blocks) else (line.name,)


def read(line: Line) -> tuple[str, ...]:
    """Names a line uses from outside."""
    match line:
        case Load():
            names: list[str] = []
        case Assign(expr=expr, mild=mild, still_mild=still, strong=strong):
            used = (expr, mild, still[0] if still else None, strong)
            names = [r.name for x in used if x is not None for r in walk(x) if isinstance(r, Ref)]
        case Dot(x=x, y=y):
            names = [x.name, y.name]
        case RowSum(source=source):
            names = [source.name]
        case Depth(source=source, since=since):
            names = [source.name, since] if since else [source.name]
        case Blocks(body=body, depth=depth):
            own: set[str] = set()
            names = [depth] if depth else []
            for inner in body:
                names += [n for n in read(inner) if n not in own]
                own |= set(written(inner))
        case _:
            raise InternalError(f"unknown line {line!r}")
    return tuple(dict.fromkeys(names))
